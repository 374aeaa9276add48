"""Attention of BLOCK_H heads over selected FP8 rows on SM90: wgmma with swapped operands. The loop that prefill and decode share.

wgmma wants 64 rows in M. With fewer heads than that, keys (and, for the output, row elements) take M and heads take N:

    S^T [64 keys, 16 heads] = K Q^T          O^T [512, 16 heads] += K[:, :512]^T P^T

so 16 heads waste nothing. Products are float16 with float32 sums, which is exact for e4m3 and does not truncate like FP8 wgmma;
P is carried as float16, 2^15 times its value. Every precision level is therefore served at the accuracy of 16-bit weights.

Rows are gathered as 16-bit pairs of e4m3, since only 16-bit elements can be transposed on the way out of shared memory: the low
bytes of a tile are its even columns, the high bytes its odd ones, and both become float16 operands in registers:

    K pairs [64, 64] ──ldmatrix──> even, odd [64, 64] f16 ──> S^T += even Q_even^T + odd Q_odd^T            (4 tiles, and rope)
    K pairs [64, 64] ──ldmatrix.trans──> even^T, odd^T ──> O_even^T += even^T P^T, O_odd^T += odd^T P^T     (4 tiles)

The second pass reads the rows again, from L1: keeping them would need 64 more registers a thread. 128 threads of at most 168
registers and 26 KiB of shared memory make three programs an SM, which cover each other's gathers. Invalid columns are
predicated off in both passes and masked to -inf.
"""

import triton
import triton.language as tl
from dsak_softmax import NO_LOGIT

P_BITS = tl.constexpr(15.0)


def _unpack(first: int, second: int) -> str:
    """PTX that widens two bytes of two packed pairs; left to itself the compiler takes some eight instructions more."""
    return f"""{{
        .reg .b32 chosen;
        .reg .b16 two, rest;
        prmt.b32 chosen, $1, 0, 0x44{second}{first};
        mov.b32 {{two, rest}}, chosen;
        cvt.rn.f16x2.e4m3x2 $0, two;
    }}"""


EVEN = tl.constexpr(_unpack(0, 2))
ODD = tl.constexpr(_unpack(1, 3))


@triton.jit
def even(x):
    """The low e4m3 of each pair, as float16."""
    return tl.inline_asm_elementwise(EVEN, "=r,r", [x], dtype=tl.float16, is_pure=True, pack=2)


@triton.jit
def odd(x):
    """The high e4m3 of each pair, as float16."""
    return tl.inline_asm_elementwise(ODD, "=r,r", [x], dtype=tl.float16, is_pure=True, pack=2)


@triton.jit
def score(s, row, at, valid, q):
    """s plus the products of a tile of pairs of the selected rows with q [pairs, heads]."""
    k = tl.load(row + at, mask=valid, other=0, eviction_policy="evict_last")
    s = tl.dot(even(k), even(q), s)
    return tl.dot(odd(k), odd(q), s)


@triton.jit
def weigh(acc_even, acc_odd, row, at, valid, p, shrink):
    """The accumulators of a tile, shrunk, plus the rows weighted with p [keys, heads]."""
    v = tl.load(row + at, mask=valid, other=0, eviction_policy="evict_first").T
    return tl.dot(even(v), p, acc_even * shrink), tl.dot(odd(v), p, acc_odd * shrink)


@triton.jit
def _store_tile(to, acc_even, acc_odd, factor, live):
    o = tl.interleave(acc_even.T, acc_odd.T) * factor[:, None]
    tl.store(to + tl.arange(0, 128)[None, :], o.to(to.dtype.element_ty), mask=live[:, None])


@triton.jit
def load_queries(q, q_s1, q_rope, q_rope_s1, head, live, ROPE: tl.constexpr):
    """The queries of the heads of one token, as pairs [elements, heads]: four tiles of the latent part, and the rope part."""
    pairs: tl.constexpr = tl.pointer_type(tl.int16)
    d = tl.arange(0, 64)[None, :]
    row = q.to(pairs) + head * (q_s1 // 2)
    q0 = tl.load(row + d, mask=live[:, None], other=0).T
    q1 = tl.load(row + 64 + d, mask=live[:, None], other=0).T
    q2 = tl.load(row + 128 + d, mask=live[:, None], other=0).T
    q3 = tl.load(row + 192 + d, mask=live[:, None], other=0).T
    qr = q0
    if ROPE > 0:
        qr = tl.load(q_rope.to(pairs) + head * (q_rope_s1 // 2) + tl.arange(0, ROPE // 2)[None, :], mask=live[:, None], other=0).T
    return q0, q1, q2, q3, qr


@triton.jit
def attend(queries, kv, kv_s0, indices, start, stop, s_kv, to_log2, BLOCK_N: tl.constexpr, ROPE: tl.constexpr):
    """Largest base-2 logit, sum of P (at 2^P_BITS) and O as eight tiles, over the columns start..stop-1 of an index list."""
    q0, q1, q2, q3, qr = queries
    heads: tl.constexpr = q0.shape[1]
    d = tl.arange(0, 64)[None, :]
    top = tl.full([heads], NO_LOGIT, tl.float32)
    total = tl.zeros([heads], tl.float32)
    zero = tl.zeros([64, heads], tl.float32)
    e0, o0, e1, o1, e2, o2, e3, o3 = zero, zero, zero, zero, zero, zero, zero, zero
    for at in range(start, stop, BLOCK_N):
        column = at + tl.arange(0, BLOCK_N)
        index = tl.load(indices + column, mask=column < stop, other=-1)
        valid = ((index >= 0) & (index < s_kv))[:, None]
        row = kv.to(tl.pointer_type(tl.int16)) + index.to(tl.int64)[:, None] * (kv_s0 // 2)
        s = tl.zeros([BLOCK_N, heads], tl.float32)
        s = score(s, row, d, valid, q0)
        s = score(s, row, 64 + d, valid, q1)
        s = score(s, row, 128 + d, valid, q2)
        s = score(s, row, 192 + d, valid, q3)
        if ROPE > 0:
            s = score(s, row, 256 + tl.arange(0, ROPE // 2)[None, :], valid, qr)
        s = tl.where(valid, s * to_log2, -float("inf"))

        higher = tl.maximum(top, tl.max(s, 0))
        shrink = tl.exp2(top - higher)
        p = tl.exp2(s - (higher - P_BITS)[None, :])
        total = total * shrink + tl.sum(p, 0)
        p = p.to(tl.float16)
        shrink = shrink[None, :]
        e0, o0 = weigh(e0, o0, row, d, valid, p, shrink)
        e1, o1 = weigh(e1, o1, row, 64 + d, valid, p, shrink)
        e2, o2 = weigh(e2, o2, row, 128 + d, valid, p, shrink)
        e3, o3 = weigh(e3, o3, row, 192 + d, valid, p, shrink)
        top = higher
    return top, total, (e0, o0, e1, o1, e2, o2, e3, o3)


@triton.jit
def store_values(to, tiles, factor, live):
    """Store O times ``factor``, a row of 512 for each head; ``to`` [heads, 1] points to rows."""
    e0, o0, e1, o1, e2, o2, e3, o3 = tiles
    _store_tile(to, e0, o0, factor, live)
    _store_tile(to + 128, e1, o1, factor, live)
    _store_tile(to + 256, e2, o2, factor, live)
    _store_tile(to + 384, e3, o3, factor, live)
