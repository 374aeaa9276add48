// The producer warpgroup: gathers Q tiles and selected KV rows with 16-byte asynchronous copies.
//
// Eight lanes fetch 128 bytes of one row, so an instruction covers four rows and a warp owns 16 rows of every block. Invalid
// rows are zero-filled and never dereferenced: the copy's address is clamped to row 0 and its source size is 0.
#pragma once

#include "dsak/cp_async.cuh"
#include "dsak/mbarrier.cuh"
#include "dsak/registers.cuh"
#include "dsak/shared_memory.cuh"
#include "dsak/swizzle.cuh"
#include "q8_layout.cuh"

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

  // The index in this lane's column of key block `block`, or -1. Lanes 16..31 mirror lanes 0..15.
  __device__ __forceinline__ i32 load_index(i32 token, i32 columns, i32 block) const {
    const u32 warp = warp_index(), lane = lane_index();
    const i32 column = block * static_cast<i32>(kKeys) + static_cast<i32>(16 * warp + (lane & 15));
    if (column >= columns) return -1;
    const i32 index = __ldg(args.indices + token * args.indices_stride + column);
    return static_cast<u32>(index) < static_cast<u32>(args.s_kv) ? index : -1;
  }

  __device__ __forceinline__ void load_query(i32 token, i32 first_head, u32 buffer) const {
    const u32 warp = warp_index(), lane = lane_index();
    const u32 tile = smem + plan::kQuery + buffer * plan::kRowBlock;
    const u8* row = args.q + token * args.q_stride_t + (first_head + static_cast<i32>(16 * warp)) * args.q_stride_h + lane * 16;
    const u32 column_tile = tile + (lane >> 3) * plan::kTile + 16 * warp * 128;
#pragma unroll 4
    for (u32 r = 0; r < 16; ++r) {
      cp_async::copy16(column_tile + swizzle::offset128(r, lane & 7), row);
      row += args.q_stride_h;
    }
    if constexpr (kHasRope) {
#pragma unroll 1
      for (u32 part = 0; part < 2; ++part) {
        const u32 r = 16 * warp + 8 * part + (lane >> 2);
        const u8* source = args.q_rope + token * args.q_rope_stride_t +
                           (first_head + static_cast<i32>(r)) * args.q_rope_stride_h + (lane & 3) * 16;
        cp_async::copy16(tile + plan::kRopeTile + swizzle::offset64(r, lane & 3), source);
      }
    }
    cp_async::arrive_when_landed(smem + plan::kQueryFull + 8 * buffer);
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

  __device__ __forceinline__ void run() const {
    const i32 head_tiles = args.H / static_cast<i32>(kHeads);
    const i32 items = args.T * head_tiles;
    i32 item = static_cast<i32>(blockIdx.x);
    if (item >= items) return;

    Stage stage{0, 0};
    u32 ordinal = 0;  // items started
    i32 token = item / head_tiles;
    i32 columns = columns_of(token);
    i32 next_index = load_index(token, columns, 0);
    while (true) {
      const u32 buffer = ordinal % plan::kQueryBuffers;
      mbarrier::wait(smem + plan::kQueryEmpty + 8 * buffer, ((ordinal / plan::kQueryBuffers) & 1) ^ 1);
      load_query(token, (item - token * head_tiles) * static_cast<i32>(kHeads), buffer);

      item += static_cast<i32>(gridDim.x);
      const bool last_item = item >= items;
      // A token without columns still gets one, fully masked, block: the epilogue then needs no special case.
      const i32 last_block = (max(columns, 1) - 1) / static_cast<i32>(kKeys);
      for (i32 block = 0; block <= last_block; ++block, stage = stage.next()) {
        const i32 index = next_index;
        if (block < last_block) {
          next_index = load_index(token, columns, block + 1);
        } else if (!last_item) {
          token = item / head_tiles;
          columns = columns_of(token);
          next_index = load_index(token, columns, 0);
        }
        const u32 valid = __ballot_sync(~0u, index >= 0);
        const u32 slot = stage.slot;
        mbarrier::wait(smem + plan::kKeysEmpty + 8 * slot, stage.phase ^ 1);
        if (lane_index() == 0) {
          const u32 warp = warp_index();
          shared::store(smem + plan::kBlock + 16 * slot + 2 * warp, static_cast<u16>(valid));
          if (warp == 0) {
            u32 flags = block == 0 ? kFirstOfItem : 0;
            if (block == last_block) flags |= last_item ? kLastOfItem | kLastOfCta : kLastOfItem;
            shared::store(smem + plan::kBlockFlags + 16 * slot, flags);
          }
          mbarrier::arrive(smem + plan::kKeysFull + 8 * slot);
        }
        load_rows(index, smem + plan::kKeysValues + slot * plan::kRowBlock);
        cp_async::arrive_when_landed(smem + plan::kKeysFull + 8 * slot);
      }
      ++ordinal;
      if (last_item) break;
    }
    cp_async::wait_all();
  }
};

}  // namespace dsak::q8
