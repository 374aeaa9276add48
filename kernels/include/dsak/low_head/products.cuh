// The matrix products of a key block, for the rows' dtype: multiply_keys, multiply_values and what goes with them.
#pragma once

#include "dsak/low_head/layout.cuh"

#if DSAK_BF16
#include "dsak/low_head/bf16/scores.cuh"
#include "dsak/low_head/bf16/values.cuh"
#else
#if DSAK_TILES
#include "dsak/low_head/fp8/tile_scores.cuh"
#else
#include "dsak/low_head/fp8/scores.cuh"
#endif
#include "dsak/low_head/fp8/values.cuh"
#endif
