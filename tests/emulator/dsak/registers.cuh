// In place of kernels/include/dsak/registers.cuh: register reallocation: nothing; `uniform` checks that it is so.
#pragma once
#include "dsak/types.cuh"

namespace dsak::registers {

template <int>
inline void shrink_to() {}
template <int>
inline void grow_to() {}
inline u32 thread_index() { return threadIdx.x; }
inline u32 kept(u32 x) { return __shfl_sync(~0u, x, threadIdx.x & 31); }
inline u32 uniform(u32 x) {
  if (__shfl_sync(~0u, x, 0) != x) std::abort();
  return x;
}

}  // namespace dsak::registers
