// The producer warpgroup: gathers selected KV rows with 16-byte asynchronous copies, and brings Q tiles with tensor copies
// (their rope columns, which may be of another tensor, with 16-byte copies).
//
// Eight lanes fetch 128 bytes of one row, so an instruction covers four rows and a warp owns 16 rows of every block. Invalid
// rows are zero-filled and never dereferenced: the copy's address is clamped to row 0 and its source size is 0.
#pragma once

#include "dsak/cp_async.cuh"
#include "dsak/mbarrier.cuh"
#include "dsak/q8/layout.cuh"
#include "dsak/registers.cuh"
#include "dsak/shared_memory.cuh"
#include "dsak/swizzle.cuh"
#include "dsak/tensor_copy.cuh"

namespace dsak::q8 {

struct Producer {
  const Arguments& args;
  const u32 smem;

  // Read anew in every function: with 22 usable registers, nothing derived from them may stay alive across a block.
  static __device__ __forceinline__ u32 warp_index() { return (registers::thread_index() >> 5) & 3; }
  static __device__ __forceinline__ u32 lane_index() { return registers::thread_index() & 31; }

  // Columns of a token's index row that count.
  __device__ __forceinline__ i32 columns_of(i32 token) const {
    if (args.topk_length == nullptr) return args.topk;
    return min(max(__ldg(args.topk_length + token), 0), args.topk);
  }

  // The index in this lane's column of key block `block`, unchecked, or -1 past the row's end. Lanes 16..31 mirror lanes 0..15.
  // Whether it is a row of KV is asked a block later: a comparison here would wait for memory, once for every block.
  __device__ __forceinline__ i32 load_index(i32 token, i32 columns, i32 block) const {
    const u32 warp = warp_index(), lane = lane_index();
    const i32 column = block * static_cast<i32>(kKeys) + static_cast<i32>(16 * warp + (lane & 15));
    if (column >= columns) return -1;
    return __ldg(args.indices + token * args.indices_stride + column);
  }

  // Arrivals at the barrier of a Q buffer: the thread that issues the tensor copies, and every thread with copies of its own.
  static constexpr u32 kQueryArrivals = 1 + (kHasRope ? 128 : 0);
  // L2 need not keep Q: it is read once.
  static constexpr u64 kEvictFirst = 0x12f0000000000000;

  __device__ __forceinline__ void load_query(i32 token, i32 first_head, u32 buffer) const {
    const u32 warp = warp_index(), lane = lane_index();
    const u32 tile = smem + plan::kQuery + buffer * plan::kRowBlock;
    const u32 full = smem + plan::kQueryFull + 8 * buffer;
    if (warp == 0 && lane == 0) {
      // The value warps wrote the output through this buffer, with ordinary stores before they arrived at its empty barrier;
      // the tensor copies write it through the asynchronous proxy.
      shared::fence_async_proxy();
      mbarrier::arrive_expecting(full, plan::kRopeTile);
#pragma unroll
      for (u32 column = 0; column < 4; ++column)
        tensor_copy::copy_box(tile + column * plan::kTile, args.q, static_cast<i32>(column), first_head, token, full,
                              kEvictFirst);
    }
    if constexpr (kHasRope) {
#pragma unroll 1
      for (u32 part = 0; part < 2; ++part) {
        const u32 r = 16 * warp + 8 * part + (lane >> 2);
        const u8* source = args.q_rope + token * args.q_rope_stride_t +
                           (first_head + static_cast<i32>(r)) * args.q_rope_stride_h + (lane & 3) * 16;
        cp_async::copy16(tile + plan::kRopeTile + swizzle::offset64(r, lane & 3), source);
      }
      cp_async::arrive_when_landed(full);
    }
  }

  __device__ __forceinline__ const u8* row_address(i32 index) const {
    // A row stride is below 4 GiB; the product is 64 bits wide.
    return args.kv + static_cast<u64>(static_cast<u32>(max(index, 0))) * static_cast<u32>(args.kv_stride);
  }

  __device__ __forceinline__ void load_rows(i32 index, u32 tile) const {
    const u32 lane = lane_index(), warp = warp_index();
    const u32 first = tile + swizzle::offset128(16 * warp + (lane >> 3), lane & 7);
#pragma unroll
    for (u32 group = 0; group < 4; ++group) {
      const i32 row = __shfl_sync(~0u, index, 4 * group + (lane >> 3));
      const u8* source = row_address(row) + (lane & 7) * 16;
      // Four rows further down the swizzle flips chunk bit 2, which is address bit 6.
      const u32 destination = (first ^ ((group & 1) << 6)) + group * 512;
#pragma unroll
      for (u32 column = 0; column < 4; ++column)
        cp_async::copy16_or_zero(destination + column * plan::kTile, source + column * 128, row >= 0);
    }
    if constexpr (kHasRope) {
#pragma unroll
      for (u32 part = 0; part < 2; ++part) {
        const i32 row = __shfl_sync(~0u, index, 8 * part + (lane >> 2));
        const u8* source = row_address(row) + kLatent + (lane & 3) * 16;
        cp_async::copy16_or_zero(tile + plan::kRopeTile + swizzle::offset64(16 * warp + 8 * part + (lane >> 2), lane & 3),
                                 source, row >= 0);
      }
    }
  }

  // The key blocks of a unit: columns of its token's index row that count, first and last block.
  struct Range {
    i32 columns, first, last;
  };
  __device__ __forceinline__ Range range_of(const Unit& unit, i32 token) const {
    i32 columns = columns_of(token);
    // A token without columns still gets one, fully masked, block: the epilogue then needs no special case.
    const i32 blocks = (max(columns, 1) + static_cast<i32>(kKeys) - 1) / static_cast<i32>(kKeys);
    if (unit.part < 0) return Range{columns, 0, blocks - 1};
    // The borders are those of the row padded to a multiple of 128 columns: padding it with -1 then changes no bit.
    // In 32 bits (at most 2^24 blocks, and fewer parts than 256): a 64-bit division is a call, which costs registers.
    const u32 padded = (static_cast<u32>(blocks) + 1) & ~1u, splits = static_cast<u32>(args.splits);
    const u32 part = static_cast<u32>(unit.part) % splits;
    const i32 first = static_cast<i32>(padded * part / splits);
    const i32 end = min(static_cast<i32>(padded * (part + 1) / splits), blocks);
    if (first >= end) return Range{0, 0, 0};  // a part without blocks: more parts than blocks, or nothing but padding
    return Range{columns, first, end - 1};
  }

  __device__ __forceinline__ void run() const {
    const i32 head_tiles = args.H / static_cast<i32>(kHeads);
    const i32 units = Unit::count(args);
    i32 unit_index = static_cast<i32>(blockIdx.x);
    if (unit_index >= units) return;

    Stage stage{0, 0};
    u32 ordinal = 0;  // units started
    Unit unit(unit_index, args);
    i32 token = unit.item / head_tiles;
    Range range = range_of(unit, token);
    i32 next_index = load_index(token, range.columns, range.first);
    while (true) {
      const u32 buffer = ordinal % plan::kQueryBuffers;
      mbarrier::wait(smem + plan::kQueryEmpty + 8 * buffer, ((ordinal / plan::kQueryBuffers) & 1) ^ 1);
      load_query(token, (unit.item - token * head_tiles) * static_cast<i32>(kHeads), buffer);

      unit_index += static_cast<i32>(gridDim.x);
      const bool last_unit = unit_index >= units;
      const i32 first_block = range.first, last_block = range.last;
      for (i32 block = first_block; block <= last_block; ++block, stage = stage.next()) {
        const i32 index = static_cast<u32>(next_index) < static_cast<u32>(args.s_kv) ? next_index : -1;
        if (block < last_block) {
          next_index = load_index(token, range.columns, block + 1);
        } else if (!last_unit) {
          unit = Unit(unit_index, args);
          token = unit.item / head_tiles;
          range = range_of(unit, token);
          next_index = load_index(token, range.columns, range.first);
        }
        const u32 valid = __ballot_sync(~0u, index >= 0);
        const u32 slot = stage.slot;
        mbarrier::wait(smem + plan::kKeysEmpty + 8 * slot, stage.phase ^ 1);
        if (lane_index() == 0) {
          const u32 warp = warp_index();
          shared::store(smem + plan::kBlock + 16 * slot + 2 * warp, static_cast<u16>(valid));
          if (warp == 0) {
            u32 flags = block == first_block ? kFirstOfItem : 0;
            if (block == last_block) flags |= last_unit ? kLastOfItem | kLastOfCta : kLastOfItem;
            shared::store(smem + plan::kBlockFlags + 16 * slot, flags);
          }
          if (!DSAK_EVERY_LANE) mbarrier::arrive(smem + plan::kKeysFull + 8 * slot);
        }
        if (DSAK_EVERY_LANE) mbarrier::arrive(smem + plan::kKeysFull + 8 * slot);
        load_rows(index, smem + plan::kKeysValues + slot * plan::kRowBlock);
        cp_async::arrive_when_landed(smem + plan::kKeysFull + 8 * slot);
      }
      ++ordinal;
      if (last_unit) break;
    }
    cp_async::wait_all();
  }
};

}  // namespace dsak::q8
