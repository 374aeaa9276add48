// Stands before TileLang's own header of this name, which prints: a shipped kernel does not, and printf needs device libraries.
#pragma once

#include <hip/hip_runtime.h>
