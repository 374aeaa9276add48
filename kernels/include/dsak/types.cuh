// Fixed-width names without <cstdint>: NVRTC compiles these kernels with no host headers.
#pragma once

namespace dsak {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;
using bf16_bits = u16;  // a bfloat16 in memory; arithmetic on it always goes through float

static_assert(sizeof(u32) == 4 && sizeof(u64) == 8 && sizeof(i64) == 8, "LP64 or LLP64 widths expected");

__device__ __forceinline__ float positive_infinity() { return __int_as_float(0x7f800000); }
__device__ __forceinline__ float negative_infinity() { return __int_as_float(0xff800000); }

}  // namespace dsak
