"""Split decode over FP8 rows on SM90: one program serves BLOCK_H heads of one token and one of its splits.

The loop is the one of include/dsak_rows_sm90.py; splits and stores are those of decode.py.
"""

import triton
import triton.language as tl
from dsak_rows_sm90 import P_BITS, attend, load_queries, store_values
from dsak_softmax import reciprocal, row_length, scales, store_statistics
from partials import share, store_partial_statistics


@triton.jit
def fp8_decode_sm90(
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
):
    # neighbouring programs share a token and a split, so that its rows come from memory once
    tiles = tl.cdiv(H, BLOCK_H)
    split = tl.program_id(0) // tiles % splits
    t = (tl.program_id(0) // tiles // splits).to(tl.int64)
    h = (tl.program_id(0) % tiles) * BLOCK_H + tl.arange(0, BLOCK_H)
    live = h < H
    head = h.to(tl.int64)[:, None]
    queries = load_queries(q + t * q_s0, q_s1, q_rope + t * q_rope_s0, q_rope_s1, head, live, ROPE)
    to_log2, kv_factor = scales(q_scale, kv_scale, sm_scale, has_q_scale, has_kv_scale)
    start, stop = share(row_length(topk_length, t, topk, has_length), split, splits, BLOCK_N)
    top, total, values = attend(queries, kv, kv_s0, indices + t * indices_s0, start, stop, s_kv, to_log2, BLOCK_N, ROPE)

    if splits == 1:
        factor = kv_factor * reciprocal(top, total, attn_sink, h, H * has_sink, P_BITS)
        store_values(out + t * out_s0 + head * out_s1, values, factor, live)
        store_statistics(max_logits, lse, t * H + h, top, total, h < H * has_max_logits, h < H * has_lse, P_BITS)
    else:
        at = (t * splits + split) * H + h
        to = partial.to(tl.pointer_type(tl.float16)) + at[:, None] * 512
        store_values(to, values, 1.0 / tl.where(total == 0.0, 1.0, total), live & (total > 0.0))
        store_partial_statistics(partial_statistics, at, top, total, live, P_BITS)
