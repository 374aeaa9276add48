// The FP8 names that TileLang's header for AMD mentions, as bytes. e4m3 converts to and from float in the target's own flavour
// (fnuz on gfx942, OCP from gfx950 on); TileLang chooses the flavour by the target as well, and the compiler module refuses the
// other one.
#pragma once

#include <hip/hip_runtime.h>

enum __hip_fp8_interpretation_t { __HIP_E4M3_FNUZ, __HIP_E4M3, __HIP_E5M2_FNUZ, __HIP_E5M2 };
enum __hip_saturation_t { __HIP_NOSAT, __HIP_SATFINITE };
using __hip_fp8_storage_t = unsigned char;

#if defined(__gfx942__)
#define DSAK_E4M3_MAX 240.f
#else
#define DSAK_E4M3_MAX 448.f
#endif

// Saturates, and leaves a NaN one: the clamp is explicit because the conversion overflows to NaN. E5M2 is in no kernel here.
static __device__ __forceinline__ __hip_fp8_storage_t __hip_cvt_float_to_fp8(float x, __hip_saturation_t,
                                                                             __hip_fp8_interpretation_t) {
  const float clamped = x != x ? x : __builtin_fminf(__builtin_fmaxf(x, -DSAK_E4M3_MAX), DSAK_E4M3_MAX);
  return static_cast<__hip_fp8_storage_t>(__builtin_amdgcn_cvt_pk_fp8_f32(clamped, 0.f, 0, false));
}

#define DSAK_FP8(name, value)                                   \
  struct name {                                                 \
    __hip_fp8_storage_t __x;                                    \
    __device__ operator float() const { return value(__x, 0); } \
  };
#define DSAK_FP8_VECTORS(pair, quad) \
  struct pair {                      \
    uint16_t __x;                    \
  };                                 \
  struct quad {                      \
    uint32_t __x;                    \
  };

DSAK_FP8(__hip_fp8_e4m3, __builtin_amdgcn_cvt_f32_fp8)
DSAK_FP8(__hip_fp8_e4m3_fnuz, __builtin_amdgcn_cvt_f32_fp8)
DSAK_FP8(__hip_fp8_e5m2, __builtin_amdgcn_cvt_f32_bf8)
DSAK_FP8(__hip_fp8_e5m2_fnuz, __builtin_amdgcn_cvt_f32_bf8)
DSAK_FP8_VECTORS(__hip_fp8x2_e4m3, __hip_fp8x4_e4m3)
DSAK_FP8_VECTORS(__hip_fp8x2_e4m3_fnuz, __hip_fp8x4_e4m3_fnuz)
DSAK_FP8_VECTORS(__hip_fp8x2_e5m2, __hip_fp8x4_e5m2)
DSAK_FP8_VECTORS(__hip_fp8x2_e5m2_fnuz, __hip_fp8x4_e5m2_fnuz)
#undef DSAK_FP8
#undef DSAK_FP8_VECTORS
