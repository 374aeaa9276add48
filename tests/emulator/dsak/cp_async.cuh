// In place of kernels/include/dsak/cp_async.cuh: 16-byte copies, which land together when the thread commits them to a barrier,
// or later.
#pragma once
#include "dsak/types.cuh"

namespace dsak::cp_async {

inline void copy16_or_zero(u32 destination, const void* source, bool valid, u64 = 0) {
  auto* to = machine::memory(destination, 16);
  machine::self().copies.push_back([=] { valid ? std::memcpy(to, source, 16) : std::memset(to, 0, 16); });
}

inline void copy16(u32 destination, const void* source) { copy16_or_zero(destination, source, true); }

inline void arrive_when_landed(u32 barrier) {
  auto* counts = &machine::mbarrier(barrier);
  machine::land_later([copies = std::move(machine::self().copies), counts] {
    for (const auto& copy : copies) copy();
    counts->arrive();
  });
  machine::self().copies.clear();
}

inline void wait_all() {
  for (const auto& copy : machine::self().copies) copy();
  machine::self().copies.clear();
}

}  // namespace dsak::cp_async
