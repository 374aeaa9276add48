// Barriers of some of a CTA's warps: bar.sync with a number, which is an immediate or, in the second form, the same in all
// lanes.
#pragma once

#include "dsak/types.cuh"

namespace dsak::named_barrier {

template <u32 number, u32 threads>
__device__ __forceinline__ void sync() {
  asm volatile("barrier.cta.sync.aligned %0, %1;" ::"n"(number), "n"(threads) : "memory");
}
template <u32 threads>
__device__ __forceinline__ void sync(u32 number) {
  asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(number), "n"(threads) : "memory");
}

// Whether `mine` holds in any of the threads.
template <u32 number, u32 threads>
__device__ __forceinline__ bool any(bool mine) {
  u32 result;
  asm volatile(
      "{\n"
      ".reg .pred p, q;\n"
      "setp.ne.u32 p, %1, 0;\n"
      "barrier.cta.red.or.pred.aligned q, %2, %3, p;\n"
      "selp.u32 %0, 1, 0, q;\n"
      "}"
      : "=r"(result)
      : "r"(static_cast<u32>(mine)), "n"(number), "n"(threads)
      : "memory");
  return result != 0;
}
template <u32 threads>
__device__ __forceinline__ bool any(u32 number, bool mine) {
  u32 result;
  asm volatile(
      "{\n"
      ".reg .pred p, q;\n"
      "setp.ne.u32 p, %1, 0;\n"
      "barrier.cta.red.or.pred.aligned q, %2, %3, p;\n"
      "selp.u32 %0, 1, 0, q;\n"
      "}"
      : "=r"(result)
      : "r"(static_cast<u32>(mine)), "r"(number), "n"(threads)
      : "memory");
  return result != 0;
}

}  // namespace dsak::named_barrier
