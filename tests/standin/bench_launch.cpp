// Host time of dsak_launch that is spent in our code: against a silent stand-in driver, minus the same launch made directly.
//   bench_launch PACK_DIRECTORY STANDIN_CUDA_LIBRARY
#include <dlfcn.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "dsa_kernels.h"

namespace {

constexpr int kCalls = 1000000, kRounds = 7;

void require(dsak_status status, const dsak_error& error) {
  if (status == DSAK_OK) return;
  std::fprintf(stderr, "%s\n", error.message);
  std::exit(1);
}

template <class Body>
double best_ns(Body body) {
  double best = 1e9;
  for (int r = 0; r < kRounds; ++r) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) body(i);
    const std::chrono::duration<double, std::nano> t = std::chrono::steady_clock::now() - start;
    best = t.count() / kCalls < best ? t.count() / kCalls : best;
  }
  return best;
}

struct Tensor {
  int64_t shape[3], strides[3];
  dsak_tensor t;
  Tensor(uint8_t code, uint8_t bits, int64_t a, int64_t b, int64_t c) : shape{a, b, c}, strides{b * c, c, 1}, t{} {
    t.data = reinterpret_cast<void*>(uintptr_t{1} << 20);
    t.device = {2, 0};
    t.ndim = c == 0 ? (b == 0 ? 1 : 2) : 3;
    if (t.ndim == 2) strides[0] = b, strides[1] = 1;
    if (t.ndim == 1) strides[0] = 1;
    t.dtype = {code, bits, 1};
    t.shape = shape;
    t.strides = strides;
  }
};

dsak_arg arg(const Tensor& t) {
  dsak_arg a{};
  a.kind = DSAK_ARG_TENSOR;
  a.value.tensor = &t.t;
  return a;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  void* library = dlopen(argv[2], RTLD_NOW);
  if (library == nullptr) return 2;
  reinterpret_cast<void (*)(int)>(dlsym(library, "standin_quiet"))(1);
  using Launch = int (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
  const Launch raw = reinterpret_cast<Launch>(dlsym(library, "cuLaunchKernel"));

  dsak_error error{sizeof error, DSAK_OK, {}};
  const char* packs[] = {argv[1]};
  const dsak_options options{sizeof options, packs, 1, argv[2], nullptr};
  dsak_runtime* runtime = nullptr;
  dsak_op* op = nullptr;
  require(dsak_open(&options, &runtime, &error), error);
  require(dsak_find(runtime, "prefill", &op, &error), error);
  reinterpret_cast<void (*)(int)>(dlsym(library, "standin_set_current"))(0);

  Tensor q_nope(4, 16, 4096, 128, 512), q_rope(4, 16, 4096, 128, 64), kv(10, 8, 65536, 576, 0), indices(0, 32, 4096, 2048, 0);
  Tensor length(0, 32, 4096, 0, 0), out(4, 16, 4096, 128, 512), lse(2, 32, 4096, 128, 0);
  dsak_arg args[] = {arg(q_nope), arg(q_rope), arg(kv), arg(indices), arg(length), {}, arg(out), arg(lse)};
  args[5].kind = DSAK_ARG_FLOAT;
  args[5].value.f = 0.0417;
  const size_t n = sizeof args / sizeof *args;
  require(dsak_launch(op, args, n, nullptr, nullptr, &error), error);

  void* params[16] = {};
  volatile int sink = 0;
  const double direct = best_ns([&](int) { sink = raw(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr); });
  const double same = best_ns([&](int) { sink = dsak_launch(op, args, n, nullptr, nullptr, &error); });
  const double turns = best_ns([&](int i) {
    kv.shape[0] = 65536 + i % 4;
    sink = dsak_launch(op, args, n, nullptr, nullptr, &error);
  });
  const double fresh = best_ns([&](int i) {
    kv.shape[0] = 65536 + i % 16;  // more than are remembered
    sink = dsak_launch(op, args, n, nullptr, nullptr, &error);
  });
  std::printf("raw stand-in launch        %7.1f ns\n", direct);
  std::printf("dsak_launch, same shapes   %7.1f ns, of which ours %7.1f\n", same, same - direct);
  std::printf("dsak_launch, four in turn  %7.1f ns, of which ours %7.1f\n", turns, turns - direct);
  std::printf("dsak_launch, new shapes    %7.1f ns, of which ours %7.1f\n", fresh, fresh - direct);
  dsak_close(runtime);
  return 0;
}
