// Runs a CUDA kernel that TileLang emitted for sm_90a on the CPU, one block at a time: every thread of the block is a thread of
// the host.
//
// Barriers, shuffles and votes really wait. Each barrier has a lock of its own, so that ThreadSanitizer sees exactly the order
// that the kernel asks for. Matrix products decode their descriptors as the hardware does (swizzle by address bits, K-major and
// MN-major), and run when they are waited for, the latest that the hardware may: whoever overwrites an operand before that
// shows.
#pragma once
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __global__
#define __device__
#define __forceinline__ inline
#define __restrict__
#define CUDART_INF_F INFINITY

using std::max;
using std::min;
typedef unsigned int uint;
typedef unsigned char uchar;

constexpr int THREADS = BLOCK_THREADS, SHARED = 232448;  // BLOCK_THREADS stands before this file is included
struct Index {
  int x;
};
static thread_local Index threadIdx, blockIdx;
alignas(1024) static uchar shared_memory[SHARED];

// ---- element types

static inline float from_bf16(uint16_t b) {
  uint32_t u = uint32_t(b) << 16;
  float f;
  memcpy(&f, &u, 4);
  return f;
}

static inline uint16_t to_bf16(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  return f != f ? 0x7fff : (u + 0x7fff + ((u >> 16) & 1)) >> 16;
}

static inline float from_e4m3(uint8_t b) {
  int e = b >> 3 & 15, m = b & 7;
  float v = (b & 127) == 127 ? NAN : e ? std::ldexp(1 + m / 8.f, e - 7) : std::ldexp(m / 8.f, -6);
  return b & 128 ? -v : v;
}

struct half_t {
  uint16_t b;
  half_t() = default;
  half_t(float f) : b(_cvtss_sh(f, 0)) {}
  operator float() const { return _cvtsh_ss(b); }
};

struct bfloat16_t {
  uint16_t b;
  bfloat16_t() = default;
  bfloat16_t(float f) : b(to_bf16(f)) {}
  operator float() const { return from_bf16(b); }
};

struct fp8_e4_t {
  uint8_t b;
};

// clang-format off
struct half2 { half_t x, y; };
struct __nv_bfloat162 { bfloat16_t x, y; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct uint1 { uint x; };
struct int2 { int x, y; };
struct uint2 { uint x, y; };
struct uint4 { uint x, y, z, w; };
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline int2 make_int2(int x, int y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline half2 __float22half2_rn(float2 v) { return {v.x, v.y}; }
static inline __nv_bfloat162 __float22bfloat162_rn(float2 v) { return {v.x, v.y}; }
// clang-format on

// ---- barriers

struct Meeting {
  std::mutex m;
  std::condition_variable c;
  int here = 0;
  unsigned round = 0;

  void meet(int count) {
    std::unique_lock<std::mutex> lock(m);
    unsigned mine = round;
    if (++here == count) {
      here = 0;
      round++;
      c.notify_all();
    } else {
      c.wait(lock, [&] { return round != mine; });
    }
  }
};
static Meeting named[16], warps[THREADS / 32], groups_of_warps[THREADS / 128], whole;

struct Phases {
  std::mutex m;
  std::condition_variable c;
  int count = 0, pending = 0;
  unsigned phase = 0;
};
static Phases phases[32];
static int phases_used = 0;

struct Barrier {  // lies in the kernel's 8 bytes of shared memory
  uint64_t id;

  void init(int count) {
    Phases& p = phases[id = phases_used++];
    p.count = p.pending = count;
    p.phase = 0;
  }
  void arrive() {
    Phases& p = phases[id];
    std::lock_guard<std::mutex> lock(p.m);
    if (--p.pending == 0) {
      p.pending = p.count;
      p.phase++;
      p.c.notify_all();
    }
  }
  void wait(int parity) {
    Phases& p = phases[id];
    std::unique_lock<std::mutex> lock(p.m);
    p.c.wait(lock, [&] { return int(p.phase & 1) != parity; });
  }
};
static_assert(sizeof(Barrier) == 8, "an mbarrier has 8 bytes");

static inline void __syncthreads() { whole.meet(THREADS); }

static float lanes[THREADS];

static inline float __shfl_xor_sync(uint, float v, int distance, int = 32) {
  int t = threadIdx.x;
  lanes[t] = v;
  warps[t / 32].meet(32);
  float other = lanes[t ^ distance];
  warps[t / 32].meet(32);
  return other;
}

static inline int __any_sync(uint, int v) {
  float any = v != 0;
  for (int d = 16; d; d /= 2) any = max(any, __shfl_xor_sync(0, any, d));
  return any != 0;
}

// ---- TileLang's device functions

namespace tl {
using ::Barrier;

// clang-format off
struct MaxOp { static float of(float a, float b) { return max(a, b); } };
struct SumOp { static float of(float a, float b) { return a + b; } };
template <int N> struct NamedBarrier {};
template <int N> bool tl_shuffle_elect() { return threadIdx.x == 0; }
template <int N> void warpgroup_reg_alloc() {}
template <int N> void warpgroup_reg_dealloc() {}
template <class T> void warpgroup_fence_operand(T*, int) {}
static inline void fence_barrier_init() {}
static inline void fence_proxy_async() {}
static inline void warpgroup_arrive() {}
static inline void __sync_thread_partial(int id, int count) { named[id].meet(count); }
static inline void mbarrier_cp_async_arrive_noinc(Barrier& b) { b.arrive(); }
template <class T> T load(const void* from) { T v; memcpy(&v, from, sizeof v); return v; }
template <class T> void store(const void* to, T v) { memcpy(const_cast<void*>(to), &v, sizeof v); }
static inline uint4 load_global_128_conditional(const void* from, bool p) { return p ? load<uint4>(from) : uint4{}; }
template <int N> void cp_async_gs_conditional(const void* to, const void* from, bool p) { store(to, load_global_128_conditional(from, p)); }
static inline uint4 load_shared_128(const void* from) { return load<uint4>(from); }
static inline uint load_shared_32(const void* from) { return load<uint>(from); }
static inline void store_shared_128(const void* to, uint4 v) { store(to, v); }
static inline void store_shared_32(const void* to, uint v) { store(to, v); }
static inline void store_global_128(const void* to, uint4 v) { store(to, v); }
static inline void store_global_32(const void* to, uint v) { store(to, v); }
// clang-format on

template <class Op, int count, int scale, int, class B>
struct AllReduce {
  static float run(float v) {
    for (int d = count / 2; d >= scale; d /= 2) v = Op::of(v, __shfl_xor_sync(0, v, d));
    return v;
  }
};

enum class DataType { kFloat16, kBFloat16, kFloat32 };

struct GmmaDescriptor {
  uint64_t bits = 0;
  explicit operator uint64_t() const { return bits; }
  uint64_t operator+(int offset) const { return bits + offset; }
};

template <int layout, int leading, int stride>
void initialize_wgmma_descriptor(GmmaDescriptor& d, const void* at) {
  uint64_t start = uint64_t(static_cast<const uchar*>(at) - shared_memory) >> 4;
  d.bits = start | uint64_t(leading) << 16 | uint64_t(stride) << 32 | uint64_t(layout) << 62;
}

template <class T>
void increase_descriptor_offset(GmmaDescriptor& d, T offset) {
  d.bits += offset >> 4;
}

// Element (mn, k) of an operand of 16-bit elements that a descriptor shows.
static inline uint16_t element(uint64_t d, int mn, int k, bool mn_major) {
  int layout = d >> 62, leading = (d >> 16 & 0x3fff) * 16, stride = (d >> 32 & 0x3fff) * 16, at = (d & 0x3fff) * 16;
  if (!layout) abort();  // without a swizzle: not in use
  int width = layout == 1 ? 128 : layout == 2 ? 64 : 32;
  if (mn_major)
    at += mn / (width / 2) * leading + mn % (width / 2) * 2 + k / 8 * stride + k % 8 * width;
  else
    at += mn / 8 * stride + mn % 8 * width + k * 2;
  return load<uint16_t>(shared_memory + (at ^ ((at >> 7) & (width / 16 - 1)) << 4));
}

template <DataType T>
float number(uint16_t b) {
  return T == DataType::kFloat16 ? _cvtsh_ss(b) : from_bf16(b);
}

typedef std::function<void()> Work;
static thread_local std::vector<Work> issued;
static thread_local std::deque<std::vector<Work>> committed;

static inline void warpgroup_commit_batch() {
  committed.push_back(std::move(issued));
  issued.clear();
}

template <int left>
void wait_wgmma() {
  for (; committed.size() > left; committed.pop_front())
    for (Work& work : committed.front()) work();
}

// This thread's part of c = a b + scale c for 64 x N x 16; a(r, k) is row r of its two.
template <DataType T, int N, class A>
void product(A a, uint64_t desc_b, bool b_mn_major, float* c, int scale) {
  float rows[2][16];
  for (int r = 0; r < 2; r++)
    for (int k = 0; k < 16; k++) rows[r][k] = a(r, k);
  for (int j = 0; j < N / 8; j++)
    for (int e = 0; e < 2; e++) {
      float sums[2] = {0, 0};
      for (int k = 0; k < 16; k++) {
        float b = number<T>(element(desc_b, j * 8 + threadIdx.x % 4 * 2 + e, k, b_mn_major));
        for (int r = 0; r < 2; r++) sums[r] += rows[r][k] * b;
      }
      for (int r = 0; r < 2; r++) {
        float& x = c[j * 4 + r * 2 + e];
        x = (scale ? x : 0.f) + sums[r];
      }
    }
}

static inline int row_of() { return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4; }

template <DataType TA, DataType, DataType, int, int N, int, bool a_mn_major, bool b_mn_major, int, int>
void wgmma_ss(uint64_t desc_a, uint64_t desc_b, uint32_t* c, int scale) {
  issued.push_back([=] {
    auto a = [=](int r, int k) { return number<TA>(element(desc_a, row_of() + r * 8, k, a_mn_major)); };
    product<TA, N>(a, desc_b, b_mn_major, reinterpret_cast<float*>(c), scale);
  });
}

static uint16_t registers[THREADS / 128][16][64][16];  // A operands of the last products: a row's lie in four lanes
static thread_local int slots_used = 0;

template <DataType TA, DataType, DataType, int, int N, int, bool, bool b_mn_major, int, int>
void wgmma_rs(const uint32_t* a, uint64_t desc_b, uint32_t* c, int scale) {
  auto& rows = registers[threadIdx.x / 128][slots_used++ % 16];
  int row = row_of(), col = threadIdx.x % 4 * 2;
  for (int part = 0; part < 4; part++) memcpy(&rows[row + part % 2 * 8][col + part / 2 * 8], a + part, 4);
  groups_of_warps[threadIdx.x / 128].meet(128);
  issued.push_back([=, &rows] {
    auto of = [&](int r, int k) { return number<TA>(rows[row + r * 8][k]); };
    product<TA, N>(of, desc_b, b_mn_major, reinterpret_cast<float*>(c), scale);
  });
}
}  // namespace tl

static inline void dsak_widen(const void* low, const void* high, const void* from) {
  for (int i = 0; i < 16; i++) {
    const void* half = i < 8 ? low : high;
    tl::store(static_cast<const half_t*>(half) + i % 8, half_t(from_e4m3(static_cast<const uint8_t*>(from)[i])));
  }
}

// ---- blocks, and files for arrays

template <class Kernel>
void run(int blocks, Kernel kernel) {
  for (int block = 0; block < blocks; block++) {
    memset(shared_memory, 0xff, SHARED);  // NaN in every type
    phases_used = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < THREADS; t++)
      threads.emplace_back([=] {
        threadIdx.x = t;
        blockIdx.x = block;
        kernel();
      });
    for (std::thread& t : threads) t.join();
  }
}

struct Array {
  std::string path;
  std::vector<uint4> data;
  size_t size = 0;

  Array(const std::string& path) : path(path) {
    FILE* f = fopen(path.c_str(), "rb");
    if (!f) abort();
    fseek(f, 0, SEEK_END);
    size = ftell(f);
    rewind(f);
    data.resize(size / 16 + 1);
    if (fread(data.data(), 1, size, f) != size) abort();
    fclose(f);
  }
  void save() {
    FILE* f = fopen(path.c_str(), "wb");
    if (!f || fwrite(data.data(), 1, size, f) != size) abort();
    fclose(f);
  }
};
