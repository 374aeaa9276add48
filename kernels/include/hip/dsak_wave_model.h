// The instructions of dsak_wave.h in plain CUDA C++: 64 threads that keep together stand for a wave. Slow, and never shipped: tests
// run the kernel's logic with it on an NVIDIA GPU. Lanes exchange operands through memory and meet at a barrier of their own.
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#define DSAK_WAVE static __device__ __forceinline__

__shared__ float dsak_operands[4][64][16];
__shared__ unsigned long long dsak_words[4][64];

DSAK_WAVE void dsak_meet() { asm volatile("bar.sync %0, 64;" ::"r"(1 + int(threadIdx.x) / 64) : "memory"); }

template <typename T>
DSAK_WAVE float dsak_value(const T* from) {
  if constexpr (sizeof(T) == 1) {
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(*reinterpret_cast<const unsigned char*>(from), __NV_E4M3)));
  } else {
    return __uint_as_float(unsigned(*reinterpret_cast<const unsigned short*>(from)) << 16);
  }
}

template <typename T>
DSAK_WAVE void dsak_mma(float* d, const T* a, const T* b) {
  const int wave = threadIdx.x / 64, lane = threadIdx.x % 64, i = lane % 16, g = lane / 16;
  auto* operands = dsak_operands[wave];
  for (int k = 0; k < 8; ++k) {
    operands[lane][k] = dsak_value(a + k);
    operands[lane][8 + k] = dsak_value(b + k);
  }
  dsak_meet();
  for (int r = 0; r < 4; ++r)
    for (int from = 0; from < 4; ++from)
      for (int k = 0; k < 8; ++k) d[r] += operands[16 * from + 4 * g + r][k] * operands[16 * from + i][8 + k];
  dsak_meet();
}

template <typename T>
DSAK_WAVE void dsak_mma_deep(float* d, const T* a, const T* b) {
  for (int part = 0; part < 4; ++part) dsak_mma(d, a + 8 * part, b + 8 * part);
}

// Eight bytes from the address of each lane; lane i of a group gets the elements that lie i-th in each row of the group.
template <typename T>
DSAK_WAVE void dsak_transposed_once(T* to, const T* from) {
  constexpr int width = 8 / sizeof(T), lanes = 16 / width;
  const int wave = threadIdx.x / 64, lane = threadIdx.x % 64, i = lane % 16;
  dsak_words[wave][lane] = *reinterpret_cast<const unsigned long long*>(from);
  dsak_meet();
  for (int row = 0; row < width; ++row)
    to[row] = reinterpret_cast<const T*>(&dsak_words[wave][lane - i + lanes * row + i / width])[i % width];
  dsak_meet();
}

template <typename T>
DSAK_WAVE void dsak_transposed(T* to, const T* first, const T* second) {
  dsak_transposed_once(to, first);
  if constexpr (sizeof(T) == 2) dsak_transposed_once(to + 4, second);
}

DSAK_WAVE unsigned dsak_bytes(unsigned low, unsigned high, unsigned select) {
  return __byte_perm(low, high, select & 7 | select >> 4 & 0x70 | select >> 8 & 0x700 | select >> 12 & 0x7000);
}

template <typename T>
DSAK_WAVE void dsak_round(T* to, const float* p) {
  for (int k = 0; k < 8; ++k) {
    if constexpr (sizeof(T) == 1) {
      *reinterpret_cast<unsigned char*>(to + k) = __nv_cvt_float_to_fp8(p[k], __NV_SATFINITE, __NV_E4M3);
    } else {
      *reinterpret_cast<unsigned short*>(to + k) = __bfloat16_as_ushort(__float2bfloat16_rn(p[k]));
    }
  }
}

template <typename T>
DSAK_WAVE void dsak_rest(float* p, const T* from) {
  for (int k = 0; k < 8; ++k) p[k] -= dsak_value(from + k);
}

DSAK_WAVE float dsak_across(float value, int mask) {
  const int wave = threadIdx.x / 64, lane = threadIdx.x % 64;
  dsak_operands[wave][lane][0] = value;
  dsak_meet();
  value = dsak_operands[wave][lane ^ mask][0];
  dsak_meet();
  return value;
}
