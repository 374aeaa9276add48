// Bulk copies (UBLKCP): one instruction moves a whole row from global to shared memory and counts its bytes on an mbarrier.
#pragma once

#include "dsak/types.cuh"

namespace dsak::bulk_copy {

// Keeps what is read in L2 as long as possible: rows are selected again by other tokens.
__device__ __forceinline__ u64 evict_last_policy() {
  u64 policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Addresses and size are multiples of 16 bytes.
template <u32 bytes>
__device__ __forceinline__ void copy(u32 destination, const void* source, u32 barrier, u64 policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
          destination),
      "l"(source), "n"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

}  // namespace dsak::bulk_copy
