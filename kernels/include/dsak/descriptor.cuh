// wgmma shared-memory descriptors for K-major, swizzled tiles. Fields are in 16-byte units.
#pragma once

#include "dsak/types.cuh"

namespace dsak::descriptor {

// An address without the CTA's rank, which is its upper bits in a cluster.
__device__ __forceinline__ u32 local(u32 address) { return address & 0x3ffff; }

// Tile of 128-byte rows, 128-byte swizzle: groups of eight rows follow each other at 1024 bytes.
__device__ __forceinline__ u64 rows128(u32 address) {
  return static_cast<u64>(address >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}

// Tile of 64-byte rows, 64-byte swizzle: groups of eight rows follow each other at 512 bytes.
__device__ __forceinline__ u64 rows64(u32 address) {
  return static_cast<u64>(address >> 4) | (1ull << 16) | (32ull << 32) | (2ull << 62);
}

// Tile without swizzle, of core matrices (eight rows x 16 bytes, 128 contiguous bytes): `along_k` and `along_rows` are the
// distances in bytes between neighbouring core matrices.
__device__ __forceinline__ u64 cores(u32 address, u32 along_k, u32 along_rows) {
  return static_cast<u64>(local(address) >> 4) | (static_cast<u64>(along_k >> 4) << 16) |
         (static_cast<u64>(along_rows >> 4) << 32);
}

// Moves a descriptor by a number of bytes (a multiple of 16): along K inside a swizzled row, or to another tile.
__device__ __forceinline__ u64 advance(u64 descriptor, u32 bytes) { return descriptor + (bytes >> 4); }

}  // namespace dsak::descriptor
