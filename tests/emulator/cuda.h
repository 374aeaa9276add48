// CUDA's names for a host compiler, over the machine. Included before everything.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "machine.h"
#include "numbers.h"

#define __device__
#define __global__
#define __shared__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(...)
#define __grid_constant__

struct uint2 {
  unsigned x, y;
};
struct uint4 {
  unsigned x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

struct ThreadIndex {
  struct {
    operator unsigned() const { return machine::self().index; }
  } x;
};
inline ThreadIndex threadIdx;
struct BlockIndex {
  struct {
    operator unsigned() const { return machine::self().cta->x; }
  } x;
};
inline BlockIndex blockIdx;
struct GridSize {
  struct {
    operator unsigned() const { return machine::grid_size(); }
  } x;
};
inline GridSize gridDim;

using std::max;
using std::min;
inline int min(int a, unsigned b) { return std::min(a, static_cast<int>(b)); }

inline unsigned __shfl_sync(unsigned, unsigned value, int lane) { return machine::meet(&value, 1)[lane & 31][0]; }
inline int __shfl_sync(unsigned mask, int value, int lane) {
  return static_cast<int>(__shfl_sync(mask, static_cast<unsigned>(value), lane));
}
inline unsigned __shfl_xor_sync(unsigned, unsigned value, int mask) {
  return machine::meet(&value, 1)[(machine::self().index & 31) ^ mask][0];
}
inline float __shfl_xor_sync(unsigned all, float value, int mask) {
  return numbers::from_bits(__shfl_xor_sync(all, numbers::to_bits(value), mask));
}
inline unsigned __ballot_sync(unsigned, bool predicate) {
  const unsigned mine = predicate;
  const auto board = machine::meet(&mine, 1);
  unsigned bits = 0;
  for (int lane = 0; lane < 32; ++lane) bits |= board[lane][0] << lane;
  return bits;
}
inline bool __any_sync(unsigned all, bool predicate) { return __ballot_sync(all, predicate) != 0; }
inline bool __all_sync(unsigned all, bool predicate) { return __ballot_sync(all, predicate) == ~0u; }
inline void __syncwarp() {
  const unsigned nothing = 0;
  machine::meet(&nothing, 1);
}
inline void __syncthreads() { machine::meet(0, machine::self().cta->threads, false); }

inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const unsigned long long bytes = static_cast<unsigned long long>(b) << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) result |= (bytes >> (8 * (selector >> (4 * i) & 7)) & 255) << (8 * i);
  return result;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(unsigned x) { return __builtin_ffs(static_cast<int>(x)); }
inline int __clz(unsigned x) { return x != 0 ? __builtin_clz(x) : 32; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __uint_as_float(unsigned x) { return numbers::from_bits(x); }
inline float __int_as_float(int x) { return numbers::from_bits(static_cast<unsigned>(x)); }
inline unsigned __float_as_uint(float x) { return numbers::to_bits(x); }
template <class T>
inline T __ldg(const T* place) {
  return *place;
}
inline unsigned __cvta_generic_to_shared(const void*) { return machine::self().cta->rank << 24 | 1024; }
