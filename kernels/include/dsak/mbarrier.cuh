// Shared-memory barriers (mbarrier). Addresses are 32-bit shared-window addresses.
//
// Parity convention: `wait(barrier, parity)` returns once the phase with that parity has completed. A fresh barrier is in
// phase 0, so a producer that waits for an empty slot starts with parity 1 and passes at once.
#pragma once

#include "dsak/types.cuh"

namespace dsak::mbarrier {

__device__ __forceinline__ void init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes the inits above visible to the asynchronous proxy; a __syncthreads() must follow.
__device__ __forceinline__ void fence_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ __forceinline__ void arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// How often a warp arrives at a barrier. Once, by one lane, is enough after __syncwarp. racecheck credits a barrier only to the
// threads that arrive at it themselves: for it DSAK_EVERY_LANE=1 lets all of them.
#ifndef DSAK_EVERY_LANE
#define DSAK_EVERY_LANE 0
#endif
enum : u32 { kArrivalsPerWarp = DSAK_EVERY_LANE ? 32 : 1 };

// `one` is true in one lane.
__device__ __forceinline__ void arrive_for_warp(u32 barrier, bool one) {
  __syncwarp();
  if (DSAK_EVERY_LANE || one) arrive(barrier);
}

// Arrives, and makes the phase wait for `bytes` of asynchronous copies.
__device__ __forceinline__ void arrive_expecting(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ bool try_wait(u32 barrier, u32 parity) {
  u32 done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

__device__ __forceinline__ void wait(u32 barrier, u32 parity) {
  while (!try_wait(barrier, parity)) {
  }
}

}  // namespace dsak::mbarrier
