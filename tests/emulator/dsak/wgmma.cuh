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

// FP8 products of 64 x 64 x 32.
inline void issue(float (&d)[32], bool accumulate, u64 a, u64 b) {
  machine::Product product{d, 32, accumulate, false, false, false};
  product.a_descriptor = a, product.b_descriptor = b;
  machine::self().issued.push_back(product);
}
inline void issue(float (&d)[32], bool accumulate, const u32 (&a)[4], u64 b) {
  machine::Product product{d, 32, accumulate, false, true, false};
  product.b_descriptor = b;
  const auto board = machine::meet(a, 4);
  for (u32 lane = 0; lane < 32; ++lane) std::copy_n(board[lane], 4, product.a[lane]);
  machine::self().issued.push_back(product);
}
inline void multiply(float (&d)[32], u64 a, u64 b) { issue(d, false, a, b); }
inline void multiply(float (&d)[32], const u32 (&a)[4], u64 b) { issue(d, false, a, b); }
inline void multiply_add(float (&d)[32], u64 a, u64 b) { issue(d, true, a, b); }
inline void multiply_add(float (&d)[32], const u32 (&a)[4], u64 b) { issue(d, true, a, b); }

inline void pin(float (&)[32]) {}
inline void claim(float (&d)[32]) {
  for (float& x : d) x = NAN;
}

}  // namespace dsak::wgmma
