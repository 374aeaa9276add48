// FP8 rows on their way to shared memory: one bulk copy a row, or one tensor copy.
//
// A masked row is never read. Its place in shared memory must hold numbers all the same, because 0 * NaN is NaN in the
// products: it receives a copy of a row that the block does select. Tensor copies bring zeros for a row that is not there.
#pragma once

#include "dsak/bulk_copy.cuh"
#include "dsak/low_head/indices.cuh"
#include "dsak/low_head/layout.cuh"
#include "dsak/mbarrier.cuh"
#include "dsak/tensor_copy.cuh"

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
    if (!is_row(args, index)) index = kLines ? -1 : selected;
    if (lane == 0) mbarrier::arrive_expecting(full, kRowsPerWarp * kWidth);
    __syncwarp();
    if (lane < kRowsPerWarp) {
      if constexpr (kLines)
        tensor_copy::copy_row(stage + plan::row(row), static_cast<const tensor_copy::Map*>(args.kv), index, full, policy);
      else
        bulk_copy::copy<kWidth>(stage + plan::row(row), row_address(args, index), full, policy);
    }
  }

  static __device__ __forceinline__ void finish() {}
};

}  // namespace dsak::low_head
