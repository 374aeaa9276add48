// In place of kernels/include/dsak/cluster.cuh: clusters; stores into other CTAs land later.
#pragma once
#include "dsak/types.cuh"

namespace dsak::cluster {

inline u32 size() { return static_cast<u32>(machine::self().cta->cluster->ctas.size()); }
inline u32 rank() { return machine::self().cta->rank; }
inline u32 index() { return machine::self().cta->cluster->index; }

inline void arrive_relaxed() {
  auto& cluster = *machine::self().cta->cluster;
  machine::self().cluster_generation = cluster.generation;
  ++cluster.arrived;
  cluster.check();
}
inline void wait() {
  const auto& generation = machine::self().cta->cluster->generation;
  const auto mine = machine::self().cluster_generation;
  machine::wait_until([&generation, mine] { return generation != mine; });
}

inline u32 map(u32 address, u32 rank) { return (address & 0xffffff) | rank << 24; }

template <std::size_t count>
inline void push(u32 address, const std::array<u32, count>& words, u32 barrier) {
  constexpr u32 bytes = 4 * count;
  if (address >> 24 != barrier >> 24 || address % bytes != 0) std::abort();
  auto* to = machine::memory(address, bytes);
  auto* counts = &machine::mbarrier(barrier);
  machine::land_later([=] {
    std::memcpy(to, words.data(), bytes);
    counts->complete(bytes);
  });
}
inline void store_async(u32 address, u32 x, u32 y, u32 barrier) { push<2>(address, {x, y}, barrier); }
inline void store_async(u32 address, u32 x, u32 y, u32 z, u32 w, u32 barrier) { push<4>(address, {x, y, z, w}, barrier); }

}  // namespace dsak::cluster
