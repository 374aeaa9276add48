// Half precision is Clang's _Float16; TileLang names it itself.
#pragma once

#include <hip/hip_runtime.h>

struct __attribute__((aligned(4))) half2 {
  _Float16 x, y;
};
