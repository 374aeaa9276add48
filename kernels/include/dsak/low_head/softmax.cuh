// Softmax of one key block: P = scale * 2^(logit - frame), rounded and written to shared memory as wgmma's second operand.
//
// Logits are in octaves (factors of two). The frame, a head's subtracted maximum, is the same number in all threads. A block's
// P is computed in the frame of the block before; the barrier that P needs anyway tells whether some logit left the frame by
// more than the slack. Only then maxima are exchanged, older sums rescaled and P done again: no shuffles in the common case.
#pragma once

#include "dsak/convert.cuh"
#include "dsak/ldmatrix.cuh"
#include "dsak/low_head/lanes.cuh"
#include "dsak/low_head/layout.cuh"
#include "dsak/low_head/products.cuh"
#include "dsak/named_barrier.cuh"
#include "dsak/shared_memory.cuh"

namespace dsak::low_head {

// Barrier of all consumers.
__device__ __forceinline__ void consumer_barrier() { named_barrier::sync<1, kConsumerThreads>(); }

// Barriers of the threads of a team. One team alone uses the consumers' barrier.
__device__ __forceinline__ void team_barrier(u32 team) {
  if constexpr (kTeams == 1)
    consumer_barrier();
  else
    named_barrier::sync<kTeamThreads>(2 + team);
}
__device__ __forceinline__ bool team_barrier_any(u32 team, bool mine) {
  if constexpr (kTeams == 1)
    return named_barrier::any<1, kConsumerThreads>(mine);
  else
    return named_barrier::any<kTeamThreads>(2 + team, mine);
}

// Masks the two keys of this thread.
__device__ __forceinline__ void mask_scores(Scores& s, u32 valid_low, u32 valid_high, u32 warp, u32 g) {
  const u32 bits = ((warp & 2) ? valid_high : valid_low) >> ((warp & 1) * 16 + g);
#pragma unroll
  for (u32 n = 0; n < kHeadGroups; ++n) {
    if (!(bits & 1)) s[4 * n] = s[4 * n + 1] = negative_infinity();
    if (!(bits & 256)) s[4 * n + 2] = s[4 * n + 3] = negative_infinity();
  }
}

// The frames of this thread's heads. All threads of a team use the same ones; they lie in the team's shared memory between
// blocks.
struct Frames {
  float of[kOwn];

  static __device__ __forceinline__ void clear(u32 memory) {
    const u32 head = threadIdx.x % kTeamThreads;
    if (head < kHeads) shared::store(memory + plan::kFrame + 4 * head, kEmptyFrame);
  }
  __device__ __forceinline__ void load(u32 memory, u32 t) {
#pragma unroll
    for (u32 n = 0; n < kHeadGroups; ++n) shared::load(of[2 * n], of[2 * n + 1], memory + plan::kFrame + 4 * head_of(2 * n, t));
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

  // Moves the frames to the running maxima of the team; `rescale` becomes the factor of sums in the old frames.
  __device__ __forceinline__ void move_frames(float (&rescale)[kOwn], const Frames& frames, const Member& me) {
#pragma unroll
    for (u32 i = 0; i < kOwn; ++i) {
      const float x = column_max(maximum[i]);
      if (me.g == 0) shared::store(me.memory + plan::kFrameMax + 4 * (me.warp * kHeads + head_of(i, me.t)), x);
    }
    team_barrier(me.team);
#pragma unroll
    for (u32 i = 0; i < kOwn; ++i) {
      float x = frames.of[i];
#pragma unroll
      for (u32 w = 0; w < 4; ++w)
        x = fmaxf(x, shared::load_f32(me.memory + plan::kFrameMax + 4 * (w * kHeads + head_of(i, me.t))));
      if (me.warp == 0 && me.g == 0) shared::store(me.memory + plan::kFrame + 4 * head_of(i, me.t), x);
      rescale[i] = exp2_approx(frames.of[i] - x);
      sum[i] *= rescale[i];
    }
    team_barrier(me.team);
  }
};

// Exponentials of a block to the P at address `p`. `sums` is over this thread's keys. The elements of P (pack_probabilities)
// are so arranged that one transposed stmatrix per warp writes K-major core matrices.
__device__ __forceinline__ void store_probabilities(float (&sums)[kOwn], const Scores& logits, const Frames& frames, u32 p,
                                                    u32 warp, u32 lane) {
  u32 words[kProbabilityCores];
#pragma unroll
  for (u32 n = 0; n < kHeadGroups; ++n) {
    float e[4];  // head 2n: keys g and g + 8; head 2n + 1: the same
#pragma unroll
    for (u32 h = 0; h < 2; ++h) {
      const float offset = kLog2ProbabilityScale - frames.of[2 * n + h];
      e[2 * h] = exp2_approx(logits[4 * n + h] + offset);
      e[2 * h + 1] = exp2_approx(logits[4 * n + 2 + h] + offset);
      sums[2 * n + h] = e[2 * h] + e[2 * h + 1];
    }
    pack_probabilities(words, n, e);
  }
  constexpr u32 kPack = kProbabilityCores < 4 ? kProbabilityCores : 4;
  const u32 address = p + warp * kProbabilityCores * plan::kCore + (lane & (8 * kPack - 1)) * 16;
#pragma unroll
  for (u32 first = 0; first < kProbabilityCores; first += kPack) {
    u32 pack[kPack];
#pragma unroll
    for (u32 i = 0; i < kPack; ++i) pack[i] = words[first + i];
    stmatrix_trans(pack, address + first * plan::kCore);
  }
  shared::fence_async_proxy();  // wgmma reads it
}

}  // namespace dsak::low_head
