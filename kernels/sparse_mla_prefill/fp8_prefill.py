"""Sparse MLA over FP8 rows on FP8 matrix cores, any head count, in one pass.

One program serves BLOCK_H heads of one token and walks the token's selected rows in blocks of BLOCK_N:

    indices ──> rows K [BLOCK_N, 512 + ROPE] ──> S = Q K^T ──> online softmax in base 2 ──> O += P K[:, :512]

The gathered block is key and value at once. Invalid columns are predicated off in the gather, so their rows are never read, and
masked to -inf, so a row without any valid column ends with a zero sum and the loop has no special case.

P is scaled to the largest e4m3 before its cast. PV says how it is carried:

    e4m3      one term. The products are divided by the sum of the rounded P, so the weights add up to one whatever the rounding:
              rows with a common mean come out exact. lse and the sink use the sum of the unrounded P.
    e4m3x2    two terms, the cast and its rest: the accuracy of 16-bit weights for one more matrix product.

The matrix cores keep float32 sums. With 16 heads, 32 keys and 2 warps a program holds O in 64 registers a thread and a block of
rows in 16 KiB of LDS. One pipeline stage keeps it within 256 registers, that is two waves per SIMD, which cover each other's
gathers; two stages need 410, or spill.
"""

import triton
import triton.language as tl
from fp8_common import NO_LOGIT, reciprocal, row_length, scales, store_statistics


@triton.jit
def fp8_prefill(
    q,
    q_s0,
    q_s1,
    q_rope,
    q_rope_s0,
    q_rope_s1,
    kv,
    kv_s0,
    indices,
    indices_s0,
    topk_length,
    attn_sink,
    q_scale,
    kv_scale,
    out,
    out_s0,
    out_s1,
    max_logits,
    lse,
    sm_scale,
    H,
    s_kv,
    topk,
    has_length,
    has_sink,
    has_q_scale,
    has_kv_scale,
    has_max_logits,
    has_lse,
    ROPE: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PV: tl.constexpr,
):
    fp8: tl.constexpr = kv.dtype.element_ty
    P_BITS: tl.constexpr = 8.807354922057604 if fp8 == tl.float8e4nv else 7.906890595608519  # log2 of 448 and of 240

    # neighbouring programs share a token, so that its rows come from memory once
    tiles = tl.cdiv(H, BLOCK_H)
    t = (tl.program_id(0) // tiles).to(tl.int64)
    h = (tl.program_id(0) % tiles) * BLOCK_H + tl.arange(0, BLOCK_H)
    live = h < H
    head = h.to(tl.int64)[:, None]
    d = tl.arange(0, 512)[None, :]
    ql = tl.load(q + t * q_s0 + head * q_s1 + d, mask=live[:, None], other=0.0)
    if ROPE > 0:
        r = tl.arange(0, ROPE)[None, :]
        qr = tl.load(q_rope + t * q_rope_s0 + head * q_rope_s1 + r, mask=live[:, None], other=0.0)
    to_log2, kv_factor = scales(q_scale, kv_scale, sm_scale, has_q_scale, has_kv_scale)
    length = row_length(topk_length, t, topk, has_length)

    top = tl.full([BLOCK_H], NO_LOGIT, tl.float32)
    total = tl.zeros([BLOCK_H], tl.float32)
    rounded = tl.zeros([BLOCK_H], tl.float32)
    acc = tl.zeros([BLOCK_H, 512], tl.float32)
    for start in range(0, length, BLOCK_N):
        column = start + tl.arange(0, BLOCK_N)
        index = tl.load(indices + t * indices_s0 + column, mask=column < length, other=-1)
        valid = (index >= 0) & (index < s_kv)
        row = kv + index.to(tl.int64)[:, None] * kv_s0
        k = tl.load(row + d, mask=valid[:, None], other=0.0)
        s = tl.dot(ql, k.T)
        if ROPE > 0:
            kr = tl.load(row + 512 + r, mask=valid[:, None], other=0.0)
            s = tl.dot(qr, kr.T, s)
        s = tl.where(valid[None, :], s * to_log2, -float("inf"))

        higher = tl.maximum(top, tl.max(s, 1))
        shrink = tl.exp2(top - higher)
        p = tl.exp2(s - (higher - P_BITS)[:, None])
        total = total * shrink + tl.sum(p, 1)
        term = p.to(fp8)
        acc = tl.dot(term, k, acc * shrink[:, None])
        if PV == "e4m3x2":
            acc = tl.dot((p - term.to(tl.float32)).to(fp8), k, acc)
        else:
            rounded = rounded * shrink + tl.sum(term.to(tl.float32), 1)
        top = higher

    factor = kv_factor * reciprocal(top, total, attn_sink, h, H * has_sink, P_BITS)
    if PV == "e4m3":
        factor = factor * total / tl.where(total == 0.0, 1.0, rounded)
    tl.store(out + t * out_s0 + head * out_s1 + d, (acc * factor[:, None]).to(tl.bfloat16), mask=live[:, None])
    store_statistics(max_logits, lse, t * H + h, top, total, h < H * has_max_logits, h < H * has_lse, P_BITS)
