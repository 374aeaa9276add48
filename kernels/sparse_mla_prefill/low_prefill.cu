// Sparse-MLA prefill for SM90 and few heads, FP8 or BF16 queries and rows: out = softmax(c Q K[idx]^T) V[idx], V = the first
// 512 columns of K's rows. One CTA per token and tile of 8, 16 or 32 heads. The kernel itself: dsak/low_head.
//
// Measured on an H200 by benchmarks/rates.py --only low: docs/tuning/low_head.md.
#include "dsak/low_head/kernel.cuh"

using namespace dsak;

extern "C" __global__ void __launch_bounds__(low_head::kThreads, low_head::kCtasPerSm)
    sparse_mla_prefill_low(const u8* q, const u8* q_rope, DSAK_ROWS kv, const i32* indices, const i32* topk_length,
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
