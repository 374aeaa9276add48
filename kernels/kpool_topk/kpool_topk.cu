// The best pools of each row, their tokens in ascending order, then the live tail.
//
// One CTA of 1024 threads takes a row. Scores become 32-bit keys in the order of the numbers. Histograms of 11, 11 and 10 bits
// in shared memory, each over the keys that begin as the threshold does, find the lowest key to take and how many keys equal to
// it; the search ends early once every key with the prefix is taken. As soon as the keys from the prefix up are few (4096),
// they are listed in shared memory, mostly after the first histogram, and the rest of the work is on the list:
//
//   row ──> histogram ──> scan ──> digit ──> row ──> list ──> histograms ──> threshold ──> list of pools ──> tokens, slots,
//   tail, -1
//
// so the row is read twice. Atomics on the few bins that most scores fall into cost more than the loads; therefore the first
// 16384 scores are counted alone, and of the others only those that can be among the best given these.
// To list in order, a warp owns 256 consecutive scores of a step: ballots, then a prefix over the warps. One barrier a step is
// enough, since totals are double-buffered. All threads look slots up together: 1024 loads in flight instead of a few per warp.
// Shared memory: 8 KiB of bins, 8 bytes a candidate (32 KiB), totals. docs/tuning/kpool_topk.md has the measurements.
#include "dsak/types.cuh"

namespace dsak::kpool {

constexpr u32 kThreads = 1024, kWarps = 32, kBins = 2048, kUnroll = 16, kOwn = 8;
constexpr u32 kSample = kThreads * kUnroll, kList = 4096;
constexpr u32 kAll = ~0u;
static_assert(kBins == 2 * kThreads && kWarps * 32 == kThreads && kThreads * kOwn < 65536,
              "a thread has two bins, a count 16 bits");
static_assert(kList <= kThreads * kOwn && DSAK_MAX_POOLS <= kList && DSAK_MAX_POOLS <= kSample,
              "a list is one step; a sample can fill it");

struct Shared {
  u32 bins[kBins];
  u32 totals[2][kWarps];
  u32 digit, above, count;
  u32 keys[kList];
  i32 pools[kList];
};

// Both zeros alike, NaN at 0, below -inf.
__device__ __forceinline__ u32 ordered(float x) {
  const u32 bits = x == 0.0f ? 0u : __float_as_uint(x);
  if (x != x) return 0;
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

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

// Where keys come from: a row of scores, or the candidates listed in shared memory.
struct Row {
  const float* __restrict__ scores;
  u32 n;
  __device__ __forceinline__ u32 key(u32 i) const { return ordered(scores[i]); }
  __device__ __forceinline__ i32 pool(u32 i) const { return static_cast<i32>(i); }
};
struct List {
  const Shared& s;
  u32 n;
  __device__ __forceinline__ u32 key(u32 i) const { return s.keys[i]; }
  __device__ __forceinline__ i32 pool(u32 i) const { return s.pools[i]; }
};

// Keys with key >> shift above `prefix` are taken, and the first `need` of those equal to it.
struct Threshold {
  u32 prefix, shift, need;
};

// Count the digits (`bits` below t.shift) from `floor` up of the keys from..to-1 that begin with the prefix.
template <typename Keys>
__device__ __forceinline__ void count(const Keys& keys, u32 from, u32 to, const Threshold& t, u32 bits, u32 floor, Shared& s) {
  const u32 shift = t.shift - bits, mask = (1u << bits) - 1;
  for (u32 at = from + threadIdx.x; at < to; at += kThreads * kUnroll) {
    u32 k[kUnroll];
#pragma unroll
    for (u32 j = 0; j < kUnroll; ++j) k[j] = at + j * kThreads < to ? keys.key(at + j * kThreads) : 0;
#pragma unroll
    for (u32 j = 0; j < kUnroll; ++j) {
      const u32 digit = k[j] >> shift & mask;
      const bool begins = t.shift == 32 || k[j] >> t.shift == t.prefix;
      if (at + j * kThreads < to && begins && digit >= floor) atomicAdd(&s.bins[digit], 1u);
    }
  }
  __syncthreads();
}

// The digit at which `need` keys are reached from above, the keys above it and at it, into s.
__device__ __forceinline__ void find(u32 need, Shared& s) {
  const u32 lane = threadIdx.x & 31, high = kBins - 1 - 2 * threadIdx.x;  // this thread's two bins, the higher one first
  const u32 first = s.bins[high], second = s.bins[high - 1], sums = inclusive(first + second, lane);
  u32 all;
  const u32 before = before_warp(__shfl_sync(kAll, sums, 31), s.totals[0], threadIdx.x >> 5, lane, all);
  const u32 above = before + sums - first - second;
  if (above < need && above + first + second >= need) {
    const bool low = above + first < need;
    s.digit = low ? high - 1 : high;
    s.above = low ? above + first : above;
    s.count = low ? second : first;
  }
  __syncthreads();
}

// One digit more of the threshold.
template <typename Keys>
__device__ __forceinline__ Threshold narrow(const Keys& keys, const Threshold& t, Shared& s) {
  const u32 bits = t.shift == 10 ? 10 : 11;
  s.bins[threadIdx.x] = s.bins[threadIdx.x + kThreads] = 0;
  __syncthreads();
  u32 from = 0, floor = 0;
  if (t.shift == 32 && keys.n > 2 * kSample) {
    count(keys, 0, kSample, t, bits, 0, s);
    find(t.need, s);
    from = kSample;
    floor = s.digit;
  }
  count(keys, from, keys.n, t, bits, floor, s);
  find(t.need, s);
  return {t.prefix << bits | s.digit, t.shift - bits, t.need - s.above};
}

// The `total` taken keys' pools in ascending order into s.pools, their keys into s.keys.
template <typename Keys>
__device__ __forceinline__ void collect(const Keys& keys, u32 total, const Threshold& t, Shared& s) {
  const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, below = (1u << lane) - 1;
  u32 higher_before = 0, equal_before = 0, step = 0;
  for (u32 at = 0; at < keys.n && higher_before + min(equal_before, t.need) < total; at += kThreads * kOwn, ++step) {
    const u32 own = at + warp * 32 * kOwn + lane;
    u32 k[kOwn], higher[kOwn], equal[kOwn], mine = 0;
    i32 pool[kOwn];
#pragma unroll
    for (u32 j = 0; j < kOwn; ++j) {
      const bool live = own + 32 * j < keys.n;
      k[j] = live ? keys.key(own + 32 * j) : 0;
      pool[j] = live ? keys.pool(own + 32 * j) : 0;
    }
#pragma unroll
    for (u32 j = 0; j < kOwn; ++j) {
      const bool live = own + 32 * j < keys.n;
      higher[j] = __ballot_sync(kAll, live && k[j] >> t.shift > t.prefix);
      equal[j] = __ballot_sync(kAll, live && k[j] >> t.shift == t.prefix);
      mine += __popc(higher[j]) + (__popc(equal[j]) << 16);
    }
    u32 all;
    const u32 before = before_warp(mine, s.totals[step & 1], warp, lane, all);
    u32 up = higher_before + (before & 0xffff), ties = equal_before + (before >> 16);
#pragma unroll
    for (u32 j = 0; j < kOwn; ++j) {
      const u32 my_up = up + __popc(higher[j] & below), my_ties = ties + __popc(equal[j] & below);
      if ((higher[j] >> lane & 1) || ((equal[j] >> lane & 1) && my_ties < t.need)) {
        s.keys[my_up + min(my_ties, t.need)] = k[j];
        s.pools[my_up + min(my_ties, t.need)] = pool[j];
      }
      up += __popc(higher[j]);
      ties += __popc(equal[j]);
    }
    higher_before += all & 0xffff;
    equal_before += all >> 16;
  }
  __syncthreads();
}

// The `wanted` best pools of a row that has more, in ascending order, into s.pools.
__device__ __forceinline__ void best(const Row& row, u32 wanted, Shared& s) {
  Threshold t{0, 32, wanted};
  u32 candidates = 0;  // listed ones
  do {
    t = candidates ? narrow(List{s, candidates}, t, s) : narrow(row, t, s);
    const u32 equal = s.count, from_prefix = wanted - t.need + equal;
    if (equal == t.need) break;
    if (candidates == 0 && t.shift > 0 && from_prefix <= kList) {
      collect(row, from_prefix, {t.prefix, t.shift, equal}, s);
      candidates = from_prefix;
    }
  } while (t.shift > 0);
  candidates ? collect(List{s, candidates}, wanted, t, s) : collect(row, wanted, t, s);
}

}  // namespace dsak::kpool

extern "C" __global__ void __launch_bounds__(1024, 1)
    kpool_topk(const float* __restrict__ score, dsak::i64 score_s0, const int* __restrict__ lengths,
               const int* __restrict__ page_table, dsak::i64 page_table_s0, const int* __restrict__ page_table_row,
               const int* __restrict__ offset, const int* __restrict__ row_starts, const int* __restrict__ seq_lens,
               int* __restrict__ out, dsak::i64 out_s0, int* __restrict__ topk_length, int S, int R, int P, int topk,
               int kpool) {
  using namespace dsak;
  using namespace dsak::kpool;
  __shared__ Shared s;
  const i64 b = blockIdx.x;
  const i32 start = row_starts ? min(max(row_starts[b], 0), S) : 0;
  const i32 complete = max(lengths[b], 0), n = min(complete, S - start), wanted = topk / kpool;
  const bool listed = n > wanted;  // else every pool is taken and the list is 0, 1, 2, ...
  if (listed) best({score + b * score_s0 + start, static_cast<u32>(n)}, wanted, s);

  const i32 history = min(n, wanted) * kpool, tail = seq_lens ? max(seq_lens[b], 0) % kpool : 0;
  const i32 columns = topk + (seq_lens ? kpool - 1 : 0), shift = offset ? offset[b] : 0;
  const i64 request = page_table_row ? page_table_row[b] : b;
  const i32 width = request >= 0 && request < R ? P : 0;
  const int* table = page_table + request * page_table_s0;
  for (i32 c = threadIdx.x; c < columns; c += kThreads) {
    i32 value = -1;
    if (c < history + tail) {
      const i32 in_tail = c - history, pool = in_tail >= 0 ? 0 : c / kpool;
      const i32 position =
          in_tail >= 0 ? complete * kpool + in_tail : (listed ? s.pools[pool] : pool) * kpool + c - pool * kpool;
      value = !page_table ? position + shift : position < width ? table[position] : -1;
    }
    out[b * out_s0 + c] = value;
  }
  if (topk_length && threadIdx.x == 0) topk_length[b] = history + tail;
}
