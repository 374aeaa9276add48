"""Split decode over FP8 rows on SM90: one program serves BLOCK_H heads of one token and one of its splits.

The loop and the stores of values are those of include/dsak_rows_sm90.py, splits and their statistics those of partials.py.
"""

from dsak_rows_sm90 import HEADS, P_BITS, attend, store_values
from dsak_softmax import reciprocal, row_length, scales, store_statistics
from partials import share, store_partial_statistics
from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
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
    ROPE: gl.constexpr,
    BLOCK_H: gl.constexpr,
    BLOCK_N: gl.constexpr,
):
    # neighbouring programs share a token and a split, so that its rows come from memory once
    tiles = gl.cdiv(H, BLOCK_H)
    split = gl.program_id(0) // tiles % splits
    t = (gl.program_id(0) // tiles // splits).to(gl.int64)
    first = gl.program_id(0) % tiles * BLOCK_H
    to_log2, kv_factor = scales(q_scale, kv_scale, sm_scale, has_q_scale, has_kv_scale)
    start, stop = share(row_length(topk_length, t, topk, has_length), split, splits, BLOCK_N)
    queries = (q + t * q_s0, q_s1, q_rope + t * q_rope_s0, q_rope_s1, first, H)
    columns = (indices + t * indices_s0, start, stop)
    top, total, values = attend(queries, kv, kv_s0, columns, s_kv, to_log2, BLOCK_H, BLOCK_N, ROPE)

    h = first + gl.arange(0, BLOCK_H, HEADS)
    if splits == 1:
        factor = kv_factor * reciprocal(top, total, attn_sink, h, H * has_sink, P_BITS)
        store_values(out + t * out_s0, out_s1, values, factor, first, H)
        store_statistics(max_logits, lse, t * H + h, top, total, h < H * has_max_logits, h < H * has_lse, P_BITS)
    else:
        at = (t * splits + split) * H
        to = partial.to(gl.pointer_type(gl.float16), bitcast=True) + at * 512
        store_values(to, 512, values, 1.0 / gl.where(total == 0.0, 1.0, total), first, H)
        store_partial_statistics(partial_statistics, at + h, top, total, h < H, P_BITS)
