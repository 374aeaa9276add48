// Decode of 64 and 128 heads over many tokens: the prefill kernel of 64-head tiles as it is.
#include "../sparse_mla_prefill/q8_prefill.cu"
