// A CTA's share of the work: one token, one tile of heads (blockIdx.y), and every so many-th key block.
#pragma once

#include "dsak/cluster.cuh"
#include "dsak/grid.cuh"
#include "dsak/low_head/layout.cuh"

namespace dsak::low_head {

struct Share {
  u32 split, splits;  // this CTA's place in the cluster that shares the keys
  i32 token, first_head, heads;
  i32 columns;  // of the token's index row that count

  // Key blocks of the token; this CTA has number `split` and every `splits`-th from there. Nothing is divided before the first
  // load.
  __device__ __forceinline__ u32 blocks() const { return (static_cast<u32>(columns) + kKeys - 1) / kKeys; }
  __device__ __forceinline__ u32 own_blocks() const {
    const u32 all = blocks();
    return !kSplit ? all : split < all ? (all - split - 1) / splits + 1 : 0;
  }

  static __device__ __forceinline__ Share of_this_cta(const Arguments& args) {
    Share s;
    // Read anew at every call: a consumer works this out again at the end instead of keeping it in registers.
    const u32 x = grid::x(), y = grid::y();
    s.splits = kSplit ? cluster::size() : 1;
    s.split = kSplit ? cluster::rank() : 0;
    s.token = static_cast<i32>(kSplit ? cluster::index() : x);
    s.first_head = static_cast<i32>(y * kHeads);
    s.heads = min(static_cast<i32>(kHeads), args.H - s.first_head);
    s.columns = args.topk;
    if (args.topk_length != nullptr) s.columns = min(max(__ldg(args.topk_length + s.token), 0), args.topk);
    return s;
  }
};

}  // namespace dsak::low_head
