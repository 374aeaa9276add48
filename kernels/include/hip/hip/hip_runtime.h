// Device-only HIP for kernels that are compiled ahead of time by plain Clang: builtins, no ROCm, no device libraries.
//
// Left out: printf, which needs device libraries, and everything on the host. Code object version 5 is assumed: blockDim and
// gridDim read its hidden arguments, which the driver fills in.
#pragma once

#include <dsak_math.h>
#include <dsak_std.h>
#include <dsak_vector.h>

#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
// Clang takes launch bounds for CUDA only; without this it plans for blocks of 1024 threads and caps vector registers at 128.
// DSAK_WAVES_PER_EU, where the build sets it, is how many waves a SIMD must hold: 1 gives a lane 512 registers, 2 gives it 256.
#ifdef DSAK_WAVES_PER_EU
#define DSAK_OCCUPANCY , amdgpu_waves_per_eu(DSAK_WAVES_PER_EU)
#else
#define DSAK_OCCUPANCY
#endif
#define __launch_bounds__(threads, ...) __attribute__((amdgpu_flat_work_group_size(1, threads) DSAK_OCCUPANCY))

constexpr int warpSize = 64;

struct dsak_thread_index {
  __declspec(property(get = get_x)) unsigned x;
  __declspec(property(get = get_y)) unsigned y;
  __declspec(property(get = get_z)) unsigned z;
  __device__ unsigned get_x() const { return __builtin_amdgcn_workitem_id_x(); }
  __device__ unsigned get_y() const { return __builtin_amdgcn_workitem_id_y(); }
  __device__ unsigned get_z() const { return __builtin_amdgcn_workitem_id_z(); }
};

struct dsak_block_index {
  __declspec(property(get = get_x)) unsigned x;
  __declspec(property(get = get_y)) unsigned y;
  __declspec(property(get = get_z)) unsigned z;
  __device__ unsigned get_x() const { return __builtin_amdgcn_workgroup_id_x(); }
  __device__ unsigned get_y() const { return __builtin_amdgcn_workgroup_id_y(); }
  __device__ unsigned get_z() const { return __builtin_amdgcn_workgroup_id_z(); }
};

struct dim3 {
  unsigned x, y, z;
};

struct dsak_block_size {
  __declspec(property(get = get_x)) unsigned x;
  __declspec(property(get = get_y)) unsigned y;
  __declspec(property(get = get_z)) unsigned z;
  __device__ unsigned get_x() const { return __builtin_amdgcn_workgroup_size_x(); }
  __device__ unsigned get_y() const { return __builtin_amdgcn_workgroup_size_y(); }
  __device__ unsigned get_z() const { return __builtin_amdgcn_workgroup_size_z(); }
};

// hidden_block_count_x, _y, _z are the first hidden arguments.
struct dsak_grid_size {
  __declspec(property(get = get_x)) unsigned x;
  __declspec(property(get = get_y)) unsigned y;
  __declspec(property(get = get_z)) unsigned z;
  __device__ static unsigned count(int axis) {
    return ((const __attribute__((address_space(4))) unsigned*)__builtin_amdgcn_implicitarg_ptr())[axis];
  }
  __device__ unsigned get_x() const { return count(0); }
  __device__ unsigned get_y() const { return count(1); }
  __device__ unsigned get_z() const { return count(2); }
};

static constexpr __device__ dsak_thread_index threadIdx{};
static constexpr __device__ dsak_block_index blockIdx{};
static constexpr __device__ dsak_block_size blockDim{};
static constexpr __device__ dsak_grid_size gridDim{};

// A barrier orders memory only together with its fences.
static __device__ __forceinline__ void __syncthreads() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

static __device__ __forceinline__ unsigned __lane_id() {
  return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u));
}

// Values of 4 bytes cross lanes by ds_bpermute; a source outside the group of `width` lanes is the lane itself.
template <typename T>
static __device__ __forceinline__ T dsak_from_lane(T value, int lane) {
  static_assert(sizeof(T) == 4, "shuffles move 4 bytes");
  return __builtin_bit_cast(T, __builtin_amdgcn_ds_bpermute(lane << 2, __builtin_bit_cast(int, value)));
}
template <typename T>
static __device__ __forceinline__ T __shfl(T value, int lane, int width = warpSize) {
  const int self = __lane_id();
  return dsak_from_lane(value, (self & -width) + (lane & (width - 1)));
}
template <typename T>
static __device__ __forceinline__ T __shfl_xor(T value, int mask, int width = warpSize) {
  const int self = __lane_id(), from = self ^ mask;
  return dsak_from_lane(value, from < (self & -width) + width ? from : self);
}
template <typename T>
static __device__ __forceinline__ T __shfl_down(T value, unsigned delta, int width = warpSize) {
  const int self = __lane_id(), from = self + static_cast<int>(delta);
  return dsak_from_lane(value, from < (self & -width) + width ? from : self);
}
template <typename T>
static __device__ __forceinline__ T __shfl_up(T value, unsigned delta, int width = warpSize) {
  const int self = __lane_id(), from = self - static_cast<int>(delta);
  return dsak_from_lane(value, from >= (self & -width) ? from : self);
}

template <typename T>
static __device__ __forceinline__ T atomicAdd(T* address, T value) {
  return __hip_atomic_fetch_add(address, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
template <typename T>
static __device__ __forceinline__ T atomicMax(T* address, T value) {
  return __hip_atomic_fetch_max(address, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
template <typename T>
static __device__ __forceinline__ T atomicMin(T* address, T value) {
  return __hip_atomic_fetch_min(address, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
