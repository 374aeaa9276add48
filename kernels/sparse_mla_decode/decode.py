"""Split decode with tl.dot on the rows as they are: one program serves BLOCK_H heads of one token and one of its splits.

The loop is the one of include/dsak_rows.py. A split takes an equal share, in whole blocks, of the columns that topk_length leaves,
so that short lists use every program too. With one split a program stores the output; with more it stores its O, divided by its
own sum, and its statistics for the combine kernel (combine.py) to weigh.
"""

import triton
import triton.language as tl
from dsak_rows import attend, p_bits, swizzle, value_factor
from dsak_softmax import reciprocal, row_length, scales, store_statistics
from partials import share, store_partial_statistics


@triton.jit
def decode(
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
    partial,
    partial_statistics,
    splits,
    ROPE: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PV: tl.constexpr,
    XCDS: tl.constexpr,
):
    P_BITS: tl.constexpr = p_bits(kv.dtype.element_ty)
    # neighbours in the work list share a token and a split, so that its rows come from memory once
    tiles = tl.cdiv(H, BLOCK_H)
    work = swizzle(tl.program_id(0), tl.num_programs(0), XCDS)
    split = work // tiles % splits
    t = (work // tiles // splits).to(tl.int64)
    h = (work % tiles) * BLOCK_H + tl.arange(0, BLOCK_H)
    live = h < H
    head = h.to(tl.int64)[:, None]
    d = tl.arange(0, 512)[None, :]
    ql = tl.load(q + t * q_s0 + head * q_s1 + d, mask=live[:, None], other=0.0)
    qr = ql
    if ROPE > 0:
        qr = tl.load(q_rope + t * q_rope_s0 + head * q_rope_s1 + tl.arange(0, ROPE)[None, :], mask=live[:, None], other=0.0)
    to_log2, kv_factor = scales(q_scale, kv_scale, sm_scale, has_q_scale, has_kv_scale)
    start, stop = share(row_length(topk_length, t, topk, has_length), split, splits, BLOCK_N)
    top, total, rounded, acc = attend(ql, qr, kv, kv_s0, indices + t * indices_s0, start, stop, s_kv, to_log2, BLOCK_N, ROPE, PV)

    factor = value_factor(total, rounded, PV)
    if splits == 1:
        factor *= kv_factor * reciprocal(top, total, attn_sink, h, H * has_sink, P_BITS)
        tl.store(out + t * out_s0 + head * out_s1 + d, (acc * factor[:, None]).to(tl.bfloat16), mask=live[:, None])
        store_statistics(max_logits, lse, t * H + h, top, total, h < H * has_max_logits, h < H * has_lse, P_BITS)
    else:
        some = live & (total > 0.0)
        factor /= tl.where(total == 0.0, 1.0, total)
        at = (t * splits + split) * H + h
        o_type: tl.constexpr = tl.float16 if P_BITS > 0 else tl.bfloat16
        tl.store(partial.to(tl.pointer_type(o_type)) + at[:, None] * 512 + d, (acc * factor[:, None]).to(o_type), mask=some[:, None])
        store_partial_statistics(partial_statistics, at, top, total, live, P_BITS)
