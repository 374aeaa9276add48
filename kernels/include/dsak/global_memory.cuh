// Global-memory stores that keep their place among the instructions around them.
#pragma once

#include "dsak/types.cuh"

namespace dsak::global {

__device__ __forceinline__ void store(void* place, u32 value) {
  asm volatile("st.global.u32 [%0], %1;" ::"l"(place), "r"(value) : "memory");
}

__device__ __forceinline__ void store(void* place, u32 x, u32 y, u32 z, u32 w) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(place), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}

}  // namespace dsak::global
