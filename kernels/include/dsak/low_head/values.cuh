// O^T += V^T P^T of one key block: V^T through registers, P as core matrices in shared memory.
//
// FP8 wgmma has no transpose bits. ldmatrix.trans on 16-bit pairs gives lane 4g + t the bytes (d = 2g, 2g + 1) of keys 2t and
// 2t + 1; two byte permutes per pair of matrices separate d from d + 1 and interleave key r with key r + 8. Fragment row g then
// is d = 2g and row g + 8 is d = 2g + 1 of the warp's sixteen columns: adjacent d end in one thread.
//
// The output is done in eight chunks of 64 columns (16 a warp). A chunk's products over the block's 64 keys go to a temporary
// and are added to float32 registers from there, since the tensor cores' own running sum truncates. Both terms of P are columns
// of the same product: a register operand costs about 14 clk to read whatever the number of columns, up to 32.
#pragma once

#include "dsak/descriptor.cuh"
#include "dsak/ldmatrix.cuh"
#include "dsak/low_head/layout.cuh"
#include "dsak/wgmma_narrow.cuh"

namespace dsak::low_head {

constexpr u32 kChunks = kLatent / 64;
constexpr u32 kTemporaries = 2;                                      // that the products of a chunk may go to, in turn
constexpr u32 kFragments = kCtasPerSm == 2 && kHeads <= 16 ? 4 : 3;  // of V, loaded or loading
constexpr bool kJoinTerms = kHeads <= 16;

// Chunk after whose load the stage is given back. Right after the last load would be best; with 32 heads it spills.
constexpr u32 kReleases = kHeads <= 16 ? kChunks - kFragments : kChunks - 2;

using Output = float[kChunks][kHeads / 2];
using Partial = float[kJoinTerms ? kHeads : kHeads / 2];
using ValueFragment = u32[2][4];  // of one chunk: [step of 32 keys][register]

// Where this lane's ldmatrix row of V starts in a stage.
__device__ __forceinline__ u32 value_offset(u32 warp, u32 lane) { return plan::row(lane) + 16 * warp; }

__device__ __forceinline__ void load_values(ValueFragment& v, u32 values, u32 chunk) {
#pragma unroll
  for (u32 step = 0; step < 2; ++step) ldmatrix_x4_trans(v[step], values + step * 4 * kWidth + chunk * 64);
}

using ValueFragments = ValueFragment[kFragments];

__device__ __forceinline__ void load_first_values(ValueFragments& v, u32 values) {
#pragma unroll
  for (u32 c = 0; c + 1 < kFragments; ++c) load_values(v[c], values, c);
}

__device__ __forceinline__ void arrange_values(ValueFragment& v) {
#pragma unroll
  for (u32 step = 0; step < 2; ++step) {
    const u32 a = v[step][0], b = v[step][1], c = v[step][2], d = v[step][3];
    v[step][0] = __byte_perm(a, b, 0x6240);
    v[step][1] = __byte_perm(a, b, 0x7351);
    v[step][2] = __byte_perm(c, d, 0x6240);
    v[step][3] = __byte_perm(c, d, 0x7351);
    wgmma::pin_operand(v[step]);  // here, not between two products, where it would force a wait
  }
}

__device__ __forceinline__ void issue_chunk(Partial& partial, const ValueFragment& v, u64 p) {
  constexpr u32 kStep = 2 * kColumnGroups * plan::kCore, kSecondTerm = kHeadGroups * plan::kCore;
  wgmma::multiply_narrow<false>(partial, v[0], p);
  wgmma::multiply_narrow<true>(partial, v[1], descriptor::advance(p, kStep));
  if constexpr (!kJoinTerms) {
    wgmma::multiply_narrow<true>(partial, v[0], descriptor::advance(p, kSecondTerm));
    wgmma::multiply_narrow<true>(partial, v[1], descriptor::advance(p, kStep + kSecondTerm));
  }
}

__device__ __forceinline__ void promote(float (&total)[kHeads / 2], Partial& partial) {
  wgmma::pin_all(partial);
  // One after the other: the sum of both terms would want registers of its own.
#pragma unroll
  for (u32 i = 0; i < kHeads / 2; ++i) total[i] += partial[i];
  if constexpr (kJoinTerms) {
#pragma unroll
    for (u32 i = 0; i < kHeads / 2; ++i) total[i] += partial[kHeads / 2 + i];
  }
  wgmma::pin_all(total);  // now, not later: the registers of `partial` are wanted
}

// `values` is the stage's address plus value_offset; the first fragments are loaded already. `loaded` runs once nothing is left
// to read from the stage.
template <class Loaded>
__device__ __forceinline__ void multiply_values(Output& total, ValueFragments& v, u32 values, u32 smem, const Loaded& loaded) {
  const u64 p = descriptor::cores(smem + plan::kProbability, kColumnGroups * plan::kCore, plan::kCore);
  Partial partial[kTemporaries];
#pragma unroll
  for (u32 i = 0; i < kTemporaries; ++i) wgmma::claim_all(partial[i]);
#pragma unroll
  for (u32 c = 0; c < kChunks; ++c) {
    arrange_values(v[c % kFragments]);
    wgmma::fence();
    issue_chunk(partial[c % kTemporaries], v[c % kFragments], p);
    wgmma::commit();
    if (c > 0) wgmma::wait<1>();
    if (c + kFragments - 1 < kChunks) {
      ValueFragment& next = v[(c + kFragments - 1) % kFragments];  // that of chunk c - 1, which is done
      if (c > 0) wgmma::pin_operand(next[0]), wgmma::pin_operand(next[1]);
      load_values(next, values, c + kFragments - 1);
    }
    if (c == kReleases) loaded();
    if (c > 0) promote(total[c - 1], partial[(c - 1) % kTemporaries]);
  }
  wgmma::wait<0>();
  promote(total[kChunks - 1], partial[(kChunks - 1) % kTemporaries]);
}

__device__ __forceinline__ void clear(Output& total) {
#pragma unroll
  for (u32 c = 0; c < kChunks; ++c)
#pragma unroll
    for (u32 i = 0; i < kHeads / 2; ++i) total[c][i] = 0.f;
}

}  // namespace dsak::low_head
