// Scores of one key block, FP8: S^T = K Q^T, K through registers, Q as core matrices in shared memory.
#pragma once

#include "dsak/descriptor.cuh"
#include "dsak/ldmatrix.cuh"
#include "dsak/low_head/fp8/chains.cuh"
#include "dsak/low_head/fp8/lane_row.cuh"
#include "dsak/low_head/layout.cuh"
#include "dsak/wgmma_narrow.cuh"

namespace dsak::low_head {

// Where this lane's loads of K start: its key of the warp's sixteen, its half of 32 columns.
__device__ __forceinline__ LaneRow key_row(u32 warp, u32 lane) {
  return LaneRow::of(16 * warp + (lane & 15), (lane >> 4) * 16);
}

// `keys` is key_row in the stage. Chain 0 runs in `s` itself, the others in spare registers, in turn. `meanwhile` runs while
// the last products do.
template <class Meanwhile>
__device__ __forceinline__ void multiply_keys(Scores& s, const LaneRow& keys, u32 smem, const Meanwhile& meanwhile) {
  constexpr u32 kPairs = kWidth / 64, kBuffers = 3, kChains = kPairs / 2;  // pairs of steps; the last chain takes the rest
  constexpr u32 kSpare = kHeads <= 16 ? 2 : 1;
  constexpr u32 kStep = 2 * kHeadGroups * plan::kCore;  // of Q, 32 columns
  const u64 query = descriptor::cores(smem + plan::kQuery, kHeadGroups * plan::kCore, plan::kCore);
  u32 k[kBuffers][2][4];
  Scores spare[kSpare];
  wgmma::claim_all(s);
#pragma unroll
  for (u32 i = 0; i < kSpare; ++i) wgmma::claim_all(spare[i]);
  const auto load = [&](u32 pair) {
    ldmatrix_x4(k[pair % kBuffers][0], keys.at(pair * 64));
    ldmatrix_x4(k[pair % kBuffers][1], keys.at(pair * 64 + 32));
  };
  load(0);
  load(1);
#pragma unroll
  for (u32 pair = 0; pair < kPairs; ++pair) {
    const u32 chain = pair / 2 < kChains ? pair / 2 : kChains - 1;
    const bool starts = pair == 2 * chain;
    u32(&now)[2][4] = k[pair % kBuffers];
    Scores& sum = chain == 0 ? s : spare[(chain - 1) % kSpare];
    if (kSpare == 1 && starts && chain >= 2) {
      wgmma::wait<0>();
      fold(s, sum);
    }
    wgmma::fence();
    if (starts)
      wgmma::multiply_narrow<false>(sum, now[0], descriptor::advance(query, 2 * pair * kStep));
    else
      wgmma::multiply_narrow<true>(sum, now[0], descriptor::advance(query, 2 * pair * kStep));
    wgmma::multiply_narrow<true>(sum, now[1], descriptor::advance(query, (2 * pair + 1) * kStep));
    wgmma::commit();
    if (pair > 0) wgmma::wait<1>();  // the products of pair - 1 are done
    if (pair + 2 < kPairs) {
      if (pair > 0) {
        wgmma::pin_operand(k[(pair + 2) % kBuffers][0]);
        wgmma::pin_operand(k[(pair + 2) % kBuffers][1]);
      }
      load(pair + 2);
    }
    if (kSpare == 2 && starts && chain >= 2) fold(s, spare[(chain - 2) % kSpare]);
  }
  meanwhile();
  wgmma::wait<0>();
  fold(s, spare[(kChains - 2) % kSpare]);
#pragma unroll
  for (u32 b = 0; b < kBuffers; ++b) {
    wgmma::pin_operand(k[b][0]);
    wgmma::pin_operand(k[b][1]);
  }
}

}  // namespace dsak::low_head
