// Global-memory stores that keep their place among the instructions around them.
#pragma once

#include "dsak/types.cuh"

namespace dsak::global {

__device__ __forceinline__ void store(void* place, u32 value) {
  asm volatile("st.global.u32 [%0], %1;" ::"l"(place), "r"(value) : "memory");
}

}  // namespace dsak::global
