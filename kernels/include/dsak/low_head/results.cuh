// From sums to results: totals over the warps of a team, and the output of a CTA that had all keys of its token.
#pragma once

#include "dsak/convert.cuh"
#include "dsak/low_head/lanes.cuh"
#include "dsak/low_head/layout.cuh"
#include "dsak/low_head/products.cuh"
#include "dsak/low_head/share.cuh"
#include "dsak/low_head/softmax.cuh"
#include "dsak/shared_memory.cuh"

namespace dsak::low_head {

// Makes the sums and maxima of `statistics` those of all keys of the team, in each of its threads.
__device__ __forceinline__ void total_statistics(Statistics& statistics, const Member& me) {
  team_barrier(me.team);  // statistics that lie over Q: nobody reads that from here on
  const auto place = [&](u32 kind, u32 w, u32 i) {
    return me.memory + plan::kStatistics + 4 * ((kind * 4 + w) * kHeads + head_of(i, me.t));
  };
#pragma unroll
  for (u32 i = 0; i < kOwn; ++i) {
    const float sum = column_sum(statistics.sum[i]), maximum = column_max(statistics.maximum[i]);
    if (me.g != 0) continue;
    shared::store(place(0, me.warp, i), sum);
    shared::store(place(1, me.warp, i), maximum);
  }
  team_barrier(me.team);
#pragma unroll
  for (u32 i = 0; i < kOwn; ++i) {
    statistics.sum[i] = (shared::load_f32(place(0, 0, i)) + shared::load_f32(place(0, 1, i))) +
                        (shared::load_f32(place(0, 2, i)) + shared::load_f32(place(0, 3, i)));
    statistics.maximum[i] = fmaxf(fmaxf(shared::load_f32(place(1, 0, i)), shared::load_f32(place(1, 1, i))),
                                  fmaxf(shared::load_f32(place(1, 2, i)), shared::load_f32(place(1, 3, i))));
  }
}

// Share of the keys, against the sink, in the softmax of `head`; `sum` is in the frame, times the probability scale.
__device__ __forceinline__ float share_of_keys(const Arguments& args, i32 head, float sum, float frame) {
  if (args.attn_sink == nullptr) return 1.f;
  const float sink = exp2_approx(fmaf(__ldg(args.attn_sink + head), kLog2e, kLog2ProbabilityScale - frame));
  return __fdividef(sum, sum + sink);
}

__device__ __forceinline__ float kv_scale_of(const Arguments& args) {
  return args.kv_scale != nullptr ? __ldg(args.kv_scale) : 1.f;
}

// A sum of zero means that no key was valid. It is NaN where a selected row or the query held one, and so are the results.
__device__ __forceinline__ void store_logit_statistics(const Arguments& args, i32 token, i32 head, float sum, float frame,
                                                       float maximum) {
  const i64 place = static_cast<i64>(token) * args.H + head;
  const bool any = sum != 0.f;
  if (args.max_logits != nullptr) args.max_logits[place] = sum != sum ? sum : any ? maximum * kLn2 : negative_infinity();
  if (args.lse != nullptr)
    args.lse[place] = any ? (log2_approx(sum) + (frame - kLog2ProbabilityScale)) * kLn2 : positive_infinity();
}

// Output straight from registers, in sectors of 32 bytes. `total` is the CTA's own: no other has keys of the token.
__device__ __forceinline__ void store_results(const Output& total, const Statistics& statistics, const Frames& frames,
                                              const Arguments& args, const Share& share, const Member& me) {
  const float kv_scale = kv_scale_of(args);
  float factor[kOwn];
#pragma unroll
  for (u32 i = 0; i < kOwn; ++i) {
    const i32 local = static_cast<i32>(head_of(i, me.t));
    factor[i] = 0.f;
    if (local >= share.heads) continue;
    const i32 head = share.first_head + local;
    const float sum = statistics.sum[i], frame = frames.of[i];
    if (sum != 0.f) factor[i] = __fdividef(kv_scale, sum) * share_of_keys(args, head, sum, frame);
    if (me.warp == 0 && me.g == 0) store_logit_statistics(args, share.token, head, sum, frame, statistics.maximum[i]);
  }
  Columns::store(args.out + share.token * args.out_stride_t + share.first_head * args.out_stride_h + 16 * me.warp,
                 args.out_stride_h, share.heads, total, factor, me.g, me.t);
}

}  // namespace dsak::low_head
