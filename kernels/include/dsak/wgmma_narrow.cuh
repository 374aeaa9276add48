// FP8 warpgroup matrix products with few columns: m64n{8,16,32}k32, e4m3 x e4m3 into float32 registers, A in registers or a
// K-major tile in shared memory, B such a tile. Fragments are those of wgmma.cuh: columns come in groups of eight, four
// registers each.
#pragma once

#include "dsak/types.cuh"
#include "dsak/wgmma.cuh"

namespace dsak::wgmma {

// d = A B, or d += A B.
template <bool accumulate>
__device__ __forceinline__ void multiply_narrow(float (&d)[4], const u32 (&a)[4], u64 b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, %9, 1, 1;"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(accumulate));
}

template <bool accumulate>
__device__ __forceinline__ void multiply_narrow(float (&d)[8], const u32 (&a)[4], u64 b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 "
      "{%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, %12, %13, 1, 1;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(accumulate));
}

template <bool accumulate>
__device__ __forceinline__ void multiply_narrow(float (&d)[16], const u32 (&a)[4], u64 b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19}, %20, %21, 1, 1;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]),
        "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(accumulate));
}

template <bool accumulate>
__device__ __forceinline__ void multiply_narrow(float (&d)[4], u64 a, u64 b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%0, %1, %2, %3}, %4, %5, %6, 1, 1;"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "l"(a), "l"(b), "n"(accumulate));
}

template <bool accumulate>
__device__ __forceinline__ void multiply_narrow(float (&d)[8], u64 a, u64 b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 {%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, %10, 1, 1;"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
               : "l"(a), "l"(b), "n"(accumulate));
}

template <bool accumulate>
__device__ __forceinline__ void multiply_narrow(float (&d)[16], u64 a, u64 b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, %18, 1, 1;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]),
        "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
      : "l"(a), "l"(b), "n"(accumulate));
}

// As pin and claim of wgmma.cuh, for any number of registers.
template <u32 count>
__device__ __forceinline__ void pin_all(float (&d)[count]) {
#pragma unroll
  for (u32 i = 0; i < count; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <u32 count>
__device__ __forceinline__ void claim_all(float (&d)[count]) {
#pragma unroll
  for (u32 i = 0; i < count; ++i) asm volatile("" : "=f"(d[i]));
}
__device__ __forceinline__ void pin_operand(u32 (&a)[4]) {
  asm volatile("" : "+r"(a[0]), "+r"(a[1]), "+r"(a[2]), "+r"(a[3])::"memory");
}

}  // namespace dsak::wgmma
