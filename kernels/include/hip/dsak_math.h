// The float functions that map to one instruction or a short run of them. tanh, pow, erf and their kind need the device
// libraries of ROCm and are left out.
#pragma once

#include <dsak_std.h>

#define HUGE_VALF __builtin_huge_valf()
#define HUGE_VAL __builtin_huge_val()
#define DSAK_DEVICE static __attribute__((device)) inline __attribute__((always_inline))

DSAK_DEVICE float exp2f(float x) { return __builtin_amdgcn_exp2f(x); }
DSAK_DEVICE float log2f(float x) { return __builtin_amdgcn_logf(x); }
DSAK_DEVICE float __exp2f(float x) { return __builtin_amdgcn_exp2f(x); }
DSAK_DEVICE float __log2f(float x) { return __builtin_amdgcn_logf(x); }
DSAK_DEVICE float __expf(float x) { return __builtin_amdgcn_exp2f(x * 1.44269504f); }
DSAK_DEVICE float __logf(float x) { return __builtin_amdgcn_logf(x) * 0.69314718f; }
DSAK_DEVICE float expf(float x) { return __expf(x); }
DSAK_DEVICE float logf(float x) { return __logf(x); }
DSAK_DEVICE float rsqrtf(float x) { return __builtin_amdgcn_rsqf(x); }
DSAK_DEVICE float sqrtf(float x) { return __builtin_sqrtf(x); }
DSAK_DEVICE float fabsf(float x) { return __builtin_fabsf(x); }
DSAK_DEVICE float fmaxf(float x, float y) { return __builtin_fmaxf(x, y); }
DSAK_DEVICE float fminf(float x, float y) { return __builtin_fminf(x, y); }
DSAK_DEVICE float fmaf(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
DSAK_DEVICE float floorf(float x) { return __builtin_floorf(x); }
DSAK_DEVICE float ceilf(float x) { return __builtin_ceilf(x); }
DSAK_DEVICE float truncf(float x) { return __builtin_truncf(x); }
DSAK_DEVICE float roundf(float x) { return __builtin_roundf(x); }
DSAK_DEVICE float rintf(float x) { return __builtin_rintf(x); }
DSAK_DEVICE double round(double x) { return __builtin_round(x); }
DSAK_DEVICE float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
DSAK_DEVICE int __float_as_int(float x) { return __builtin_bit_cast(int, x); }

#define DSAK_MIN_MAX(T)                                 \
  DSAK_DEVICE T max(T x, T y) { return x > y ? x : y; } \
  DSAK_DEVICE T min(T x, T y) { return x < y ? x : y; }
DSAK_MIN_MAX(int)
DSAK_MIN_MAX(unsigned)
DSAK_MIN_MAX(long)
DSAK_MIN_MAX(unsigned long)
DSAK_MIN_MAX(long long)
DSAK_MIN_MAX(unsigned long long)
#undef DSAK_MIN_MAX
DSAK_DEVICE float max(float x, float y) { return __builtin_fmaxf(x, y); }
DSAK_DEVICE float min(float x, float y) { return __builtin_fminf(x, y); }
DSAK_DEVICE double max(double x, double y) { return __builtin_fmax(x, y); }
DSAK_DEVICE double min(double x, double y) { return __builtin_fmin(x, y); }

#undef DSAK_DEVICE
