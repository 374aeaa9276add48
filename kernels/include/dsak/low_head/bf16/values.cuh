// O^T += V^T P^T of one key block, BF16: V^T is read from the rows of K, transposed by the tensor cores, and accumulated over
// all keys (BF16 products lose nothing to truncation that shows). P is one BF16 term.
#pragma once

#include "dsak/convert.cuh"
#include "dsak/descriptor.cuh"
#include "dsak/low_head/lanes.cuh"
#include "dsak/low_head/layout.cuh"
#include "dsak/registers.cuh"
#include "dsak/wgmma_bf16.cuh"

namespace dsak::low_head {

constexpr bool kLoadEarly = true;
struct ValueFragments {};  // V passes through no registers
__device__ __forceinline__ void load_first_values(ValueFragments&, u32) {}
__device__ __forceinline__ WholeStage value_row(u32, u32) { return {}; }

__device__ __forceinline__ void pin(Output& total) {
#pragma unroll
  for (u32 c = 0; c < kChunks; ++c) wgmma::pin_all(total[c]);
}

// Starts the products with the rows of a stage and the P at address `p`, by 16 keys: the rows of a producer warp.
__device__ __forceinline__ void start_values(Output& total, u32 values, u32 p) {
  constexpr u32 kStep = kProbabilityCores * plan::kCore;  // of P, 16 keys
  const u64 v = descriptor::rows128(registers::uniform(descriptor::local(values)));
  const u64 weights = descriptor::cores(registers::uniform(p), kHeadGroups * plan::kCore, plan::kCore);
  pin(total);
  wgmma::fence();
#pragma unroll
  for (u32 step = 0; step < kKeys / 16; ++step) {
#pragma unroll
    for (u32 c = 0; c < kChunks; ++c)
      wgmma::multiply_bf16<true, wgmma::kAlongRows>(total[c], descriptor::advance(v, c * plan::kTile + step * 16 * 128),
                                                    descriptor::advance(weights, step * kStep));
    wgmma::commit();
  }
}

// Waits for them. `read(i)` runs once those of keys 16i to 16i + 15 are done.
template <class Read>
__device__ __forceinline__ void finish_values(Output& total, const Read& read) {
  wgmma::wait<3>();
  read(0);
  wgmma::wait<2>();
  read(1);
  wgmma::wait<1>();
  read(2);
  wgmma::wait<0>();
  read(3);
  pin(total);
}

template <class Read>
__device__ __forceinline__ void multiply_values(Output& total, ValueFragments&, u32 values, u32 p, const Read& read) {
  start_values(total, values, p);
  finish_values(total, read);
}

// Probabilities of heads 8n + 2t and 8n + 2t + 1 (keys g and g + 8 of the first, then of the second) as elements of P.
__device__ __forceinline__ void pack_probabilities(u32 (&words)[kProbabilityCores], u32 n, const float (&e)[4]) {
  words[n] = to_bf16x2(e[0], e[2]);
  words[kHeadGroups + n] = to_bf16x2(e[1], e[3]);
}

// The order of a chunk's columns over registers and lanes: a thread has columns g and g + 8 of its warp's sixteen.
struct Columns {
  // The own head, of four (two where a thread has no more), that `gather` leaves in this lane, and its first column.
  static __device__ __forceinline__ u32 head(u32 g) { return kOwn == 2 ? g & 1 : 2 * (g >> 2) + (g & 1); }
  static __device__ __forceinline__ u32 column(u32 g) { return 8 * ((g >> 1) & 1) + (kOwn == 2 ? 4 * (g >> 2) : 0); }

  // Numbers of a chunk as pairs of 16-bit ones: both heads of group n, of column g in words[2n] and of g + 8 in words[2n + 1].
  template <class Pack>
  static __device__ __forceinline__ void pack(u32 (&words)[kOwn], const float (&chunk)[kHeads / 2], const float (&factor)[kOwn],
                                              const Pack& pack) {
#pragma unroll
    for (u32 i = 0; i < kOwn; ++i) {
      const u32 first = 2 * i, head = i & ~1u;
      words[i] = pack(chunk[first] * factor[head], chunk[first + 1] * factor[head + 1]);
    }
  }

  // Swaps heads with lanes, so that a lane has neighbouring columns of one head: over lane bit 2 the halves of a word, over
  // lane bit 3 the words of a head group, over lane bit 4 pairs of head groups.
  static __device__ __forceinline__ void gather(u32 (&words)[kOwn], u32 g) {
#pragma unroll
    for (u32 i = 0; i < kOwn; ++i) {
      const u32 other = __shfl_xor_sync(~0u, words[i], 4);
      words[i] = (g & 1) ? __byte_perm(other, words[i], 0x7632) : __byte_perm(words[i], other, 0x5410);
    }
#pragma unroll
    for (u32 i = 0; i < kOwn; i += 2) swap_with_lane(words[i], words[i + 1], g, 2);
    if constexpr (kOwn >= 4) {
#pragma unroll
      for (u32 i = 0; i < kOwn; i += 4) {
        swap_with_lane(words[i], words[i + 2], g, 4);
        swap_with_lane(words[i + 1], words[i + 3], g, 4);
      }
    }
  }

  // The output of all chunks, times `factor`, to `out` (a warp's columns of the first head). Two lanes (four where a thread has
  // two heads only) write a sector of 32 bytes.
  static __device__ __forceinline__ void store(bf16_bits* out, i64 stride_h, i32 heads, const Output& total,
                                               const float (&factor)[kOwn], u32 g, u32 t) {
#pragma unroll
    for (u32 c = 0; c < kChunks; ++c) {
      u32 words[kOwn];
      pack(words, total[c], factor, [](float low, float high) { return to_bf16x2(low, high); });
      gather(words, g);
#pragma unroll
      for (u32 i = 0; i < kOwn; i += 4) {
        const i32 own = static_cast<i32>(head_of(i + head(g), t));
        if (own >= heads) continue;
        bf16_bits* place = out + own * stride_h + 64 * c + column(g);
        if constexpr (kOwn == 2)
          *reinterpret_cast<uint2*>(place) = make_uint2(words[0], words[1]);
        else
          *reinterpret_cast<uint4*>(place) = make_uint4(words[i], words[i + 1], words[i + 2], words[i + 3]);
      }
    }
  }
};

}  // namespace dsak::low_head
