// The best pools of each row, their tokens in ascending order, then the live tail.
//
// One CTA of 1024 threads takes a row of n scores. Few of them can be among the best, and a bound that says which is cheap: cut
// the row into 1024 groups (scores i, i + 1024, ...). If `wanted` groups have a maximum of at least f, at least `wanted` scores
// reach f. The highest such f leaves 1024 * -ln(1 - wanted / 1024) scores of a row in random order, 710 for 512 pools, whatever
// n is. For more pools than 512 there are 2048 or 4096 groups.
//
//   row ──> maxima ──> f ──> row: how many reach f in each warp's part ──> row: list them in order ──> threshold ──> pools
//   ──> tokens, slots, tail, -1
//
// so of most scores only the number is compared. A threshold among keys in registers, one a thread where the list is short, is
// found by histograms of 11, 11 and 10 bits, each over the keys that begin as the threshold does; keys are 32-bit integers in
// the order of the numbers, and two digits are enough for f. A row of at most 4096 scores is listed as it is. Where more than
// 4096 scores reach f, nearly always because they are equal, the histograms are over the row itself. Slots are looked up by all
// threads together. Shared memory: 40 KiB. docs/tuning/kpool_topk.md has the measurements.
#include "dsak/dependent_launch.cuh"
#include "dsak/types.cuh"

namespace dsak::kpool {

constexpr u32 kThreads = 1024, kWarps = 32, kBins = 2048, kUnroll = 8, kHeld = 4;
constexpr u32 kList = kThreads * kHeld;
constexpr u32 kAll = ~0u;
constexpr u32 kMinusInfinity = 0x007fffff;  // its key
static_assert(kBins == 2 * kThreads && kWarps * 32 == kThreads, "a thread has two bins");
static_assert(kThreads * kUnroll < 65536 && kList < 65536, "counts are packed in 16 bits");
static_assert(2 * DSAK_MAX_POOLS <= kList && kUnroll % kHeld == 0,
              "two groups for every pool; an unrolled step fills the groups evenly");

struct Shared {
  u32 totals[2][kWarps];
  u32 digit, above, count;  // of the last histogram: the threshold's digit, keys above it and at it
  union {
    u32 bins[kBins];
    i32 best[DSAK_MAX_POOLS];  // once there is nothing more to count
  };
  i32 pools[kList];
  u32 keys[kList];
};

// Both zeros alike, NaN at 0, below -inf.
__device__ __forceinline__ u32 ordered(float x) {
  const u32 bits = x == 0.0f ? 0u : __float_as_uint(x);
  if (x != x) return 0;
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// The number whose key this is, for keys above that of -inf.
__device__ __forceinline__ float number(u32 key) { return __uint_as_float(key >> 31 ? key & 0x7fffffff : ~key); }

__device__ __forceinline__ u32 inclusive(u32 x, u32 lane) {
#pragma unroll
  for (u32 d = 1; d < 32; d *= 2) {
    const u32 y = __shfl_up_sync(kAll, x, d);
    if (lane >= d) x += y;
  }
  return x;
}

// Sum over the warps before this one, and over all in `all`; `mine` is this warp's. One barrier.
__device__ __forceinline__ u32 before_warp(u32 mine, u32* totals, u32 warp, u32 lane, u32& all) {
  if (lane == 0) totals[warp] = mine;
  __syncthreads();
  const u32 sums = inclusive(totals[lane], lane);
  all = __shfl_sync(kAll, sums, 31);
  const u32 before = __shfl_sync(kAll, sums, (warp + 31) & 31);
  return warp ? before : 0;
}

// Keys with key >> shift above `prefix` are taken, and the first `need` of those equal to it.
struct Threshold {
  u32 prefix, shift, need;
  __device__ __forceinline__ u32 bits() const { return shift == 10 ? 10 : 11; }  // of the next digit
  __device__ __forceinline__ bool begins(u32 key) const { return shift == 32 || key >> shift == prefix; }
  __device__ __forceinline__ u32 digit(u32 key) const { return key >> (shift - bits()) & ((1u << bits()) - 1); }
};

// One digit more, by the bins, in which every key that begins as the threshold does was counted; true once all that begin as
// the new one are taken. Leaves the bins empty.
__device__ __forceinline__ bool narrow(Threshold& t, Shared& s) {
  __syncthreads();
  const u32 lane = threadIdx.x & 31, high = kBins - 1 - 2 * threadIdx.x;  // this thread's two bins, the higher one first
  const u32 first = s.bins[high], second = s.bins[high - 1], sums = inclusive(first + second, lane);
  s.bins[high] = s.bins[high - 1] = 0;
  u32 all;
  const u32 above = before_warp(__shfl_sync(kAll, sums, 31), s.totals[0], threadIdx.x >> 5, lane, all) + sums - first - second;
  if (above < t.need && above + first + second >= t.need) {
    const bool low = above + first < t.need;
    s.digit = low ? high - 1 : high;
    s.above = low ? above + first : above;
    s.count = low ? second : first;
  }
  __syncthreads();
  t = {t.prefix << t.bits() | s.digit, t.shift - t.bits(), t.need - s.above};
  return s.count == t.need;
}

// The threshold for `wanted` of the keys that the threads hold, the first `held` of each; digits end where the rest is below
// kLast.
template <u32 kLast>
__device__ __forceinline__ Threshold reach(const u32 (&keys)[kHeld], u32 held, u32 wanted, Shared& s) {
  Threshold t{0, 32, wanted};
  do {
#pragma unroll
    for (u32 j = 0; j < kHeld; ++j)
      if (j < held && t.begins(keys[j])) atomicAdd(&s.bins[t.digit(keys[j])], 1u);
  } while (!narrow(t, s) && t.shift > kLast);
  return t;
}

// A number that at least `wanted` of n > kList scores reach; NaN when only the histograms can tell. There are two groups for
// each wanted score, or more.
__device__ __forceinline__ float bound(const float* __restrict__ scores, u32 n, u32 wanted, Shared& s) {
  float most[kHeld];
#pragma unroll
  for (u32 j = 0; j < kHeld; ++j) most[j] = scores[threadIdx.x + j * kThreads];
  for (u32 at = kList + threadIdx.x; at < n; at += kThreads * kUnroll) {
    float x[kUnroll];
#pragma unroll
    for (u32 j = 0; j < kUnroll; ++j) x[j] = at + j * kThreads < n ? scores[at + j * kThreads] : -__int_as_float(0x7f800000);
#pragma unroll
    for (u32 j = 0; j < kUnroll; ++j) most[j % kHeld] = fmaxf(most[j % kHeld], x[j]);
  }
  u32 held = kHeld, keys[kHeld];
#pragma unroll
  for (u32 half = kHeld / 2; half > 0; half /= 2)
    if (wanted <= half * kThreads / 2) {
      held = half;
#pragma unroll
      for (u32 j = 0; j < half; ++j) most[j] = fmaxf(most[j], most[j + half]);
    }
#pragma unroll
  for (u32 j = 0; j < kHeld; ++j) keys[j] = ordered(most[j]);
  const Threshold t = reach<10>(keys, held, wanted, s);  // at most 22 bits: a little lower than it could be
  const u32 least = t.prefix << t.shift;
  return least > kMinusInfinity ? number(least) : __int_as_float(0x7fffffff);
}

// The scores that reach `least`, in order, into s.keys and s.pools; how many there are, and nothing listed where they are too
// many.
__device__ __forceinline__ u32 list(const float* __restrict__ scores, u32 n, float least, Shared& s) {
  const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, below = (1u << lane) - 1;
  const u32 part = (n + kThreads - 1) / kThreads * 32, from = min(warp * part, n), to = min(from + part, n);
  u32 mine = 0;
  for (u32 at = from + lane; at < to; at += 32 * kUnroll) {
#pragma unroll
    for (u32 j = 0; j < kUnroll; ++j)
      if (at + 32 * j < to) mine += scores[at + 32 * j] >= least;
  }
  mine = __reduce_add_sync(kAll, mine);
  u32 all, to_list = before_warp(mine, s.totals[0], warp, lane, all);
  if (all > kList) return all;
  for (u32 at = from + lane; mine && at - lane < to; at += 32 * kUnroll) {
    float x[kUnroll];
#pragma unroll
    for (u32 j = 0; j < kUnroll; ++j) x[j] = at + 32 * j < to ? scores[at + 32 * j] : __int_as_float(0x7fffffff);
#pragma unroll
    for (u32 j = 0; j < kUnroll; ++j) {
      const bool reaches = x[j] >= least;
      const u32 found = __ballot_sync(kAll, reaches);
      if (reaches) {
        s.keys[to_list + __popc(found & below)] = ordered(x[j]);
        s.pools[to_list + __popc(found & below)] = static_cast<i32>(at + 32 * j);
      }
      to_list += __popc(found);
    }
  }
  __syncthreads();
  return all;
}

// A whole row that fits, listed as it is.
__device__ __forceinline__ void list_all(const float* __restrict__ scores, u32 n, Shared& s) {
  for (u32 i = threadIdx.x; i < n; i += kThreads) s.keys[i] = ordered(scores[i]), s.pools[i] = static_cast<i32>(i);
  __syncthreads();
}

// Of kOwn keys a thread, warp after warp and 32 at a time, the pools of those above the threshold and of the first `need` equal
// to it, to s.best behind those that earlier steps put there.
struct Taken {
  u32 above, equal;
};
template <u32 kOwn, typename Pool>
__device__ __forceinline__ void take(const u32 (&higher)[kOwn], const u32 (&equal)[kOwn], u32 need, Taken& taken, u32* totals,
                                     Shared& s, Pool pool) {
  const u32 lane = threadIdx.x & 31, below = (1u << lane) - 1;
  u32 mine = 0, all;
#pragma unroll
  for (u32 j = 0; j < kOwn; ++j) mine += __popc(higher[j]) + (__popc(equal[j]) << 16);
  const u32 before = before_warp(mine, totals, threadIdx.x >> 5, lane, all);
  u32 up = taken.above + (before & 0xffff), ties = taken.equal + (before >> 16);
#pragma unroll
  for (u32 j = 0; j < kOwn; ++j) {
    const u32 my_up = up + __popc(higher[j] & below), my_ties = ties + __popc(equal[j] & below);
    if ((higher[j] >> lane & 1) || ((equal[j] >> lane & 1) && my_ties < need)) s.best[my_up + min(my_ties, need)] = pool(j);
    up += __popc(higher[j]);
    ties += __popc(equal[j]);
  }
  taken.above += all & 0xffff;
  taken.equal += all >> 16;
}

// The `wanted` best of the list, in order, into s.best.
__device__ __forceinline__ void best_of_list(u32 listed, u32 wanted, Shared& s) {
  const u32 held = (listed + kThreads - 1) / kThreads, first = (threadIdx.x >> 5) * 32 * held + (threadIdx.x & 31);
  u32 keys[kHeld], higher[kHeld], equal[kHeld];
#pragma unroll
  for (u32 j = 0; j < kHeld; ++j) keys[j] = j < held && first + 32 * j < listed ? s.keys[first + 32 * j] : 0;
  const Threshold t = reach<0>(keys, held, wanted, s);
#pragma unroll
  for (u32 j = 0; j < kHeld; ++j) {
    const bool live = j < held && first + 32 * j < listed;
    higher[j] = __ballot_sync(kAll, live && keys[j] >> t.shift > t.prefix);
    equal[j] = __ballot_sync(kAll, live && keys[j] >> t.shift == t.prefix);
  }
  Taken taken{};
  take(higher, equal, t.need, taken, s.totals[1], s, [&](u32 j) { return s.pools[first + 32 * j]; });
}

// The `wanted` best of any row, in order, into s.best: histograms of three digits, then the row once more.
__device__ __forceinline__ void best_of_row(const float* __restrict__ scores, u32 n, u32 wanted, Shared& s) {
  const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  Threshold t{0, 32, wanted};
  do {
    for (u32 at = threadIdx.x; at < n; at += kThreads * kUnroll) {
      u32 k[kUnroll];
#pragma unroll
      for (u32 j = 0; j < kUnroll; ++j) k[j] = at + j * kThreads < n ? ordered(scores[at + j * kThreads]) : 0;
#pragma unroll
      for (u32 j = 0; j < kUnroll; ++j)
        if (at + j * kThreads < n && t.begins(k[j])) atomicAdd(&s.bins[t.digit(k[j])], 1u);
    }
  } while (!narrow(t, s) && t.shift > 0);
  Taken taken{};
  u32 step = 0;
  for (u32 at = 0; at < n && taken.above + min(taken.equal, t.need) < wanted; at += kThreads * kUnroll, ++step) {
    const u32 own = at + warp * 32 * kUnroll + lane;
    u32 higher[kUnroll], equal[kUnroll];
#pragma unroll
    for (u32 j = 0; j < kUnroll; ++j) {
      const bool live = own + 32 * j < n;
      const u32 key = live ? ordered(scores[own + 32 * j]) : 0;
      higher[j] = __ballot_sync(kAll, live && key >> t.shift > t.prefix);
      equal[j] = __ballot_sync(kAll, live && key >> t.shift == t.prefix);
    }
    take(higher, equal, t.need, taken, s.totals[step & 1], s, [&](u32 j) { return static_cast<i32>(own + 32 * j); });
  }
}

// The `wanted` best pools of a row that has more, in ascending order, into s.best.
__device__ __forceinline__ void best(const float* __restrict__ scores, u32 n, u32 wanted, Shared& s) {
  u32 listed = n;
  s.bins[threadIdx.x] = s.bins[threadIdx.x + kThreads] = 0;
  __syncthreads();
  if (n <= kList)
    list_all(scores, n, s);
  else
    listed = list(scores, n, bound(scores, n, wanted, s), s);
  if (listed >= wanted && listed <= kList)  // none is listed where there is no bound
    best_of_list(listed, wanted, s);
  else
    best_of_row(scores, n, wanted, s);
  __syncthreads();
}

}  // namespace dsak::kpool

extern "C" __global__ void __launch_bounds__(1024, 2)
    kpool_topk(const float* __restrict__ score, dsak::i64 score_s0, const int* __restrict__ lengths,
               const int* __restrict__ page_table, dsak::i64 page_table_s0, const int* __restrict__ page_table_row,
               const int* __restrict__ offset, const int* __restrict__ row_starts, const int* __restrict__ seq_lens,
               int* __restrict__ out, dsak::i64 out_s0, int* __restrict__ topk_length, int S, int R, int P, int topk,
               int kpool) {
  using namespace dsak;
  using namespace dsak::kpool;
  __shared__ Shared s;
  dependent_launch::wait();
  dependent_launch::release();
  const i64 b = blockIdx.x;
  const i32 start = row_starts ? min(max(row_starts[b], 0), S) : 0;
  const i32 complete = max(lengths[b], 0), n = min(complete, S - start), wanted = topk / kpool;
  const bool selected = n > wanted;  // else every pool is taken: 0, 1, 2, ...
  if (selected) best(score + b * score_s0 + start, static_cast<u32>(n), wanted, s);

  const i32 history = min(n, wanted) * kpool, tail = seq_lens ? max(seq_lens[b], 0) % kpool : 0;
  const i32 columns = topk + (seq_lens ? kpool - 1 : 0), shift = offset ? offset[b] : 0;
  const i64 request = page_table_row ? page_table_row[b] : b;
  const i32 width = request >= 0 && request < R ? P : 0;
  const int* table = page_table + request * page_table_s0;
  for (i32 c = threadIdx.x; c < columns; c += kThreads) {
    i32 value = -1;
    if (c < history + tail) {
      const i32 in_tail = c - history, pool = in_tail >= 0 ? 0 : c / kpool;
      const i64 position = in_tail >= 0 ? static_cast<i64>(complete) * kpool + in_tail
                                        : static_cast<i64>(selected ? s.best[pool] : pool) * kpool + (c - pool * kpool);
      value = !page_table ? static_cast<i32>(position) + shift : position < width ? table[position] : -1;
    }
    out[b * out_s0 + c] = value;
  }
  if (topk_length && threadIdx.x == 0) topk_length[b] = history + tail;
}
