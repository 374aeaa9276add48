// In place of kernels/include/dsak/shared_memory.cuh: shared memory of the machine, bounds and alignment checked.
#pragma once
#include "dsak/types.cuh"

namespace dsak::shared {

inline u32 address_of(const void* pointer) { return __cvta_generic_to_shared(pointer); }

template <class T>
inline T* place(u32 address, u32 count = 1) {
  if (address % (sizeof(T) * count) != 0) std::abort();
  return reinterpret_cast<T*>(machine::memory(address, sizeof(T) * count));
}

inline void store(u32 address, u32 value) { *place<u32>(address) = value; }
inline void store(u32 address, u16 value) { *place<u16>(address) = value; }
inline void store(u32 address, float value) { *place<float>(address) = value; }
inline float load_f32(u32 address) { return *place<float>(address); }
inline void load(u32& x, u32& y, u32 address) {
  const u32* p = place<u32>(address, 2);
  x = p[0], y = p[1];
}
inline void load(float& x, float& y, u32 address) {
  const float* p = place<float>(address, 2);
  x = p[0], y = p[1];
}
inline void load(u32& x, u32& y, u32& z, u32& w, u32 address) {
  const u32* p = place<u32>(address, 4);
  x = p[0], y = p[1], z = p[2], w = p[3];
}
inline void fence_async_proxy() {}

}  // namespace dsak::shared
