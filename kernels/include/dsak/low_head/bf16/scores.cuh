// Scores of one key block, BF16: S^T = K Q^T, K and Q in shared memory.
#pragma once

#include "dsak/descriptor.cuh"
#include "dsak/low_head/layout.cuh"
#include "dsak/low_head/whole_stage.cuh"
#include "dsak/registers.cuh"
#include "dsak/shared_memory.cuh"
#include "dsak/wgmma_bf16.cuh"

namespace dsak::low_head {

// Starts the products with the rows of a stage.
__device__ __forceinline__ void start_keys(Scores& s, u32 keys, u32 smem) {
  constexpr u32 kStep = 2 * kHeadGroups * plan::kCore;  // of Q, 16 columns
  const u64 k = descriptor::rows128(registers::uniform(descriptor::local(keys)));
  const u64 query = descriptor::cores(smem + plan::kQuery, kHeadGroups * plan::kCore, plan::kCore);
  shared::fence_async_proxy();  // the producers' copies are ordinary writes to wgmma
  wgmma::claim_all(s);
  wgmma::fence();
#pragma unroll
  for (u32 step = 0; step < kWidth / 32; ++step) {
    const u64 a = descriptor::advance(k, step / 4 * plan::kTile + step % 4 * 32), b = descriptor::advance(query, step * kStep);
    if (step == 0)
      wgmma::multiply_bf16<false, wgmma::kAlongK>(s, a, b);
    else
      wgmma::multiply_bf16<true, wgmma::kAlongK>(s, a, b);
  }
  wgmma::commit();
}

// Waits for them; `pending` groups of later products may go on.
template <int pending>
__device__ __forceinline__ void finish_keys(Scores& s) {
  wgmma::wait<pending>();
  wgmma::pin_all(s);
}

// `meanwhile` runs while the products do.
template <class Meanwhile>
__device__ __forceinline__ void multiply_keys(Scores& s, u32 keys, u32 smem, const Meanwhile& meanwhile) {
  start_keys(s, keys, smem);
  meanwhile();
  finish_keys<0>(s);
}

}  // namespace dsak::low_head
