// In place of kernels/include/dsak/global_memory.cuh: global stores.
#pragma once
#include "dsak/types.cuh"

namespace dsak::global {

inline void store(void* place, u32 value) { std::memcpy(place, &value, 4); }

inline void store(void* place, u32 x, u32 y, u32 z, u32 w) {
  const u32 words[4] = {x, y, z, w};
  std::memcpy(place, words, 16);
}

}  // namespace dsak::global
