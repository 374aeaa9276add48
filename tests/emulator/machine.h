// A machine that runs a kernel's threads on the host, to find wrong addresses, missing barriers and deadlocks without a GPU.
//
// Every CUDA thread is a fiber; they take turns at the points where a thread can wait. What the hardware does in its own time
// is late on purpose: copies land in any order and at any later moment, matrix products run when they are waited for, warps
// take turns in random order, and some CTAs of a cluster are forty times as slow as others. All of it follows from a seed.
//
// One cluster runs at a time. Memory is the host's; a shared-memory address is 1024 plus an offset, with the CTA's rank above
// bit 24.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <vector>

namespace machine {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

// A meeting of the 32 lanes: each brings up to eight words and sees those of all.
struct Warp {
  int arrived = 0;
  u64 generation = 0;
  u32 words[2][32][8];
};

struct NamedBarrier {
  u32 arrived = 0;
  u64 generation = 0;
  bool any = false, result[2] = {};
};

// An mbarrier in shared memory.
struct Mbarrier {
  u32 count = 0, pending = 0;
  long bytes = 0;
  u64 phase = 0;

  void arrive();
  void complete(long landed);

 private:
  void check();
};

struct Cluster;

struct Cta {
  std::vector<u8> shared;
  std::map<u32, Mbarrier> mbarriers;
  NamedBarrier named[16];
  std::vector<Warp> warps;
  Cluster* cluster;
  u32 rank, x, y, threads;
};

struct Cluster {
  std::vector<Cta*> ctas;
  u32 index, alive, arrived = 0;
  u64 generation = 0;

  void check();  // whether all threads that live have arrived
};

// A matrix product that was issued: rows 16w + g and 16w + g + 8 of it are the thread's.
struct Product {
  float* sums;
  u32 columns;  // registers / 4 groups of eight columns
  bool accumulate, bf16, in_registers, along_rows;
  u32 a[32][4];
  u64 a_descriptor, b_descriptor;

  void run() const;
};

struct Thread {
  Cta* cta;
  u32 index;
  void* stack_pointer;
  bool done = false;
  u64 cluster_generation = 0;  // at its arrival at the cluster's barrier
  const std::function<bool()>* waits_for = nullptr;
  std::vector<std::function<void()>> copies;  // issued, not yet committed to a barrier
  std::shared_ptr<u32> open_stores;           // copies to global memory that were issued, not yet committed to a group
  std::vector<std::shared_ptr<u32>> stores;   // groups of them, and how many of each are under way
  std::vector<Product> issued;
  std::vector<std::vector<Product>> groups;
};

Thread& self();
u32 grid_size();  // along x
void progress();  // something happened: this is no deadlock
void wait_until(const std::function<bool()>& done);
void land_later(std::function<void()> copy);    // at some later moment, in any order
u32 (*meet(const u32* words, int count))[8];    // the lanes of a warp
bool meet(u32 number, u32 threads, bool mine);  // a named barrier; whether `mine` held in any thread
u8* memory(u32 address, u32 bytes);             // of shared memory; stops where that is outside
Mbarrier& mbarrier(u32 address);
void wait_for_products(std::size_t pending);

// Runs `kernel` on grid_x * grid_y CTAs in clusters along x. 0, or 1 for a deadlock, 2 for copies that nobody waited for.
int run(u32 grid_x, u32 grid_y, u32 cluster, u32 threads, u32 shared_bytes, u32 seed, const std::function<void()>& kernel);

}  // namespace machine
