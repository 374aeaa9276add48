"""Weighs the partial outputs of tokens whose lists are split: one program serves BLOCK_D elements of one head of one token.

Splits are taken in order, BLOCK_S at a time, so the result does not depend on which program finished first:

    out = sum_s 2^(lse_s - top) O_s / (sum_s 2^(lse_s - top) + sink)          top = max_s top_s

A split that selected nothing has lse -inf: it weighs nothing and its O, which may be unwritten, is not read.
"""

import triton
import triton.language as tl
from dsak_softmax import NO_LOGIT, reciprocal, store_statistics


@triton.jit
def combine(
    partial,
    partial_statistics,
    splits,
    attn_sink,
    kv_scale,
    out,
    out_s0,
    out_s1,
    max_logits,
    lse,
    H,
    has_sink,
    has_kv_scale,
    has_max_logits,
    has_lse,
    BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr,
    O_TYPE: tl.constexpr,
):
    parts: tl.constexpr = 512 // BLOCK_D
    part = tl.program_id(0) % parts
    h = tl.program_id(0) // parts % H
    t = (tl.program_id(0) // parts // H).to(tl.int64)
    d = part * BLOCK_D + tl.arange(0, BLOCK_D)
    o_type: tl.constexpr = tl.float16 if O_TYPE == "f16" else tl.bfloat16
    o = partial.to(tl.pointer_type(o_type))
    statistics = partial_statistics.to(tl.pointer_type(tl.float32))

    # the frame first: the statistics of a head are a few hundred bytes, which the second loop finds in the cache
    top = NO_LOGIT
    for first in range(0, splits, BLOCK_S):
        s = first + tl.arange(0, BLOCK_S)
        top_s = tl.load(statistics + ((t * splits + s) * H + h) * 2, mask=s < splits, other=-float("inf"))
        top = tl.maximum(top, tl.max(top_s, 0))
    total = 0.0
    acc = tl.zeros([BLOCK_D], tl.float32)
    for first in range(0, splits, BLOCK_S):
        s = first + tl.arange(0, BLOCK_S)
        at = (t * splits + s) * H + h
        lse_s = tl.load(statistics + at * 2 + 1, mask=s < splits, other=-float("inf"))
        weight = tl.exp2(lse_s - top)
        o_s = tl.load(o + at[:, None] * 512 + d[None, :], mask=(lse_s > -float("inf"))[:, None], other=0.0)
        acc += tl.sum(o_s.to(tl.float32) * weight[:, None], 0)
        total += tl.sum(weight, 0)

    factor = tl.load(kv_scale, mask=has_kv_scale != 0, other=1.0) * reciprocal(top, total, attn_sink, h, H * has_sink, 0)
    tl.store(out + t * out_s0 + h.to(tl.int64) * out_s1 + d, (acc * factor).to(tl.bfloat16))
    first = part == 0
    store_statistics(max_logits, lse, t * H + h, top, total, first & (h < H * has_max_logits), first & (h < H * has_lse), 0)
