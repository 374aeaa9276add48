#include "machine.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "numbers.h"

// Saves the caller's registers on its stack, leaves its stack pointer in *from, and goes on where `to` was left.
extern "C" void machine_switch(void** from, void* to);
asm(R"(
.text
.globl machine_switch
machine_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
)");

namespace machine {
namespace {

constexpr u32 kFirstShared = 1024, kStackBytes = 48 << 10;
constexpr int kIdleRounds = 5000;

Thread* current;
void* scheduler;
u64 happened;
std::mt19937 draw;
std::vector<std::function<void()>> in_flight;
const std::function<void()>* kernel_body;
u32 ctas_along_x;

[[noreturn]] void stop(const char* what, u32 value) {
  std::fprintf(stderr, "thread %u of CTA %u: %s (0x%x)\n", current->index, current->cta->rank, what, value);
  std::abort();
}

void leave() { machine_switch(&current->stack_pointer, scheduler); }

void thread_body() {
  (*kernel_body)();
  current->done = true;
  progress();
  --current->cta->cluster->alive;
  current->cta->cluster->check();
  leave();
}

void prepare(Thread& thread, std::vector<u8>& stack) {
  stack.resize(kStackBytes);
  auto* top = reinterpret_cast<u64*>(reinterpret_cast<u64>(stack.data() + kStackBytes) & ~63ull) - 1;
  *top = 0;  // nobody to return to; the ABI wants the stack at 8 modulo 16 on entry
  *--top = reinterpret_cast<u64>(&thread_body);
  for (int i = 0; i < 6; ++i) *--top = 0;
  thread.stack_pointer = top;
}

void land_some() {
  std::shuffle(in_flight.begin(), in_flight.end(), draw);
  for (u32 n = 1 + draw() % in_flight.size(); n > 0; --n) {
    const auto copy = std::move(in_flight.back());
    in_flight.pop_back();
    copy();
    progress();
  }
}

int run_cluster(u32 x, u32 y, u32 size, u32 threads, u32 shared_bytes) {
  Cluster cluster{{}, x / size, size * threads};
  std::vector<Cta> ctas(size);
  std::vector<Thread> all(size * threads);
  std::vector<std::vector<u8>> stacks(all.size());
  for (u32 rank = 0; rank < size; ++rank) {
    Cta& cta = ctas[rank];
    cta.shared.assign(shared_bytes, 0xff);  // NaN in every format
    cta.warps.resize(threads / 32);
    cta.cluster = &cluster, cta.rank = rank, cta.x = x + rank, cta.y = y, cta.threads = threads;
    cluster.ctas.push_back(&cta);
    for (u32 i = rank * threads; i < (rank + 1) * threads; ++i) {
      all[i].cta = &cta, all[i].index = i % threads;
      prepare(all[i], stacks[i]);
    }
  }
  std::vector<u32> order(all.size() / 32), pace(size);
  for (u32 i = 0; i < order.size(); ++i) order[i] = i;
  for (u32& p : pace) p = draw() % 3 == 0 ? 40 : 1 + draw() % 3;
  u64 seen = happened;
  int idle = 0;
  for (std::size_t left = all.size(); left > 0;) {
    std::shuffle(order.begin(), order.end(), draw);
    for (const u32 warp : order) {
      if (draw() % pace[warp * 32 / threads] != 0) continue;
      for (u32 i = warp * 32; i < warp * 32 + 32; ++i) {
        current = &all[i];
        if (current->done || (current->waits_for != nullptr && !(*current->waits_for)())) continue;
        current->waits_for = nullptr;
        machine_switch(&scheduler, current->stack_pointer);
        left -= current->done;
      }
    }
    if (!in_flight.empty() && draw() % 4 == 0) land_some();
    idle = happened == seen && in_flight.empty() ? idle + 1 : 0;
    seen = happened;
    if (idle > kIdleRounds) return 1;
  }
  return in_flight.empty() ? 0 : 2;
}

}  // namespace

Thread& self() { return *current; }
u32 grid_size() { return ctas_along_x; }
void progress() { ++happened; }

void wait_until(const std::function<bool()>& done) {
  if (done()) return;
  current->waits_for = &done;
  leave();
}

void land_later(std::function<void()> copy) { in_flight.push_back(std::move(copy)); }

void Mbarrier::check() {
  if (pending != 0 || bytes != 0) return;
  ++phase;
  pending = count;
  progress();
}
void Mbarrier::arrive() {
  if (pending == 0) stop("one arrival too many at an mbarrier", count);
  --pending;
  check();
}
void Mbarrier::complete(long landed) {
  bytes -= landed;
  check();
}

void Cluster::check() {
  if (alive == 0 || arrived != alive) return;
  arrived = 0;
  ++generation;
  progress();
}

u32 (*meet(const u32* words, int count))[8] {
  Warp& warp = current->cta->warps[current->index / 32];
  const u64 generation = warp.generation;
  auto& board = warp.words[generation & 1];
  std::memcpy(board[current->index % 32], words, 4 * count);
  if (++warp.arrived == 32) {
    warp.arrived = 0;
    ++warp.generation;
    progress();
  } else {
    wait_until([&warp, generation] { return warp.generation != generation; });
  }
  return board;
}

bool meet(u32 number, u32 threads, bool mine) {
  NamedBarrier& barrier = current->cta->named[number];
  const u64 generation = barrier.generation;
  barrier.any |= mine;
  if (++barrier.arrived == threads) {
    barrier.arrived = 0;
    barrier.result[generation & 1] = barrier.any;
    barrier.any = false;
    ++barrier.generation;
    progress();
  } else {
    wait_until([&barrier, generation] { return barrier.generation != generation; });
  }
  return barrier.result[generation & 1];
}

u8* memory(u32 address, u32 bytes) {
  const u32 rank = address >> 24, place = (address & 0xffffff) - kFirstShared;
  const Cluster& cluster = *current->cta->cluster;
  if (rank >= cluster.ctas.size()) stop("an address of no CTA of the cluster", address);
  auto& shared = cluster.ctas[rank]->shared;
  if (place + bytes > shared.size() || place + bytes < place) stop("an address outside shared memory", address);
  return shared.data() + place;
}

Mbarrier& mbarrier(u32 address) {
  memory(address, 8);
  return current->cta->cluster->ctas[address >> 24]->mbarriers[address & 0xffffff];
}

void wait_for_products(std::size_t pending) {
  auto& groups = current->groups;
  while (groups.size() > pending) {
    for (const Product& product : groups.front()) product.run();
    groups.erase(groups.begin());
  }
}

namespace {

u32 field(u64 descriptor, int shift) { return static_cast<u32>((descriptor >> shift) & 0x3fff) << 4; }

}  // namespace

// Operands as wgmma's descriptors describe them: core matrices without swizzle, or tiles with the 128-byte or the 64-byte one.
// A may be in registers (FP8), or have its rows along the lines of a tile (BF16).
void Product::run() const {
  static const auto e4m3 = [] {
    std::array<float, 256> all;
    for (u32 i = 0; i < 256; ++i) all[i] = numbers::from_e4m3(static_cast<u8>(i));
    return all;
  }();
  const auto element = [&](u32 address) {
    const u8* at = memory(current->cta->rank << 24 | address, bf16 ? 2 : 1);
    if (!bf16) return e4m3[*at];
    u16 bits;
    std::memcpy(&bits, at, sizeof bits);
    return numbers::from_bf16(bits);
  };
  const auto in_line = [](u32 plain, u32 line) { return plain ^ (plain >> 7 & (line / 16 - 1)) << 4; };
  const auto value = [&](u64 descriptor, u32 row, u32 k) {
    const u32 byte = bf16 ? 2 * k : k, layout = static_cast<u32>(descriptor >> 62), line = layout == 1 ? 128 : 64;
    const u32 group = field(descriptor, 0) + row / 8 * field(descriptor, 32);
    if (layout == 0) return element(group + row % 8 * 16 + byte / 16 * field(descriptor, 16) + byte % 16);
    return element(in_line(group + row % 8 * line + byte, line));
  };
  const u32 lane = current->index % 32, g = lane / 4, t = lane % 4, warp = current->index / 32 % 4, depth = bf16 ? 16 : 32;
  float row[2][32];
  for (u32 r = 0; r < 2; ++r)
    for (u32 k = 0; k < depth; ++k) {
      const u32 m = 16 * warp + g + 8 * r;
      row[r][k] = in_registers ? e4m3[a[4 * g + k % 16 / 4][r + k / 16 * 2] >> (8 * (k % 4)) & 255]
                  : along_rows ? element(in_line(field(a_descriptor, 0) + k * 128 + 2 * m, 128))
                               : value(a_descriptor, m, k);
    }
  for (u32 i = 0; i < columns / 4; ++i)
    for (u32 j = 0; j < 2; ++j) {
      double sum[2] = {accumulate ? sums[4 * i + j] : 0., accumulate ? sums[4 * i + 2 + j] : 0.};
      for (u32 k = 0; k < depth; ++k) {
        const float b = value(b_descriptor, 8 * i + 2 * t + j, k);
        for (u32 r = 0; r < 2; ++r) sum[r] += row[r][k] * b;
      }
      for (u32 r = 0; r < 2; ++r) sums[4 * i + 2 * r + j] = static_cast<float>(sum[r]);
    }
}

int run(u32 grid_x, u32 grid_y, u32 cluster, u32 threads, u32 shared_bytes, u32 seed, const std::function<void()>& kernel) {
  kernel_body = &kernel;
  ctas_along_x = grid_x;
  draw.seed(seed);
  for (u32 y = 0; y < grid_y; ++y)
    for (u32 x = 0; x < grid_x; x += cluster)
      if (const int code = run_cluster(x, y, cluster, threads, shared_bytes)) return code;
  return 0;
}

}  // namespace machine
