// The XOR swizzles that wgmma expects of K-major tiles: the 16-byte chunk index inside a row is XORed with row bits.
// A tile's base must be aligned to its 8-row pattern (1024 bytes for 128-byte rows, 512 for 64-byte rows).
#pragma once

#include "dsak/types.cuh"

namespace dsak::swizzle {

// Byte offset of 16-byte chunk `chunk` (0..7) of row `row` in a tile of 128-byte rows.
__device__ __forceinline__ constexpr u32 offset128(u32 row, u32 chunk) { return row * 128 + ((chunk ^ (row & 7)) << 4); }

// Byte offset of 16-byte chunk `chunk` (0..3) of row `row` in a tile of 64-byte rows.
__device__ __forceinline__ constexpr u32 offset64(u32 row, u32 chunk) { return row * 64 + ((chunk ^ ((row >> 1) & 3)) << 4); }

}  // namespace dsak::swizzle
