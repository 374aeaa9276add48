// A team's loop over its key blocks: those of the CTA, or every other one where there are two teams.
//
//   in turn       S n | softmax n -> P, barrier | O += V^T P^T | S n+1 ...
//   overlapping   S n+1, O += V^T P^T of n | softmax n+1 meanwhile -> the other P, barrier | S n+2 ...
//
// Overlapping holds two stages at a time and needs a third for the rows on their way, and P twice. It is for kernels that have
// an SM to themselves; otherwise the CTAs of an SM overlap with each other.
#pragma once

#include "dsak/low_head/layout.cuh"
#include "dsak/low_head/products.cuh"
#include "dsak/low_head/softmax.cuh"
#include "dsak/mbarrier.cuh"
#include "dsak/shared_memory.cuh"

namespace dsak::low_head {

struct Blocks {
  const Member& me;

  // A block that selects a row, and where it lies.
  struct Block {
    u32 number, valid_low, valid_high;

    __device__ __forceinline__ u32 slot() const { return number % kStages; }
    __device__ __forceinline__ u32 offset() const { return slot() * plan::kStage; }
  };

  __device__ __forceinline__ void give_back(const Block& block, u32 piece) const {
    mbarrier::arrive_for_warp(me.smem + plan::kEmpty + 8 * (block.slot() * plan::kPieces + piece), me.lane == 0);
  }

  // The first block from `number` on that selects a row, once its rows are there; none before `end`: a number of `end` or
  // beyond. A team looks at its own blocks.
  __device__ __forceinline__ Block wait_from(u32 number, u32 end) const {
    Block block{number, 0, 0};
#pragma unroll 1
    for (; block.number < end; block.number += kTeams) {
      mbarrier::wait(me.smem + plan::kFull + 8 * block.slot(), (block.number / kStages) & 1);
      shared::load(block.valid_low, block.valid_high, me.smem + plan::kValid + 8 * block.slot());
      if ((block.valid_low | block.valid_high) != 0) break;
#pragma unroll
      for (u32 i = 0; i < plan::kPieces; ++i) give_back(block, i);
    }
    return block;
  }

  // The block's raw scores as logits in octaves, -inf where masked.
  __device__ __forceinline__ void to_logits(Scores& s, float factor, const Block& block) const {
#pragma unroll
    for (u32 i = 0; i < kHeads / 2; ++i) s[i] *= factor;
    if ((block.valid_low & block.valid_high) != ~0u) mask_scores(s, block.valid_low, block.valid_high, me.warp, me.g);
  }

  // Softmax of a block: P to shared memory, sums to `statistics`; older sums into the frame of the block. `before_barrier` runs
  // before the barrier that P needs.
  template <class Before>
  __device__ __forceinline__ void weigh(Output& total, Statistics& statistics, const Scores& logits, Frames& frames, u32 p,
                                        const Before& before_barrier) const {
    statistics.note_maxima(logits);
    float sums[kOwn];
    store_probabilities(sums, logits, frames, p, me.warp, me.lane);
    before_barrier();
#pragma unroll 1
    while (team_barrier_any(me.team, statistics.exceed(frames))) {  // not at all, or once where a frame moves
      float rescale[kOwn];
      statistics.move_frames(rescale, frames, me);
      frames.load(me.memory, me.t);
#pragma unroll
      for (u32 c = 0; c < kChunks; ++c)
#pragma unroll
        for (u32 i = 0; i < kHeads / 2; ++i) total[c][i] *= rescale[(i >> 2) * 2 + (i & 1)];
      store_probabilities(sums, logits, frames, p, me.warp, me.lane);
    }
#pragma unroll
    for (u32 i = 0; i < kOwn; ++i) statistics.sum[i] += sums[i];
  }

  // All blocks. `reach(n)` runs, now and then, once all blocks before block n have been read.
  template <class Reach>
  __device__ __forceinline__ void attend(Output& total, Statistics& statistics, u32 blocks, float factor,
                                         const Reach& reach) const {
#if DSAK_BF16
    if constexpr (kOverlap)
      attend_overlapping(total, statistics, blocks, factor, reach);
    else
#endif
      attend_in_turn(total, statistics, blocks, factor, reach);
    reach(blocks);
  }

  template <class Reach>
  __device__ __forceinline__ void attend_in_turn(Output& total, Statistics& statistics, u32 blocks, float factor,
                                                 const Reach& reach) const {
    const auto key = key_row(me.warp, me.lane);
    const auto value = value_row(me.warp, me.lane);
    const u32 p = me.memory + plan::kProbability, p_empty = me.smem + plan::kProbabilityEmpty + 8 * me.team;
    u32 done = 0;  // blocks that selected a row
#pragma unroll 1
    for (u32 n = me.team; n < blocks; n += kTeams) {
      reach(n);
      const Block block = wait_from(n, blocks);
      n = block.number;
      if (n >= blocks) break;
      Scores s;
      Frames frames;
      const u32 stage = me.smem + plan::kRows + block.offset();
      multiply_keys(s, key.in(stage), me.smem, [&] {
        if constexpr (kLoadEarly) frames.load(me.memory, me.t);
        // Until the products of the block before have read P in all four warps.
        mbarrier::wait(p_empty, (done++ & 1) ^ 1);
      });
      to_logits(s, factor, block);
      if constexpr (!kLoadEarly) frames.load(me.memory, me.t);
      ValueFragments v;
      weigh(total, statistics, s, frames, p, [&] {
        if constexpr (kLoadEarly) load_first_values(v, value.in(stage));
      });
      if constexpr (!kLoadEarly) load_first_values(v, value.in(stage));
      multiply_values(total, v, value.in(stage), p, [&](u32 i) { give_back(block, i); });
      mbarrier::arrive_for_warp(p_empty, me.lane == 0);
    }
  }

#if DSAK_BF16
  template <class Reach>
  __device__ __forceinline__ void attend_overlapping(Output& total, Statistics& statistics, u32 blocks, float factor,
                                                     const Reach& reach) const {
    const u32 rows = me.smem + plan::kRows;
    const u32 first_p = me.memory + plan::kProbability, second_p = first_p + plan::kProbabilityBytes;
    u32 p = second_p;
    Scores s;
    Frames frames;
    // A block that no other one's output runs beside.
    const auto begin = [&](const Block& block) {
      start_keys(s, rows + block.offset(), me.smem);
      frames.load(me.memory, me.t);
      finish_keys<0>(s);
      to_logits(s, factor, block);
      p = first_p + second_p - p;
      weigh(total, statistics, s, frames, p, [] {});
    };
    reach(0);
    Block block = wait_from(0, blocks);
    if (block.number == blocks) return;
    begin(block);
#pragma unroll 1
    while (true) {
      // A block holds its stage until its output is done: beyond the other stages no rows can come.
      const u32 end = min(blocks, block.number + kStages);
      Block next = wait_from(block.number + 1, end);
      if (next.number == end) {
        start_values(total, rows + block.offset(), p);
        finish_values(total, [&](u32 i) { give_back(block, i); });
        reach(end);
        next = wait_from(end, blocks);
        if (next.number == blocks) break;
        begin(next);
      } else {
        start_keys(s, rows + next.offset(), me.smem);
        start_values(total, rows + block.offset(), p);
        frames.load(me.memory, me.t);
        finish_keys<kKeys / 16>(s);
        to_logits(s, factor, next);
        p = first_p + second_p - p;
        // The products end before the barrier: behind it any warp may write to the P that they read.
        weigh(total, statistics, s, frames, p, [&] { finish_values(total, [&](u32 i) { give_back(block, i); }); });
        reach(next.number);
      }
      block = next;
    }
  }
#endif
};

}  // namespace dsak::low_head
