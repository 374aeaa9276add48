#include "bench.h"

#include <chrono>

namespace dsak::python {

double time_raw(const RawLaunch& l, long long count) {
  using Launch = int (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
  const auto launch = reinterpret_cast<Launch>(l.function_pointer);
  auto* kernel = reinterpret_cast<void*>(l.kernel);
  auto* stream = reinterpret_cast<void*>(l.stream);
  auto** params = reinterpret_cast<void**>(l.params);
  const auto start = std::chrono::steady_clock::now();
  for (long long i = 0; i < count; ++i) {
    const int status =
        launch(kernel, l.grid[0], l.grid[1], l.grid[2], l.block[0], l.block[1], l.block[2], l.shared, stream, params, nullptr);
    if (status != 0) return -status;
  }
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
  return took.count() / static_cast<double>(count);
}

}  // namespace dsak::python
