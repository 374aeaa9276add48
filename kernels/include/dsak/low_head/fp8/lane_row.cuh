// Addresses from which a lane loads matrix rows of an FP8 row in shared memory.
#pragma once

#include "dsak/low_head/layout.cuh"
#include "dsak/swizzle.cuh"

namespace dsak::low_head {

struct LaneRow {
  u32 start;        // of the row, in its stage; of rows in one piece the lane's own column too, of tiles that one swizzled
  u32 line16, own;  // in lines: 16 times the number of the row's first line (modulo 8), and the lane's own column

  static constexpr u32 k32Rows = kTiles ? 32 * 128 : 4 * kWidth;  // from a row to the one 32 further down

  // `own` columns are added to those that `at` is asked for: multiples of 16, and no bit in common.
  static __device__ __forceinline__ LaneRow of(u32 row, u32 own) {
    if constexpr (kTiles) return {swizzle::offset128(row, 0) ^ own, 0, 0};
    const u32 start = plan::row(row);
    return kLines ? LaneRow{start, start >> 3, own} : LaneRow{start + own, 0, 0};
  }
  __device__ __forceinline__ LaneRow in(u32 stage) const { return {start + stage, line16, own}; }

  // A line's 16-byte pieces are permuted by the line's number modulo 8: stages start at a multiple of eight lines.
  __device__ __forceinline__ u32 at(u32 column) const {
    if constexpr (kTiles) return (start ^ (column & 127)) + (column >> 7) * plan::kTile;
    if constexpr (!kLines) return start + column;
    const u32 permutation = (line16 + (column >> 7) * 16) & 0x70;
    return ((start + (permutation ^ own)) ^ (column & 127)) + (column & ~127u);
  }
};

}  // namespace dsak::low_head
