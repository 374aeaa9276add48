// The best pools of each row, their tokens in ascending order, then the live tail.
//
// One CTA of 1024 threads takes a row. Scores become 32-bit keys in the order of the numbers. Histograms of 11, 11 and 10 bits in
// shared memory, each over the keys that begin as the threshold does, find the lowest key to take and how many keys equal to it;
// the search ends early once every key with the prefix is taken. A last pass numbers the taken pools in order:
//
//   row ──> histogram ──> scan ──> digit   (at most 3 times, the row from L2 after the first)
//   row ──> ballots of a warp's 256 scores ──> prefix over 32 warps ──> list of pools ──> tokens, slots, tail, -1
//
// A warp owns 256 consecutive scores of a step and one barrier a step is enough, since totals are double-buffered. The list is
// kept in shared memory so that all threads look slots up together: 1024 loads in flight instead of a few per warp.
// Shared memory: 8 KiB of bins, 4 bytes a pool of the list (8 KiB), totals.
#include "dsak/types.cuh"

namespace dsak::kpool {

constexpr u32 kThreads = 1024, kWarps = 32, kBins = 2048, kUnroll = 16, kOwn = 8;
constexpr u32 kMaxPools = DSAK_MAX_POOLS;
constexpr u32 kAll = ~0u;
static_assert(kBins == 2 * kThreads && kWarps * 32 == kThreads && kThreads * kOwn < 65536, "a thread has two bins, a count 16 bits");

struct Shared {
  u32 bins[kBins];
  u32 totals[2][kWarps];
  u32 digit, above, count;
  i32 pools[kMaxPools];
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

// What the threshold is: keys with key >> shift above `prefix` are taken, and the first `need` of those equal to it.
struct Threshold {
  u32 prefix, shift, need;
};

__device__ __forceinline__ Threshold search(const float* __restrict__ row, u32 n, u32 wanted, Shared& s) {
  const u32 t = threadIdx.x, lane = t & 31, warp = t >> 5;
  Threshold found{0, 32, wanted};
  for (u32 level = 0; level < 3; ++level) {
    const u32 bits = level == 2 ? 10 : 11, shift = found.shift - bits, mask = (1u << bits) - 1;
    s.bins[t] = s.bins[t + kThreads] = 0;
    __syncthreads();
    for (u32 at = 0; at < n; at += kThreads * kUnroll) {
      float x[kUnroll];
#pragma unroll
      for (u32 j = 0; j < kUnroll; ++j) {
        const u32 i = at + j * kThreads + t;
        x[j] = i < n ? row[i] : 0.0f;
      }
#pragma unroll
      for (u32 j = 0; j < kUnroll; ++j) {
        const u32 k = ordered(x[j]);
        const bool begins = level == 0 || (k >> (shift + bits)) == found.prefix;
        if (at + j * kThreads + t < n && begins) atomicAdd(&s.bins[(k >> shift) & mask], 1u);
      }
    }
    __syncthreads();
    const u32 high = kBins - 1 - 2 * t;  // this thread's two bins, the higher one first
    const u32 first = s.bins[high], second = s.bins[high - 1];
    const u32 sums = inclusive(first + second, lane);
    u32 all;
    const u32 above = before_warp(__shfl_sync(kAll, sums, 31), s.totals[level & 1], warp, lane, all) + sums - first - second;
    if (above < found.need && above + first + second >= found.need) {
      const bool low = above + first < found.need;
      s.digit = low ? high - 1 : high;
      s.above = low ? above + first : above;
      s.count = low ? second : first;
    }
    __syncthreads();
    found = {(found.prefix << bits) | s.digit, shift, found.need - s.above};
    if (s.count == found.need) break;
  }
  return found;
}

// The taken pools in ascending order into s.pools.
__device__ __forceinline__ void collect(const float* __restrict__ row, u32 n, u32 wanted, const Threshold& threshold, Shared& s) {
  const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, below = (1u << lane) - 1;
  u32 higher_before = 0, equal_before = 0, step = 0;
  __syncthreads();  // the search's totals are read
  for (u32 at = 0; at < n && higher_before + min(equal_before, threshold.need) < wanted; at += kThreads * kOwn, ++step) {
    const u32 own = at + warp * 32 * kOwn + lane;
    float x[kOwn];
#pragma unroll
    for (u32 j = 0; j < kOwn; ++j) x[j] = own + 32 * j < n ? row[own + 32 * j] : 0.0f;
    u32 higher[kOwn], equal[kOwn], mine = 0;
#pragma unroll
    for (u32 j = 0; j < kOwn; ++j) {
      const u32 k = ordered(x[j]) >> threshold.shift;
      const bool live = own + 32 * j < n;
      higher[j] = __ballot_sync(kAll, live && k > threshold.prefix);
      equal[j] = __ballot_sync(kAll, live && k == threshold.prefix);
      mine += __popc(higher[j]) + (__popc(equal[j]) << 16);
    }
    u32 all;
    const u32 before = before_warp(mine, s.totals[step & 1], warp, lane, all);
    u32 up = higher_before + (before & 0xffff), ties = equal_before + (before >> 16);
#pragma unroll
    for (u32 j = 0; j < kOwn; ++j) {
      const u32 my_up = up + __popc(higher[j] & below), my_ties = ties + __popc(equal[j] & below);
      const bool is_higher = higher[j] >> lane & 1, is_equal = equal[j] >> lane & 1;
      if (is_higher || (is_equal && my_ties < threshold.need)) {
        s.pools[my_up + min(my_ties, threshold.need)] = static_cast<i32>(own + 32 * j);
      }
      up += __popc(higher[j]);
      ties += __popc(equal[j]);
    }
    higher_before += all & 0xffff;
    equal_before += all >> 16;
  }
  __syncthreads();
}

}  // namespace dsak::kpool

extern "C" __global__ void __launch_bounds__(1024, 1)
kpool_topk(const float* __restrict__ score, dsak::i64 score_s0, const int* __restrict__ lengths, const int* __restrict__ page_table,
           dsak::i64 page_table_s0, const int* __restrict__ page_table_row, const int* __restrict__ offset,
           const int* __restrict__ row_starts, const int* __restrict__ seq_lens, int* __restrict__ out, dsak::i64 out_s0,
           int* __restrict__ topk_length, int S, int R, int P, int topk, int kpool) {
  using namespace dsak;
  using namespace dsak::kpool;
  __shared__ Shared s;
  const i64 b = blockIdx.x;
  const i32 start = row_starts ? min(max(row_starts[b], 0), S) : 0;
  const i32 complete = max(lengths[b], 0), n = min(complete, S - start), wanted = topk / kpool;
  const bool listed = n > wanted;  // else every pool is taken and the list is 0, 1, 2, ...
  if (listed) {
    const float* row = score + b * score_s0 + start;
    const Threshold threshold = search(row, n, wanted, s);
    collect(row, n, wanted, threshold, s);
  }

  const i32 history = min(n, wanted) * kpool, tail = seq_lens ? max(seq_lens[b], 0) % kpool : 0;
  const i32 columns = topk + (seq_lens ? kpool - 1 : 0), shift = offset ? offset[b] : 0;
  const i64 request = page_table_row ? page_table_row[b] : b;
  const i32 width = request >= 0 && request < R ? P : 0;
  const int* table = page_table + request * page_table_s0;
  for (i32 c = threadIdx.x; c < columns; c += kThreads) {
    i32 value = -1;
    if (c < history + tail) {
      const i32 in_tail = c - history, pool = in_tail >= 0 ? 0 : c / kpool;
      const i32 position = in_tail >= 0 ? complete * kpool + in_tail : (listed ? s.pools[pool] : pool) * kpool + c - pool * kpool;
      value = !page_table ? position + shift : position < width ? table[position] : -1;
    }
    out[b * out_s0 + c] = value;
  }
  if (topk_length && threadIdx.x == 0) topk_length[b] = history + tail;
}
