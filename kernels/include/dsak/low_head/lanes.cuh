// Which heads a thread has, and exchanges between the lanes of a warp.
//
// Thread (warp w, lane 4g + t) owns keys 16w + g and 16w + g + 8 of heads 8n + 2t and 8n + 2t + 1: scores[4n], scores[4n + 1]
// are the first key's, scores[4n + 2], scores[4n + 3] the second one's. Of the output it owns two columns of the same heads.
#pragma once

#include "dsak/low_head/layout.cuh"
#include "dsak/registers.cuh"

namespace dsak::low_head {

// Whether the thread's index is kept in a register: two CTAs on an SM have one left. At 8 heads it made no difference, 32 heads
// that are not split spill.
constexpr bool kKeepThread = kCtasPerSm == 2 && (kHeads == 16 || (kHeads == 32 && kSplit));

// A thread among the consumers. `memory` is where its team's P, frames and statistics lie, as if it were the first team.
struct Member {
  const u32 smem;
  const u32 thread = kKeepThread ? registers::kept(threadIdx.x) : threadIdx.x;
  const u32 team = kTeams == 1 ? 0 : thread / kTeamThreads, warp = (thread % kTeamThreads) >> 5, lane = thread & 31,
            g = lane >> 2, t = lane & 3;
  const u32 memory = smem + team * plan::kTeamBytes;
};

constexpr u32 kOwn = 2 * kHeadGroups;  // heads of a thread: own head i is head_of(i)
__device__ __forceinline__ u32 head_of(u32 i, u32 t) { return (i >> 1) * 8 + 2 * t + (i & 1); }

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

// A 2 x 2 transposition between two registers and the two lanes whose g differ in `bit`.
__device__ __forceinline__ void swap_with_lane(u32& first, u32& second, u32 g, u32 bit) {
  const u32 other = __shfl_xor_sync(~0u, (g & bit) ? first : second, 4 * bit);
  if (g & bit)
    first = other;
  else
    second = other;
}

}  // namespace dsak::low_head
