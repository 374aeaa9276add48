// O^T = V^T P^T: V^T from registers, P^T as the K-major operand in shared memory.
//
// FP8 wgmma has no transpose bits, so V (keys x d in shared memory) would have to be transposed by hand to serve as the second
// operand. As the first operand it may come from registers: ldmatrix.trans on 16-bit pairs gives a thread bytes (d, d + 1) of
// keys (2t, 2t + 1), and two byte permutes per pair of matrices separate d from d + 1. Fragment row g then is d = 2g and row
// g + 8 is d = 2g + 1, so that adjacent d end in one thread and are stored as one bf16 pair.
//
// A consumer warpgroup owns 256 of the 512 columns, a warp 64 of them, as four chunks of 16 (chunk c of the four warps
// together is one M = 64 product). Columns of the accumulator are heads.
#pragma once

#include "dsak/convert.cuh"
#include "dsak/descriptor.cuh"
#include "dsak/global_memory.cuh"
#include "dsak/ldmatrix.cuh"
#include "dsak/mbarrier.cuh"
#include "dsak/q8/layout.cuh"
#include "dsak/registers.cuh"
#include "dsak/shared_memory.cuh"
#include "dsak/swizzle.cuh"
#include "dsak/tensor_copy.cuh"
#include "dsak/wgmma.cuh"

namespace dsak::q8 {

// V^T fragments of one chunk: [k-step of 32 keys][register].
using ValueFragment = u32[2][4];

__device__ __forceinline__ void load_fragment(ValueFragment& fragment, u32 address) {
#pragma unroll
  for (u32 step = 0; step < 2; ++step) {
    u32 m[4];
    ldmatrix_x4_trans(m, address + step * 32 * 128);
    fragment[step][0] = __byte_perm(m[0], m[1], 0x6420);
    fragment[step][1] = __byte_perm(m[0], m[1], 0x7531);
    fragment[step][2] = __byte_perm(m[2], m[3], 0x6420);
    fragment[step][3] = __byte_perm(m[2], m[3], 0x7531);
    // Keeps the permutes here: sunk between two wgmma they would force a wait.
    asm volatile(""
                 : "+r"(fragment[step][0]), "+r"(fragment[step][1]), "+r"(fragment[step][2]),
                   "+r"(fragment[step][3])::"memory");
  }
}

// Address of chunk 0 of this lane's key in slot 0; chunk c of slot s is (base + s * kRowBlock) ^ (c << 4).
__device__ __forceinline__ u32 value_base(u32 smem, u32 consumer, u32 warp, u32 lane) {
  return smem + plan::kKeysValues + (2 * consumer + (warp >> 1)) * plan::kTile + lane * 128 +
         ((((warp & 1) * 4) ^ (lane & 7)) << 4);
}

// Issues d = V^T P^T, or d += V^T P^T, for one chunk and one key block.
template <bool accumulate>
__device__ __forceinline__ void issue_chunk(float (&d)[32], const ValueFragment& v, u64 p, u64 p_residual) {
  if constexpr (accumulate)
    wgmma::multiply_add(d, v[0], p);
  else
    wgmma::multiply(d, v[0], p);
  wgmma::multiply_add(d, v[1], descriptor::advance(p, 32));
  if constexpr (kTwoTerms) {
    wgmma::multiply_add(d, v[0], p_residual);
    wgmma::multiply_add(d, v[1], descriptor::advance(p_residual, 32));
  }
}

// Multiplies the accumulators' columns (heads) by 64 factors in shared memory.
__device__ __forceinline__ void scale_columns(float (&total)[4][32], u32 factors) {
  const u32 address = factors + 8 * (threadIdx.x & 3);
#pragma unroll
  for (u32 j = 0; j < 8; ++j) {
    float even, odd;
    shared::load(even, odd, address + 32 * j);
#pragma unroll
    for (u32 c = 0; c < 4; ++c) {
      total[c][4 * j] *= even;
      total[c][4 * j + 1] *= odd;
      total[c][4 * j + 2] *= even;
      total[c][4 * j + 3] *= odd;
    }
  }
}

// Stores a warp's 64 heads x 64 columns of a part as f16 to `row` (head 0, the warp's first column). Straight from the
// registers that would be 32-byte pieces; through 4 KiB of shared memory, `scratch`, it is whole lines. Two rounds of 32 heads.
__device__ __forceinline__ void store_part(const float (&total)[4][32], u16* row, u32 scratch) {
  const u32 thread = registers::thread_index(), t = thread & 3, g = (thread >> 2) & 7, lane = thread & 31;
  // Rows of 128 bytes (a head's 64 columns) whose 16-byte units are swapped by bits 1 and 2 of the row, against bank conflicts.
  const u32 write = scratch + 256 * t + ((t << 5) | (g << 2));
  const u32 read = scratch + (lane >> 3) * 128 + (((lane & 7) ^ ((lane >> 4) << 1)) << 4);
  row += (lane >> 3) * kLatent + (lane & 7) * 8;
#pragma unroll
  for (u32 round = 0; round < 2; ++round) {
    __syncwarp();
#pragma unroll
    for (u32 j = 0; j < 4; ++j)
#pragma unroll
      for (u32 c = 0; c < 4; ++c) {
        const float* d = total[c] + 4 * (4 * round + j);
        const u32 address = (write ^ (c << 5)) + j * 1024;
        shared::store(address, to_f16x2(d[0], d[2]));
        shared::store(address + 128, to_f16x2(d[1], d[3]));
      }
    __syncwarp();
#pragma unroll
    for (u32 i = 0; i < 8; ++i) {
      u32 w[4];
      shared::load(w[0], w[1], w[2], w[3], (read ^ ((i & 1) << 6)) + i * 512);
      global::store(row, w[0], w[1], w[2], w[3]);
      row += 4 * kLatent;
    }
  }
}

// Sends a warp's 64 heads x 64 columns as bf16, in four tensor copies of 16 heads, which drain beside the next unit's products:
// the stores of all eight value warps, 64 KiB, would hold up their own and the other warps' shared-memory accesses for about
// 2000 clocks. `places` are the warp's two boxes over Q; lane 0 commits and waits.
__device__ __forceinline__ void send_item(const float (&total)[4][32], i32 item, u32 smem, u32 places, const Arguments& args) {
  const u32 thread = registers::thread_index(), t = thread & 3, g = (thread >> 2) & 7, warp = (thread >> 5) & 7;
  const i32 head_tiles = args.H / static_cast<i32>(kHeads);
  const i32 token = Unit::token(item, head_tiles);
  const i32 head = (item - token * head_tiles) * static_cast<i32>(kHeads);
  const u32 own_word = swizzle::offset128(2 * t, g >> 2) + 4 * (g & 3);  // of head 2t, chunk 0
#pragma unroll
  for (u32 box = 0; box < 4; ++box) {
    const u32 slot = box % plan::kBoxes;
    const u32 place = slot < 2 ? places + slot * plan::kBox : smem + plan::kOutput + warp * plan::kBox;
    if (box >= plan::kBoxes) {
      if ((thread & 31) == 0) tensor_copy::wait_read<plan::kBoxes - 1>();
      __syncwarp();
    }
#pragma unroll
    for (u32 j = 0; j < 2; ++j)
#pragma unroll
      for (u32 c = 0; c < 4; ++c) {
        const float* d = total[c] + 4 * (2 * box + j);
        const u32 address = ((place + own_word) ^ (c << 5)) + j * 1024;
        shared::store(address, to_bf16x2(d[0], d[2]));
        shared::store((address ^ 16) + 128, to_bf16x2(d[1], d[3]));  // one row further down
      }
    shared::fence_async_proxy();
    __syncwarp();
    if ((thread & 31) == 0) {
      tensor_copy::store_box(args.out, static_cast<i32>(warp), head + static_cast<i32>(16 * box), token, place);
      tensor_copy::commit();
    }
  }
}

// `scratch`: 4 KiB of the warp's, over Q.
__device__ __forceinline__ void store_output(const float (&total)[4][32], i32 unit_index, u32 smem, u32 scratch,
                                             const Arguments& args) {
  const Unit unit(unit_index, args);
  if (unit.part >= 0) {
    const u32 column = ((registers::thread_index() >> 5) & 7) * 64;
    store_part(total, args.partial_out + static_cast<i64>(unit.part) * (kHeads * kLatent) + column, scratch);
  } else {
    send_item(total, unit.item, smem, scratch, args);
  }
}

// Adds a key block's share to the float32 total, or starts the total with it. The tensor cores' own running sum would truncate
// it (see wgmma.cuh). `zero` is one that ptxas does not see through: it would give a plain copy of the products their
// registers, and has none for accumulators that are products in one place and sums in another (C7512).
template <bool first>
__device__ __forceinline__ void promote(float (&total)[32], float (&partial)[32], float zero) {
  wgmma::pin(partial);
#pragma unroll
  for (u32 i = 0; i < 32; ++i) total[i] = (first ? zero : total[i]) + partial[i];
  wgmma::pin(total);  // now, not later: the registers of `partial` are wanted
}

}  // namespace dsak::q8
