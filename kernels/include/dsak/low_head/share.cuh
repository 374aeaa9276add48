// A CTA's share of the work: one token, one tile of heads (blockIdx.y), and a run of key blocks.
#pragma once

#include "dsak/cluster.cuh"
#include "dsak/low_head/layout.cuh"

namespace dsak::low_head {

// n / divisor, for n up to 2^24 and a small divisor: an eighth of the instructions of the general division, which the first
// load would wait for.
__device__ __forceinline__ u32 divide(u32 n, u32 divisor) {
  const u32 q = __float2uint_rz(__fdividef(__uint2float_rn(n), __uint2float_rn(divisor)));
  const i32 rest = static_cast<i32>(n - q * divisor);
  return q - (rest < 0) + (rest >= static_cast<i32>(divisor));
}

struct Share {
  u32 split, splits;  // this CTA's place in the cluster that shares the keys
  i32 token, first_head, heads;
  i32 columns;  // of the token's index row that count
  i32 first_block, last_block;

  static __device__ __forceinline__ Share of_this_cta(const Arguments& args) {
    Share s;
    // Read anew at every call: a consumer works this out again at the end instead of keeping it in registers.
    u32 x, y;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(x));
    asm volatile("mov.u32 %0, %%ctaid.y;" : "=r"(y));
    s.splits = kSplit ? cluster::size() : 1;
    s.split = kSplit ? cluster::rank() : 0;
    s.token = static_cast<i32>(kSplit ? cluster::index() : x);
    s.first_head = static_cast<i32>(y * kHeads);
    s.heads = min(static_cast<i32>(kHeads), args.H - s.first_head);
    s.columns = args.topk;
    if (args.topk_length != nullptr) s.columns = min(max(__ldg(args.topk_length + s.token), 0), args.topk);
    // Whole blocks, so that only one CTA has a short one; the first CTAs have one more.
    const u32 blocks = (static_cast<u32>(s.columns) + kKeys - 1) / kKeys;
    const u32 each = kSplit ? divide(blocks, s.splits) : blocks, rest = blocks - each * s.splits;
    s.first_block = static_cast<i32>(s.split * each + min(s.split, rest));
    s.last_block = s.first_block + static_cast<i32>(each + (s.split < rest));
    return s;
  }
};

}  // namespace dsak::low_head
