// In place of kernels/include/dsak/ldmatrix.cuh: ldmatrix and stmatrix over meetings of a warp.
#pragma once
#include "dsak/types.cuh"

namespace dsak {

inline u32 element(u32 address) {
  u16 x;
  std::memcpy(&x, machine::memory(address, 2), 2);
  return x;
}

inline void ldmatrix_x4(u32 (&r)[4], u32 row_address) {
  const auto rows = machine::meet(&row_address, 1);
  const u32 lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  for (u32 m = 0; m < 4; ++m) r[m] = element(rows[8 * m + g][0] + 4 * t) | element(rows[8 * m + g][0] + 4 * t + 2) << 16;
  __syncwarp();
}

inline void ldmatrix_x4_trans(u32 (&r)[4], u32 row_address) {
  const auto rows = machine::meet(&row_address, 1);
  const u32 lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  for (u32 m = 0; m < 4; ++m)
    r[m] = element(rows[8 * m + 2 * t][0] + 2 * g) | element(rows[8 * m + 2 * t + 1][0] + 2 * g) << 16;
  __syncwarp();
}

template <u32 count>
inline void stmatrix_trans(const u32 (&r)[count], u32 row_address) {
  u32 words[1 + count] = {row_address};
  std::copy_n(r, count, words + 1);
  const auto board = machine::meet(words, 1 + count);
  const u32 lane = threadIdx.x & 31, matrix = lane >> 3, row = lane & 7;
  for (u32 k = 0; matrix < count && k < 8; ++k) {
    const u16 x = static_cast<u16>(board[4 * k + row / 2][1 + matrix] >> (16 * (row & 1)));
    std::memcpy(machine::memory(row_address + 2 * k, 2), &x, 2);
  }
  __syncwarp();
}

}  // namespace dsak
