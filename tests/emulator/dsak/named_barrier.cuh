// In place of kernels/include/dsak/named_barrier.cuh: named barriers.
#pragma once
#include "dsak/types.cuh"

namespace dsak::named_barrier {

template <u32 number, u32 threads>
inline void sync() {
  machine::meet(number, threads, false);
}
template <u32 threads>
inline void sync(u32 number) {
  machine::meet(number, threads, false);
}
template <u32 number, u32 threads>
inline bool any(bool mine) {
  return machine::meet(number, threads, mine);
}
template <u32 threads>
inline bool any(u32 number, bool mine) {
  return machine::meet(number, threads, mine);
}

}  // namespace dsak::named_barrier
