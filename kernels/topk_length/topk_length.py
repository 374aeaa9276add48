"""Where the last selected column of each index row is.

One warp takes a row and looks from its end in blocks of BLOCK columns until a block has a non-negative index: a full row costs one
block, an empty one all of them.
"""

import triton
import triton.language as tl


@triton.jit
def topk_length(indices, indices_s0, out, topk, BLOCK: tl.constexpr):
    t = tl.program_id(0).to(tl.int64)
    row = indices + t * indices_s0
    length = 0
    start = (topk - 1) // BLOCK * BLOCK
    while (start >= 0) & (length == 0):
        column = start + tl.arange(0, BLOCK)
        index = tl.load(row + column, mask=column < topk, other=-1)
        length = tl.max(tl.where(index >= 0, column + 1, 0))
        start -= BLOCK
    tl.store(out + t, tl.maximum(length, 1))
