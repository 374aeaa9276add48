// ldmatrix: four 8x8 matrices of 16-bit elements, from shared memory into registers.
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

}  // namespace dsak
