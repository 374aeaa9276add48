// FP8 rows on their way to tiles: 16-byte copies. Eight lanes fetch 128 bytes of a row, so that an instruction covers four rows
// and a warp all 16 of its own in 16 (18) instructions.
//
// A masked row is never read: its place is filled with zeros, because 0 * NaN is NaN in the products.
//
// wgmma reads the tiles through the asynchronous proxy. The fence that this takes stands here, behind the wait for the copies,
// and not with the consumers, whose next products would wait for it in every block: 3 to 5 % of the time.
#pragma once

#include "dsak/cp_async.cuh"
#include "dsak/low_head/indices.cuh"
#include "dsak/low_head/layout.cuh"
#include "dsak/mbarrier.cuh"
#include "dsak/registers.cuh"
#include "dsak/shared_memory.cuh"
#include "dsak/swizzle.cuh"

namespace dsak::low_head {

struct RowCopies {
  const Arguments& args;

  static constexpr u32 kArrivals = kProducerWarps * mbarrier::kArrivalsPerWarp;  // at a stage's full barrier

  // Whether a lane's place in a stage is worked out once for all of its rows, or anew for each. Which is faster was measured.
  static constexpr bool kOnePlace = kWidth > kLatent || (!kSplit && kStages == 2);

  // Read anew where registers are scarce: nothing derived from it is kept.
  static __device__ __forceinline__ u32 thread() { return kCtasPerSm == 3 ? registers::thread_index() : threadIdx.x; }
  static __device__ __forceinline__ u32 first_row() { return thread() / 32 % kProducerWarps * (kKeys / kProducerWarps); }

  __device__ __forceinline__ void bring(BlockIndices indices, u32 valid_low, u32 valid_high, u32 stage, u32 full, u32) const {
    constexpr u32 kRowsPerWarp = kKeys / kProducerWarps;
    if ((valid_low | valid_high) != 0) {
      const u32 place = stage + swizzle::offset128(first_row() + (thread() % 32 >> 3), thread() & 7);
#pragma unroll
      for (u32 group = 0; group < kRowsPerWarp / 4; ++group) {
        const u32 lane = thread() % 32, row = first_row() + group * 4 + (lane >> 3);
        const i32 index = index_of(indices, row);
        const bool selected = is_row(args, index);
        const u8* source = row_address(args, selected ? index : 0) + (lane & 7) * 16;
        // Four rows further down the swizzle flips chunk bit 2, which is address bit 6.
        const u32 destination =
            kOnePlace ? (place ^ ((group & 1) << 6)) + group * 512 : stage + swizzle::offset128(row, lane & 7);
#pragma unroll
        for (u32 tile = 0; tile < kLatent / 128; ++tile)
          cp_async::copy16_or_zero(destination + tile * plan::kTile, source + tile * 128, selected);
      }
      if constexpr (kWidth > kLatent) {
#pragma unroll
        for (u32 group = 0; group < kRowsPerWarp / 8; ++group) {
          const u32 lane = thread() % 32, row = first_row() + group * 8 + (lane >> 2);
          const i32 index = index_of(indices, row);
          const bool selected = is_row(args, index);
          cp_async::copy16_or_zero(stage + kLatent * kKeys + swizzle::offset64(row, lane & 3),
                                   row_address(args, selected ? index : 0) + kLatent + (lane & 3) * 16, selected);
        }
      }
      cp_async::wait_all();
      shared::fence_async_proxy();
    }
    mbarrier::arrive_for_warp(full, thread() % 32 == 0);
  }

  static __device__ __forceinline__ void finish() {}
};

}  // namespace dsak::low_head
