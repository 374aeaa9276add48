// Compile-time constants, kernel arguments and the shared-memory plan of the FP8 sparse-MLA kernels for few heads.
//
// The operands are swapped against the usual order, so that M is never padded heads:
//   S^T[64 keys x heads]      = K[64 x D] Q^T     A = K rows (ldmatrix), B = Q
//   O^T[512 x heads]         += V^T[512 x 64] P^T  A = V^T (ldmatrix.trans and byte permutes), B = P
// A CTA is one consumer warpgroup and four producer warps, and serves one token, one tile of heads and one share of the keys.
#pragma once

#include "dsak/types.cuh"

// Row width in bytes: 512 (latent only) or 576 (latent and rope).
#ifndef DSAK_D
#define DSAK_D 512
#endif
// Heads of a CTA: 8, 16 or 32. Fewer may be used.
#ifndef DSAK_HEADS
#define DSAK_HEADS 16
#endif
// Blocks of rows in shared memory.
#ifndef DSAK_STAGES
#define DSAK_STAGES 2
#endif
// Whether a cluster of CTAs shares the keys of a token.
#ifndef DSAK_SPLIT
#define DSAK_SPLIT 0
#endif

namespace dsak::low_head {

constexpr u32 kWidth = DSAK_D;
constexpr u32 kLatent = 512;
constexpr u32 kHeads = DSAK_HEADS;
constexpr u32 kHeadGroups = kHeads / 8;
constexpr u32 kColumnGroups = 2 * kHeadGroups;  // of P: the second term follows the first as further columns
constexpr bool kSplit = DSAK_SPLIT != 0;
static_assert(kWidth == 512 || kWidth == 576, "DSAK_D must be 512 or 576");
static_assert(kHeads == 8 || kHeads == 16 || kHeads == 32, "DSAK_HEADS must be 8, 16 or 32");

constexpr u32 kKeys = 64;  // per block
constexpr u32 kStages = DSAK_STAGES;
constexpr u32 kProducerWarps = 4;
constexpr u32 kConsumerThreads = 128;
constexpr u32 kThreads = kConsumerThreads + 32 * kProducerWarps;

constexpr float kLn2 = 0.693147180559945f;
constexpr float kLog2e = 1.44269504088896f;
// The softmax frame (the subtracted maximum) moves only when a logit passes it by this many octaves. P is scaled by
// 448 / 2^slack, so it never saturates, and nearly no block has to be done again.
constexpr float kFrameSlack = 2;
constexpr float kLog2ProbabilityScale = 8.807354922057604f - kFrameSlack;  // log2(448) - slack
// Finite: a row without a key yet gives no inf - inf.
constexpr float kEmptyFrame = -1e30f;

struct Arguments {
  const u8* q;
  const u8* q_rope;
  const u8* kv;
  const i32* indices;
  const i32* topk_length;
  const float* attn_sink;
  const float* q_scale;
  const float* kv_scale;
  bf16_bits* out;
  float* max_logits;
  float* lse;
  i64 q_stride_t, q_stride_h, q_rope_stride_t, q_rope_stride_h, kv_stride, indices_stride, out_stride_t, out_stride_h;
  i32 H, topk, s_kv;
  float sm_scale;
};

// Byte offsets from the start of dynamic shared memory.
namespace plan {
// Rows of a stage: row r at (r & 7) * kRowGroup + (r >> 3) * kWidth. A row is one piece, so that one bulk copy brings it, and
// any eight consecutive rows start in the eight different 16-byte bank groups, so that ldmatrix has no conflicts.
constexpr u32 kRowGroup = 8 * kWidth + 16;
constexpr u32 kStage = 8 * kRowGroup;
__device__ __forceinline__ constexpr u32 row(u32 r) { return (r & 7) * kRowGroup + (r >> 3) * kWidth; }

// Core matrices (8 heads x 16 bytes) of Q: 16-byte column c, head group n at (c * kHeadGroups + n) * 128.
constexpr u32 kCore = 128;
constexpr u32 kQueryBytes = kHeads * kWidth;
// Core matrices of P: 16 keys w, column group n at (w * kColumnGroups + n) * 128.
constexpr u32 kProbabilityBytes = kKeys * 8 * kColumnGroups;

constexpr u32 kRows = 0;
constexpr u32 kQuery = kRows + kStages * kStage;
constexpr u32 kProbability = kQuery + kQueryBytes;
constexpr u32 kFrameMax = kProbability + kProbabilityBytes;  // 4 warps x kHeads floats: running maxima
constexpr u32 kFrame = kFrameMax + 16 * kHeads;              // kHeads floats
constexpr u32 kValid = kFrame + 4 * kHeads;                  // per stage: 64 validity bits
constexpr u32 kFull = kValid + 8 * kStages;                  // barriers from here on
constexpr u32 kEmpty = kFull + 8 * kStages;
constexpr u32 kProbabilityEmpty = kEmpty + 8 * kStages;
constexpr u32 kPartials = kProbabilityEmpty + 8;  // the cluster's partial results have arrived
constexpr u32 kTotal = kPartials + 8;

// Used when the keys are done. Statistics of the four warps lie over Q.
constexpr u32 kStatistics = kQuery;
static_assert(4 * 2 * kHeads * 4 <= kQueryBytes, "statistics fit over Q");
// Partial results of the cluster, over the stages: kHeads * 512 halves, then 16 bytes of statistics per source and head.
constexpr u32 kPartialOutputs = kRows;
constexpr u32 kPartialStatistics = kPartialOutputs + kHeads * kLatent * 2;
static_assert(kPartialStatistics + 16 * kHeads * 16 <= kQuery, "partial results of 16 CTAs fit over the stages");
static_assert(kTotal <= 232448, "227 KiB of shared memory per CTA");
static_assert(kQuery % 128 == 0 && kValid % 8 == 0, "alignment of vector loads");
}  // namespace plan

// Three CTAs on an SM where shared memory (228 KiB, of which every CTA costs 1 KiB more) and registers allow it: the latencies
// of one hide behind the other two.
constexpr u32 kCtasPerSm = kHeads <= 16 && 3 * (plan::kTotal + 1024) <= 233472 ? 3 : 2;
// Frames and the first fragments of V are loaded as soon as they may be where registers allow it.
constexpr bool kLoadEarly = kHeads <= 16;
// Two registers fewer are usable. The launch allots the cap below, a multiple of 8, to all eight warps alike.
constexpr u32 kLaunchRegisters = 65536 / (kCtasPerSm * kThreads) / 8 * 8;
constexpr int kProducerRegisters = kCtasPerSm == 3 ? 24 : 40;
constexpr int kConsumerRegisters = kCtasPerSm == 3 ? 136 : 216;
static_assert(kProducerWarps == 4 && kProducerRegisters + kConsumerRegisters <= 2 * kLaunchRegisters,
              "or setmaxnreg waits for ever");

constexpr u32 kSharedBytes = plan::kTotal;
static_assert(kSharedBytes == DSAK_SHARED && kThreads == DSAK_THREADS, "the declaration has another launch");

}  // namespace dsak::low_head
