// Sparse-MLA decode for SM90, FP8 or BF16 queries and rows: as the prefill of few heads. With DSAK_SPLIT the keys of a token
// are shared by a cluster of two CTAs or more. One launch: partial results meet in the CTAs' shared memory
// (dsak/low_head/combine.cuh).
//
// Measured on an H200 by benchmarks/rates.py --only low: docs/tuning/low_head.md.
#include "dsak/low_head/kernel.cuh"

using namespace dsak;

extern "C" __global__ void __launch_bounds__(low_head::kThreads, low_head::kCtasPerSm)
    sparse_mla_decode_low(const u8* q, const u8* q_rope, DSAK_ROWS kv, const i32* indices, const i32* topk_length,
                          const float* attn_sink, const float* q_scale, const float* kv_scale, bf16_bits* out,
                          float* max_logits, float* lse, i64 q_stride_t, i64 q_stride_h, i64 q_rope_stride_t,
                          i64 q_rope_stride_h, i64 kv_stride, i64 indices_stride, i64 out_stride_t, i64 out_stride_h, i32 H,
                          i32 topk, i32 s_kv, float sm_scale) {
  low_head::run({q,
                 q_rope,
                 low_head::rows_of(kv),
                 indices,
                 topk_length,
                 attn_sink,
                 q_scale,
                 kv_scale,
                 out,
                 max_logits,
                 lse,
                 q_stride_t,
                 q_stride_h,
                 q_rope_stride_t,
                 q_rope_stride_h,
                 kv_stride,
                 indices_stride,
                 out_stride_t,
                 out_stride_h,
                 H,
                 topk,
                 s_kv,
                 sm_scale});
}
