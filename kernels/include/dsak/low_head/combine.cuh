// Partial results of a cluster, combined through distributed shared memory: no workspace, no second launch, no atomics, and the
// same order of additions every time.
//
// The output's 512 columns are 32 groups of sixteen; CTA r of n owns those groups m for which m * n / 32 is r. Every CTA pushes
// its partial output, divided by its own sum, in 16 bits into the owners' last stage, and its statistics to all of them; bytes
// are counted on one mbarrier. A CTA arrives at the cluster's barrier as soon as it reads nothing more from that stage, at the
// start if it has few blocks, so that nobody waits for it long.
#pragma once

#include "dsak/cluster.cuh"
#include "dsak/convert.cuh"
#include "dsak/low_head/lanes.cuh"
#include "dsak/low_head/layout.cuh"
#include "dsak/low_head/products.cuh"
#include "dsak/low_head/results.cuh"
#include "dsak/low_head/share.cuh"
#include "dsak/mbarrier.cuh"

namespace dsak::low_head {

struct Combine {
  const Arguments& args;
  const Share& share;
  const Member& me;

  // Of `splits` CTAs: how many groups of columns have an owner below `rank`. By counting lanes, a lane for each group.
  static __device__ __forceinline__ u32 groups_below(u32 rank, u32 splits) {
    return __popc(__ballot_sync(~0u, (threadIdx.x & 31) * splits / 32 < rank));
  }

  // Bytes that a CTA receives; one warp calls this. The barrier is armed before the cluster's barrier lets anybody send.
  static __device__ __forceinline__ void expect(u32 smem, const Share& share) {
    const u32 groups = groups_below(share.split + 1, share.splits) - groups_below(share.split, share.splits);
    if ((threadIdx.x & 31) == 0)
      mbarrier::arrive_expecting(smem + plan::kPartials, kTeams * share.splits * kHeads * (groups * 32 + 16));
  }

  // Where sixteen numbers of (source, head) lie in the shared memory of the CTA that owns their group of columns, its own
  // number `group`. `pitch` is the groups of a source, at least those of any owner.
  __device__ __forceinline__ u32 output_place(u32 source, u32 head, u32 group, u32 pitch) const {
    return me.smem + plan::kPartialOutputs + ((source * pitch + group) * kHeads + head) * 32;
  }
  __device__ __forceinline__ u32 statistics_place(u32 source, u32 head) const {
    return me.smem + plan::kPartialStatistics + (source * kHeads + head) * 16;
  }

  // Partial outputs: FP8 rows have no mean beyond 448, and halves keep 11 bits of it; BF16 rows have no such bound.
  static __device__ __forceinline__ u32 pack(float low, float high) {
    return kBf16 ? to_bf16x2(low, high) : to_f16x2(low, high);
  }
  static __device__ __forceinline__ void unpack(float& low, float& high, u32 pair) {
    if constexpr (kBf16)
      unpack_bf16x2(low, high, pair);
    else
      unpack_f16x2(low, high, pair);
  }

  __device__ __forceinline__ void send(const Output& total, const Statistics& statistics, const Frames& frames) const {
    const u32 pitch = groups_below(1, share.splits), source = kTeams * share.split + me.team;
    float factor[kOwn];
#pragma unroll
    for (u32 i = 0; i < kOwn; ++i) factor[i] = statistics.sum[i] != 0.f ? __fdividef(1.f, statistics.sum[i]) : 0.f;
#pragma unroll
    for (u32 c = 0; c < kChunks; ++c) {
      const u32 group = 4 * c + me.warp, owner = group * share.splits / 32, first = groups_below(owner, share.splits);
      const u32 barrier = cluster::map(me.smem + plan::kPartials, owner);
      u32 words[kOwn];
      Columns::pack(words, total[c], factor, pack);
      Columns::gather(words, me.g);
#pragma unroll
      for (u32 i = 0; i < kOwn; i += 4) {
        const u32 place =
            output_place(source, head_of(i + Columns::head(me.g), me.t), group - first, pitch) + 2 * Columns::column(me.g);
        if constexpr (kOwn == 2)
          cluster::store_async(cluster::map(place, owner), words[0], words[1], barrier);
        else
          cluster::store_async(cluster::map(place, owner), words[i], words[i + 1], words[i + 2], words[i + 3], barrier);
      }
    }
    // Totals are the same in all lanes of equal t and in all warps: warp w sends own heads w, w + 4, ..., lane g to every
    // eighth CTA.
    for (u32 owner = me.g; owner < share.splits; owner += 8) {
      const u32 barrier = cluster::map(me.smem + plan::kPartials, owner);
#pragma unroll
      for (u32 i = 0; i < kOwn; ++i)
        if ((i & 3) == me.warp)
          cluster::store_async(cluster::map(statistics_place(source, head_of(i, me.t)), owner),
                               __float_as_uint(statistics.sum[i]), __float_as_uint(frames.of[i]),
                               __float_as_uint(statistics.maximum[i]), 0u, barrier);
    }
  }

  struct Source {
    float sum, frame, maximum;
  };
  __device__ __forceinline__ Source load_statistics(u32 source, u32 head) const {
    u32 x, y, z, w;
    shared::load(x, y, z, w, statistics_place(source, head));
    return {__uint_as_float(x), __uint_as_float(y), __uint_as_float(z)};
  }

  __device__ __forceinline__ void finish() const {
    const float kv_scale = kv_scale_of(args);
    const u32 pitch = groups_below(1, share.splits);
    const u32 first = groups_below(share.split, share.splits), end = groups_below(share.split + 1, share.splits);
    // A thread does half a group of one head, two threads a sector of 32 bytes.
    for (u32 x = threadIdx.x; x < 2 * kHeads * (end - first); x += kConsumerThreads) {
      const u32 half = x % 2, local = x / 2 % kHeads, group = x / (2 * kHeads);
      if (static_cast<i32>(local) >= share.heads) continue;
      const i32 head = share.first_head + static_cast<i32>(local);
      float frame = kEmptyFrame, maximum = negative_infinity(), sum = 0.f, out[8] = {};
      for (u32 s = 0; s < kTeams * share.splits; ++s) {
        const Source source = load_statistics(s, local);
        frame = fmaxf(frame, source.frame);
        maximum = fmaxf(maximum, source.maximum);
      }
#pragma unroll 8
      for (u32 s = 0; s < kTeams * share.splits; ++s) {
        const Source source = load_statistics(s, local);
        u32 pairs[4];
        shared::load(pairs[0], pairs[1], pairs[2], pairs[3], output_place(s, local, group, pitch) + 16 * half);
        const float weight = exp2_approx(source.frame - frame) * source.sum;
        sum += weight;
#pragma unroll
        for (u32 k = 0; k < 4; ++k) {
          float low, high;
          unpack(low, high, pairs[k]);
          out[2 * k] += weight * low;
          out[2 * k + 1] += weight * high;
        }
      }
      const float factor = sum != 0.f ? __fdividef(kv_scale, sum) * share_of_keys(args, head, sum, frame) : 0.f;
      u32 pairs[4];
#pragma unroll
      for (u32 k = 0; k < 4; ++k) pairs[k] = to_bf16x2(out[2 * k] * factor, out[2 * k + 1] * factor);
      bf16_bits* place =
          args.out + share.token * args.out_stride_t + head * args.out_stride_h + 16 * (first + group) + 8 * half;
      *reinterpret_cast<uint4*>(place) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
      if (share.split == 0 && x < 2 * kHeads && half == 0) store_logit_statistics(args, share.token, head, sum, frame, maximum);
    }
  }

  __device__ __forceinline__ void run(const Output& total, const Statistics& statistics, const Frames& frames) const {
    cluster::wait();
    send(total, statistics, frames);
    mbarrier::wait(me.smem + plan::kPartials, 0);
    finish();
  }
};

// Lets the cluster write to this CTA's last stages once they are read for the last time.
struct Lender {
  u32 at;  // before this block; ~0: never, or done

  static __device__ __forceinline__ Lender of(u32 blocks) {
    const u32 rest = blocks % kStages;
    return {rest > kStages - plan::kPartialStages ? blocks : blocks - rest};
  }

  // All blocks before `block` have been read.
  __device__ __forceinline__ void reach(u32 block) {
    if (kSplit && block >= at) {
      cluster::arrive_relaxed();
      at = ~0u;
    }
  }
};

}  // namespace dsak::low_head
