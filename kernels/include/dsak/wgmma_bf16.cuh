// BF16 warpgroup matrix products with few columns: m64n{8,16,32}k16 into float32 registers, A and B in shared memory, B a
// K-major tile. Fragments are those of wgmma.cuh: columns come in groups of eight, four registers each.
#pragma once

#include "dsak/types.cuh"
#include "dsak/wgmma_narrow.cuh"

namespace dsak::wgmma {

// How A lies in memory. 16-bit operands may be transposed on their way to the tensor cores.
constexpr int kAlongK = 0, kAlongRows = 1;

// d = A B, or d += A B.
template <bool accumulate, int major>
__device__ __forceinline__ void multiply_bf16(float (&d)[4], u64 a, u64 b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, %6, 1, 1, %7, 0;"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "l"(a), "l"(b), "n"(accumulate), "n"(major));
}

template <bool accumulate, int major>
__device__ __forceinline__ void multiply_bf16(float (&d)[8], u64 a, u64 b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, %10, 1, 1, %11, 0;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
      : "l"(a), "l"(b), "n"(accumulate), "n"(major));
}

template <bool accumulate, int major>
__device__ __forceinline__ void multiply_bf16(float (&d)[16], u64 a, u64 b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, %18, 1, 1, %19, 0;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]),
        "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
      : "l"(a), "l"(b), "n"(accumulate), "n"(major));
}

}  // namespace dsak::wgmma
