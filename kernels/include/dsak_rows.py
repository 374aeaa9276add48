"""Attention of BLOCK_H heads over selected rows, with tl.dot on rows as they are: the loop that prefill and decode share.

The rows of columns start..stop-1 of an index list are walked in blocks of BLOCK_N:

    indices ──> rows K [BLOCK_N, 512 + ROPE] ──> S = Q K^T ──> online softmax in base 2 ──> O += P K[:, :512]

The gathered block is key and value at once. The indices of a block are loaded one block ahead, so that a row's address never
waits for memory twice. Invalid columns are predicated off in the gather, so their rows are never read, and masked to -inf, so a
list without any valid column ends with a zero sum and the loop has no special case.

PV says how P is carried; for FP8 rows it is scaled to the largest e4m3 before its cast:

    one       one term of the rows' type. The products are divided by the sum of the rounded P, so the weights add up to one
              whatever the rounding: rows with a common mean come out exact. lse and the sink use the sum of the unrounded P.
    two       (FP8) two terms, the cast and its rest: the accuracy of 16-bit weights for one more matrix product.

The matrix cores of gfx942 and gfx950 keep float32 sums, and so does the F16 mma that Triton makes of an FP8 tl.dot with 16 rows
on SM90. (FP8 wgmma does not: there, dsak_rows_sm90.py.)
"""

import triton
import triton.language as tl
from dsak_softmax import NO_LOGIT


@triton.constexpr_function
def p_bits(dtype):
    """P is carried at 2^p_bits times its value: log2 of 448 and of 240, the largest values of the two e4m3 flavours; 0 for 16-bit rows."""
    return {"fp8e4nv": 8.807354922057604, "fp8e4b8": 7.906890595608519}.get(dtype.name, 0.0)


@triton.jit
def swizzle(program, programs, XCDS: tl.constexpr):
    """Program number to place in the work list, so that each XCD (programs are dealt to them in turn) gets one stretch of it.

    Neighbours in the list share rows; on one XCD they share its L2 too.
    """
    if XCDS == 1:
        return program
    each = programs // XCDS
    more = programs % XCDS
    xcd = program % XCDS
    return xcd * each + tl.minimum(xcd, more) + program // XCDS


@triton.jit
def attend(ql, qr, kv, kv_s0, index, start, stop, s_kv, to_log2, BLOCK_N: tl.constexpr, ROPE: tl.constexpr, PV: tl.constexpr):
    """Largest base-2 logit, sum of P, sum of the rounded P (each at 2^p_bits) and O for the queries ql [heads, 512], qr [heads, ROPE]."""
    P_BITS: tl.constexpr = p_bits(kv.dtype.element_ty)
    heads: tl.constexpr = ql.shape[0]
    d = tl.arange(0, 512)[None, :]
    top = tl.full([heads], NO_LOGIT, tl.float32)
    total = tl.zeros([heads], tl.float32)
    rounded = tl.zeros([heads], tl.float32)
    acc = tl.zeros([heads, 512], tl.float32)
    n = tl.arange(0, BLOCK_N)
    last = tl.maximum(stop - 1, 0)  # columns beyond it read its index again, which costs less than a predicated load
    here = tl.load(index + tl.minimum(start + n, last))
    for at in range(start, stop, BLOCK_N):
        following = at + BLOCK_N
        ahead = tl.load(index + following + tl.minimum(n, last - following))
        valid = (here.to(tl.uint32, bitcast=True) < s_kv.to(tl.uint32, bitcast=True)) & (n < stop - at)
        row = kv + here.to(tl.int64)[:, None] * kv_s0
        k = tl.load(row + d, mask=valid[:, None], other=0.0)
        s = tl.dot(ql, k.T)
        if ROPE > 0:
            kr = tl.load(row + 512 + tl.arange(0, ROPE)[None, :], mask=valid[:, None], other=0.0)
            s = tl.dot(qr, kr.T, s)
        s = tl.where(valid[None, :], s * to_log2, -float("inf"))

        higher = tl.maximum(top, tl.max(s, 1))
        shrink = tl.exp2(top - higher)
        p = tl.exp2(s - (higher - P_BITS)[:, None])
        total = total * shrink + tl.sum(p, 1)
        term = p.to(k.dtype)
        acc = tl.dot(term, k, acc * shrink[:, None])
        if PV == "two":
            acc = tl.dot((p - term.to(tl.float32)).to(k.dtype), k, acc)
        else:
            rounded = rounded * shrink + tl.sum(term.to(tl.float32), 1)
        top = higher
        here = ahead
    return top, total, rounded, acc


@triton.jit
def value_factor(total, rounded, PV: tl.constexpr):
    """What makes O / total a weighted mean although the products used the rounded P."""
    if PV == "two":
        return tl.full(total.shape, 1.0, tl.float32)
    return total / tl.where(total == 0.0, 1.0, rounded)
