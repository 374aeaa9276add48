"""Positions selected within requests to slots of the KV pool, or to rows of a ragged buffer.

One program maps BLOCK columns of one token, so that a short decode batch still spreads over the chip. With cu_seqlens_q, the
request of token t is the number of requests that end at or before t, counted in blocks of BLOCK_B: one step for usual batches.
"""

import triton
import triton.language as tl


@triton.jit
def topk_transform(
    page_table,
    page_table_s0,
    topk_indices,
    topk_indices_s0,
    cu_seqlens_q,
    offset,
    out,
    out_s0,
    B,
    P,
    topk,
    prefill,
    ragged,
    BLOCK: tl.constexpr,
    BLOCK_B: tl.constexpr,
):
    t = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < topk
    index = tl.load(topk_indices + t.to(tl.int64) * topk_indices_s0 + column, mask=inside, other=-1)
    request = t
    if prefill != 0:
        request = 0
        for start in range(0, B, BLOCK_B):
            b = start + tl.arange(0, BLOCK_B)
            end = tl.load(cu_seqlens_q + 1 + b, mask=b < B, other=2147483647)
            request += tl.sum((end <= t).to(tl.int32))
    width = tl.where(request < B, P, 0)  # a request of B is none: the token is padding
    selected = (index >= 0) & (index < width)
    slot = tl.load(page_table + request.to(tl.int64) * page_table_s0 + index, mask=selected, other=-1)
    row = tl.where(index < 0, -1, index + tl.load(offset + t, mask=ragged != 0, other=0))
    tl.store(out + t.to(tl.int64) * out_s0 + column, tl.where(ragged != 0, row, slot), mask=inside)
