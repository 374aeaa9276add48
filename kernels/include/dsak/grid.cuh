// Where a CTA stands in the grid.
#pragma once

#include "dsak/types.cuh"

namespace dsak::grid {

// Read anew at every call, so that nothing derived from it need stay in a register.
__device__ __forceinline__ u32 x() {
  u32 value;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(value));
  return value;
}
__device__ __forceinline__ u32 y() {
  u32 value;
  asm volatile("mov.u32 %0, %%ctaid.y;" : "=r"(value));
  return value;
}

}  // namespace dsak::grid
