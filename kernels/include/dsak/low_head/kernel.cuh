// The kernel of the sparse-MLA ops for few heads: roles and the consumer's loop. Layout and tiling: layout.cuh.
//
//   producers    rows n+1 (two stages or more) ...
//   consumers    S n = K Q^T | softmax n -> P, barrier | O += V^T P^T | S n+1 ...
//
// With FP8 rows nothing of a team overlaps except copies with all else: the CTAs of an SM, or two teams of a CTA that has the
// SM to itself, overlap with each other. BF16 rows: blocks.cuh.
//
// Shared memory (bytes)      512: 8 / 16 / 32 heads           576: 8 / 16 / 32 heads
//   FP8 stages, 32,768 or 36,864  2 (in pairs: 3, 3, 2)           2           (two teams: 33,792 and 36,992)
//   Q                             4,096 /  8,192 / 16,384         4,608 /  9,216 / 18,432
//   P                             1,024 /  2,048 /  4,096         as at 512
//   frames, bits, barriers          224 /    384 /    704         as at 512
//   in all, two stages           70,880 / 76,160 / 86,720        79,584 / 85,376 / 96,960
//   CTAs on an SM                     3 /      3 /      2             2 /      2 /      2
// In pairs: two CTAs on an SM. Split forms (but one with two stages), and decode where two end sooner than three
// (sparse_mla_decode/low_candidates.py).
// Two teams: six stages (576: four), P and frames twice; one CTA on an SM. BF16: stages of 65,536 (three; two at 32 heads) or
// 73,728 (two), Q twice as large, P as large or, where blocks overlap, twice; one CTA on an SM. Registers: FP8 136 consumer and
// 24 producer with three CTAs, 216 and 40 with two (two fewer usable); with one CTA all threads have as many as they need, up
// to 168 with two teams. No spills.
//
// Measured on an H200 by benchmarks/rates.py: docs/tuning/low_head.md, which also says what was tried. With FP8 rows the
// limit is shared memory: rows arriving, K and V read, Q and P as second operands.
#pragma once

#include "dsak/dependent_launch.cuh"
#include "dsak/low_head/blocks.cuh"
#include "dsak/low_head/combine.cuh"
#include "dsak/low_head/layout.cuh"
#include "dsak/low_head/producer.cuh"
#include "dsak/low_head/query.cuh"
#include "dsak/low_head/results.cuh"
#include "dsak/low_head/share.cuh"
#include "dsak/low_head/softmax.cuh"
#include "dsak/mbarrier.cuh"
#include "dsak/registers.cuh"
#include "dsak/shared_memory.cuh"
#include "dsak/types.cuh"

namespace dsak::low_head {

struct Consumer {
  const Arguments& args;
  const u32 smem;
  const Member me{smem};

  // Octaves per unit of a raw score.
  __device__ __forceinline__ float score_factor() const {
    const float q_scale = args.q_scale != nullptr ? __ldg(args.q_scale) : 1.f;
    const float factor = q_scale * kv_scale_of(args) * args.sm_scale * kLog2e;
    return fabsf(factor) > kLargestFactor ? copysignf(kLargestFactor, factor) : factor;  // a NaN stays
  }

  __device__ __forceinline__ void run(u32 blocks) const {
    const float factor = score_factor();
    finish_query();
    Frames::clear(me.memory);
    consumer_barrier();
    Output total;
#pragma unroll
    for (u32 c = 0; c < kChunks; ++c)
#pragma unroll
      for (u32 i = 0; i < kHeads / 2; ++i) total[c][i] = 0.f;
    Statistics statistics;
    statistics.reset();
    Lender lender = kSplit ? Lender::of(blocks) : Lender{~0u};
    Blocks{me}.attend(total, statistics, blocks, factor, [&](u32 block) { lender.reach(block); });
    total_statistics(statistics, me);
    Frames frames;
    frames.load(me.memory, me.t);
    const Share share = Share::of_this_cta(args);
    if constexpr (kSplit)
      Combine{args, share, me}.run(total, statistics, frames);
    else
      store_results(total, statistics, frames, args, share, me);
  }
};

__device__ __forceinline__ void run(const Arguments& args) {
  extern __shared__ __align__(1024) u8 dynamic_shared[];
  const u32 smem = shared::address_of(dynamic_shared);
  if (threadIdx.x == 0) {
    for (u32 i = 0; i < kStages; ++i) mbarrier::init(smem + plan::kFull + 8 * i, RowCopies::kArrivals);
    for (u32 i = 0; i < kStages * plan::kPieces; ++i)
      mbarrier::init(smem + plan::kEmpty + 8 * i, kTeamThreads / 32 * mbarrier::kArrivalsPerWarp);
    for (u32 i = 0; i < kTeams; ++i)
      mbarrier::init(smem + plan::kProbabilityEmpty + 8 * i, kTeamThreads / 32 * mbarrier::kArrivalsPerWarp);
    if constexpr (kSplit) mbarrier::init(smem + plan::kPartials, 1);
    mbarrier::fence_init();
  }
  dependent_launch::wait();
  dependent_launch::release();
  const Share share = Share::of_this_cta(args);
  // Through a shuffle, so that ptxas knows the roles to be uniform: wgmma under a branch it thinks divergent is serialised.
  const bool produces = __shfl_sync(~0u, threadIdx.x / kTeamThreads, 0) == kTeams;
  // The first indices and Q are on their way while the threads meet.
  BlockIndices first{-1, -1};
  if (produces)
    first = BlockIndices::load(args, share, share.split, threadIdx.x & 31);
  else
    start_query(args, share, smem);
  if constexpr (kSplit) {
    if (threadIdx.x < 32) Combine::expect(smem, share);
  }
  __syncthreads();
  if (produces) {
    if constexpr (kCtasPerSm > 1) registers::shrink_to<kProducerRegisters>();
    Producer{args, share, smem}.run(first);
  } else {
    if constexpr (kCtasPerSm > 1) registers::grow_to<kConsumerRegisters>();
    Consumer{args, smem}.run(share.own_blocks());
  }
}

}  // namespace dsak::low_head
