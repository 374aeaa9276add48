// Scores and softmax of one key block: S = Q K^T in registers, P = e4m3(scale * 2^(S c - frame)) to shared memory.
//
// Thread (warp w, lane 4g + t) owns rows (heads) 16w + g and 16w + g + 8, columns (keys) 8j + 2t and 8j + 2t + 1.
#pragma once

#include "dsak/convert.cuh"
#include "dsak/descriptor.cuh"
#include "dsak/mbarrier.cuh"
#include "dsak/named_barrier.cuh"
#include "dsak/q8/layout.cuh"
#include "dsak/registers.cuh"
#include "dsak/shared_memory.cuh"
#include "dsak/swizzle.cuh"
#include "dsak/wgmma.cuh"

namespace dsak::q8 {

// Issues steps first..last - 1 of S = Q K^T; the caller fences before, commits and waits after.
template <u32 first, u32 last>
__device__ __forceinline__ void issue_scores(float (&s)[32], u32 query, u32 keys) {
  const u64 q = descriptor::rows128(query), k = descriptor::rows128(keys);
#pragma unroll
  for (u32 step = first; step < last; ++step) {
    const u32 offset = (step >> 2) * plan::kTile + (step & 3) * 32;
    if (step == 0)
      wgmma::multiply(s, q, k);
    else
      wgmma::multiply_add(s, descriptor::advance(q, offset), descriptor::advance(k, offset));
  }
  if constexpr (kHasRope && last == 16) {
    const u64 q_rope = descriptor::rows64(query + plan::kRopeTile), k_rope = descriptor::rows64(keys + plan::kRopeTile);
#pragma unroll
    for (u32 step = 0; step < 2; ++step)
      wgmma::multiply_add(s, descriptor::advance(q_rope, step * 32), descriptor::advance(k_rope, step * 32));
  }
}

// Running softmax state of the thread's two rows. `frame` is the subtracted maximum: at most the slack below the true one.
struct RowState {
  float frame[2];
  float maximum[2];        // of this thread's columns
  float sum[2];            // of this thread's exponentials, in the frame
  float quantised_sum[2];  // of the e4m3 values that are multiplied with V

  __device__ __forceinline__ void reset() {
#pragma unroll
    for (u32 r = 0; r < 2; ++r) {
      frame[r] = maximum[r] = kEmptyFrame;
      sum[r] = quantised_sum[r] = 0.f;
    }
  }
};

// Launch-wide factors, kept in shared memory because registers are scarcer: the factor of a score in the exponent of 2
// (positive), the frame slack in scores, what raw scores are multiplied by first, and kv_scale.
struct Constants {
  float score_factor, slack, multiplier;

  static __device__ __forceinline__ Constants load(u32 smem) {
    Constants c;
    shared::load(c.score_factor, c.slack, smem + plan::kConstants);
    c.multiplier = shared::load_f32(smem + plan::kConstants + 8);
    return c;
  }

  static __device__ __forceinline__ void store(u32 smem, const Arguments& args) {
    const float q_scale = args.q_scale != nullptr ? *args.q_scale : 1.f;
    const float kv_scale = args.kv_scale != nullptr ? *args.kv_scale : 1.f;
    const float factor = q_scale * kv_scale * args.sm_scale * kLog2e;
    // A factor that is not positive goes into the scores, so that a larger score always means a larger weight and a masked
    // score
    // (-inf) never meets a zero. So does a large one: the rounded product of the frame and such a factor can be octaves off.
    // One that is not finite makes every score NaN, and leaves masked ones masked.
    const bool usual = factor > 0.f && factor <= kLargestFusedFactor;
    const float finite = fminf(fmaxf(factor, -kLargestFactor), kLargestFactor);
    const float not_a_number = factor - factor;  // where it is not finite
    shared::store(smem + plan::kConstants, usual ? factor : 1.f);
    shared::store(smem + plan::kConstants + 4, usual ? fminf(kFrameSlack / factor, 1e9f) : kFrameSlack);
    shared::store(smem + plan::kConstants + 8, usual ? 1.f : fabsf(factor) < positive_infinity() ? finite : not_a_number);
    shared::store(smem + plan::kConstants + 12, kv_scale);
  }
};

__device__ __forceinline__ void mask_scores(float (&s)[32], u32 valid_low, u32 valid_high, u32 t) {
#pragma unroll
  for (u32 j = 0; j < 8; ++j) {
    const u32 bits = (j < 4 ? valid_low : valid_high) >> (8 * (j & 3) + 2 * t);
    if (!(bits & 1)) s[4 * j] = s[4 * j + 2] = negative_infinity();
    if (!(bits & 2)) s[4 * j + 1] = s[4 * j + 3] = negative_infinity();
  }
}

__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

// Sum of the e4m3 values of four words of one row, exact but for float16 rounding of the pairwise sums.
__device__ __forceinline__ float sum_e4m3(const u32 (&words)[4]) {
  u32 pairs = 0;
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
    const u32 both = add_f16x2(e4m3x2_to_f16x2(static_cast<u16>(words[i])), e4m3x2_to_f16x2(static_cast<u16>(words[i] >> 16)));
    pairs = i == 0 ? both : add_f16x2(pairs, both);
  }
  float low, high;
  unpack_f16x2(low, high, pairs);
  return low + high;
}

// What e4m3 rounding left of two values, as e4m3.
__device__ __forceinline__ u16 residual_e4m3x2(float low, float high, u16 rounded) {
  float r0, r1;
  unpack_f16x2(r0, r1, e4m3x2_to_f16x2(rounded));
  return to_e4m3x2(low - r0, high - r1);
}

struct ScoreWarp {
  const u32 smem;
  const u32 own_words;  // smem plus the offset of this thread's first word inside a tile of P
  const u32 thread = registers::thread_index();
  const u32 warp = (thread >> 5) & 3;  // within the warpgroup
  const u32 g = (thread >> 2) & 7, t = thread & 3;

  __device__ __forceinline__ u32 row(u32 r) const { return 16 * warp + g + 8 * r; }

  // Moves the frame of rows whose maximum passed it by more than the slack; returns whether any row of the warp moved.
  // `rescale` becomes the factor of everything accumulated in the old frame.
  __device__ __forceinline__ bool move_frame(RowState& rows, const float (&block_max)[2], float (&rescale)[2],
                                             const Constants& constants) const {
    rescale[0] = rescale[1] = 1.f;
    if (!__any_sync(~0u, (block_max[0] > rows.frame[0] + constants.slack) | (block_max[1] > rows.frame[1] + constants.slack)))
      return false;
    bool moved = false;
#pragma unroll
    for (u32 r = 0; r < 2; ++r) {
      const float row_max = quad_max(block_max[r]);
      if (row_max > rows.frame[r] + constants.slack) {
        rescale[r] = exp2_approx((rows.frame[r] - row_max) * constants.score_factor);
        rows.frame[r] = row_max;
        rows.sum[r] *= rescale[r];
        if constexpr (kQuantisedSum) rows.quantised_sum[r] *= rescale[r];
        moved = true;
      }
    }
    return __any_sync(~0u, moved);
  }

  // Exponentials of row r of the block, to P as wgmma's K-major operand. Inside every 32 keys, byte 16h + 4t + i of a row is
  // key 16h + 8(i / 2) + 2t + i % 2: the order in which a thread holds them, and the order of V's register fragments.
  __device__ __forceinline__ void store_probabilities(const float (&s)[32], RowState& rows, u32 r, u32 slot,
                                                      const Constants& constants) const {
    const u32 first = own_words + plan::probability(slot, 0), second = own_words + plan::probability(slot, kTwoTerms ? 1 : 0);
    // Not fused: wherever the frame is used it is the same number.
    const float offset = kLog2ProbabilityScale - __fmul_rn(rows.frame[r], constants.score_factor);
    u32 words[4];
#pragma unroll
    for (u32 chunk = 0; chunk < 4; ++chunk) {
      float e[4];
#pragma unroll
      for (u32 i = 0; i < 4; ++i)
        e[i] = exp2_approx(fmaf(s[8 * chunk + 4 * (i >> 1) + 2 * r + (i & 1)], constants.score_factor, offset));
      rows.sum[r] += (e[0] + e[1]) + (e[2] + e[3]);
      const u16 low = to_e4m3x2(e[0], e[1]), high = to_e4m3x2(e[2], e[3]);
      words[chunk] = pack_u16(low, high);
      // Eight rows further down the swizzle is the same.
      shared::store((first ^ (chunk << 4)) + r * 512, words[chunk]);
      if constexpr (kTwoTerms)
        shared::store((second ^ (chunk << 4)) + r * 512,
                      pack_u16(residual_e4m3x2(e[0], e[1], low), residual_e4m3x2(e[2], e[3], high)));
    }
    if constexpr (kQuantisedSum) rows.quantised_sum[r] += sum_e4m3(words);
  }

  // Results of a unit: the output's factor to shared memory, lse and max_logits to global memory.
  __device__ __forceinline__ void finish_unit(const RowState& rows, u32 slot, i32 unit_index, const Arguments& args,
                                              const Constants& constants) const {
    // After the sums every lane of a quad knows both rows; lane 0 finishes one and lane 1 the other.
    const float sums[2] = {quad_sum(rows.sum[0]), quad_sum(rows.sum[1])};
    const float maxima[2] = {quad_max(rows.maximum[0]), quad_max(rows.maximum[1])};
    float divisors[2] = {sums[0], sums[1]};
    if constexpr (kQuantisedSum) {
      divisors[0] = quad_sum(rows.quantised_sum[0]);
      divisors[1] = quad_sum(rows.quantised_sum[1]);
    }
    if (t >= 2) return;
    const bool other = t == 1;
    const float sum = other ? sums[1] : sums[0];
    const float maximum = sum == sum ? (other ? maxima[1] : maxima[0]) : sum;  // fmaxf passes over NaN
    const float frame = __fmul_rn(other ? rows.frame[1] : rows.frame[0], constants.score_factor);
    // With one-term P the weights that V meets are the rounded ones; dividing by their own sum keeps the output's gain right
    // when rounding is one-sided (flat rows). The exact sum serves lse and the share of the sink.
    const float divisor = other ? divisors[1] : divisors[0];
    const float log2_sum = log2_approx(sum) + frame - kLog2ProbabilityScale;
    const bool any = sum != 0.f;  // NaN is of a valid key, and has to come out
    const u32 normaliser_address = smem + plan::kNormaliser + 256 * slot + 4 * row(t);
    const Unit unit(unit_index, args);
    if (unit.part >= 0) {
      shared::store(normaliser_address, any ? __fdividef(1.f, divisor) : 0.f);
      float* scalars = args.partial_scalars + (static_cast<i64>(unit.part) * kHeads + row(t)) * 2;
      scalars[0] = any ? log2_sum : negative_infinity();
      scalars[1] = any ? maximum * constants.score_factor * kLn2 : negative_infinity();
      return;
    }
    float normaliser = __fdividef(shared::load_f32(smem + plan::kConstants + 12), divisor);
    if (args.attn_sink != nullptr) {
      const i32 head = unit.item % (args.H / static_cast<i32>(kHeads)) * static_cast<i32>(kHeads) + static_cast<i32>(row(t));
      const float sink = __ldg(args.attn_sink + head);
      normaliser *= __fdividef(sum, sum + exp2_approx(fmaf(sink, kLog2e, kLog2ProbabilityScale - frame)));
    }
    shared::store(normaliser_address, any ? normaliser : 0.f);
    const i64 head_row = static_cast<i64>(unit.item) * kHeads + row(t);
    if (args.max_logits != nullptr)
      args.max_logits[head_row] = any ? maximum * constants.score_factor * kLn2 : negative_infinity();
    if (args.lse != nullptr) args.lse[head_row] = any ? log2_sum * kLn2 : positive_infinity();
  }

  // Factor and mask: the only writes to the scores, before the next scores are issued (ptxas would serialise them otherwise).
  __device__ __forceinline__ void prepare(float (&s)[32], u32 valid_low, u32 valid_high, float multiplier) const {
    if (multiplier != 1.f) {  // NaN too
#pragma unroll
      for (u32 i = 0; i < 32; ++i) s[i] *= multiplier;
    }
    if ((valid_low & valid_high) != ~0u) mask_scores(s, valid_low, valid_high, t);
  }

  // Softmax of the block in stage `slot`, whose prepared scores are in s. `between` runs halfway through the exponentials.
  template <class Between>
  __device__ __forceinline__ void run(const float (&s)[32], RowState& rows, const Constants& constants, u32 slot, u32 flags,
                                      i32 unit_index, const Arguments& args, const Between& between) const {
    float block_max[2];
#pragma unroll
    for (u32 r = 0; r < 2; ++r) {
      // A tree: a chain of sixteen dependent maxima would take longer than the exponentials.
      float m[8];
#pragma unroll
      for (u32 j = 0; j < 8; ++j) m[j] = fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]);
#pragma unroll
      for (u32 width = 4; width > 0; width >>= 1)
#pragma unroll
        for (u32 j = 0; j < width; ++j) m[j] = fmaxf(m[j], m[j + width]);
      block_max[r] = m[0];
    }
    rows.maximum[0] = fmaxf(rows.maximum[0], block_max[0]);
    rows.maximum[1] = fmaxf(rows.maximum[1], block_max[1]);
    float rescale[2];
    const bool moved = move_frame(rows, block_max, rescale, constants);

    // P's place needs no barrier of its own: it belongs to the stage, whose earlier tenant is gone. Only at 576 the other warps
    // of this warpgroup may still read the rope tile that P replaces.
    if constexpr (kHasRope) named_barrier::sync<1, 128>();
    store_probabilities(s, rows, 0, slot, constants);
    between();
    store_probabilities(s, rows, 1, slot, constants);
    // Always, also 1: the value warps scale all 64 heads as soon as one warp's frame moved.
    if (t == 0) {
#pragma unroll
      for (u32 r = 0; r < 2; ++r) shared::store(smem + plan::kRescale + 256 * slot + 4 * row(r), rescale[r]);
    }
    if ((g | t) == 0) shared::store(smem + plan::kNews + 16 * slot + 4 * warp, flags | (moved ? kMovedFrame : 0u));
    if (flags & kLastOfItem) {
      finish_unit(rows, slot, unit_index, args, constants);
      rows.reset();
    }
    shared::fence_async_proxy();  // P is read by wgmma
    mbarrier::arrive_for_warp(smem + plan::kProbabilityFull + 8 * slot, (g | t) == 0);
  }
};

}  // namespace dsak::q8
