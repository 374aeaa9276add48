// Asynchronous 16-byte copies, global to shared (LDGSTS). They bypass L1 and ask L2 for the whole 128-byte line.
#pragma once

#include "dsak/types.cuh"

namespace dsak::cp_async {

__device__ __forceinline__ void copy16(u32 destination, const void* source) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(destination), "l"(source) : "memory");
}

// Copies 16 bytes, or writes 16 zero bytes without reading `source` when `valid` is false.
__device__ __forceinline__ void copy16_or_zero(u32 destination, const void* source, bool valid) {
  const u32 bytes = valid ? 16u : 0u;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(destination), "l"(source), "r"(bytes) : "memory");
}

// The same with a cache policy for what is read.
__device__ __forceinline__ void copy16_or_zero(u32 destination, const void* source, bool valid, u64 policy) {
  const u32 bytes = valid ? 16u : 0u;
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(destination), "l"(source),
               "r"(bytes), "l"(policy)
               : "memory");
}

// The calling thread's arrival on `barrier` happens when all of its earlier copies have landed. "noinc": the barrier was
// initialised with this arrival already counted.
__device__ __forceinline__ void arrive_when_landed(u32 barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

}  // namespace dsak::cp_async
