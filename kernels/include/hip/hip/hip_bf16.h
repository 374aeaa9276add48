// bfloat16: conversions round to nearest even, in one instruction where the target has it (gfx950).
#pragma once

#include <hip/hip_runtime.h>

struct hip_bfloat16 {
  uint16_t data;

  hip_bfloat16() = default;
  __host__ __device__ constexpr hip_bfloat16(float value) : data(__builtin_bit_cast(uint16_t, static_cast<__bf16>(value))) {}
  __host__ __device__ constexpr operator float() const { return __builtin_bit_cast(float, static_cast<uint32_t>(data) << 16); }
};
