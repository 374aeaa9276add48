// A CTA's share of the work: one token, one tile of heads (blockIdx.y), and a run of key blocks.
#pragma once

#include "dsak/cluster.cuh"
#include "dsak/low_head/layout.cuh"

namespace dsak::low_head {

struct Share {
  u32 split, splits;  // this CTA's place in the cluster that shares the keys
  i32 token, first_head, heads;
  i32 columns;  // of the token's index row that count
  i32 first_block, last_block;

  static __device__ __forceinline__ Share of_this_cta(const Arguments& args) {
    Share s;
    s.splits = kSplit ? cluster::size() : 1;
    // Read anew at every call: a consumer works this out again at the end instead of keeping it in registers.
    u32 x, y;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(x));
    asm volatile("mov.u32 %0, %%ctaid.y;" : "=r"(y));
    const u32 log_splits = kSplit ? 31 - __clz(s.splits) : 0;  // a power of two: no divisions before the first load
    s.split = kSplit ? x & (s.splits - 1) : 0;
    s.token = static_cast<i32>(x >> log_splits);
    s.first_head = static_cast<i32>(y * kHeads);
    s.heads = min(static_cast<i32>(kHeads), args.H - s.first_head);
    s.columns = args.topk;
    if (args.topk_length != nullptr) s.columns = min(max(__ldg(args.topk_length + s.token), 0), args.topk);
    // Whole blocks, so that only one CTA has a short one.
    const i32 blocks = (s.columns + static_cast<i32>(kKeys) - 1) / static_cast<i32>(kKeys);
    s.first_block = static_cast<i32>(s.split) * blocks >> log_splits;
    s.last_block = static_cast<i32>(s.split + 1) * blocks >> log_splits;
    return s;
  }
};

}  // namespace dsak::low_head
