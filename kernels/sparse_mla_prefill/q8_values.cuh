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
#include "dsak/ldmatrix.cuh"
#include "dsak/mbarrier.cuh"
#include "dsak/registers.cuh"
#include "dsak/shared_memory.cuh"
#include "dsak/wgmma.cuh"
#include "q8_layout.cuh"

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

// Stores 64 heads x 256 columns straight from registers: 32-byte sectors, no shared memory.
__device__ __forceinline__ void store_output(const float (&total)[4][32], i32 item, const Arguments& args) {
  const i32 head_tiles = args.H / static_cast<i32>(kHeads);
  const i32 token = item / head_tiles;
  const u32 thread = threadIdx.x;
  const u32 t = thread & 3;
  bf16_bits* row = args.out + token * args.out_stride_t +
                   ((item - token * head_tiles) * static_cast<i32>(kHeads) + static_cast<i32>(2 * t)) * args.out_stride_h +
                   ((thread >> 5) & 7) * 64 + ((thread >> 2) & 7) * 2;
#pragma unroll
  for (u32 j = 0; j < 8; ++j) {
    bf16_bits* next = row + args.out_stride_h;
#pragma unroll
    for (u32 c = 0; c < 4; ++c) {
      const u32 a = to_bf16x2(total[c][4 * j], total[c][4 * j + 2]);
      const u32 b = to_bf16x2(total[c][4 * j + 1], total[c][4 * j + 3]);
      asm volatile("st.global.u32 [%0], %1;" ::"l"(row + 16 * c), "r"(a) : "memory");
      asm volatile("st.global.u32 [%0], %1;" ::"l"(next + 16 * c), "r"(b) : "memory");
    }
    row += 8 * args.out_stride_h;
  }
}

// Adds a key block's share to the float32 total. The tensor cores' own running sum would truncate it (see wgmma.cuh).
__device__ __forceinline__ void promote(float (&total)[32], float (&partial)[32]) {
  wgmma::pin(partial);
#pragma unroll
  for (u32 i = 0; i < 32; ++i) total[i] += partial[i];
  wgmma::pin(total);  // now, not later: the registers of `partial` are wanted
}

}  // namespace dsak::q8
