#include "dsak/q8/attention.cuh"
