// Puts the parts of split items together: out = kv_scale * sum_p w_p O_p / (sum_p w_p + sink), w_p = 2^(log2_sum_p - largest).
//
// A CTA of 256 threads takes four heads of one item, 64 threads a head, eight columns a thread. Parts without a valid key have
// weight 0; an item without one gets out 0, max_logits -inf, lse +inf.
#pragma once

#include "dsak/convert.cuh"
#include "dsak/types.cuh"

using namespace dsak;

static_assert(DSAK_THREADS == 256 && DSAK_SHARED == 0, "include/q8.py declares another launch");

namespace {

constexpr float kLn2 = 0.693147180559945f, kLog2e = 1.44269504088896f;
constexpr i32 kHeads = 64, kLatent = 512;  // of a part

}  // namespace

extern "C" __global__ void __launch_bounds__(256)
    sparse_mla_combine(const u16* __restrict__ partial_out, const float2* __restrict__ partial_scalars,
                       const float* __restrict__ attn_sink, const float* __restrict__ kv_scale, bf16_bits* out,
                       float* max_logits, float* lse, i64 out_stride_t, i64 out_stride_h, i32 H, i32 whole_items, i32 splits) {
  const i32 local_head = static_cast<i32>(blockIdx.y * 4 + (threadIdx.x >> 6));
  const i32 column = static_cast<i32>(threadIdx.x & 63) * 8;
  const i64 first_part = static_cast<i64>(blockIdx.x) * splits;
  const float2* scalars = partial_scalars + first_part * kHeads + local_head;
  const u16* part_row = partial_out + (first_part * kHeads + local_head) * kLatent + column;

  float largest = negative_infinity(), largest_logit = negative_infinity();
  for (i32 p = 0; p < splits; ++p) {
    const float2 s = __ldg(scalars + p * kHeads);
    largest = fmaxf(largest, s.x);
    largest_logit = fmaxf(largest_logit, s.y);
  }
  const bool any = largest > negative_infinity();
  float weight_sum = 0.f, total[8] = {};
#pragma unroll 4
  for (i32 p = 0; p < splits; ++p) {
    const float log2_sum = __ldg(scalars + p * kHeads).x;
    const uint4 halves = __ldg(reinterpret_cast<const uint4*>(part_row + static_cast<i64>(p) * (kHeads * kLatent)));
    const float weight = any ? exp2_approx(log2_sum - largest) : 0.f;
    const u32 words[4] = {halves.x, halves.y, halves.z, halves.w};
    weight_sum += weight;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      float low, high;
      unpack_f16x2(low, high, words[i]);
      total[2 * i] = fmaf(weight, low, total[2 * i]);
      total[2 * i + 1] = fmaf(weight, high, total[2 * i + 1]);
    }
  }
  const i32 item = whole_items + static_cast<i32>(blockIdx.x);
  const i32 head_tiles = H / kHeads, token = item / head_tiles, head = (item - token * head_tiles) * kHeads + local_head;
  float divisor = weight_sum;
  if (attn_sink != nullptr) divisor += exp2_approx(fmaf(__ldg(attn_sink + head), kLog2e, -largest));
  const float factor = any ? __fdividef(kv_scale != nullptr ? __ldg(kv_scale) : 1.f, divisor) : 0.f;
  uint4 packed;
  packed.x = to_bf16x2(total[0] * factor, total[1] * factor);
  packed.y = to_bf16x2(total[2] * factor, total[3] * factor);
  packed.z = to_bf16x2(total[4] * factor, total[5] * factor);
  packed.w = to_bf16x2(total[6] * factor, total[7] * factor);
  *reinterpret_cast<uint4*>(out + token * out_stride_t + head * out_stride_h + column) = packed;
  if (column != 0) return;
  const i64 row = static_cast<i64>(token) * H + head;
  if (max_logits != nullptr) max_logits[row] = largest_logit;
  if (lse != nullptr) lse[row] = any ? (log2_approx(weight_sum) + largest) * kLn2 : positive_infinity();
}
