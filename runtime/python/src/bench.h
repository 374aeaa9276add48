// Timing loops for benchmarks/launch.py, which cannot count on a compiler where it runs.
#pragma once

#include <Python.h>

#include <cstdint>

namespace dsak::python {

// What cuLaunchKernel takes, as addresses that the caller obtained from the driver itself.
struct RawLaunch {
  uintptr_t function_pointer;  // of cuLaunchKernel or hipModuleLaunchKernel, whose signatures agree
  uintptr_t kernel;
  unsigned grid[3], block[3], shared;
  uintptr_t stream, params;
};

// Nanoseconds per raw launch over `count` launches; negative: minus the driver's error code.
double time_raw(const RawLaunch& launch, long long count);

}  // namespace dsak::python
