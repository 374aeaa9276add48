// Number conversions: float to e4m3 / bf16 and back, base-2 exponential and logarithm.
#pragma once

#include "dsak/types.cuh"

namespace dsak {

__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float log2_approx(float x) {
  float y;
  asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two floats to two e4m3 bytes, round to nearest even, saturating at 448; `low` lands in the low byte.
__device__ __forceinline__ u16 to_e4m3x2(float low, float high) {
  u16 packed;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(high), "f"(low));
  return packed;
}

__device__ __forceinline__ u32 pack_u16(u16 low, u16 high) {
  u32 packed;
  asm("mov.b32 %0, {%1, %2};" : "=r"(packed) : "h"(low), "h"(high));
  return packed;
}

// Two e4m3 bytes to two halves, exact.
__device__ __forceinline__ u32 e4m3x2_to_f16x2(u16 packed) {
  u32 halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(packed));
  return halves;
}

__device__ __forceinline__ u32 add_f16x2(u32 a, u32 b) {
  u32 sum;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
  return sum;
}

__device__ __forceinline__ void unpack_f16x2(float& low, float& high, u32 halves) {
  asm("{\n"
      ".reg .b16 l, h;\n"
      "mov.b32 {l, h}, %2;\n"
      "cvt.f32.f16 %0, l;\n"
      "cvt.f32.f16 %1, h;\n"
      "}"
      : "=f"(low), "=f"(high)
      : "r"(halves));
}

// Four floats to four e4m3 bytes, lowest first. One statement, because half-written registers of 16-bit results stay live
// around loops.
__device__ __forceinline__ u32 to_e4m3x4(float a, float b, float c, float d) {
  u32 packed;
  asm("{\n"
      ".reg .b16 l, h;\n"
      "cvt.rn.satfinite.e4m3x2.f32 l, %2, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f32 h, %4, %3;\n"
      "mov.b32 %0, {l, h};\n"
      "}"
      : "=r"(packed)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return packed;
}

// Four e4m3 bytes to four floats, lowest first.
__device__ __forceinline__ void from_e4m3x4(float (&x)[4], u32 packed) {
  u32 low, high;
  asm("{\n"
      ".reg .b16 l, h;\n"
      "mov.b32 {l, h}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, l;\n"
      "cvt.rn.f16x2.e4m3x2 %1, h;\n"
      "}"
      : "=r"(low), "=r"(high)
      : "r"(packed));
  unpack_f16x2(x[0], x[1], low);
  unpack_f16x2(x[2], x[3], high);
}

// Two floats to two halves, round to nearest even; `low` lands in the low half.
__device__ __forceinline__ u32 to_f16x2(float low, float high) {
  u32 packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// Two floats to two bfloat16, round to nearest even; `low` lands in the low half.
__device__ __forceinline__ u32 to_bf16x2(float low, float high) {
  u32 packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// Two bfloat16 to floats, exact.
__device__ __forceinline__ void unpack_bf16x2(float& low, float& high, u32 pair) {
  low = __uint_as_float(pair << 16);
  high = __uint_as_float(pair & 0xffff0000);
}

}  // namespace dsak
