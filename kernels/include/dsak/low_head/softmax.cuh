// Softmax of one key block: P = e4m3(scale * 2^(logit - frame)), written to shared memory as wgmma's second operand.
//
// Logits are in octaves (factors of two). The frame, a head's subtracted maximum, is the same number in all threads. A block's
// P is computed in the frame of the block before; the barrier that P needs anyway tells whether some logit left the frame by
// more than the slack. Only then maxima are exchanged, older sums rescaled and P done again: no shuffles in the common case.
#pragma once

#include "dsak/convert.cuh"
#include "dsak/ldmatrix.cuh"
#include "dsak/low_head/layout.cuh"
#include "dsak/low_head/scores.cuh"
#include "dsak/shared_memory.cuh"

namespace dsak::low_head {

constexpr u32 kOwn = 2 * kHeadGroups;  // heads of a thread: own head i is head_of(i)
__device__ __forceinline__ u32 head_of(u32 i, u32 t) { return (i >> 1) * 8 + 2 * t + (i & 1); }

// Barriers of the 128 consumer threads.
__device__ __forceinline__ void consumer_barrier() { asm volatile("barrier.cta.sync.aligned 1, 128;" ::: "memory"); }
__device__ __forceinline__ bool consumer_barrier_any(bool mine) {
  u32 any;
  asm volatile(
      "{\n"
      ".reg .pred p, q;\n"
      "setp.ne.u32 p, %1, 0;\n"
      "barrier.cta.red.or.pred.aligned q, 1, 128, p;\n"
      "selp.u32 %0, 1, 0, q;\n"
      "}"
      : "=r"(any)
      : "r"(static_cast<u32>(mine))
      : "memory");
  return any != 0;
}

// Over the lanes of equal t, which hold the other keys of the same heads.
__device__ __forceinline__ float column_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 4));
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 8));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 16));
}
__device__ __forceinline__ float column_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 4);
  x += __shfl_xor_sync(~0u, x, 8);
  return x + __shfl_xor_sync(~0u, x, 16);
}

// The frames of this thread's heads. All threads use the same ones; they lie in shared memory between blocks.
struct Frames {
  float of[kOwn];

  static __device__ __forceinline__ void clear(u32 smem) {
    if (threadIdx.x < kHeads) shared::store(smem + plan::kFrame + 4 * threadIdx.x, kEmptyFrame);
  }
  __device__ __forceinline__ void load(u32 smem, u32 t) {
#pragma unroll
    for (u32 n = 0; n < kHeadGroups; ++n) shared::load(of[2 * n], of[2 * n + 1], smem + plan::kFrame + 4 * head_of(2 * n, t));
  }
};

// What is known of a thread's heads. Sums are in the frame, times the probability scale, of this thread's keys alone.
struct Statistics {
  float maximum[kOwn], sum[kOwn];

  __device__ __forceinline__ void reset() {
#pragma unroll
    for (u32 i = 0; i < kOwn; ++i) {
      maximum[i] = negative_infinity();
      sum[i] = 0.f;
    }
  }

  __device__ __forceinline__ void note_maxima(const Scores& logits) {
#pragma unroll
    for (u32 i = 0; i < kOwn; ++i) {
      const u32 first = (i >> 1) * 4 + (i & 1);
      maximum[i] = fmaxf(maximum[i], fmaxf(logits[first], logits[first + 2]));
    }
  }

  // Whether a logit left its frame.
  __device__ __forceinline__ bool exceed(const Frames& frames) const {
    bool any = false;
#pragma unroll
    for (u32 i = 0; i < kOwn; ++i) any |= maximum[i] > frames.of[i] + kFrameSlack;
    return any;
  }

  // Moves the frames to the running maxima of all threads; `rescale` becomes the factor of sums in the old frames.
  __device__ __forceinline__ void move_frames(float (&rescale)[kOwn], const Frames& frames, u32 smem, u32 warp, u32 g, u32 t) {
#pragma unroll
    for (u32 i = 0; i < kOwn; ++i) {
      const float x = column_max(maximum[i]);
      if (g == 0) shared::store(smem + plan::kFrameMax + 4 * (warp * kHeads + head_of(i, t)), x);
    }
    consumer_barrier();
#pragma unroll
    for (u32 i = 0; i < kOwn; ++i) {
      float x = frames.of[i];
#pragma unroll
      for (u32 w = 0; w < 4; ++w) x = fmaxf(x, shared::load_f32(smem + plan::kFrameMax + 4 * (w * kHeads + head_of(i, t))));
      if (warp == 0 && g == 0) shared::store(smem + plan::kFrame + 4 * head_of(i, t), x);
      rescale[i] = exp2_approx(frames.of[i] - x);
      sum[i] *= rescale[i];
    }
    consumer_barrier();
  }
};

// Exponentials of a block to P, as two e4m3 terms: the value rounded, and what the rounding left. `sums` is over this thread's
// keys. A 16-bit element is the pair (key g, key g + 8) of one head, so that one transposed stmatrix per warp writes K-major
// core matrices; byte 2r of a row is key r of the warp's sixteen and byte 2r + 1 key r + 8, the order in which values.cuh
// delivers V.
__device__ __forceinline__ void store_probabilities(float (&sums)[kOwn], const Scores& logits, const Frames& frames, u32 smem,
                                                    u32 warp, u32 lane) {
  u32 words[kColumnGroups];
#pragma unroll
  for (u32 n = 0; n < kHeadGroups; ++n) {
    float e[4], rounded[4];  // head 2n: keys g and g + 8; head 2n + 1: the same
#pragma unroll
    for (u32 h = 0; h < 2; ++h) {
      const float offset = kLog2ProbabilityScale - frames.of[2 * n + h];
      e[2 * h] = exp2_approx(logits[4 * n + h] + offset);
      e[2 * h + 1] = exp2_approx(logits[4 * n + 2 + h] + offset);
      sums[2 * n + h] = e[2 * h] + e[2 * h + 1];
    }
    words[n] = to_e4m3x4(e[0], e[1], e[2], e[3]);
    from_e4m3x4(rounded, words[n]);
    words[kHeadGroups + n] = to_e4m3x4(e[0] - rounded[0], e[1] - rounded[1], e[2] - rounded[2], e[3] - rounded[3]);
  }
  constexpr u32 kPack = kColumnGroups < 4 ? kColumnGroups : 4;
  const u32 address = smem + plan::kProbability + warp * kColumnGroups * plan::kCore + (lane & (8 * kPack - 1)) * 16;
#pragma unroll
  for (u32 p = 0; p < kColumnGroups / kPack; ++p) {
    u32 pack[kPack];
#pragma unroll
    for (u32 i = 0; i < kPack; ++i) pack[i] = words[p * kPack + i];
    stmatrix_trans(pack, address + p * kPack * plan::kCore);
  }
  shared::fence_async_proxy();  // wgmma reads it
}

}  // namespace dsak::low_head
