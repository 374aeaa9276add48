// In place of kernels/include/dsak/global_memory.cuh: global stores.
#pragma once
#include "dsak/types.cuh"

namespace dsak::global {

inline void store(void* place, u32 value) { std::memcpy(place, &value, 4); }

}  // namespace dsak::global
