// FP8 x FP8 sparse-MLA prefill for SM90: out = softmax(c Q K[idx]^T) V[idx], V = the first 512 columns of K's rows.
//
// Tiling. An item is one token x 64 heads; a unit is an item or, where items do not fill the chip's last round, a part of one
// (see Unit in layout.cuh). A persistent grid of min(SMs, units) CTAs of 512 threads walks the units with a static stride.
// Keys come in blocks of 64. Warpgroups 0 and 1 own 256 columns of the output each (O^T = V^T P^T, V^T from registers),
// warpgroup 2 does the scores and the softmax, warpgroup 3 gathers.
//
//   gather        KV n+2, n+3 (cp.async, four stages; three for 576 high), Q of the next unit (tensor copies, two buffers)
//   scores             | S n+1 1st half | softmax n, half | S n+1 2nd half | softmax n, half -> P n | S n+2 ...
//   values 0, 1   wait for P n-1 | V fragments | P V n-1, four chunks | wait for P n | ...
//
// P and the rescaling factors of a block live as long as its stage, so a stage needs three barriers: keys full (gather to
// scores and values), P full (scores to values), empty (values to gather).
// Every key block's P V is added to float32 registers outside the tensor cores ("promotion"), whose own running sum keeps
// about 14 bits and truncates. One chunk of 16 columns per warp x 64 heads at a time: while a value warpgroup adds, the tensor
// cores work for the other one and for the scores.
//
// Shared memory (bytes)       512 fast/exact    512 high    576 fast/exact    576 high
//   Q                          2 x 32,768    2 x 32,768      2 x 36,864    2 x 36,864
//   KV stages                  4 x 32,768    4 x 32,768      4 x 36,864    3 x 36,864
//   P (at 576 in the rope tile)    16,384        32,768               0        12,288
//   output (and over Q)            16,384             0               0             0
//   factors, barriers               2,320         2,320           2,320         1,752
//   in all                        231,696       231,696         223,504       198,360
// Registers: 24 producer, 104 scores, 192 values (two fewer usable); no spills.
//
// What it measures: benchmarks/results/README.md. What was tried: docs/tuning/q8_prefill.md.
#pragma once

#include "dsak/dependent_launch.cuh"
#include "dsak/mbarrier.cuh"
#include "dsak/q8/layout.cuh"
#include "dsak/q8/producer.cuh"
#include "dsak/q8/scores.cuh"
#include "dsak/q8/values.cuh"
#include "dsak/registers.cuh"
#include "dsak/shared_memory.cuh"
#include "dsak/swizzle.cuh"
#include "dsak/wgmma.cuh"

namespace dsak::q8 {

// What both kinds of consumer do to a key block's barriers.
struct Ring {
  const Arguments& args;
  const u32 smem;

  static __device__ __forceinline__ u32 warp() { return (threadIdx.x >> 5) & 3; }
  static __device__ __forceinline__ u32 lane() { return threadIdx.x & 31; }
  __device__ __forceinline__ void wait_keys(Stage stage) const {
    mbarrier::wait(smem + plan::kKeysFull + 8 * stage.slot, stage.phase);
  }
  __device__ __forceinline__ void wait_probability(Stage stage) const {
    mbarrier::wait(smem + plan::kProbabilityFull + 8 * stage.slot, stage.phase);
  }
  // Whether a wait would return at once; the same in all lanes.
  __device__ __forceinline__ bool probability_is_there(Stage stage) const {
    return __all_sync(~0u, mbarrier::try_wait(smem + plan::kProbabilityFull + 8 * stage.slot, stage.phase));
  }
  __device__ __forceinline__ bool has_work() const { return static_cast<i32>(blockIdx.x) < Unit::count(args); }
};

// Warpgroup 2: scores and softmax of every key block, the scores one block ahead.
struct ScoreWarpgroup : Ring {
  struct State {
    RowState rows;
    Stage stage;
    u32 valid_low, valid_high, flags;  // of the block in `stage`
    u32 ordinal;                       // units started
    i32 unit_index;
    u32 own_words;   // see ScoreWarp
    u32 multiplied;  // scores have a factor of their own, see Constants
    bool done;
  };

  __device__ __forceinline__ u32 query(u32 ordinal) const {
    return smem + plan::kQuery + (ordinal % plan::kQueryBuffers) * plan::kRowBlock;
  }
  __device__ __forceinline__ void wait_query(u32 ordinal) const {
    mbarrier::wait(smem + plan::kQueryFull + 8 * (ordinal % plan::kQueryBuffers), (ordinal / plan::kQueryBuffers) & 1);
  }
  // Waits for Q and K of block `next`; `flags` are those of the block before it.
  __device__ __forceinline__ void wait_operands(Stage next, u32 next_ordinal, u32 flags) const {
    if (!(flags & kLastOfCta)) {
      wait_keys(next);
      if (flags & kLastOfItem) wait_query(next_ordinal);
    }
    // The copies of K were ordinary writes of other threads; wgmma reads through the asynchronous proxy.
    shared::fence_async_proxy();
  }
  // About nine products fit into the tensor cores' queue; a warp that issues more stands still. So the scores of the next block
  // are issued in two halves, with half of this block's exponentials between them.
  __device__ __forceinline__ void start_scores(float (&s)[32], u32 ordinal, u32 slot) const {
    wgmma::claim(s);
    wgmma::fence();
    issue_scores<0, 8>(s, query(ordinal), smem + plan::kKeysValues + slot * plan::kRowBlock);
  }
  struct SecondHalf {
    const ScoreWarpgroup& self;
    float (&s)[32];
    const u32 ordinal, slot;

    __device__ __forceinline__ void operator()() const {
      wgmma::fence();
      issue_scores<8, 16>(s, self.query(ordinal), self.smem + plan::kKeysValues + slot * plan::kRowBlock);
      wgmma::commit();
    }
  };

  __device__ __forceinline__ void load_block(State& state, u32 slot) const {
    u32 unused;
    shared::load(state.valid_low, state.valid_high, state.flags, unused, smem + plan::kBlock + 16 * slot);
    state.valid_low = __shfl_sync(~0u, state.valid_low, 0);
    state.valid_high = __shfl_sync(~0u, state.valid_high, 0);
    state.flags = __shfl_sync(~0u, state.flags, 0);
  }

  // Nothing masked, not the last of its unit, no multiplier.
  __device__ __forceinline__ bool is_plain(const State& state) const {
    return ((state.flags & ~u32{kFirstOfItem}) | ~(state.valid_low & state.valid_high) | state.multiplied) == 0;
  }
  // Softmax of the block whose scores are in `s`, while those of the next one are computed into `next_s`. After the CTA's last
  // block stale scores are computed and never read: a branch around wgmma would make ptxas serialise all of them.
  template <bool plain>
  __device__ __forceinline__ void step(float (&s)[32], float (&next_s)[32], State& state) const {
    const ScoreWarp scores{smem, state.own_words};
    const Constants constants = Constants::load(smem);
    const u32 flags = plain ? state.flags & kFirstOfItem : __shfl_sync(~0u, state.flags, 0);  // uniform, and known to be
    const Stage next = state.stage.next();
    const u32 next_ordinal = state.ordinal + ((flags & kLastOfItem) ? 1 : 0);
    // The next operands. Waiting for them first saves about 2 % of the clocks at 512 exact and high (fast: nothing) and costs
    // 1 % at 576 exact.
    if constexpr (!kHasRope) wait_operands(next, next_ordinal, flags);
    wgmma::wait<0>();
    wgmma::pin(s);
    if constexpr (!plain) scores.prepare(s, state.valid_low, state.valid_high, constants.multiplier);
    if constexpr (kHasRope) wait_operands(next, next_ordinal, flags);
    wgmma::pin(s);
    start_scores(next_s, next_ordinal, next.slot);
    load_block(state, next.slot);
    scores.run(s, state.rows, constants, state.stage.slot, flags, state.unit_index, args,
               SecondHalf{*this, next_s, next_ordinal, next.slot});
    if (flags & kLastOfItem) state.unit_index += static_cast<i32>(gridDim.x);
    state.ordinal = next_ordinal;
    state.stage = next;
    state.done = flags & kLastOfCta;
  }

  // A plain block has a copy of the code without the questions that it need not be asked: a quarter fewer instructions.
  __device__ __forceinline__ void advance(float (&s)[32], float (&next_s)[32], State& state) const {
    if (is_plain(state))
      step<true>(s, next_s, state);
    else
      step<false>(s, next_s, state);
  }

  __device__ __forceinline__ void run() const {
    if (!has_work()) return;
    float s[2][32];
    State state;
    state.rows.reset();
    state.stage = Stage{0, 0};
    state.ordinal = 0;
    state.unit_index = static_cast<i32>(blockIdx.x);
    state.multiplied = __shfl_sync(~0u, Constants::load(smem).multiplier != 1.f ? 1 : 0, 0);
    state.own_words = smem + swizzle::offset64(16 * warp() + (lane() >> 2), 0) + 4 * (lane() & 3);
    wait_keys(state.stage);
    load_block(state, 0);
    wait_query(0);
    shared::fence_async_proxy();
    start_scores(s[0], 0, 0);
    SecondHalf{*this, s[0], 0, 0}();
    while (true) {
      advance(s[0], s[1], state);
      if (state.done) break;
      advance(s[1], s[0], state);
      if (state.done) break;
    }
    wgmma::wait<0>();
  }
};

// Warpgroups 0 and 1: 256 columns of the output each.
struct ValueWarpgroup : Ring {
  u32 index;

  // The block's flags; brings `total` into its softmax frame. The first block of a unit has no older sums to bring there.
  template <bool first>
  __device__ __forceinline__ u32 read_news(float (&total)[4][32], u32 slot) const {
    u32 news[4];
    shared::load(news[0], news[1], news[2], news[3], smem + plan::kNews + 16 * slot);
    const u32 flags = __shfl_sync(~0u, (news[0] | news[1]) | (news[2] | news[3]), 0);
    if (!first && (flags & kMovedFrame)) scale_columns(total, smem + plan::kRescale + 256 * slot);
    return flags;
  }

  // total = V^T P^T of the block in `slot`, the first of its unit, or total += V^T P^T; v[0] holds the first fragment. Returns
  // the block's flags. They are read under the first product, which does not touch the total, where that measures better.
  template <bool first>
  __device__ __forceinline__ u32 multiply_values(float (&total)[4][32], ValueFragment (&v)[2], u32 slot) const {
    constexpr bool kFlagsLater = kPromote && kHasRope;
    u32 flags;
    if constexpr (!kFlagsLater) flags = read_news<first>(total, slot);
    const u32 values = value_base(smem, index, warp(), lane()) + slot * plan::kRowBlock;
    const u64 p = descriptor::rows64(smem + plan::probability(slot, 0));
    const u64 p_residual = descriptor::rows64(smem + plan::probability(slot, kTwoTerms ? 1 : 0));
    if constexpr (kPromote) {
      const float zero = __uint_as_float(static_cast<u32>(args.T) >> 31);
      float partial[32];
      wgmma::claim(partial);
#pragma unroll
      for (u32 c = 0; c < 4; ++c) {
        wgmma::fence();
        issue_chunk<false>(partial, v[c & 1], p, p_residual);
        wgmma::commit();
        if (kFlagsLater && c == 0) flags = read_news<first>(total, slot);
        if (c < 3) load_fragment(v[(c + 1) & 1], values ^ ((c + 1) << 4));
        wgmma::wait<0>();
        promote<first>(total[c], partial, zero);
      }
    } else {
#pragma unroll
      for (u32 c = 0; c < 4; ++c) {
        wgmma::fence();
        issue_chunk<!first>(total[c], v[c & 1], p, p_residual);
        wgmma::commit();
        if (c > 0) wgmma::wait<1>();
        if (c < 3) load_fragment(v[(c + 1) & 1], values ^ ((c + 1) << 4));
      }
      wgmma::wait<0>();
#pragma unroll
      for (u32 c = 0; c < 4; ++c) wgmma::pin(total[c]);
    }
    return flags;
  }

  __device__ __forceinline__ void load_first(ValueFragment (&v)[2], u32 slot) const {
    load_fragment(v[0], value_base(smem, index, warp(), lane()) + slot * plan::kRowBlock);
  }

  // The stage is free: V is in registers, P multiplied, the factors applied.
  __device__ __forceinline__ void release(Stage stage) const {
    mbarrier::arrive_for_warp(smem + plan::kKeysEmpty + 8 * stage.slot, lane() == 0);
  }

  // The Q buffer of unit `ordinal` is free: its scores are there, and its output has been read from it.
  __device__ __forceinline__ void give_back(u32 ordinal) const {
    const bool one = (registers::thread_index() & 31) == 0;
    if (one) tensor_copy::wait_read<0>();
    mbarrier::arrive_for_warp(smem + plan::kQueryEmpty + 8 * (ordinal % plan::kQueryBuffers), one);
  }

  __device__ __forceinline__ void run() const {
    if (!has_work()) return;
    float total[4][32];
#pragma unroll
    for (u32 c = 0; c < 4; ++c) wgmma::claim(total[c]);
    ValueFragment v[2];
    Stage stage{0, 0};
    i32 unit_index = static_cast<i32>(blockIdx.x);
    u32 ordinal = 0;  // units finished
    while (true) {    // units
      // The buffer of the unit before is given back once its output has been read from there: under this unit's first block, or
      // at once where that is not there yet. With units of one block, it may be waiting for that very buffer.
      const bool behind = ordinal != 0 && probability_is_there(stage);
      if (ordinal != 0 && !behind) give_back(ordinal - 1);
      wait_probability(stage);
      load_first(v, stage.slot);
      // A copy of the code for the first block, so that the total need not be cleared.
      u32 flags = multiply_values<true>(total, v, stage.slot);
      if (behind) give_back(ordinal - 1);
      // The other blocks. What happens once per unit stands outside of this loop.
      while (!(flags & kLastOfItem)) {
        release(stage);
        stage = stage.next();
        wait_probability(stage);
        load_first(v, stage.slot);
        flags = multiply_values<false>(total, v, stage.slot);
      }
      scale_columns(total, smem + plan::kNormaliser + 256 * stage.slot);
      release(stage);
      // Every score of the unit is there, so its Q is not wanted any more.
      const u32 buffer = smem + plan::kQuery + (ordinal % plan::kQueryBuffers) * plan::kRowBlock;
      store_output(total, unit_index, smem, buffer + ((registers::thread_index() >> 5) & 7) * 2 * plan::kBox, args);
      ++ordinal;
      if (flags & kLastOfCta) break;
      unit_index += static_cast<i32>(gridDim.x);
      stage = stage.next();
    }
    if (lane() == 0) tensor_copy::wait_written();
  }
};

}  // namespace dsak::q8

using namespace dsak;

extern "C" __global__ void __launch_bounds__(dsak::q8::kThreads, 1)
    sparse_mla_prefill_q8(const __grid_constant__ tensor_copy::Map q, const u8* q_rope, const u8* kv, const i32* indices,
                          const i32* topk_length, const float* attn_sink, const float* q_scale, const float* kv_scale,
                          const __grid_constant__ tensor_copy::Map out, float* max_logits, float* lse, u16* partial_out,
                          float* partial_scalars, i64 q_stride_t, i64 q_stride_h, i64 q_rope_stride_t, i64 q_rope_stride_h,
                          i64 kv_stride, i64 indices_stride, i64 out_stride_t, i64 out_stride_h, i32 T, i32 H, i32 topk,
                          i32 s_kv, i32 whole_items, i32 splits, float sm_scale) {
  using namespace dsak::q8;
  extern __shared__ __align__(1024) u8 dynamic_shared[];
  const u32 smem = shared::address_of(dynamic_shared);
  const Arguments args{
      &q,         q_rope, kv,          indices,         topk_length,     attn_sink,       q_scale,   kv_scale,       &out,
      max_logits, lse,    partial_out, partial_scalars, q_rope_stride_t, q_rope_stride_h, kv_stride, indices_stride, T,
      H,          topk,   s_kv,        whole_items,     splits,          sm_scale};
  // Through a shuffle, so that ptxas knows the roles to be uniform: wgmma under a branch it thinks divergent is serialised.
  const u32 warpgroup = __shfl_sync(~0u, threadIdx.x >> 7, 0);
  if (threadIdx.x == 0) {
    for (u32 i = 0; i < plan::kStages; ++i) {
      mbarrier::init(smem + plan::kKeysFull + 8 * i,
                     128 + 4 * mbarrier::kArrivalsPerWarp);  // every thread's copies, every warp's validity bits
      mbarrier::init(smem + plan::kProbabilityFull + 8 * i, 4 * mbarrier::kArrivalsPerWarp);  // the score warps
      mbarrier::init(smem + plan::kKeysEmpty + 8 * i, 8 * mbarrier::kArrivalsPerWarp);        // the value warps
    }
    for (u32 i = 0; i < plan::kQueryBuffers; ++i) {
      mbarrier::init(smem + plan::kQueryFull + 8 * i, Producer::kQueryArrivals);
      mbarrier::init(smem + plan::kQueryEmpty + 8 * i, 8 * mbarrier::kArrivalsPerWarp);  // the value warps
    }
    mbarrier::fence_init();
  }
  dependent_launch::wait();
  dependent_launch::release();
  if (threadIdx.x == 0) Constants::store(smem, args);
  __syncthreads();
  if (warpgroup == 3) {
    registers::shrink_to<kProducerRegisters>();
    Producer{args, smem}.run();
  } else if (warpgroup == 2) {
    registers::shrink_to<kScoreRegisters>();
    ScoreWarpgroup{{args, smem}}.run();
  } else {
    registers::grow_to<kValueRegisters>();
    ValueWarpgroup{{args, smem}, warpgroup}.run();
  }
}
