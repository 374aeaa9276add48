// In place of kernels/include/dsak/wgmma_narrow.cuh: FP8 products with A in registers or in shared memory.
#pragma once
#include "dsak/wgmma.cuh"

namespace dsak::wgmma {

template <bool accumulate, u32 count>
inline void multiply_narrow(float (&d)[count], const u32 (&a)[4], u64 b) {
  machine::Product product{d, count, accumulate, false, true, false};
  product.b_descriptor = b;
  const auto board = machine::meet(a, 4);
  for (u32 lane = 0; lane < 32; ++lane) std::copy_n(board[lane], 4, product.a[lane]);
  machine::self().issued.push_back(product);
}

template <bool accumulate, u32 count>
inline void multiply_narrow(float (&d)[count], u64 a, u64 b) {
  machine::Product product{d, count, accumulate, false, false, false};
  product.a_descriptor = a, product.b_descriptor = b;
  machine::self().issued.push_back(product);
}

template <u32 count>
inline void pin_all(float (&)[count]) {}
template <u32 count>
inline void claim_all(float (&d)[count]) {
  for (float& x : d) x = NAN;
}
inline void pin_operand(u32 (&)[4]) {}

}  // namespace dsak::wgmma
