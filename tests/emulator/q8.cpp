// The kernel of dsak/q8 on the machine, as the declaration in Python sets it.
#include <array>
#include <cmath>
#include <cstring>

namespace dsak::q8 {
unsigned char dynamic_shared[1];
}
unsigned char dynamic_shared[1];

#include "sparse_mla_prefill/q8_prefill.cu"

using namespace dsak;

extern "C" int emulate(u32 grid, u32 seed, const u8* q, const u8* q_rope, const u8* kv, const i32* indices,
                       const i32* topk_length, const float* attn_sink, const float* q_scale, const float* kv_scale,
                       bf16_bits* out, float* max_logits, float* lse, u16* partial_out, float* partial_scalars,
                       const i64* strides, i32 T, i32 H, i32 topk, i32 s_kv, i32 whole_items, i32 splits, float sm_scale) {
  const tensor_copy::Map queries{q, strides[1], H, 512, strides[0], T, 64};
  const tensor_copy::Map results{reinterpret_cast<const u8*>(out), 2 * strides[7], H, 1024, 2 * strides[6], T, 16};
  return machine::run(grid, 1, 1, DSAK_THREADS, DSAK_SHARED, seed, [=] {
    sparse_mla_prefill_q8(queries, q_rope, kv, indices, topk_length, attn_sink, q_scale, kv_scale, results, max_logits, lse,
                          partial_out, partial_scalars, strides[0], strides[1], strides[2], strides[3], strides[4], strides[5],
                          strides[6], strides[7], T, H, topk, s_kv, whole_items, splits, sm_scale);
  });
}
