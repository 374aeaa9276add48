// Scores of FP8 rows are summed over their columns in chains of 128, which meet in float32: the shorter a chain, the less it
// loses to the tensor cores' truncation.
#pragma once

#include "dsak/low_head/layout.cuh"
#include "dsak/wgmma_narrow.cuh"

namespace dsak::low_head {

// Ends a chain: its sum goes to `s`.
__device__ __forceinline__ void fold(Scores& s, Scores& chain) {
  wgmma::pin_all(s);
  wgmma::pin_all(chain);
#pragma unroll
  for (u32 i = 0; i < kHeads / 2; ++i) s[i] += chain[i];
}

}  // namespace dsak::low_head
