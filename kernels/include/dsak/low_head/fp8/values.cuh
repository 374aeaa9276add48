// O^T += V^T P^T of one key block, FP8: V^T through registers, P as core matrices in shared memory.
//
// FP8 wgmma has no transpose bits. ldmatrix.trans on 16-bit pairs gives lane 4g + t the bytes (d = 2g, 2g + 1) of keys 2t and
// 2t + 1; two byte permutes per pair of matrices separate d from d + 1 and interleave key r with key r + 8. Fragment row g then
// is d = 2g and row g + 8 is d = 2g + 1 of the warp's sixteen columns: adjacent d end in one thread.
//
// The output is done in eight chunks of 64 columns (16 a warp). A chunk's products over the block's 64 keys go to a temporary
// and are added to float32 registers from there, since the tensor cores' own running sum truncates. Both terms of P are columns
// of the same product: a register operand costs about 14 clk to read whatever the number of columns, up to 32.
#pragma once

#include "dsak/convert.cuh"
#include "dsak/descriptor.cuh"
#include "dsak/global_memory.cuh"
#include "dsak/ldmatrix.cuh"
#include "dsak/low_head/fp8/lane_row.cuh"
#include "dsak/low_head/lanes.cuh"
#include "dsak/low_head/layout.cuh"
#include "dsak/wgmma_narrow.cuh"

namespace dsak::low_head {

constexpr u32 kTemporaries = 2;                                      // that the products of a chunk may go to, in turn
constexpr u32 kFragments = kCtasPerSm <= 2 && kHeads <= 16 ? 4 : 3;  // of V, loaded or loading
constexpr bool kJoinTerms = kHeads <= 16;
// Frames and the first fragments of V are loaded as soon as they may be where registers allow it.
constexpr bool kLoadEarly = kHeads <= 16 || (kTiles && !kSplit);

// Chunk after whose load the stage is given back. Right after the last load would be best; with 32 heads it spills.
constexpr u32 kReleases = kHeads <= 16 ? kChunks - kFragments : kChunks - 2;

using Partial = float[kJoinTerms ? kHeads : kHeads / 2];
using ValueFragment = u32[2][4];  // of one chunk: [step of 32 keys][register]

// Where this lane's loads of V start: its key of the first 32, the warp's columns of a chunk.
__device__ __forceinline__ LaneRow value_row(u32 warp, u32 lane) { return LaneRow::of(lane, 16 * warp); }

__device__ __forceinline__ void load_values(ValueFragment& v, const LaneRow& values, u32 chunk) {
#pragma unroll
  for (u32 step = 0; step < 2; ++step) ldmatrix_x4_trans(v[step], values.at(chunk * 64) + step * LaneRow::k32Rows);
}

using ValueFragments = ValueFragment[kFragments];

__device__ __forceinline__ void load_first_values(ValueFragments& v, const LaneRow& values) {
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
  constexpr u32 kStep = 2 * kProbabilityCores * plan::kCore, kSecondTerm = kHeadGroups * plan::kCore;
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

// `values` is value_row in the stage, `p` the address of P; the first fragments are loaded already. `read(0)` runs once
// nothing is left to read from the stage.
template <class Read>
__device__ __forceinline__ void multiply_values(Output& total, ValueFragments& v, const LaneRow& values, u32 p,
                                                const Read& read) {
  const u64 weights = descriptor::cores(p, kProbabilityCores * plan::kCore, plan::kCore);
  Partial partial[kTemporaries];
#pragma unroll
  for (u32 i = 0; i < kTemporaries; ++i) wgmma::claim_all(partial[i]);
#pragma unroll
  for (u32 c = 0; c < kChunks; ++c) {
    arrange_values(v[c % kFragments]);
    wgmma::fence();
    issue_chunk(partial[c % kTemporaries], v[c % kFragments], weights);
    wgmma::commit();
    if (c > 0) wgmma::wait<1>();
    if (c + kFragments - 1 < kChunks) {
      ValueFragment& next = v[(c + kFragments - 1) % kFragments];  // that of chunk c - 1, which is done
      if (c > 0) wgmma::pin_operand(next[0]), wgmma::pin_operand(next[1]);
      load_values(next, values, c + kFragments - 1);
    }
    if (c == kReleases) read(0);
    if (c > 0) promote(total[c - 1], partial[(c - 1) % kTemporaries]);
  }
  wgmma::wait<0>();
  promote(total[kChunks - 1], partial[(kChunks - 1) % kTemporaries]);
}

// Probabilities of heads 8n + 2t and 8n + 2t + 1 (keys g and g + 8 of the first, then of the second) as elements of P: two e4m3
// terms, the value rounded and what the rounding left. A 16-bit element is the pair (key g, key g + 8) of one head; byte 2r of
// a row is key r of the warp's sixteen and byte 2r + 1 key r + 8, the order in which arrange_values delivers V.
__device__ __forceinline__ void pack_probabilities(u32 (&words)[kProbabilityCores], u32 n, const float (&e)[4]) {
  float rounded[4];
  words[n] = to_e4m3x4(e[0], e[1], e[2], e[3]);
  from_e4m3x4(rounded, words[n]);
  words[kHeadGroups + n] = to_e4m3x4(e[0] - rounded[0], e[1] - rounded[1], e[2] - rounded[2], e[3] - rounded[3]);
}

// The order of a chunk's columns over registers and lanes: a thread has columns 2g and 2g + 1 of its warp's sixteen.
struct Columns {
  // The own head, of four (two where a thread has no more), that `gather` leaves in this lane, and its first column.
  static __device__ __forceinline__ u32 head(u32 g) { return kOwn == 2 ? g & 1 : g & 3; }
  static __device__ __forceinline__ u32 column(u32 g) { return kOwn == 2 ? 2 * (g & 6) : 2 * (g & 4); }

  // Numbers of a chunk as pairs of 16-bit ones, neighbouring columns of own head i in words[i].
  template <class Pack>
  static __device__ __forceinline__ void pack(u32 (&words)[kOwn], const float (&chunk)[kHeads / 2], const float (&factor)[kOwn],
                                              const Pack& pack) {
#pragma unroll
    for (u32 i = 0; i < kOwn; ++i) {
      const u32 first = (i >> 1) * 4 + (i & 1);
      words[i] = pack(chunk[first] * factor[i], chunk[first + 2] * factor[i]);
    }
  }

  // Swaps own heads with lanes, so that a lane has neighbouring columns of one head: a 4 x 4 transposition over lane bits 2 and
  // 3 (2 x 2 where a thread has two heads only).
  static __device__ __forceinline__ void gather(u32 (&words)[kOwn], u32 g) {
#pragma unroll
    for (u32 i = 0; i < kOwn; i += 2) swap_with_lane(words[i], words[i + 1], g, 1);
    if constexpr (kOwn >= 4) {
#pragma unroll
      for (u32 i = 0; i < kOwn; i += 4) {
        swap_with_lane(words[i], words[i + 2], g, 2);
        swap_with_lane(words[i + 1], words[i + 3], g, 2);
      }
    }
  }

  // The output of all chunks, times `factor`, to `out` (a warp's columns of the first head). Eight lanes write a sector of 32
  // bytes.
  static __device__ __forceinline__ void store(bf16_bits* out, i64 stride_h, i32 heads, const Output& total,
                                               const float (&factor)[kOwn], u32 g, u32 t) {
#pragma unroll
    for (u32 i = 0; i < kOwn; ++i) {
      const i32 head = static_cast<i32>(head_of(i, t));
      if (head >= heads) continue;
      bf16_bits* row = out + head * stride_h + 2 * g;
#pragma unroll
      for (u32 c = 0; c < kChunks; ++c) {
        const u32 first = (i >> 1) * 4 + (i & 1);
        const u32 pair = to_bf16x2(total[c][first] * factor[i], total[c][first + 2] * factor[i]);
        global::store(row + 64 * c, pair);
      }
    }
  }
};

}  // namespace dsak::low_head
