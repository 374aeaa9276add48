// Compile-time constants, kernel arguments and the shared-memory plan of the sparse-MLA kernels for few heads.
//
// The operands are swapped against the usual order, so that M is never padded heads:
//   S^T[64 keys x heads]      = K[64 x D] Q^T      A = K, B = Q
//   O^T[512 x heads]         += V^T[512 x 64] P^T  A = V^T, B = P
// A CTA is one consumer warpgroup and four producer warps, and serves one token, one tile of heads and one share of the keys.
//
// FP8 and BF16 rows differ in how A reaches the tensor cores, and so in how rows lie in shared memory (fp8/, bf16/). FP8
// products take no transposed operand: V^T goes through registers (ldmatrix and byte permutes). K is read where the copies put
// it, or goes through registers too where rows come whole, which wgmma cannot read. BF16 products read both in place.
#pragma once

#include "dsak/tensor_copy.cuh"
#include "dsak/types.cuh"

// Columns of a row: 512 (latent only) or 576 (latent and rope).
#ifndef DSAK_D
#define DSAK_D 512
#endif
// Heads of a CTA: 8, 16 or 32. Fewer may be used.
#ifndef DSAK_HEADS
#define DSAK_HEADS 16
#endif
// Whether queries and rows are BF16 instead of FP8 (e4m3).
#ifndef DSAK_BF16
#define DSAK_BF16 0
#endif
// Blocks of rows in shared memory.
#ifndef DSAK_STAGES
#define DSAK_STAGES 2
#endif
// Consumer warpgroups, which take the CTA's key blocks in turn; more than one only where a cluster's CTAs combine their
// results.
#ifndef DSAK_TEAMS
#define DSAK_TEAMS 1
#endif
// Whether a cluster of CTAs shares the keys of a token.
#ifndef DSAK_SPLIT
#define DSAK_SPLIT 0
#endif

namespace dsak::low_head {

constexpr bool kBf16 = DSAK_BF16 != 0;
constexpr u32 kElement = kBf16 ? 2 : 1;    // bytes
constexpr u32 kWidth = DSAK_D * kElement;  // bytes of a row
constexpr u32 kLatent = 512;
constexpr u32 kLatentBytes = kLatent * kElement;
constexpr u32 kHeads = DSAK_HEADS;
constexpr u32 kHeadGroups = kHeads / 8;
// Core matrices of P for 16 keys. FP8: 16 keys wide, the second term's after the first's; BF16: two of eight keys.
constexpr u32 kProbabilityCores = 2 * kHeadGroups;
constexpr bool kSplit = DSAK_SPLIT != 0;
// FP8 rows come whole, by a copy each: bulk copies, or with DSAK_LINES tensor copies, which lay a row out as lines of 128 bytes
// with the 128-byte swizzle. With DSAK_TILES they come in pieces of 16 bytes, into tiles that wgmma can read.
#ifndef DSAK_LINES
#define DSAK_LINES 0
#endif
#ifndef DSAK_TILES
#define DSAK_TILES 0
#endif
constexpr bool kLines = DSAK_LINES != 0;
constexpr bool kTiles = kBf16 || DSAK_TILES != 0;
static_assert(!kLines || (!kTiles && DSAK_D == 512), "DSAK_LINES is for FP8 rows of 512 that come whole");
static_assert(DSAK_D == 512 || DSAK_D == 576, "DSAK_D must be 512 or 576");
static_assert(kHeads == 8 || kHeads == 16 || kHeads == 32, "DSAK_HEADS must be 8, 16 or 32");

constexpr u32 kKeys = 64;  // per block
constexpr u32 kStages = DSAK_STAGES;
// Whether the scores of a block are computed beside the output of the one before (blocks.cuh).
#ifndef DSAK_OVERLAP
#define DSAK_OVERLAP 1
#endif
constexpr bool kOverlap = kBf16 && kStages >= 3 && DSAK_OVERLAP;
constexpr u32 kProducerWarps = 4;
constexpr u32 kTeams = DSAK_TEAMS;
constexpr u32 kTeamThreads = 128;
constexpr u32 kConsumerThreads = kTeams * kTeamThreads;
static_assert(kTeams == 1 || (kTeams == 2 && kSplit && !kBf16), "DSAK_TEAMS must be 1, or 2 for the split FP8 kernel");
// A stage always serves the same team: one that waited for every other of its phases could take an old one for the next.
static_assert(kStages % kTeams == 0, "DSAK_STAGES must be a multiple of DSAK_TEAMS");
constexpr u32 kThreads = kConsumerThreads + 32 * kProducerWarps;

constexpr float kLn2 = 0.693147180559945f;
constexpr float kLog2e = 1.44269504088896f;
// The softmax frame (the subtracted maximum) moves only when a logit passes it by this many octaves, so that nearly no block
// has to be done again. FP8: P is scaled by 448 / 2^slack, so it never saturates. BF16: P up to 2^slack is as good as below 1.
constexpr float kFrameSlack = kBf16 ? 8 : 2;
constexpr float kLog2ProbabilityScale = kBf16 ? 0 : 8.807354922057604f - kFrameSlack;  // log2(448) - slack
// Finite: a row without a key yet gives no inf - inf.
constexpr float kEmptyFrame = -1e30f;
// Of octaves per unit of a raw score. Keeps the logits of FP8 scores above the empty frame, whatever the scales.
constexpr float kLargestFactor = 1e21f;

using Scores = float[kHeads / 2];           // a thread's: two keys of all heads
constexpr u32 kChunks = kLatent / 64;       // of the output, 64 columns each
using Output = float[kChunks][kHeads / 2];  // a thread's: two columns of a chunk, of the heads of its scores

// How a kernel takes the rows: their address, or a tensor map by value.
#if DSAK_LINES
#define DSAK_ROWS const __grid_constant__ tensor_copy::Map
#else
#define DSAK_ROWS const u8*
#endif
__device__ __forceinline__ const void* rows_of(const u8* address) { return address; }
__device__ __forceinline__ const void* rows_of(const tensor_copy::Map& map) { return &map; }

struct Arguments {
  const u8* q;
  const u8* q_rope;
  const void* kv;  // rows, or their tensor map
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
// FP8 rows of a stage that come whole: row r at (r & 7) * kRowGroup + (r >> 3) * kWidth. A row is one piece, so that one copy
// brings it, and any eight consecutive rows start in the eight different 16-byte bank groups, so that ldmatrix has no
// conflicts. In lines, which are aligned, it is the swizzle that makes the difference: eight consecutive rows start in lines of
// all numbers modulo 8.
constexpr u32 kRowGroup = 8 * kWidth + (kLines ? 128 : 16);
__device__ __forceinline__ constexpr u32 row(u32 r) { return (r & 7) * kRowGroup + (r >> 3) * kWidth; }
// Others: tiles of 128 bytes of every row, with wgmma's 128-byte swizzle; the rope columns of FP8 rows are a tile of 64 bytes
// of every row, with the 64-byte swizzle.
constexpr u32 kTile = kKeys * 128;

constexpr u32 kStage = kTiles ? kKeys * kWidth : 8 * kRowGroup;
// Pieces in which a stage is given back to the producers. BF16: the 16 rows of a producer warp.
constexpr u32 kPieces = kBf16 ? kProducerWarps : 1;

// Core matrices (8 heads x 16 bytes) of Q: 16-byte column c, head group n at (c * kHeadGroups + n) * 128.
constexpr u32 kCore = 128;
constexpr u32 kQueryBytes = kHeads * kWidth;
// Core matrices of P: matrix i of 16 keys w at (w * kProbabilityCores + i) * 128.
constexpr u32 kProbabilityBytes = kKeys * 8 * kProbabilityCores;
constexpr u32 kProbabilities = kOverlap ? 2 : 1;

constexpr u32 kRows = 0;
constexpr u32 kQuery = kRows + kStages * kStage;
constexpr u32 kProbability = kQuery + kQueryBytes;
constexpr u32 kFrameMax = kProbability + kProbabilities * kProbabilityBytes;  // 4 warps x kHeads floats: running maxima
constexpr u32 kFrame = kFrameMax + 16 * kHeads;                               // kHeads floats
// The second team's P and frames lie behind the first's, and so do both teams' statistics; one team's statistics lie over Q,
// which nobody reads when they are made.
constexpr u32 kOwnStatistics = kFrame + 4 * kHeads;
constexpr u32 kTeamBytes = kOwnStatistics + (kTeams > 1 ? 4 * 2 * kHeads * 4 : 0) - kProbability;
constexpr u32 kStatistics = kTeams > 1 ? kOwnStatistics : kQuery;
static_assert(4 * 2 * kHeads * 4 <= kQueryBytes, "statistics fit over Q");
constexpr u32 kValid = kProbability + kTeams * kTeamBytes;  // per stage: 64 validity bits
constexpr u32 kFull = kValid + 8 * kStages;                 // barriers from here on
constexpr u32 kEmpty = kFull + 8 * kStages;
constexpr u32 kProbabilityEmpty = kEmpty + 8 * kStages * kPieces;
constexpr u32 kPartials = kProbabilityEmpty + 8 * kTeams;  // the cluster's partial results have arrived
constexpr u32 kTotal = kPartials + 8;

// Partial results of the cluster, over the last stages: 16-bit outputs of up to 48 x 16 columns (splits times the most that a
// CTA owns: 512 columns and rounding up), then 16 bytes of statistics per source and head. A team is a source.
constexpr u32 kPartialOutputBytes = kTeams * kHeads * 48 * 16 * 2;
constexpr u32 kPartialBytes = kPartialOutputBytes + kTeams * 16 * kHeads * 16;
constexpr u32 kPartialStages = (kPartialBytes + kStage - 1) / kStage;
constexpr u32 kPartialOutputs = kRows + (kStages - kPartialStages) * kStage;
constexpr u32 kPartialStatistics = kPartialOutputs + kPartialOutputBytes;
static_assert(!kSplit || kPartialStages <= kStages, "partial results of 16 CTAs fit over the stages");
static_assert(kTotal <= 232448, "227 KiB of shared memory per CTA");
static_assert(!kTiles || kStage % 1024 == 0, "the swizzle repeats every 1024 bytes");
static_assert(kQuery % 128 == 0 && kValid % 8 == 0, "alignment of vector loads");
}  // namespace plan

// Three CTAs on an SM where shared memory (228 KiB, of which every CTA costs 1 KiB more) and registers allow it: the latencies
// of one hide behind the other two. A CTA with BF16 rows or two teams has the SM to itself.
constexpr bool fits(u32 ctas) { return ctas * (plan::kTotal + 1024) <= 233472; }
constexpr u32 kCtasPerSm = kTeams > 1 ? 1 : kHeads <= 16 && fits(3) ? 3 : fits(2) ? 2 : 1;
// Two registers fewer are usable. The launch allots the cap below, a multiple of 8, to all eight warps alike.
constexpr u32 kLaunchRegisters = 65536 / (kCtasPerSm * kThreads) / 8 * 8;
static_assert(kCtasPerSm == 1 || kTeams == 1, "the registers are dealt out for one team");
constexpr int kProducerRegisters = kCtasPerSm == 3 ? 24 : 40;
constexpr int kConsumerRegisters = kCtasPerSm == 3 ? 136 : 216;
static_assert(kProducerWarps == 4 && kProducerRegisters + kConsumerRegisters <= 2 * kLaunchRegisters,
              "or setmaxnreg waits for ever");

constexpr u32 kSharedBytes = plan::kTotal;
static_assert(kSharedBytes == DSAK_SHARED && kThreads == DSAK_THREADS, "the declaration has another launch");

}  // namespace dsak::low_head
