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

#include "dsak/bulk_copy.cuh"
#include "dsak/convert.cuh"
#include "dsak/descriptor.cuh"
#include "dsak/ldmatrix.cuh"
#include "dsak/mbarrier.cuh"
#include "dsak/q8/layout.cuh"
#include "dsak/registers.cuh"
#include "dsak/shared_memory.cuh"
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

// Starts an item.
__device__ __forceinline__ void clear(float (&total)[4][32]) {
#pragma unroll
  for (u32 c = 0; c < 4; ++c)
#pragma unroll
    for (u32 i = 0; i < 32; ++i) total[c][i] = 0.f;
}

// A unit's output leaves in bulk copies that run while the next unit is computed. It is put together where the unit's Q was (heads
// 0 to 31) and its last block of keys (heads 32 to 63), as quarters of 16 heads, a head's 1 KiB after the other's. A thread's heads
// are those of quarter t (see head_of_row), and quarter t is rotated by 32t bytes: so the four lanes that store the same columns
// meet different banks.
struct OutputImage {
  u32 query, keys;  // shared-memory addresses

  static constexpr u32 kRow = kLatent * 2, kQuarter = 16 * kRow;
  static_assert(2 * kQuarter <= plan::kRowBlock, "half of the output in the place of Q");

  static __device__ __forceinline__ u32 warp() { return (threadIdx.x >> 5) & 7; }  // of the value warps: 64 columns each
  static __device__ __forceinline__ u32 lane() { return threadIdx.x & 31; }
  __device__ __forceinline__ u32 address(u32 quarter) const {
    return (quarter < 2 ? query : keys) + (quarter & 1) * kQuarter;
  }

  // The warp's 64 heads x 64 columns, as bf16, or as f16 for a part.
  template <bool part>
  __device__ __forceinline__ void write(const float (&total)[4][32]) const {
    const u32 t = lane() & 3, g = lane() >> 2, quarter = address(t), first = 128 * warp() + 32 * t + 4 * g;
#pragma unroll
    for (u32 j = 0; j < 8; ++j)
#pragma unroll
      for (u32 c = 0; c < 4; ++c) {
        const float* d = total[c] + 4 * j;
        const u32 place = first + 2 * j * kRow + 32 * c;
        shared::store(quarter + place, part ? to_f16x2(d[0], d[2]) : to_bf16x2(d[0], d[2]));
        // The end of the last row comes round to the start.
        const u32 next = j == 7 ? (place + kRow) & (kQuarter - 1) : place + kRow;
        shared::store(quarter + next, part ? to_f16x2(d[1], d[3]) : to_bf16x2(d[1], d[3]));
      }
  }

  // Starts the copies: of a quarter, or of its rows where they lie apart, and of what came round. `out` is head 0's row.
  __device__ __forceinline__ void send(u16* out, i64 stride_h) const {
    const u32 quarter = warp() >> 1, rotation = 32 * quarter, odd = warp() & 1;
    const bool apart = stride_h != kLatent;
    const u32 size = apart ? kRow : kQuarter;
    const bool round = lane() == 8;
    u32 first = apart ? (8 * odd + lane()) * kRow : 0, bytes = size;  // in the quarter, before rotation
    if (first + size == kQuarter) bytes -= rotation;
    if (round) first = kQuarter - rotation, bytes = rotation;
    const bool mine = apart ? lane() < 8 || (round && odd) : odd == 0 && (lane() == 0 || round);
    u8* destination = reinterpret_cast<u8*>(out + static_cast<i32>(16 * quarter + first / kRow) * stride_h) + first % kRow;
    if (mine && bytes > 0)
      bulk_copy::store(destination, address(quarter) + ((first + rotation) & (kQuarter - 1)), bytes);
    bulk_copy::commit();
  }
};

__device__ __forceinline__ void write_output(const float (&total)[4][32], const OutputImage& image, const Unit& unit) {
  if (unit.part >= 0)
    image.write<true>(total);
  else
    image.write<false>(total);
}

__device__ __forceinline__ void send_output(const OutputImage& image, const Unit& unit, const Arguments& args) {
  u16* out = args.partial_out + static_cast<i64>(unit.part) * (kHeads * kLatent);
  i64 stride_h = kLatent;
  if (unit.part < 0) {
    const i32 head_tiles = args.H / static_cast<i32>(kHeads);
    const i32 token = Unit::token(unit.item, head_tiles);
    const i32 head = (unit.item - token * head_tiles) * static_cast<i32>(kHeads);
    out = args.out + token * args.out_stride_t + head * args.out_stride_h;
    stride_h = args.out_stride_h;
  }
  image.send(out, stride_h);
}

// Adds a key block's share to the float32 total. The tensor cores' own running sum would truncate it (see wgmma.cuh).
__device__ __forceinline__ void promote(float (&total)[32], float (&partial)[32]) {
  wgmma::pin(partial);
#pragma unroll
  for (u32 i = 0; i < 32; ++i) total[i] += partial[i];
  wgmma::pin(total);  // now, not later: the registers of `partial` are wanted
}

}  // namespace dsak::q8
