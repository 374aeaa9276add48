// Puts the parts of split items together: out = kv_scale * sum_p w_p O_p / (sum_p w_p + sink), w_p = 2^(log2_sum_p - largest).
//
// A CTA has four rows of 64 threads, a thread eight columns. With many parts an item (few tokens) the rows share the parts of
// one head, and every load is on its way before the first is used; with few parts a row has a head to itself. Parts without a
// valid key have weight 0; an item without one gets out 0, max_logits -inf, lse +inf. A part that is NaN makes the item NaN.
#pragma once

#include "dsak/convert.cuh"
#include "dsak/dependent_launch.cuh"
#include "dsak/types.cuh"

using namespace dsak;

static_assert(DSAK_THREADS == 256 && DSAK_SHARED == 0, "include/q8.py declares another launch");

namespace {

constexpr float kLn2 = 0.693147180559945f, kLog2e = 1.44269504088896f;
constexpr i32 kHeads = 64, kLatent = 512;  // of a part
constexpr i32 kRows = 4;                   // of a CTA
constexpr i32 kInFlight = 4;               // parts that a thread loads before it uses the first

// fmaxf passes over NaN.
__device__ __forceinline__ float larger_or_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

// Eight halves and the base-2 log of the sum of a part, or those of one without a valid key. Predicated, not branched around,
// so that the loads of several parts are issued one after another.
__device__ __forceinline__ void load_part(uint4& halves, float& log2_sum, const u16* out, const float2* scalars, bool exists) {
  log2_sum = negative_infinity();
  halves = make_uint4(0, 0, 0, 0);
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.u32 p, %7, 0;\n"
      "@p ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%5];\n"
      "@p ld.global.nc.f32 %4, [%6];\n"
      "}"
      : "+r"(halves.x), "+r"(halves.y), "+r"(halves.z), "+r"(halves.w), "+f"(log2_sum)
      : "l"(out), "l"(scalars), "r"(static_cast<u32>(exists)));
}

__device__ __forceinline__ float weight_of(float log2_sum, float largest) {
  return log2_sum == negative_infinity() ? 0.f : exp2_approx(log2_sum - largest);
}

// The largest of the parts' (base-2 log of the sum, logit) of one head, in every lane.
__device__ __forceinline__ float2 largest_of(const float2* scalars, i32 splits) {
  float log2_sum = negative_infinity(), logit = negative_infinity();
#pragma unroll 1
  for (i32 p = static_cast<i32>(threadIdx.x & 31); p < splits; p += 32) {
    const float2 s = __ldg(scalars + p * kHeads);
    log2_sum = fmaxf(log2_sum, s.x);
    logit = larger_or_nan(logit, s.y);
  }
#pragma unroll
  for (u32 step = 16; step > 0; step >>= 1) {
    log2_sum = fmaxf(log2_sum, __shfl_xor_sync(~0u, log2_sum, step));
    logit = larger_or_nan(logit, __shfl_xor_sync(~0u, logit, step));
  }
  return make_float2(log2_sum, logit);
}

struct Sums {
  float weights = 0.f, columns[8] = {};

  __device__ __forceinline__ void add(float weight, const uint4& halves) {
    const u32 words[4] = {halves.x, halves.y, halves.z, halves.w};
    weights += weight;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      float low, high;
      unpack_f16x2(low, high, words[i]);
      columns[2 * i] = fmaf(weight, low, columns[2 * i]);
      columns[2 * i + 1] = fmaf(weight, high, columns[2 * i + 1]);
    }
  }
};

}  // namespace

// A CTA takes `heads` heads: 4, a row each, or 1, whose parts (at least 4) the rows share.
extern "C" __global__ void __launch_bounds__(64 * kRows, 5)
    sparse_mla_combine(const u16* __restrict__ partial_out, const float2* __restrict__ partial_scalars,
                       const float* __restrict__ attn_sink, const float* __restrict__ kv_scale, bf16_bits* out,
                       float* max_logits, float* lse, i64 out_stride_t, i64 out_stride_h, i32 H, i32 whole_items, i32 splits,
                       i32 heads) {
  dependent_launch::wait();
  dependent_launch::release();
  const i32 row = static_cast<i32>(threadIdx.x >> 6);
  const bool sharing = heads == 1;
  const i32 first_of_row = sharing ? row : 0, step = sharing ? kRows : 1;  // parts
  const i32 local_head = static_cast<i32>(blockIdx.y) * heads + (sharing ? 0 : row);
  const i32 column = static_cast<i32>(threadIdx.x & 63) * 8;
  const i64 first_part = static_cast<i64>(blockIdx.x) * splits;
  const float2* scalars = partial_scalars + first_part * kHeads + local_head;
  const u16* part_row = partial_out + (first_part * kHeads + local_head) * kLatent + column;

  float2 largest;
  Sums sums;
#pragma unroll 1
  for (i32 first = first_of_row; first < splits; first += kInFlight * step) {
    uint4 halves[kInFlight];
    float log2_sum[kInFlight];
#pragma unroll
    for (i32 i = 0; i < kInFlight; ++i) {
      const u32 p = static_cast<u32>(first + i * step);  // few: 32 bits hold the offsets
      load_part(halves[i], log2_sum[i], part_row + p * static_cast<u32>(kHeads * kLatent),
                scalars + p * static_cast<u32>(kHeads), p < static_cast<u32>(splits));
    }
    if (first == first_of_row) largest = largest_of(scalars, splits);
#pragma unroll
    for (i32 i = 0; i < kInFlight; ++i) {
      if (first + i * step >= splits) break;
      sums.add(weight_of(log2_sum[i], largest.x), halves[i]);
    }
  }
  if (sharing) {
    __shared__ float shared_sums[kRows][9][64];
    const u32 thread = threadIdx.x & 63;
#pragma unroll
    for (u32 i = 0; i < 8; ++i) shared_sums[row][i][thread] = sums.columns[i];
    shared_sums[row][8][thread] = sums.weights;
    __syncthreads();
    if (row != 0) return;
#pragma unroll
    for (i32 r = 1; r < kRows; ++r) {
#pragma unroll
      for (u32 i = 0; i < 8; ++i) sums.columns[i] += shared_sums[r][i][thread];
      sums.weights += shared_sums[r][8][thread];
    }
  }
  const bool any = sums.weights != 0.f;
  const i32 item = whole_items + static_cast<i32>(blockIdx.x);
  const i32 head_tiles = H / kHeads, token = item / head_tiles, head = (item - token * head_tiles) * kHeads + local_head;
  float divisor = sums.weights;
  if (attn_sink != nullptr) divisor += exp2_approx(fmaf(__ldg(attn_sink + head), kLog2e, -largest.x));
  const float factor = any ? __fdividef(kv_scale != nullptr ? __ldg(kv_scale) : 1.f, divisor) : 0.f;
  uint4 packed;
  packed.x = to_bf16x2(sums.columns[0] * factor, sums.columns[1] * factor);
  packed.y = to_bf16x2(sums.columns[2] * factor, sums.columns[3] * factor);
  packed.z = to_bf16x2(sums.columns[4] * factor, sums.columns[5] * factor);
  packed.w = to_bf16x2(sums.columns[6] * factor, sums.columns[7] * factor);
  *reinterpret_cast<uint4*>(out + token * out_stride_t + head * out_stride_h + column) = packed;
  if (column != 0) return;
  const i64 place = static_cast<i64>(token) * H + head;
  if (max_logits != nullptr) max_logits[place] = largest.y;
  if (lse != nullptr) lse[place] = any ? (log2_approx(sums.weights) + largest.x) * kLn2 : positive_infinity();
}
