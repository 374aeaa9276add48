// In place of kernels/include/dsak/grid.cuh: the CTA in the grid.
#pragma once
#include "dsak/types.cuh"

namespace dsak::grid {

inline u32 x() { return machine::self().cta->x; }
inline u32 y() { return machine::self().cta->y; }

}  // namespace dsak::grid
