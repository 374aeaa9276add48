// The producer warps: one bulk copy for every selected row of a block, 16 rows a warp.
//
// A masked row is never read. Its place in shared memory must hold numbers all the same, because 0 * NaN is NaN in the
// products: it receives a copy of a row that the block does select. A block that selects none is not copied and not computed.
#pragma once

#include "dsak/bulk_copy.cuh"
#include "dsak/low_head/layout.cuh"
#include "dsak/low_head/share.cuh"
#include "dsak/mbarrier.cuh"
#include "dsak/shared_memory.cuh"

namespace dsak::low_head {

// The index row's entries in this lane's two columns of a block, lane and lane + 32, as they are; -1 beyond the row's end.
// Nothing looks at them until the block is due: a look would wait for them to arrive.
struct BlockIndices {
  i32 low, high;

  static __device__ __forceinline__ BlockIndices load(const Arguments& args, const Share& share, i32 block, i32 lane) {
    BlockIndices x{-1, -1};
    const i32 columns = block < share.last_block ? share.columns : 0;
    const i32 column = block * static_cast<i32>(kKeys) + lane;
    const i32* row = args.indices + share.token * args.indices_stride;
    if (column < columns) x.low = __ldg(row + column);
    if (column + 32 < columns) x.high = __ldg(row + column + 32);
    return x;
  }
};

struct Producer {
  const Arguments& args;
  const Share& share;
  const u32 smem;

  __device__ __forceinline__ bool valid(i32 index) const { return static_cast<u32>(index) < static_cast<u32>(args.s_kv); }

  __device__ __forceinline__ void copy_rows(BlockIndices indices, u32 valid_low, u32 valid_high, u32 stage, u32 full,
                                            u64 policy) const {
    constexpr u32 kRowsPerWarp = kKeys / kProducerWarps;
    const u32 warp = (threadIdx.x >> 5) - kConsumerThreads / 32, lane = threadIdx.x & 31;
    const u32 row = warp * kRowsPerWarp + (lane & (kRowsPerWarp - 1));
    i32 index = __shfl_sync(~0u, row < 32 ? indices.low : indices.high, row & 31);
    const i32 selected = valid_low != 0 ? __shfl_sync(~0u, indices.low, __ffs(valid_low) - 1)
                                        : __shfl_sync(~0u, indices.high, __ffs(valid_high) - 1);
    if (!valid(index)) index = selected;
    if (lane == 0) mbarrier::arrive_expecting(full, kRowsPerWarp * kWidth);
    __syncwarp();
    // A row stride is below 4 GiB; the product is 64 bits wide.
    const u8* source = args.kv + static_cast<u64>(static_cast<u32>(index)) * static_cast<u32>(args.kv_stride);
    if (lane < kRowsPerWarp) bulk_copy::copy<kWidth>(stage + plan::row(row), source, full, policy);
  }

  __device__ __forceinline__ void run(BlockIndices next) const {
    const i32 lane = static_cast<i32>(threadIdx.x & 31);
    const u64 policy = bulk_copy::evict_last_policy();
    u32 slot = 0, phase = 0;
    for (i32 block = share.first_block; block < share.last_block; ++block) {
      const BlockIndices indices = next;
      const u32 valid_low = __ballot_sync(~0u, valid(indices.low)), valid_high = __ballot_sync(~0u, valid(indices.high));
      next = BlockIndices::load(args, share, block + 1, lane);
      const u32 full = smem + plan::kFull + 8 * slot;
      mbarrier::wait(smem + plan::kEmpty + 8 * slot, phase ^ 1);
      if (threadIdx.x == kConsumerThreads) {
        shared::store(smem + plan::kValid + 8 * slot, valid_low);
        shared::store(smem + plan::kValid + 8 * slot + 4, valid_high);
      }
      if ((valid_low | valid_high) != 0)
        copy_rows(indices, valid_low, valid_high, smem + plan::kRows + slot * plan::kStage, full, policy);
      else if (lane == 0)
        mbarrier::arrive(full);
      if (++slot == kStages) slot = 0, phase ^= 1;
    }
  }
};

}  // namespace dsak::low_head
