// Shared-memory loads and stores by 32-bit shared-window address. All are volatile and ordered as written.
#pragma once

#include "dsak/types.cuh"

namespace dsak::shared {

__device__ __forceinline__ u32 address_of(const void* pointer) { return static_cast<u32>(__cvta_generic_to_shared(pointer)); }

__device__ __forceinline__ void store(u32 address, u32 value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
__device__ __forceinline__ void store(u32 address, u16 value) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(value) : "memory");
}
__device__ __forceinline__ void store(u32 address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}
__device__ __forceinline__ void store(u32 address, u32 x, u32 y, u32 z, u32 w) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}

__device__ __forceinline__ u32 load_u32(u32 address) {
  u32 value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
__device__ __forceinline__ void load(u32& x, u32& y, u32 address) {
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x), "=r"(y) : "r"(address) : "memory");
}
__device__ __forceinline__ void load(u32& x, u32& y, u32& z, u32& w, u32 address) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x), "=r"(y), "=r"(z), "=r"(w) : "r"(address) : "memory");
}
__device__ __forceinline__ float load_f32(u32 address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}
__device__ __forceinline__ void load(float& x, float& y, u32 address) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x), "=f"(y) : "r"(address) : "memory");
}

// Orders this thread's ordinary shared-memory accesses with those of the asynchronous proxy (wgmma operands).
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace dsak::shared
