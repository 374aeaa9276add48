// The producer warps bring the selected rows of every block, 16 rows a warp. How: RowCopies, for the rows' dtype. A block that
// selects none is not copied and not computed.
#pragma once

#include "dsak/low_head/indices.cuh"
#include "dsak/low_head/layout.cuh"
#include "dsak/low_head/share.cuh"
#include "dsak/mbarrier.cuh"
#include "dsak/shared_memory.cuh"

#if DSAK_BF16
#include "dsak/low_head/bf16/rows.cuh"
#elif DSAK_TILES
#include "dsak/low_head/fp8/tile_rows.cuh"
#else
#include "dsak/low_head/fp8/rows.cuh"
#endif

namespace dsak::low_head {

struct Producer {
  const Arguments& args;
  const Share& share;
  const u32 smem;

  __device__ __forceinline__ void run(BlockIndices next) const {
    const u32 lane = threadIdx.x & 31, blocks = share.blocks();
    const u32 warp = (threadIdx.x >> 5) - kConsumerThreads / 32;
    const RowCopies copies{args};
    u32 slot = 0, phase = 0;
    for (u32 block = share.split; block < blocks; block += share.splits) {
      const BlockIndices indices = next;
      const u32 valid_low = __ballot_sync(~0u, is_row(args, indices.low)),
                valid_high = __ballot_sync(~0u, is_row(args, indices.high));
      next = BlockIndices::load(args, share, block + share.splits, lane);
      const u32 full = smem + plan::kFull + 8 * slot;
      mbarrier::wait(smem + plan::kEmpty + 8 * (slot * plan::kPieces + warp % plan::kPieces), phase ^ 1);
      if (threadIdx.x == kConsumerThreads) {
        shared::store(smem + plan::kValid + 8 * slot, valid_low);
        shared::store(smem + plan::kValid + 8 * slot + 4, valid_high);
      }
      copies.bring(indices, valid_low, valid_high, smem + plan::kRows + slot * plan::kStage, full, warp);
      if (++slot == kStages) slot = 0, phase ^= 1;
    }
    RowCopies::finish();
  }
};

}  // namespace dsak::low_head
