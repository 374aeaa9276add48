// Scores of one key block, FP8 rows in tiles: S^T = K Q^T, K and Q in shared memory.
#pragma once

#include "dsak/descriptor.cuh"
#include "dsak/low_head/fp8/chains.cuh"
#include "dsak/low_head/layout.cuh"
#include "dsak/low_head/whole_stage.cuh"
#include "dsak/registers.cuh"
#include "dsak/wgmma_narrow.cuh"

namespace dsak::low_head {

// Starts the products with the columns of tile `tile`, which are a chain, and those of the rope with the last.
__device__ __forceinline__ void start_chain(Scores& chain, u64 keys, u64 rope, u64 query, u32 tile) {
  constexpr u32 kStep = 2 * kHeadGroups * plan::kCore;  // of Q, 32 columns
#pragma unroll
  for (u32 step = 0; step < 4; ++step) {
    const u64 a = descriptor::advance(keys, tile * plan::kTile + step * 32),
              b = descriptor::advance(query, (4 * tile + step) * kStep);
    if (step == 0)
      wgmma::multiply_narrow<false>(chain, a, b);
    else
      wgmma::multiply_narrow<true>(chain, a, b);
  }
  if constexpr (kWidth > kLatent) {
    if (tile == 3) {
#pragma unroll
      for (u32 step = 0; step < 2; ++step)
        wgmma::multiply_narrow<true>(chain, descriptor::advance(rope, step * 32),
                                     descriptor::advance(query, (16 + step) * kStep));
    }
  }
  wgmma::commit();
}

// Chain 0 runs in `s` itself. `meanwhile` runs while the last products do.
template <class Meanwhile>
__device__ __forceinline__ void multiply_keys(Scores& s, u32 stage, u32 smem, const Meanwhile& meanwhile) {
  constexpr u32 kSpare = kHeads <= 16 ? 3 : 2;
  // With 32 heads ptxas spills if it is not told that this is the same in all lanes; at 512 without a split it is slower if
  // told.
  constexpr bool kTell = kHeads == 32 && (kSplit || kWidth > kLatent);
  const u32 base = kTell ? registers::uniform(descriptor::local(stage)) : descriptor::local(stage);
  const u64 keys = descriptor::rows128(base), rope = descriptor::rows64(base + kLatent * kKeys),
            query = descriptor::cores(smem + plan::kQuery, kHeadGroups * plan::kCore, plan::kCore);
  Scores spare[kSpare];
  wgmma::claim_all(s);
#pragma unroll
  for (u32 i = 0; i < kSpare; ++i) wgmma::claim_all(spare[i]);
  wgmma::fence();
  start_chain(s, keys, rope, query, 0);
#pragma unroll
  for (u32 i = 0; i < kSpare; ++i) start_chain(spare[i], keys, rope, query, i + 1);
  if constexpr (kSpare == 2) {  // no registers for a fourth: it runs where the second was
    wgmma::wait<1>();
    fold(s, spare[0]);
    wgmma::fence();
    start_chain(spare[0], keys, rope, query, 3);
  }
  meanwhile();
  wgmma::wait<0>();
#pragma unroll
  for (u32 i = 0; i < kSpare; ++i) fold(s, spare[i]);
}

}  // namespace dsak::low_head
