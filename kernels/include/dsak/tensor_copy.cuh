// Tensor copies (UTMALDG, UTMASTG): one instruction moves a row, or a box of rows, between global and shared memory as a tensor
// map says.
#pragma once

#include "dsak/types.cuh"

namespace dsak::tensor_copy {

// A tensor map (`map` in the declaration), which the driver encodes. In shared memory a box is lines of 128 bytes; where its
// place is a multiple of 128 bytes, the eight 16-byte pieces of a line are permuted by exclusive or with the line's number
// modulo 8 (counted from a multiple of 1024 bytes).
struct alignas(64) Map {
  u64 opaque[16];
};

// Of a map [rows][lines][128 bytes] whose box is one row: row `index`, or zeros where there is none. The bytes are counted on
// `barrier` either way.
__device__ __forceinline__ void copy_row(u32 destination, const Map* map, i32 index, u32 barrier, u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %2, "
      "%3}], "
      "[%4], %5;" ::"r"(destination),
      "l"(map), "r"(0), "r"(index), "r"(barrier), "l"(policy)
      : "memory");
}

// Of a map [outer][rows][lines][128 bytes] whose boxes are one line of several rows: the box of which `line`, `row` and `outer`
// are the first.
__device__ __forceinline__ void copy_box(u32 destination, const Map* map, i32 line, i32 row, i32 outer, u32 barrier,
                                         u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3, %4, "
      "%5}], [%6], %7;" ::"r"(destination),
      "l"(map), "r"(0), "r"(line), "r"(row), "r"(outer), "r"(barrier), "l"(policy)
      : "memory");
}

// The other way: such a box from shared memory, which this thread and others wrote before a fence of
// their own (shared::fence_async_proxy) and a barrier. What a thread has stored since its last `commit` is a group.
__device__ __forceinline__ void store_box(const Map* map, i32 line, i32 row, i32 outer, u32 source) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::"l"(map), "r"(0),
               "r"(line), "r"(row), "r"(outer), "r"(source)
               : "memory");
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Until all but the latest `pending` of the calling thread's groups have been read from shared memory.
template <int pending>
__device__ __forceinline__ void wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}

// Until all of the calling thread's groups have been written.
__device__ __forceinline__ void wait_written() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

}  // namespace dsak::tensor_copy
