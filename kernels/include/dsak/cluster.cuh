// Thread block clusters: size, barrier, and asynchronous stores into the shared memory of other CTAs.
#pragma once

#include "dsak/types.cuh"

namespace dsak::cluster {

__device__ __forceinline__ u32 size() {
  u32 x;
  asm volatile("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(x));
  return x;
}

__device__ __forceinline__ u32 rank() {
  u32 x;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(x));
  return x;
}

// Place of the cluster along the grid's first dimension.
__device__ __forceinline__ u32 index() {
  u32 x;
  asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(x));
  return x;
}

// The cluster's barrier counts all threads that have not exited. The relaxed arrival orders no memory: it says only that this
// thread is done with its own shared memory; the release form would wait for every outstanding store.
__device__ __forceinline__ void arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ __forceinline__ void wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }

// Address, in the cluster's window, of `address` of this CTA in CTA `rank`.
__device__ __forceinline__ u32 map(u32 address, u32 rank) {
  u32 mapped;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}

// Stores to a mapped address; the bytes are counted on the mapped barrier of the same CTA.
__device__ __forceinline__ void store_async(u32 address, u32 x, u32 y, u32 barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(address), "r"(x),
               "r"(y), "r"(barrier)
               : "memory");
}
__device__ __forceinline__ void store_async(u32 address, u32 x, u32 y, u32 z, u32 w, u32 barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(address),
               "r"(x), "r"(y), "r"(z), "r"(w), "r"(barrier)
               : "memory");
}

}  // namespace dsak::cluster
