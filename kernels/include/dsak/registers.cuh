// Register reallocation between warpgroups.
//
// setmaxnreg N leaves N - 2 usable registers (measured: touching R(N-2) is an illegal instruction), and the sum over all
// warps must fit what the launch allotted (threads x the launch cap), or the kernel hangs.
#pragma once

#include "dsak/types.cuh"

namespace dsak::registers {

template <int count>
__device__ __forceinline__ void shrink_to() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}

template <int count>
__device__ __forceinline__ void grow_to() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

// threadIdx.x, read anew at every call: nothing derived from it is kept in a register between uses.
__device__ __forceinline__ u32 thread_index() {
  u32 index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}

// `x` of this thread, which ptxas cannot work out anew: what depends on it stays in registers. Otherwise a loop reads %tid
// again where registers look scarce, and that takes long. All lanes of a warp call it together.
__device__ __forceinline__ u32 kept(u32 x) { return __shfl_sync(~0u, x, threadIdx.x & 31); }

// A value that is the same in all lanes, so that ptxas knows it: descriptors that depend on it stay in uniform registers.
__device__ __forceinline__ u32 uniform(u32 x) { return __shfl_sync(~0u, x, 0); }

}  // namespace dsak::registers
