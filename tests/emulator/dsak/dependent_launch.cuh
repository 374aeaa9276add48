// In place of kernels/include/dsak/dependent_launch.cuh: a kernel runs alone.
#pragma once

namespace dsak::dependent_launch {

inline void wait() {}
inline void release() {}

}  // namespace dsak::dependent_launch
