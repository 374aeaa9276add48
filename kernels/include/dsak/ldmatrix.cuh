// ldmatrix and stmatrix: 8x8 matrices of 16-bit elements between shared memory and registers.
#pragma once

#include "dsak/types.cuh"

namespace dsak {

// Transposed load: lane l supplies the address of row l % 8 of matrix l / 8; afterwards lane 4g + t holds, of matrix m, the
// elements [2t][g] and [2t + 1][g] in r[m].
__device__ __forceinline__ void ldmatrix_x4_trans(u32 (&r)[4], u32 row_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row_address)
               : "memory");
}

// Plain load: afterwards lane 4g + t holds, of matrix m, the elements [g][2t] and [g][2t + 1] in r[m].
__device__ __forceinline__ void ldmatrix_x4(u32 (&r)[4], u32 row_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row_address)
               : "memory");
}

// Transposed stores of one, two or four matrices: the mirror of ldmatrix_x4_trans.
__device__ __forceinline__ void stmatrix_trans(const u32 (&r)[1], u32 row_address) {
  asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(row_address), "r"(r[0]) : "memory");
}
__device__ __forceinline__ void stmatrix_trans(const u32 (&r)[2], u32 row_address) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(row_address), "r"(r[0]), "r"(r[1])
               : "memory");
}
__device__ __forceinline__ void stmatrix_trans(const u32 (&r)[4], u32 row_address) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row_address), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

}  // namespace dsak
