// What the HIP source that TileLang makes of the attention kernel needs to run on the CPU: its types, and threads of a block as
// contexts that take turns at barriers. Every thread of a block reaches the same barriers, or the launch says so.
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define __device__
#define __global__
#define __shared__
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n)
#define DSAK_MEET() turn(1)
#define __syncthreads() turn(2)

using uchar = unsigned char;
using half_t = _Float16;
template <typename T, int n>
struct __attribute__((packed, aligned(1))) lanes {
  T x, y, z, w;
};
template <typename T>
struct __attribute__((packed, aligned(1))) lanes<T, 2> {
  T x, y;
};
using int4 = lanes<int, 4>;
using uint4 = lanes<unsigned, 4>;
using float4 = lanes<float, 4>;
using uint2 = lanes<unsigned, 2>;
using float2 = lanes<float, 2>;
using half2 = lanes<_Float16, 2>;
struct uint1 {
  unsigned x;
};
static uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
struct fp8_e4_t {
  unsigned char data;
};
struct fp8_e4_8_t {
  unsigned char data[8];
};
struct fp8_e4_16_t {
  unsigned char data[16];
};
struct bfloat16_t {
  uint16_t data;
  bfloat16_t() = default;
  bfloat16_t(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    data = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  }
};
template <typename T>
static T max(T a, T b) {
  return a > b ? a : b;
}
template <typename T>
static T min(T a, T b) {
  return a < b ? a : b;
}
#define __log2f log2f

static struct {
  unsigned x;
} threadIdx, blockIdx;
extern "C" {
alignas(1024) uchar buf_dyn_shmem[163840];
}
static ucontext_t scheduler, contexts[256];
static char stacks[256][1 << 17];
static int waits[256];  // 0 done, else the barrier

static void turn(int barrier) {
  waits[threadIdx.x] = barrier;
  swapcontext(&contexts[threadIdx.x], &scheduler);
}

// Runs `body` in `threads` contexts, from the last to the first where `backwards`; returns 1 when their barriers differ.
static int run_block(unsigned block, int threads, int backwards, void (*body)()) {
  memset(buf_dyn_shmem, 0xff, sizeof(buf_dyn_shmem));  // NaN, and no index
  for (int t = 0; t < threads; ++t) {
    getcontext(&contexts[t]);
    contexts[t].uc_stack.ss_sp = stacks[t];
    contexts[t].uc_stack.ss_size = sizeof(stacks[t]);
    contexts[t].uc_link = &scheduler;
    makecontext(&contexts[t], body, 0);
  }
  for (int barrier = -1; barrier;) {
    for (int k = 0; k < threads; ++k) {
      threadIdx.x = backwards ? threads - 1 - k : k;
      blockIdx.x = block;
      waits[threadIdx.x] = 0;
      swapcontext(&scheduler, &contexts[threadIdx.x]);
    }
    barrier = waits[0];
    for (int t = 1; t < threads; ++t)
      if (waits[t] != barrier) return 1;
  }
  return 0;
}
