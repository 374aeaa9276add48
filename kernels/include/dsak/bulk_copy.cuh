// Bulk copies (UBLKCP): one instruction moves a whole row. Into shared memory, its bytes are counted on an mbarrier; out of it, the
// thread that started the copies waits for them.
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

// From shared to global memory. Addresses and size are multiples of 16 bytes.
__device__ __forceinline__ void store(void* destination, u32 source, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(destination), "r"(source), "r"(bytes)
               : "memory");
}

// Ends this thread's group of stores.
__device__ __forceinline__ void commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Returns once the sources of all of this thread's stores have been read.
__device__ __forceinline__ void wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

}  // namespace dsak::bulk_copy
