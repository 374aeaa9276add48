// A CTA's part of a token's index row, one key block at a time.
#pragma once

#include "dsak/low_head/layout.cuh"
#include "dsak/low_head/share.cuh"

namespace dsak::low_head {

// The index row's entries in this lane's two columns of a block, lane and lane + 32, as they are; -1 beyond the row's end.
// Nothing looks at them until the block is due: a look would wait for them to arrive.
struct BlockIndices {
  i32 low, high;

  static __device__ __forceinline__ BlockIndices load(const Arguments& args, const Share& share, u32 block, u32 lane) {
    BlockIndices x{-1, -1};
    const u32 column = block * kKeys + lane, columns = static_cast<u32>(share.columns);
    const i32* row = args.indices + share.token * args.indices_stride;
    if (column < columns) x.low = __ldg(row + column);
    if (column + 32 < columns) x.high = __ldg(row + column + 32);
    return x;
  }
};

__device__ __forceinline__ bool is_row(const Arguments& args, i32 index) {
  return static_cast<u32>(index) < static_cast<u32>(args.s_kv);
}

// The address of a row. A row stride is below 2^31 elements; the product is 64 bits wide.
__device__ __forceinline__ const u8* row_address(const Arguments& args, i32 index) {
  return static_cast<const u8*>(args.kv) +
         static_cast<u64>(static_cast<u32>(index)) * (static_cast<u32>(args.kv_stride) * kElement);
}

// The index in column `row` of a block, in all lanes.
__device__ __forceinline__ i32 index_of(const BlockIndices& indices, u32 row) {
  return __shfl_sync(~0u, row < 32 ? indices.low : indices.high, row & 31);
}

}  // namespace dsak::low_head
