// Half precision is Clang's _Float16; TileLang names it itself.
#pragma once

#include <hip/hip_runtime.h>
