// FP8 x FP8 sparse-MLA prefill for SM90: out = softmax(c Q K[idx]^T) V[idx], V = the first 512 columns of K's rows.
#include "dsak/mbarrier.cuh"
#include "dsak/registers.cuh"
#include "q8_layout.cuh"
#include "q8_producer.cuh"
#include "q8_scores.cuh"
#include "q8_values.cuh"

namespace dsak::q8 {

// How far a warpgroup's output has come: items stored, and the item being accumulated.
struct Progress {
  u32 items;
  i32 item;
};

// One of the two consumer warpgroups. Warpgroup c does scores and softmax of key blocks c, c + 2, c + 4, ... and multiplies
// every block's P with its own 256 columns of V.
struct Consumer {
  const Arguments& args;
  const u32 smem;
  const u32 index;

  // Recomputed where needed: registers are the scarcest resource here.
  static __device__ __forceinline__ u32 warp() { return (registers::thread_index() >> 5) & 3; }
  static __device__ __forceinline__ u32 lane() { return registers::thread_index() & 31; }
  static __device__ __forceinline__ void arrive_once_per_warp(u32 barrier) {
    if (lane() == 0) mbarrier::arrive(barrier);
  }
  // A word that is the same for all threads, in a form that ptxas knows to be uniform.
  static __device__ __forceinline__ u32 load_uniform(u32 address) { return __shfl_sync(~0u, shared::load_u32(address), 0); }

  __device__ __forceinline__ u32 wait_block(u32 n) const {
    const u32 slot = n % plan::kStages;
    mbarrier::wait(smem + plan::kKeysFull + 8 * slot, (n / plan::kStages) & 1);
    return load_uniform(smem + plan::kBlockFlags + 4 * slot);
  }

  __device__ __forceinline__ void wait_probability(u32 n) const {
    mbarrier::wait(smem + plan::kProbabilityFull + 8 * (n % plan::kStages), (n / plan::kStages) & 1);
  }

  // This warpgroup has no further scores to compute for item number `ordinal`.
  __device__ __forceinline__ void release_query(u32 ordinal) const {
    arrive_once_per_warp(smem + plan::kQueryEmpty + 8 * (ordinal % plan::kQueryBuffers));
  }

  __device__ __forceinline__ void wait_query(u32 ordinal) const {
    mbarrier::wait(smem + plan::kQueryFull + 8 * (ordinal % plan::kQueryBuffers), (ordinal / plan::kQueryBuffers) & 1);
  }

  // Issues the scores of block n, which belongs to this CTA's item number `ordinal`.
  __device__ __forceinline__ void start_scores(float (&s)[32], u32 n, u32 ordinal) const {
    const u32 buffer = ordinal % plan::kQueryBuffers;
    // The copies were ordinary writes of other threads; wgmma reads through the asynchronous proxy.
    shared::fence_async_proxy();
    wgmma::claim(s);
    wgmma::fence();
    issue_scores(s, smem + plan::kQuery + buffer * plan::kRowBlock, smem + plan::kKeysValues + (n % plan::kStages) * plan::kRowBlock);
    wgmma::commit();
  }

  // total += V^T P^T of block n.
  __device__ __forceinline__ void multiply_values(float (&total)[4][32], float (&partial)[2][32], u32 n) const {
    const u32 slot = n % plan::kStages;
    const u32 base = value_base(smem, index, warp(), lane()) + slot * plan::kRowBlock;
    const u64 p = descriptor::rows64(smem + plan::probability(slot, 0));
    const u64 p_residual = descriptor::rows64(smem + plan::probability(slot, kTwoTerms ? 1 : 0));
    ValueFragment v[2];
    load_fragment(v[0], base);
    if constexpr (kPromote) {
      wgmma::claim(partial[0]);
      wgmma::claim(partial[1]);
    }
    // Two chunks in flight; a fragment is reloaded when the product that reads it has finished.
#pragma unroll
    for (u32 c = 0; c < 4; ++c) {
      wgmma::fence();
      if constexpr (kPromote)
        issue_chunk<false>(partial[c & 1], v[c & 1], p, p_residual);
      else
        issue_chunk<true>(total[c], v[c & 1], p, p_residual);
      wgmma::commit();
      if (c > 0) {
        wgmma::wait<1>();
        // Before the next fragment is loaded: this frees registers.
        if constexpr (kPromote) promote(total[c - 1], partial[(c - 1) & 1]);
      }
      if (c < 3) load_fragment(v[(c + 1) & 1], base ^ ((c + 1) << 4));
    }
    wgmma::wait<0>();
    if constexpr (kPromote) {
      promote(total[3], partial[1]);
    } else {
#pragma unroll
      for (u32 c = 0; c < 4; ++c) wgmma::pin(total[c]);
    }
    arrive_once_per_warp(smem + plan::kKeysEmpty + 8 * slot);
  }

  // Block n of the output: clears or rescales the accumulator as needed, and stores it after an item's last block.
  __device__ __forceinline__ void multiply_block(float (&total)[4][32], float (&partial)[2][32], u32 n, Progress& done) const {
    const u32 flags = load_uniform(smem + plan::kBlockFlags + 4 * (n % plan::kStages));
    if (!(flags & kFirstOfItem) && __shfl_sync(~0u, shared::load_any4(smem + plan::kMoved + 16 * (n % plan::kStages)), 0) != 0)
      scale_columns(total, smem + plan::kRescale + 256 * (n % plan::kStages));
    multiply_values(total, partial, n);
    if (flags & kLastOfItem) {
      store_output(total, smem + plan::kNormaliser + 256 * (done.items % plan::kNormaliserSlots), done.item, args);
      clear(total);
      ++done.items;
      done.item += static_cast<i32>(gridDim.x);
    }
  }

  __device__ __forceinline__ void run() const {
    const i32 head_tiles = args.H / static_cast<i32>(kHeads);
    if (static_cast<i32>(blockIdx.x) >= args.T * head_tiles) return;

    RowState rows;
    rows.reset();
    float total[4][32];
    clear(total);
    float partial[2][32];  // partial[0] also holds the scores of the block in softmax
    Progress done{0, static_cast<i32>(blockIdx.x)};

    u32 n = index;  // the own block whose scores are in flight
    u32 flags = wait_block(0);
    u32 ordinal = 0;
    bool live = true;
    if (index == 1) {
      live = !(flags & kLastOfCta);
      if (flags & kLastOfItem) {  // an item of one block
        release_query(0);
        ordinal = 1;
      }
      if (live) flags = wait_block(1);
    }
    if (live) wait_query(ordinal);
    start_scores(partial[0], n, ordinal);
    while (true) {
      if (live) {
        // Block n - 1 is not multiplied yet: it may still be in the previous item.
        const u32 previous = n > 0 ? load_uniform(smem + plan::kBlockFlags + 4 * ((n - 1) % plan::kStages)) : 0;
        const u32 ahead = n > 0 && (previous & kLastOfItem) ? 1 : 0;
        wgmma::wait<0>();
        wgmma::pin(partial[0]);
        if (flags & (kLastOfItem | kNextIsLastOfItem)) release_query(done.items + ahead);
        ScoreWarp{smem}.run(partial[0], rows, n, flags, previous, done.items + ahead,
                            done.item + static_cast<i32>(ahead * gridDim.x), args);
        wait_probability(n);
      } else {
        wgmma::wait<0>();
        wgmma::pin(partial[0]);
        wait_probability(n - 1);
      }
      const u32 end = n + (live ? 1 : 0);
#pragma unroll 1
      for (u32 block = n > 0 ? n - 1 : 0; block < end; ++block) multiply_block(total, partial, block, done);
      if (!live || (flags & kLastOfCta)) break;

      // This warpgroup's next block is n + 2, if there is one.
      const u32 peer_flags = wait_block(n + 1);
      n += 2;
      live = !(peer_flags & kLastOfCta);
      if ((peer_flags & kFirstOfItem) && (peer_flags & kLastOfItem)) release_query(done.items);
      if (live) {
        flags = wait_block(n);
        ordinal = done.items + ((peer_flags & kLastOfItem) ? 1 : 0);
        wait_query(ordinal);
      }
      start_scores(partial[0], n, ordinal);
    }
  }
};

}  // namespace dsak::q8

using namespace dsak;

extern "C" __global__ void __launch_bounds__(dsak::q8::kThreads, 1)
    sparse_mla_prefill_q8(const u8* q, const u8* q_rope, const u8* kv, const i32* indices, const i32* topk_length,
                          const float* attn_sink, const float* q_scale, const float* kv_scale, bf16_bits* out,
                          float* max_logits, float* lse, i64 q_stride_t, i64 q_stride_h, i64 q_rope_stride_t,
                          i64 q_rope_stride_h, i64 kv_stride, i64 indices_stride, i64 out_stride_t, i64 out_stride_h, i32 T,
                          i32 H, i32 topk, i32 s_kv, float sm_scale) {
  using namespace dsak::q8;
  extern __shared__ __align__(1024) u8 dynamic_shared[];
  const u32 smem = shared::address_of(dynamic_shared);
  const Arguments args{q,           q_rope,     kv,         indices,         topk_length,     attn_sink, q_scale,
                       kv_scale,    out,        max_logits, lse,             q_stride_t,      q_stride_h, q_rope_stride_t,
                       q_rope_stride_h, kv_stride, indices_stride, out_stride_t, out_stride_h, T, H, topk, s_kv, sm_scale};
  // Through a shuffle, so that ptxas knows the roles to be uniform: wgmma under a branch it thinks divergent is serialised.
  const u32 warpgroup = __shfl_sync(~0u, threadIdx.x >> 7, 0);
  if (threadIdx.x == 0) {
    for (u32 i = 0; i < plan::kStages; ++i) {
      mbarrier::init(smem + plan::kKeysFull + 8 * i, 128 + 4);  // every thread's copies, every warp's validity bits
      mbarrier::init(smem + plan::kKeysEmpty + 8 * i, 8);       // every consumer warp
      mbarrier::init(smem + plan::kProbabilityFull + 8 * i, 4);  // the owner's warps
    }
    for (u32 i = 0; i < 2; ++i) {
      mbarrier::init(smem + plan::kQueryFull + 8 * i, 128);
      mbarrier::init(smem + plan::kQueryEmpty + 8 * i, 8);
    }
    mbarrier::fence_init();
    Constants::store(smem, args);
  }
  __syncthreads();
  if (warpgroup == 2) {
    registers::shrink_to<kProducerRegisters>();
    Producer{args, smem, (threadIdx.x >> 5) & 3, threadIdx.x & 31}.run();
  } else {
    registers::grow_to<kConsumerRegisters>();
    Consumer{args, smem, warpgroup}.run();
  }
}
