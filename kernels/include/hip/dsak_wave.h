// What a wave of 64 lanes does in one instruction, as the TileLang attention kernel (include/tile_wave.py) calls it.
//
// Two bodies: AMD's builtins, and a model of them in plain CUDA C++ by which the kernel's logic runs on an NVIDIA GPU. i is a
// lane's number in its group of 16, g the number of the group. T is a type of one byte (e4m3) or two (bfloat16).
//
//   mma        D[16 x 16] += A[16 x 32] B[32 x 16]. Lane (g, i) holds row i of A and column i of B, elements 8 g .. 8 g + 7 of
//   the
//              sum's index; and of D the rows 4 g .. 4 g + 3 of column i. The sum may run in any order that A and B share.
//   transposed Group g reads rows R0..R7 of 16 elements. Lane i gets element i of each, in the order of the rows: a row i of A
//   whose
//              sum runs over the rows. Two bytes: lane 4 r + c passes the address of elements 4 c .. 4 c + 3 of row r, once for
//              the first four rows and once for the others. One byte: lane 2 r + c that of elements 8 c .. 8 c + 7 of row r.
#ifndef DSAK_WAVE

#if defined(__HIP__)

#include <hip/hip_runtime.h>

#define DSAK_WAVE static __device__ __forceinline__

template <typename To>
DSAK_WAVE To dsak_as(const void* from) {
  To to;
  __builtin_memcpy(&to, from, sizeof(To));
  return to;
}

using dsak_f32x4 = __attribute__((ext_vector_type(4))) float;
using dsak_i32x2 = __attribute__((ext_vector_type(2))) int;
using dsak_i32x8 = __attribute__((ext_vector_type(8))) int;
using dsak_i16x4 = __attribute__((ext_vector_type(4))) short;
using dsak_bf16x8 = __attribute__((ext_vector_type(8))) __bf16;

template <typename T>
DSAK_WAVE void dsak_mma(float* d, const T* a, const T* b) {
  auto sum = dsak_as<dsak_f32x4>(d);
  if constexpr (sizeof(T) == 1) {
    sum = __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(dsak_as<long>(a), dsak_as<long>(b), sum, 0, 0, 0);
  } else {
#if defined(__gfx950__)
    sum = __builtin_amdgcn_mfma_f32_16x16x32_bf16(dsak_as<dsak_bf16x8>(a), dsak_as<dsak_bf16x8>(b), sum, 0, 0, 0);
#else
    sum = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(dsak_as<dsak_i16x4>(a), dsak_as<dsak_i16x4>(b), sum, 0, 0, 0);
    sum = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(dsak_as<dsak_i16x4>(a + 4), dsak_as<dsak_i16x4>(b + 4), sum, 0, 0, 0);
#endif
  }
  __builtin_memcpy(d, &sum, 16);
}

// Four times as deep: 32 elements a lane. Where the target has it, one instruction of twice the rate; its scales are all 1.
template <typename T>
DSAK_WAVE void dsak_mma_deep(float* d, const T* a, const T* b) {
  static_assert(sizeof(T) == 1, "the deep form is for e4m3");
#if defined(__gfx950__)
  auto sum = dsak_as<dsak_f32x4>(d);
  sum = __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(dsak_as<dsak_i32x8>(a), dsak_as<dsak_i32x8>(b), sum, 0, 0, 0, 0, 0, 0);
  __builtin_memcpy(d, &sum, 16);
#else
  for (int part = 0; part < 4; ++part) dsak_mma(d, a + 8 * part, b + 8 * part);
#endif
}

#if defined(__gfx950__)
// `first` and `second` are this lane's addresses in LDS for rows R0..R3 and R4..R7; with e4m3 the first one is for all.
template <typename T>
DSAK_WAVE void dsak_transposed(T* to, const T* first, const T* second) {
  if constexpr (sizeof(T) == 1) {
    const auto v = __builtin_amdgcn_ds_read_tr8_b64_v2i32((__attribute__((address_space(3))) dsak_i32x2*)(first));
    __builtin_memcpy(to, &v, 8);
  } else {
    const auto v = __builtin_amdgcn_ds_read_tr16_b64_v4i16((__attribute__((address_space(3))) dsak_i16x4*)(first));
    const auto w = __builtin_amdgcn_ds_read_tr16_b64_v4i16((__attribute__((address_space(3))) dsak_i16x4*)(second));
    __builtin_memcpy(to, &v, 8);
    __builtin_memcpy(to + 4, &w, 8);
  }
}
#endif

// Bytes of the word high:low that the bytes of `select` name, 0 the lowest.
DSAK_WAVE unsigned dsak_bytes(unsigned low, unsigned high, unsigned select) { return __builtin_amdgcn_perm(high, low, select); }

// Eight floats in the kernel's element type, rounded to nearest even; |p| must not exceed the largest one.
template <typename T>
DSAK_WAVE void dsak_round(T* to, const float* p) {
  if constexpr (sizeof(T) == 1) {
    for (int half = 0; half < 2; ++half) {
      int word = __builtin_amdgcn_cvt_pk_fp8_f32(p[4 * half], p[4 * half + 1], 0, false);
      word = __builtin_amdgcn_cvt_pk_fp8_f32(p[4 * half + 2], p[4 * half + 3], word, true);
      __builtin_memcpy(to + 4 * half, &word, 4);
    }
  } else {
    for (int k = 0; k < 8; ++k) {
      const auto v = static_cast<__bf16>(p[k]);
      __builtin_memcpy(to + k, &v, 2);
    }
  }
}

// The sum of eight rounded values.
template <typename T>
DSAK_WAVE float dsak_sum(const T* p) {
  float sum = 0;
  for (int half = 0; half < 2; ++half) {
    if constexpr (sizeof(T) == 1) {
      const int word = dsak_as<int>(p + 4 * half);
      sum += __builtin_amdgcn_cvt_f32_fp8(word, 0) + __builtin_amdgcn_cvt_f32_fp8(word, 1);
      sum += __builtin_amdgcn_cvt_f32_fp8(word, 2) + __builtin_amdgcn_cvt_f32_fp8(word, 3);
    } else {
      for (int k = 4 * half; k < 4 * half + 4; ++k)
        sum += __builtin_bit_cast(float, static_cast<unsigned>(dsak_as<uint16_t>(p + k)) << 16);
    }
  }
  return sum;
}

// What rounding lost: p[k] -= from[k].
template <typename T>
DSAK_WAVE void dsak_rest(float* p, const T* from) {
  static_assert(sizeof(T) == 1, "a second term is for e4m3");
  for (int half = 0; half < 2; ++half) {
    const int word = dsak_as<int>(from + 4 * half);
    p[4 * half] -= __builtin_amdgcn_cvt_f32_fp8(word, 0);
    p[4 * half + 1] -= __builtin_amdgcn_cvt_f32_fp8(word, 1);
    p[4 * half + 2] -= __builtin_amdgcn_cvt_f32_fp8(word, 2);
    p[4 * half + 3] -= __builtin_amdgcn_cvt_f32_fp8(word, 3);
  }
}

DSAK_WAVE float dsak_across(float value, int mask) { return __shfl_xor(value, mask); }

#else
#include "dsak_wave_model.h"
#endif

// Sixteen bytes from memory, or zeros; nothing is read then.
template <typename T>
DSAK_WAVE void dsak_fetch(T* to, const T* from, bool valid) {
  uint4 v = make_uint4(0, 0, 0, 0);
  if (valid) v = *reinterpret_cast<const uint4*>(from);
  __builtin_memcpy(to, &v, 16);
}

// Eight rows of eight elements in a lane's registers become columns: to[8 c + k] is element c of row k.
template <typename T>
DSAK_WAVE void dsak_columns(T* to, const T* rows) {
  for (int word = 0; word < 2 * sizeof(T); ++word) {
    unsigned r[8], c[8];
    for (int k = 0; k < 8; ++k) __builtin_memcpy(&r[k], reinterpret_cast<const char*>(rows + 8 * k) + 4 * word, 4);
    if constexpr (sizeof(T) == 2) {
      for (int pair = 0; pair < 4; ++pair) {
        c[pair] = dsak_bytes(r[2 * pair], r[2 * pair + 1], 0x05040100);
        c[4 + pair] = dsak_bytes(r[2 * pair], r[2 * pair + 1], 0x07060302);
      }
    } else {
      for (int half = 0; half < 2; ++half) {
        const unsigned* q = r + 4 * half;
        const unsigned low01 = dsak_bytes(q[0], q[1], 0x05010400), high01 = dsak_bytes(q[0], q[1], 0x07030602);
        const unsigned low23 = dsak_bytes(q[2], q[3], 0x05010400), high23 = dsak_bytes(q[2], q[3], 0x07030602);
        c[0 + half] = dsak_bytes(low01, low23, 0x05040100);
        c[2 + half] = dsak_bytes(low01, low23, 0x07060302);
        c[4 + half] = dsak_bytes(high01, high23, 0x05040100);
        c[6 + half] = dsak_bytes(high01, high23, 0x07060302);
      }
    }
    __builtin_memcpy(reinterpret_cast<char*>(to) + 32 * word, c, 32);
  }
}
#endif  // DSAK_WAVE
