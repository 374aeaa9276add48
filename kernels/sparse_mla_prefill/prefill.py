"""Sparse MLA with tl.dot on the rows as they are, any head count, in one pass: one program serves BLOCK_H heads of one token.

The loop is the one of include/dsak_rows.py. With 16 heads, 32 keys and 2 warps a program holds O in 64 registers a thread and a
block of rows in 16 KiB of LDS. One pipeline stage keeps it within 256 registers, that is two waves per SIMD, which cover each
other's gathers; two stages need 410, or spill.
"""

import triton
import triton.language as tl
from dsak_rows import attend, p_bits, swizzle, value_factor
from dsak_softmax import reciprocal, row_length, scales, store_statistics


@triton.jit
def prefill(
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
    XCDS: tl.constexpr,
):
    P_BITS: tl.constexpr = p_bits(kv.dtype.element_ty)
    # neighbours in the work list share a token, so that its rows come from memory once
    tiles = tl.cdiv(H, BLOCK_H)
    work = swizzle(tl.program_id(0), tl.num_programs(0), XCDS)
    t = (work // tiles).to(tl.int64)
    h = (work % tiles) * BLOCK_H + tl.arange(0, BLOCK_H)
    live = h < H
    head = h.to(tl.int64)[:, None]
    d = tl.arange(0, 512)[None, :]
    ql = tl.load(q + t * q_s0 + head * q_s1 + d, mask=live[:, None], other=0.0)
    qr = ql
    if ROPE > 0:
        qr = tl.load(q_rope + t * q_rope_s0 + head * q_rope_s1 + tl.arange(0, ROPE)[None, :], mask=live[:, None], other=0.0)
    to_log2, kv_factor = scales(q_scale, kv_scale, sm_scale, has_q_scale, has_kv_scale)
    length = row_length(topk_length, t, topk, has_length)
    top, total, rounded, acc = attend(ql, qr, kv, kv_s0, indices + t * indices_s0, 0, length, s_kv, to_log2, BLOCK_N, ROPE, PV)

    factor = kv_factor * value_factor(total, rounded, PV) * reciprocal(top, total, attn_sink, h, H * has_sink, P_BITS)
    tl.store(out + t * out_s0 + head * out_s1 + d, (acc * factor[:, None]).to(tl.bfloat16), mask=live[:, None])
    store_statistics(max_logits, lse, t * H + h, top, total, h < H * has_max_logits, h < H * has_lse, P_BITS)
