// In place of kernels/include/dsak/mbarrier.cuh: mbarriers of the machine.
#pragma once
#include "dsak/types.cuh"

namespace dsak::mbarrier {

#define DSAK_EVERY_LANE 0
enum : u32 { kArrivalsPerWarp = 1 };

inline void init(u32 barrier, u32 arrivals) { machine::mbarrier(barrier) = {arrivals, arrivals}; }
inline void fence_init() {}
inline void arrive(u32 barrier) { machine::mbarrier(barrier).arrive(); }
inline void arrive_for_warp(u32 barrier, bool one) {
  __syncwarp();
  if (one) arrive(barrier);
}
inline void arrive_expecting(u32 barrier, u32 bytes) {
  machine::mbarrier(barrier).bytes += bytes;
  arrive(barrier);
}
inline bool try_wait(u32 barrier, u32 parity) { return (machine::mbarrier(barrier).phase & 1) != parity; }
inline void wait(u32 barrier, u32 parity) {
  const auto& phase = machine::mbarrier(barrier).phase;
  machine::wait_until([&phase, parity] { return (phase & 1) != parity; });
}

}  // namespace dsak::mbarrier
