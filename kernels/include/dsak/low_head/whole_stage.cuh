// Where products with K start that read all of its tiles in shared memory: no lane has a row of its own.
#pragma once

#include "dsak/types.cuh"

namespace dsak::low_head {

struct WholeStage {
  __device__ __forceinline__ u32 in(u32 stage) const { return stage; }
};
__device__ __forceinline__ WholeStage key_row(u32, u32) { return {}; }

}  // namespace dsak::low_head
