// Compile-time constants, kernel arguments and the shared-memory plan of the FP8 x FP8 sparse-MLA prefill kernel.
#pragma once

#include "dsak/tensor_copy.cuh"
#include "dsak/types.cuh"

// Row width in bytes: 512 (latent only) or 576 (latent and rope).
#ifndef DSAK_D
#define DSAK_D 512
#endif
// 0 fast: one-term P, one accumulation chain. 1 exact: one-term P, every key block promoted to float32 registers.
// 2 high: as exact, with P as two e4m3 terms.
#ifndef DSAK_PRECISION
#define DSAK_PRECISION 1
#endif

namespace dsak::q8 {

constexpr u32 kWidth = DSAK_D;
constexpr u32 kLatent = 512;
constexpr bool kHasRope = kWidth == 576;
constexpr bool kPromote = DSAK_PRECISION >= 1;
constexpr bool kTwoTerms = DSAK_PRECISION == 2;
constexpr bool kQuantisedSum = DSAK_PRECISION == 1;  // divide by the sum of the rounded weights (see scores.cuh)
static_assert(kWidth == 512 || kWidth == 576, "DSAK_D must be 512 or 576");
static_assert(DSAK_PRECISION >= 0 && DSAK_PRECISION <= 2, "DSAK_PRECISION must be 0, 1 or 2");

constexpr u32 kHeads = 64;  // per CTA
constexpr u32 kKeys = 64;   // per block
constexpr u32 kThreads = 512;

// Two registers fewer are usable. The launch allots 128 x 4 warpgroups = 512.
constexpr int kProducerRegisters = 24;
constexpr int kScoreRegisters = 104;
constexpr int kValueRegisters = 192;
static_assert(kProducerRegisters + kScoreRegisters + 2 * kValueRegisters <= 512, "or setmaxnreg waits for ever");

constexpr float kLn2 = 0.693147180559945f;
constexpr float kLog2e = 1.44269504088896f;
// A weight at the softmax frame (the subtracted maximum) is 64 in e4m3. Most weights of a near-flat row then lie just under a
// power of two, where e4m3 is finest. The frame moves only when a logit passes it by log2(7) octaves: 7 * 64 = 448, so P never
// saturates, and nearly no block has to rescale the output.
constexpr float kLog2ProbabilityScale = 6;
constexpr float kFrameSlack = 2.807354922057604f;
// Larger factors of a score in the exponent of 2 count as this one.
constexpr float kLargestFactor = 1e19f * kLog2e;
// Up to this factor a weight is 2^(score * factor - frame * factor), one multiply-add with the rounded product of the frame,
// which is good while logits are below about 2^24.
constexpr float kLargestFusedFactor = 16;
// Below any e4m3 score (at most 448 * 448 * 576 in magnitude) times the largest factor, and finite: a row without a key yet
// gives no inf - inf.
constexpr float kEmptyFrame = -1e30f;

struct Arguments {
  const tensor_copy::Map* q;  // [T][H][at least 512 bytes], a box is 64 heads x 128 bytes
  const u8* q_rope;
  const u8* kv;
  const i32* indices;
  const i32* topk_length;
  const float* attn_sink;
  const float* q_scale;
  const float* kv_scale;
  const tensor_copy::Map* out;  // [T][H][1024 bytes], a box is 16 heads x 128 bytes
  float* max_logits;
  float* lse;
  u16* partial_out;        // of every part: 64 heads x 512 halves, normalised, without kv_scale
  float* partial_scalars;  // of every part: 64 heads x (base-2 log of the sum of exponentials, largest logit)
  i64 q_rope_stride_t, q_rope_stride_h, kv_stride, indices_stride;
  i32 T, H, topk, s_kv;
  i32 whole_items, splits;  // items from whole_items on are done in `splits` parts
  float sm_scale;
};

// An item is one token and 64 heads. CTAs take units in turn: an item, or a part of one (a range of its key blocks), so that
// the last round, or a short launch, does not leave most of the chip idle. `combine.cuh` puts parts together.
struct Unit {
  i32 item;
  i32 part;  // index of the part over all split items; -1: the whole item

  // Of an item. A division takes 150 clocks, once per unit, and most calls have one tile of heads.
  static __device__ __forceinline__ i32 token(i32 item, i32 head_tiles) { return head_tiles == 1 ? item : item / head_tiles; }
  static __device__ __forceinline__ i32 items(const Arguments& args) { return args.T * (args.H / static_cast<i32>(kHeads)); }
  static __device__ __forceinline__ i32 count(const Arguments& args) {
    return args.whole_items + (items(args) - args.whole_items) * args.splits;
  }
  __device__ __forceinline__ Unit(i32 unit, const Arguments& args) : item(unit), part(-1) {
    if (unit < args.whole_items) return;
    part = unit - args.whole_items;
    item = args.whole_items + part / args.splits;
  }
};

// What the producer tells the consumers about a key block, beside its validity bits.
enum BlockFlags : u32 {
  kFirstOfItem = 1,  // of a unit, in fact: an item or a part of one
  kLastOfItem = 2,
  kLastOfCta = 4,
  kMovedFrame = 8,  // added by the scores: some head's softmax frame moved
};

// Byte offsets from the start of dynamic shared memory. Rows of Q and KV are split into column tiles of 64 rows x 128 bytes
// (128-byte swizzle); the rope columns are a tile of 64 x 64 bytes (64-byte swizzle), as is P.
namespace plan {
constexpr u32 kTile = 64 * 128;
constexpr u32 kRopeTile = 4 * kTile;    // offset of the rope tile inside a row block
constexpr u32 kRowBlock = 64 * kWidth;  // 64 rows of Q or KV
constexpr u32 kQueryBuffers = 2;        // the next item's Q arrives during this one
constexpr u32 kStages = kHasRope && kTwoTerms ? 3 : 4;
// P of a block lives as long as its stage. At 576 its first term takes the place of the stage's rope tile, which nobody reads
// once the scores are there.
constexpr u32 kTerm = 64 * 64;
constexpr u32 kOwnTerms = (kTwoTerms ? 2 : 1) - (kHasRope ? 1 : 0);  // terms with memory of their own

constexpr u32 kQuery = 0;
constexpr u32 kKeysValues = kQuery + kQueryBuffers * kRowBlock;
constexpr u32 kProbability = kKeysValues + kStages * kRowBlock;
// Where a value warp puts its output together, in boxes of 16 heads x 64 columns: two in the unit's Q, whose scores are there
// by then, and a third of its own where there is room for it.
constexpr u32 kBox = 16 * 128;
constexpr u32 kOutput = kProbability + kOwnTerms * kStages * kTerm;
constexpr u32 kBoxes = !kHasRope && !kTwoTerms ? 3 : 2;
constexpr u32 kRescale = kOutput + 8 * (kBoxes - 2) * kBox;  // 64 floats per stage: what the block makes of older sums
constexpr u32 kNormaliser = kRescale + kStages * 256;    // 64 floats per stage: factor of the output of an item that ends there
constexpr u32 kConstants = kNormaliser + kStages * 256;  // 4 floats
constexpr u32 kNews = kConstants + 16;                   // 4 words per stage, one of each score warp: the block's flags
constexpr u32 kBlock = kNews + kStages * 16;             // 4 words per stage: 64 validity bits, the block's flags, unused
constexpr u32 kBlockFlags = kBlock + 8;                  // of stage 0; 16 bytes further for each stage
constexpr u32 kKeysFull = kBlock + kStages * 16;         // barriers from here on
constexpr u32 kKeysEmpty = kKeysFull + 8 * kStages;
constexpr u32 kProbabilityFull = kKeysEmpty + 8 * kStages;
constexpr u32 kQueryFull = kProbabilityFull + 8 * kStages;
constexpr u32 kQueryEmpty = kQueryFull + 8 * kQueryBuffers;
constexpr u32 kTotal = kQueryEmpty + 8 * kQueryBuffers;

// Where term 0 and term 1 of a stage's P start.
__device__ __forceinline__ constexpr u32 probability(u32 slot, u32 term) {
  if (kHasRope && term == 0) return kKeysValues + slot * kRowBlock + kRopeTile;
  return kProbability + ((kHasRope ? term - 1 : term) * kStages + slot) * kTerm;
}
static_assert(kBlock % 16 == 0, "read as one vector");
static_assert(kRowBlock % 1024 == 0 && kOutput % 1024 == 0, "the swizzle repeats every 1024 bytes");
static_assert(2 * 8 * kBox <= kRowBlock, "two boxes of every value warp fit over Q");
static_assert(kTotal <= 232448, "227 KiB of shared memory per CTA");
}  // namespace plan

// A key block's place in the ring of stages: slot, and how often the ring has wrapped, modulo two.
struct Stage {
  u32 slot, phase;

  __device__ __forceinline__ Stage next() const {
    return slot + 1 == plan::kStages ? Stage{0, phase ^ 1} : Stage{slot + 1, phase};
  }
};

// Dynamic shared memory to request at launch.
constexpr u32 kSharedBytes = plan::kTotal;
static_assert(kSharedBytes == DSAK_SHARED && kThreads == DSAK_THREADS, "include/q8.py declares another launch");

}  // namespace dsak::q8
