// FP8 rows on their way to shared memory: one bulk copy a row.
//
// A masked row is never read. Its place in shared memory must hold numbers all the same, because 0 * NaN is NaN in the
// products: it receives a copy of a row that the block does select.
#pragma once

#include "dsak/bulk_copy.cuh"
#include "dsak/low_head/indices.cuh"
#include "dsak/low_head/layout.cuh"
#include "dsak/mbarrier.cuh"

namespace dsak::low_head {

struct RowCopies {
  const Arguments& args;
  const u64 policy = bulk_copy::evict_last_policy();

  static constexpr u32 kArrivals = kProducerWarps;  // at a stage's full barrier

  __device__ __forceinline__ void bring(BlockIndices indices, u32 valid_low, u32 valid_high, u32 stage, u32 full,
                                        u32 warp) const {
    constexpr u32 kRowsPerWarp = kKeys / kProducerWarps;
    const u32 lane = threadIdx.x & 31;
    if ((valid_low | valid_high) == 0) {
      if (lane == 0) mbarrier::arrive(full);
      return;
    }
    const u32 row = warp * kRowsPerWarp + (lane & (kRowsPerWarp - 1));
    i32 index = index_of(indices, row);
    const i32 selected = valid_low != 0 ? __shfl_sync(~0u, indices.low, __ffs(valid_low) - 1)
                                        : __shfl_sync(~0u, indices.high, __ffs(valid_high) - 1);
    if (!is_row(args, index)) index = selected;
    if (lane == 0) mbarrier::arrive_expecting(full, kRowsPerWarp * kWidth);
    __syncwarp();
    if (lane < kRowsPerWarp) bulk_copy::copy<kWidth>(stage + plan::row(row), row_address(args, index), full, policy);
  }

  static __device__ __forceinline__ void finish() {}
};

}  // namespace dsak::low_head
