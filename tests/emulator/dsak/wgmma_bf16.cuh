// In place of kernels/include/dsak/wgmma_bf16.cuh: BF16 products with both operands in shared memory.
#pragma once
#include "dsak/wgmma_narrow.cuh"

namespace dsak::wgmma {

constexpr int kAlongK = 0, kAlongRows = 1;

template <bool accumulate, int major, u32 count>
inline void multiply_bf16(float (&d)[count], u64 a, u64 b) {
  machine::Product product{d, count, accumulate, true, false, major == kAlongRows};
  product.a_descriptor = a, product.b_descriptor = b;
  machine::self().issued.push_back(product);
}

}  // namespace dsak::wgmma
