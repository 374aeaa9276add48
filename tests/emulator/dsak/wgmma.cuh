// In place of kernels/include/dsak/wgmma.cuh: groups of products, run when they are waited for.
#pragma once
#include "dsak/types.cuh"

namespace dsak::wgmma {

inline void fence() {}
inline void commit() {
  machine::self().groups.push_back(std::move(machine::self().issued));
  machine::self().issued.clear();
}
template <int pending>
inline void wait() {
  machine::wait_for_products(pending);
}

}  // namespace dsak::wgmma
