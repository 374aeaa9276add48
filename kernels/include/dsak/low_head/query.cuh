// Q of a CTA: core matrices in shared memory, wgmma's second operand.
#pragma once

#include "dsak/cp_async.cuh"
#include "dsak/low_head/layout.cuh"
#include "dsak/low_head/share.cuh"
#include "dsak/shared_memory.cuh"

namespace dsak::low_head {

// Starts to bring the CTA's heads of Q; heads beyond the last one become zeros.
__device__ __forceinline__ void start_query(const Arguments& args, const Share& share, u32 smem) {
  constexpr u32 kPieces = kWidth / 16;
#pragma unroll
  for (u32 first = 0; first < kHeads * kPieces; first += kConsumerThreads) {
    const u32 x = first + threadIdx.x, head = x / kPieces, piece = x % kPieces;
    if (kHeads * kPieces % kConsumerThreads != 0 && x >= kHeads * kPieces) break;
    const bool exists = static_cast<i32>(head) < share.heads;
    const i64 h = share.first_head + (exists ? static_cast<i32>(head) : 0);
    const u8* source = piece < kLatentBytes / 16
                           ? args.q + (share.token * args.q_stride_t + h * args.q_stride_h) * kElement + piece * 16
                           : args.q_rope + (share.token * args.q_rope_stride_t + h * args.q_rope_stride_h) * kElement +
                                 (piece * 16 - kLatentBytes);
    cp_async::copy16_or_zero(smem + plan::kQuery + ((piece * kHeadGroups + (head >> 3)) * 8 + (head & 7)) * 16, source, exists);
  }
}

// A barrier of the consumers must follow.
__device__ __forceinline__ void finish_query() {
  cp_async::wait_all();
  shared::fence_async_proxy();  // wgmma reads it
}

}  // namespace dsak::low_head
