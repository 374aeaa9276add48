// The kernel of dsak/low_head on the machine, as the declaration in Python sets it.
#include <array>
#include <cmath>
#include <cstring>

#include "sparse_mla_decode/low_decode.cu"

namespace dsak::low_head {
u8 dynamic_shared[1];
}

using namespace dsak;

extern "C" int emulate(u32 grid_x, u32 grid_y, u32 cluster, u32 seed, const u8* q, const u8* q_rope, const u8* kv,
                       const i32* indices, const i32* topk_length, const float* attn_sink, const float* q_scale,
                       const float* kv_scale, bf16_bits* out, float* max_logits, float* lse, const i64* strides, i32 H,
                       i32 topk, i32 s_kv, float sm_scale) {
#if DSAK_LINES
  const tensor_copy::Map rows{kv, strides[4], s_kv, DSAK_D};
#else
  const u8* rows = kv;
#endif
  return machine::run(grid_x, grid_y, cluster, DSAK_THREADS, DSAK_SHARED, seed, [=] {
    sparse_mla_decode_low(q, q_rope, rows, indices, topk_length, attn_sink, q_scale, kv_scale, out, max_logits, lse, strides[0],
                          strides[1], strides[2], strides[3], strides[4], strides[5], strides[6], strides[7], H, topk, s_kv,
                          sm_scale);
  });
}
