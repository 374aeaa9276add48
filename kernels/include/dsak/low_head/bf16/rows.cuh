// BF16 rows on their way to shared memory: 16-byte copies into swizzled tiles. Eight lanes fetch 128 bytes of a row, so that an
// instruction covers four rows and a warp all 16 of its own in 32 (36) instructions.
//
// A masked row is never read: its place is filled with zeros, because 0 * NaN is NaN in the products.
#pragma once

#include "dsak/bulk_copy.cuh"
#include "dsak/cp_async.cuh"
#include "dsak/low_head/indices.cuh"
#include "dsak/low_head/layout.cuh"
#include "dsak/mbarrier.cuh"
#include "dsak/swizzle.cuh"

namespace dsak::low_head {

struct RowCopies {
  const Arguments& args;
  const u64 policy = bulk_copy::evict_last_policy();

  // At a stage's full barrier: every producer thread's once its copies have landed, and one for the validity bits.
  static constexpr u32 kArrivals = 32 * kProducerWarps + 1;

  __device__ __forceinline__ void bring(BlockIndices indices, u32 valid_low, u32 valid_high, u32 stage, u32 full,
                                        u32 warp) const {
    constexpr u32 kRowsPerWarp = kKeys / kProducerWarps;
    const u32 lane = threadIdx.x & 31;
    if (threadIdx.x == kConsumerThreads) mbarrier::arrive(full);
    if ((valid_low | valid_high) != 0) {
      const u32 first = stage + swizzle::offset128(warp * kRowsPerWarp + (lane >> 3), lane & 7);
#pragma unroll
      for (u32 group = 0; group < kRowsPerWarp / 4; ++group) {
        const i32 index = index_of(indices, warp * kRowsPerWarp + group * 4 + (lane >> 3));
        const bool selected = is_row(args, index);
        const u8* source = row_address(args, selected ? index : 0) + (lane & 7) * 16;
        // Four rows further down the swizzle flips chunk bit 2, which is address bit 6.
        const u32 destination = (first ^ ((group & 1) << 6)) + group * 4 * 128;
#pragma unroll
        for (u32 tile = 0; tile < kWidth / 128; ++tile)
          cp_async::copy16_or_zero(destination + tile * plan::kTile, source + tile * 128, selected, policy);
      }
    }
    cp_async::arrive_when_landed(full);
  }

  // No copy may be on its way when its thread exits.
  static __device__ __forceinline__ void finish() { cp_async::wait_all(); }
};

}  // namespace dsak::low_head
