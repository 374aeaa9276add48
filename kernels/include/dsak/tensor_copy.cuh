// Tensor copies (UTMALDG): one instruction moves a row from global to shared memory as a tensor map says.
#pragma once

#include "dsak/types.cuh"

namespace dsak::tensor_copy {

// A tensor map of rows (`rows` in the declaration), which the driver encodes: [rows][lines][128 bytes], a box is one row. In
// shared memory, where its place is a multiple of 128 bytes, the eight 16-byte pieces of a line are permuted by exclusive or
// with the line's number modulo 8.
struct alignas(64) Map {
  u64 opaque[16];
};

// Row `index`, or zeros where there is none. The bytes are counted on `barrier` either way.
__device__ __forceinline__ void copy_row(u32 destination, const Map* map, i32 index, u32 barrier, u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %2, "
      "%3}], "
      "[%4], %5;" ::"r"(destination),
      "l"(map), "r"(0), "r"(index), "r"(barrier), "l"(policy)
      : "memory");
}

}  // namespace dsak::tensor_copy
