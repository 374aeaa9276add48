"""Attention of BLOCK_H heads over selected FP8 rows on SM90, in Gluon: the loop that prefill and decode share.

wgmma wants 64 rows in M. With fewer heads than that, keys (and, for the output, row elements) take M and heads take N, so that 16
heads waste nothing. Both products take their left operand from registers and their right one from shared memory:

    S^T [64 keys, 16 heads] = K Q^T          O^T [512, 16 heads] += K[:, :512]^T P^T

    four warps copy:      index ── cp.async ──> rows in one of two stages ── mbarrier full ──>
    four warps multiply:  K e4m3 ── ldmatrix ──> S^T in chains of 128 columns, added in float32         FP8 products
                          maximum over the keys; P = 2^(S - maximum + 15), float16 ── stmatrix ──> P^T
                          K pairs ── ldmatrix.trans ──> even, odd float16 ──> O_even^T, O_odd^T         float16 products
                          ── mbarrier free ──> the copies of the block after next

FP8 products keep about 14 bits of a running sum, hence the short chains; float16 products sum in float32, and P as float16 serves every
precision level at the accuracy of 16-bit weights. Rows lie in shared memory as pairs of e4m3, since only 16-bit elements can be
transposed on the way out: the low bytes of a tile are its even columns, the high bytes its odd ones, and both are widened in registers.

256 threads, of which those that multiply have 224 registers and those that copy 32, and 75 KiB of shared memory (83 for rows of 576)
make two programs an SM: what one waits for, the other covers. A block costs three barriers of the multiplying warps: its maximum, P,
and the stage given back. Rows that are not selected are not read: their copies write zeros, and their logits are -inf.
"""

from dsak_softmax import NO_LOGIT
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import async_copy, fence_async_shared, mbarrier, warpgroup_mma, warpgroup_mma_wait

P_BITS = gl.constexpr(15.0)
STAGES = gl.constexpr(2)
COPIERS = gl.constexpr(4)  # warps
COPIER_REGISTERS = gl.constexpr(32)  # fewer spill; more leave the others too few for three tiles of values

_F16, _FP8 = (gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 16, k]) for k in (16, 32))
MMA, MMA_FP8 = gl.constexpr(_F16), gl.constexpr(_FP8)  # the accumulators of both lie alike
FRAGMENT, FRAGMENT_FP8 = gl.constexpr(gl.DotOperandLayout(0, _F16, 2)), gl.constexpr(gl.DotOperandLayout(0, _FP8, 4))
HEADS = gl.constexpr(gl.SliceLayout(0, _F16))

# 16 bytes a lane: tiles of 128 bytes of a row, and the rope part
TILE, ROPE_TILE = (gl.constexpr(gl.BlockedLayout([1, 8], lanes, [4, 1], [1, 0])) for lanes in ([4, 8], [8, 4]))
# shared memory: the same bytes as pairs and as single elements
PAIRS, ROPE_PAIRS = gl.constexpr(gl.NVMMASharedLayout(128, 16)), gl.constexpr(gl.NVMMASharedLayout(64, 16))
SINGLES, ROPE_SINGLES = gl.constexpr(gl.NVMMASharedLayout(128, 8)), gl.constexpr(gl.NVMMASharedLayout(64, 8))
WEIGHTS = gl.constexpr(gl.NVMMASharedLayout(32, 16))


def _unpack(first: int, second: int) -> str:
    """PTX that widens two bytes of two packed pairs; left to itself the compiler takes some eight instructions more."""
    return f"""{{
        .reg .b32 chosen;
        .reg .b16 two, rest;
        prmt.b32 chosen, $1, 0, 0x44{second}{first};
        mov.b32 {{two, rest}}, chosen;
        cvt.rn.f16x2.e4m3x2 $0, two;
    }}"""


EVEN = gl.constexpr(_unpack(0, 2))
ODD = gl.constexpr(_unpack(1, 3))


@gluon.jit
def even(x):
    """The low e4m3 of each pair, as float16."""
    return gl.inline_asm_elementwise(EVEN, "=r,r", [x], dtype=gl.float16, is_pure=True, pack=2)


@gluon.jit
def odd(x):
    """The high e4m3 of each pair, as float16."""
    return gl.inline_asm_elementwise(ODD, "=r,r", [x], dtype=gl.float16, is_pure=True, pack=2)


@gluon.jit
def as_pairs(rows):
    return rows.to(gl.pointer_type(gl.int16), bitcast=True)


@gluon.jit
def load_index(indices, at, stop, keys: gl.constexpr, layout: gl.constexpr):
    """The indices of ``keys`` columns from ``at`` on, -1 from ``stop`` on."""
    column = at + gl.arange(0, keys, gl.SliceLayout(1, layout))
    return gl.load(indices + column, mask=column < stop, other=-1)


@gluon.jit
def load_block(indices, at, stop, keys: gl.constexpr, ROPE: gl.constexpr):
    """The indices of a block as the copies of its tiles want them, and of its rope part."""
    index = load_index(indices, at, stop, keys, TILE)
    return index, load_index(indices, at, stop, keys, ROPE_TILE) if ROPE > 0 else index


@gluon.jit
def start_copies(latent, rope, stage, kv, kv_s0, index, rope_index, s_kv, ROPE: gl.constexpr):
    valid = ((index >= 0) & (index < s_kv))[:, None]
    row = as_pairs(kv) + index.to(gl.int64)[:, None] * (kv_s0 // 2) + gl.arange(0, 64, gl.SliceLayout(0, TILE))[None, :]
    for i in gl.static_range(4):
        async_copy.async_load(latent.index(stage * 4 + i), row + 64 * i, mask=valid)
    if ROPE > 0:
        valid = ((rope_index >= 0) & (rope_index < s_kv))[:, None]
        row = as_pairs(kv) + 256 + rope_index.to(gl.int64)[:, None] * (kv_s0 // 2)
        async_copy.async_load(rope.index(stage), row + gl.arange(0, ROPE // 2, gl.SliceLayout(0, ROPE_TILE))[None, :], mask=valid)


@gluon.jit
def turn(stage, phase):
    """The stage after ``stage``, and the phase of its barriers."""
    last = stage == STAGES - 1
    return gl.where(last, 0, stage + 1), gl.where(last, phase ^ 1, phase)


@gluon.jit
def copy(ring, kv, kv_s0, columns, s_kv, ROPE: gl.constexpr):
    """What the copying warps do: indices one block ahead, rows into each stage as it becomes free."""
    latent, rope, full, free = ring
    indices, start, stop = columns
    keys: gl.constexpr = latent.shape[1]
    index, rope_index = load_block(indices, start, stop, keys, ROPE)
    stage = 0
    phase = 1
    for at in range(start, stop, keys):
        next_index, next_rope_index = load_block(indices, at + keys, stop, keys, ROPE)
        mbarrier.wait(free.index(stage), phase)
        start_copies(latent, rope, stage, kv, kv_s0, index, rope_index, s_kv, ROPE)
        async_copy.mbarrier_arrive(full.index(stage), increment_count=False)
        index, rope_index = next_index, next_rope_index
        stage, phase = turn(stage, phase)
    async_copy.wait_group(0)


@gluon.jit
def stage_queries(to, rope_to, queries, ROPE: gl.constexpr):
    """The queries of a tile of heads to shared memory; zeros from head H on."""
    q, q_s1, q_rope, q_rope_s1, first, H = queries
    heads: gl.constexpr = to.shape[1]
    h = first + gl.arange(0, heads, gl.SliceLayout(1, TILE))
    live = (h < H)[:, None]
    row = as_pairs(q) + h.to(gl.int64)[:, None] * (q_s1 // 2) + gl.arange(0, 64, gl.SliceLayout(0, TILE))[None, :]
    q0 = gl.load(row, mask=live, other=0)
    q1 = gl.load(row + 64, mask=live, other=0)
    q2 = gl.load(row + 128, mask=live, other=0)
    q3 = gl.load(row + 192, mask=live, other=0)
    if ROPE > 0:
        h = first + gl.arange(0, heads, gl.SliceLayout(1, ROPE_TILE))
        row = as_pairs(q_rope) + h.to(gl.int64)[:, None] * (q_rope_s1 // 2)
        row = row + gl.arange(0, ROPE // 2, gl.SliceLayout(0, ROPE_TILE))[None, :]
        rope_to.store(gl.load(row, mask=(h < H)[:, None], other=0))
    to.index(0).store(q0)
    to.index(1).store(q1)
    to.index(2).store(q2)
    to.index(3).store(q3)
    fence_async_shared()
    gl.barrier()


@gluon.jit
def chain(rows, q, columns: gl.constexpr, layout: gl.constexpr):
    """Starts the products of some columns of a block's rows with the same of the queries."""
    keys: gl.constexpr = rows.shape[0]
    heads: gl.constexpr = q.shape[0]
    k = rows.reinterpret(gl.float8e4nv, [keys, columns], layout).load(FRAGMENT_FP8)
    zero = gl.zeros([keys, heads], gl.float32, MMA_FP8)
    return warpgroup_mma(k, q.reinterpret(gl.float8e4nv, [heads, columns], layout).permute([1, 0]), zero, use_acc=False, is_async=True)


@gluon.jit
def scores(latent, rope, stage, q, q_rope, ROPE: gl.constexpr):
    """S^T of a block."""
    s0 = chain(latent.index(stage * 4), q.index(0), 128, SINGLES)
    s1 = chain(latent.index(stage * 4 + 1), q.index(1), 128, SINGLES)
    s2 = chain(latent.index(stage * 4 + 2), q.index(2), 128, SINGLES)
    s3 = chain(latent.index(stage * 4 + 3), q.index(3), 128, SINGLES)
    if ROPE > 0:
        s4 = chain(rope.index(stage), q_rope, ROPE, ROPE_SINGLES)
        s0, s1, s2, s3, s4 = warpgroup_mma_wait(0, [s0, s1, s2, s3, s4])
        s0 = s0 + s4
    else:
        s0, s1, s2, s3 = warpgroup_mma_wait(0, [s0, s1, s2, s3])
    return gl.convert_layout((s0 + s1) + (s2 + s3), MMA, assert_trivial=True)


@gluon.jit
def value_tile(latent, stage, i: gl.constexpr):
    """Tile i of a block's values, transposed."""
    return latent.index(stage * 4 + i).permute([1, 0]).load(FRAGMENT)


@gluon.jit
def weigh(latent, stage, free, v, p, values, shrink):
    """The accumulators, shrunk, plus the rows weighted with P; ``v`` is tile 0. Frees the stage when it has been read.

    The products of a tile run while the next one is loaded and widened; fragments of three tiles fit in the registers.
    """
    done = ()
    for i in gl.static_range(4):
        if i > 0:
            v = value_tile(latent, stage, i)
        a = even(v)
        b = odd(v)
        e = warpgroup_mma(a, p, values[2 * i] * shrink, is_async=True)
        o = warpgroup_mma(b, p, values[2 * i + 1] * shrink, is_async=True)
        done = done + (e, o)  # noqa: RUF005, Gluon has no starred expressions
        if i == 2:
            done = warpgroup_mma_wait(2, done[:4]) + done[4:]
    mbarrier.arrive(free.index(stage))
    return warpgroup_mma_wait(0, done)


@gluon.jit
def multiply(ring, queries, q, q_rope, p, columns, s_kv, to_log2, ROPE: gl.constexpr):
    """What the multiplying warps do. P's sum is kept by column until the end: only the maximum crosses warps in every block."""
    latent, rope, full, free = ring
    indices, start, stop = columns
    keys: gl.constexpr = p.shape[0]
    heads: gl.constexpr = p.shape[1]
    column = load_index(indices, start, stop, keys, MMA)
    stage_queries(q, q_rope, queries, ROPE)
    top = gl.full([heads], NO_LOGIT, gl.float32, HEADS)
    total = gl.zeros([keys, heads], gl.float32, MMA)
    zero = gl.zeros([64, heads], gl.float32, MMA)
    values = (zero, zero, zero, zero, zero, zero, zero, zero)
    stage = 0
    phase = 0
    for at in range(start, stop, keys):
        mbarrier.wait(full.index(stage), phase)
        s = scores(latent, rope, stage, q, q_rope, ROPE)
        v = value_tile(latent, stage, 0)
        s = gl.where(((column >= 0) & (column < s_kv))[:, None], s * to_log2, -float("inf"))
        higher = gl.maximum(top, gl.max(s, 0))
        shrink = gl.exp2(top - higher)[None, :]
        weight = gl.exp2(s - (higher - P_BITS)[None, :])
        total = total * shrink + weight
        top = higher
        p.store(weight.to(gl.float16))
        fence_async_shared()
        gl.barrier()
        column = load_index(indices, at + keys, stop, keys, MMA)
        values = weigh(latent, stage, free, v, p, values, shrink)
        stage, phase = turn(stage, phase)
    return top, gl.sum(total, 0), values


@gluon.jit
def attend(queries, kv, kv_s0, columns, s_kv, to_log2, BLOCK_H: gl.constexpr, BLOCK_N: gl.constexpr, ROPE: gl.constexpr):
    """Largest base-2 logit, sum of P (at 2^P_BITS) and O as eight tiles, of BLOCK_H heads over some columns of a token's list.

    ``queries``: q, its stride from head to head, q_rope, its stride, the first head, the number of heads. ``columns``: indices, the
    first column, where to stop.
    """
    latent = gl.allocate_shared_memory(gl.int16, [4 * STAGES, BLOCK_N, 64], PAIRS)
    staged = gl.allocate_shared_memory(gl.int16, [4, BLOCK_H, 64], PAIRS)
    rope, rope_staged = latent, staged
    if ROPE > 0:
        rope = gl.allocate_shared_memory(gl.int16, [STAGES, BLOCK_N, ROPE // 2], ROPE_PAIRS)
        rope_staged = gl.allocate_shared_memory(gl.int16, [BLOCK_H, ROPE // 2], ROPE_PAIRS)
    p = gl.allocate_shared_memory(gl.float16, [BLOCK_N, BLOCK_H], WEIGHTS)
    full = mbarrier.allocate_mbarrier(batch=STAGES)
    free = mbarrier.allocate_mbarrier(batch=STAGES)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=32 * COPIERS)
        mbarrier.init(free.index(i), count=1)
    ring = (latent, rope, full, free)
    return gl.warp_specialize(
        [
            (multiply, (ring, queries, staged, rope_staged, p, columns, s_kv, to_log2, ROPE)),
            (copy, (ring, kv, kv_s0, columns, s_kv, ROPE)),
        ],
        [COPIERS],
        [COPIER_REGISTERS],
    )


@gluon.jit
def _store_tile(to, to_s1, acc_even, acc_odd, factor, first, H):
    o = gl.join(acc_even * factor, acc_odd * factor).permute([1, 0, 2]).reshape([acc_even.shape[1], 128])
    layout: gl.constexpr = o.type.layout
    h = first + gl.arange(0, acc_even.shape[1], gl.SliceLayout(1, layout))
    row = to + h.to(gl.int64)[:, None] * to_s1 + gl.arange(0, 128, gl.SliceLayout(0, layout))[None, :]
    gl.store(row, o.to(to.dtype.element_ty), mask=(h < H)[:, None])


@gluon.jit
def store_values(to, to_s1, values, factor, first, H):
    """Store O times ``factor``, a row of 512 for each head below H: straight from the accumulators, sectors of 32 bytes."""
    factor = factor[None, :]
    for i in gl.static_range(4):
        _store_tile(to + 128 * i, to_s1, values[2 * i], values[2 * i + 1], factor, first, H)
