"""The consumers of tile_sm90 for 16 or 32 heads: operands swapped, so that M of the matrix products is never padded.

``S^T = K Q^T`` has M = 64 keys, ``O^T = V^T P^T`` has M = 512 columns, and N is the heads in both. V^T is the block of rows as it lies,
read M-major. Two warpgroups take key blocks in turn, each with a sum, a frame and an output of its own, and meet at the end only::

    warpgroup 0     QK 0  softmax  PV 0                 QK 2  softmax  PV 2  ...
    warpgroup 1              QK 1  softmax  PV 1                 QK 3  softmax  PV 3
    producers       gather block n + STAGES as soon as the owner of block n is done with it

An owner holds one stage at a time: one that began its next block before the last is freed would leave none to fill. Where a block of
threads goes on to another item (LASTING), producers fill its first blocks while this one's halves are put together. So that happens in
the two stages that were read last, which are let go afterwards, and in the place of the queries.
A head's keys lie across all lanes and warps, so maxima are not reduced block by block. Each thread says whether one of its logits
exceeds the frame, the maximum that exponents are taken from, by more than RISE. Only then are the maxima reduced, the frame moves and the
sums are rescaled: once or twice in a list. Sums and true maxima stay spread over the threads until the end. So does the frame: each thread
keeps it for its own logits, since a read of shared memory would wait for the flags that are written beside it.
"""

from types import SimpleNamespace

import tilelang.language as T

from aot.registry import sibling

shared = sibling(__file__, "tile_shared")
LOG2E, FAR = shared.LOG2E, shared.FAR
RISE = 8.0
"""A frame moves when a logit exceeds it by more, in powers of two: P stays below 2^8, and float16 holds up to 2^15."""


def consumers(D: int, FP8: bool, HEADS: int, STAGES: int, SIDES: int, LASTING: bool) -> SimpleNamespace:
    """``consume``: every other block of a share, then both halves put together."""
    KEYS, HALF, TAIL = 64, 256, D - 512
    WORK = "float16" if FP8 else "bfloat16"
    # a count of blocks is never negative, which TileLang knows of a loop but not of ``before``
    whole, rest = (T.truncdiv, T.truncmod) if LASTING else (T.floordiv, T.floormod)

    @T.macro
    def across_lanes(W, to, half):  # type: ignore[no-untyped-def]
        """Maxima over the eight rows of a head that lie in a warp's lanes, to ``to``: eight of them make a head's."""
        for distance in (4, 8, 16):
            for i, j in T.Parallel(KEYS, HEADS):
                W[i, j] = T.max(W[i, j], T.shfl_xor(W[i, j], distance))
        for i, j in T.Parallel(KEYS, HEADS):
            if i % 8 == 0:
                to[half, i // 8, j] = W[i, j]

    @T.macro
    def move_frame(c, f, half, tid):  # type: ignore[no-untyped-def]
        """To the maxima so far where they exceed it."""
        across_lanes(f.top, c.tops, half)
        T.sync_threads(2 + half, 128)
        if tid < HEADS:
            peak = T.alloc_local([1], "float32")
            peak[0] = c.tops[half, 0, tid]
            for r in T.unroll(7):
                peak[0] = T.max(peak[0], c.tops[half, r + 1, tid])
            peak[0] = T.if_then_else(peak[0] > c.frames[half, tid] + RISE, peak[0], c.frames[half, tid])
            c.weights[half, tid] = T.exp2(c.frames[half, tid] - peak[0])
            c.frames[half, tid] = peak[0]
        T.sync_threads(2 + half, 128)
        for i, j in T.Parallel(HALF, HEADS):
            f.left[i, j] *= c.weights[half, j]
        for i, j in T.Parallel(HALF, HEADS):
            f.right[i, j] *= c.weights[half, j]
        for i, j in T.Parallel(KEYS, HEADS):
            f.total[i, j] *= c.weights[half, j]
            f.frame[i, j] = c.frames[half, j]

    @T.macro
    def score(c, f, n, side, clear):  # type: ignore[no-untyped-def]
        """Begin the scores of block n over the columns of a side."""
        b = rest(n, STAGES)
        T.barrier_wait(c.full[b * SIDES + side], whole(n, STAGES) % 2)
        T.fence_proxy_async()  # rows were written through the generic proxy, wgmma reads through the other
        first = side * (512 // SIDES)
        last = first + 512 // SIDES
        T.wgmma_gemm(c.K[b, :, first:last], c.Q[:, first:last], f.S, transpose_B=True, clear_accum=clear)

    @T.macro
    def own(c, f, half, before, k, last, to_log2, tid):  # type: ignore[no-untyped-def]
        """Block 2 k + half of the list, ``before`` blocks into the stages' turns."""
        b = rest(before + k * 2 + half, STAGES)
        score(c, f, before + k * 2 + half, 0, True)
        if SIDES == 2:
            score(c, f, before + k * 2 + half, 1, False)
        if TAIL:
            T.wgmma_gemm(c.tails[b, :, :], c.Q_tail, f.S, transpose_B=True)
        for i, j in T.Parallel(KEYS, HEADS):
            f.row[i, j] = c.rows[b, i]
        T.wait_wgmma(0)
        T.warpgroup_fence_operand(f.S, num_regs=HEADS // 2)
        over = T.alloc_local([1], "int32")
        over[0] = 0
        for i, j in T.Parallel(KEYS, HEADS):
            f.S[i, j] = T.if_then_else(f.row[i, j] >= 0, f.S[i, j] * to_log2, -T.infinity("float32"))
        for i, j in T.Parallel(KEYS, HEADS):
            f.top[i, j] = T.max(f.top[i, j], f.S[i, j])
            if f.S[i, j] > f.frame[i, j] + RISE:
                over[0] = 1
        if over[0] != 0:
            c.flags[half, k % 2] = k  # two flags in turn: a fast thread sets the next before a slow one has read this
        T.sync_threads(2 + half, 128)
        if c.flags[half, k % 2] == k:
            move_frame(c, f, half, tid)
        for i, j in T.Parallel(KEYS, HEADS):
            f.S[i, j] = T.exp2(f.S[i, j] - f.frame[i, j])
        T.copy(f.S, f.P)
        T.copy(f.P, c.P[half * 2 + k % 2, :, :])
        T.fence_proxy_async()
        T.sync_threads(2 + half, 128)
        for i, j in T.Parallel(KEYS, HEADS):
            f.total[i, j] += f.S[i, j]
        T.wgmma_gemm(c.K[b, :, 0:HALF], c.P[half * 2 + k % 2, :, :], f.left, transpose_A=True)
        T.wgmma_gemm(c.K[b, :, HALF:512], c.P[half * 2 + k % 2, :, :], f.right, transpose_A=True)
        if SIDES == 2:
            T.wait_wgmma(1)
            T.warpgroup_fence_operand(f.left, num_regs=HEADS * 2)
            T.barrier_arrive(c.empty[b * 2])
        T.wait_wgmma(0)
        if SIDES == 1:
            T.warpgroup_fence_operand(f.left, num_regs=HEADS * 2)
        T.warpgroup_fence_operand(f.right, num_regs=HEADS * 2)
        if LASTING:
            if k < last:  # the last stage is for the results
                T.barrier_arrive(c.empty[b])
        else:
            T.barrier_arrive(c.empty[b * SIDES + SIDES - 1])

    def output(c, x):  # type: ignore[no-untyped-def]
        """With FP8 rows: the output as BF16, a partial one as float16, both in the type of the stages."""
        return T.if_then_else(c.whole, T.reinterpret(T.cast(x, "bfloat16"), "float16"), T.cast(x, "float16"))

    @T.macro
    def give(c, given, half, b, some):  # type: ignore[no-untyped-def]
        """The other warpgroup's columns in float32 to stage b, if this one has read it last and not let go."""
        T.sync_threads(2 + half, 128)  # of every warp
        if some:
            for i, j in T.Parallel(HALF, HEADS):
                T.sts32(c.K[b, j, i * 2], T.reinterpret(given[i, j], "uint32"))

    @T.macro
    def take(c, given, kept, half, b, some):  # type: ignore[no-untyped-def]
        """One's own columns, with what the other gave in stage b, to the place of the queries."""
        if some:
            for i, j in T.Parallel(HALF, HEADS):
                given[i, j] = T.reinterpret(T.lds32(c.K[b, j, i * 2]), "float32")
        else:
            T.fill(given, 0)
        T.sync_threads(1, 256)
        for i, j in T.Parallel(HALF, HEADS):
            kept[i, j] = kept[i, j] * c.weights[half, j] + given[i, j] * c.weights[1 - half, j]
        for i, j in T.Parallel(HALF, HEADS):
            c.Q[j, half * HALF + i] = output(c, kept[i, j])
        T.sync_threads(1, 256)

    @T.macro
    def join(c, given, kept, half):  # type: ignore[no-untyped-def]
        """Give the other warpgroup its columns in float32 through the stages, take one's own, and leave them in the first stage."""
        for i, j in T.Parallel(HALF, HEADS):
            T.sts32(c.K[half, j, i * 2], T.reinterpret(given[i, j], "uint32"))
        T.sync_threads(1, 256)
        for i, j in T.Parallel(HALF, HEADS):
            kept[i, j] = (
                kept[i, j] * c.weights[half, j] + T.reinterpret(T.lds32(c.K[1 - half, j, i * 2]), "float32") * c.weights[1 - half, j]
            )
        T.sync_threads(1, 256)
        for i, j in T.Parallel(HALF, HEADS):
            if FP8:
                c.K[0, j, half * HALF + i] = output(c, kept[i, j])
            else:
                c.K[0, j, half * HALF + i] = kept[i, j]
        T.sync_threads(1, 256)

    @T.macro
    def consume(c, half, blocks, to_log2, kv_scale, has_kv_scale, attn_sink, has_sink, H, tid):  # type: ignore[no-untyped-def]
        """Leaves the output in the first stage or the place of the queries, 16 bits each, and the statistics in ``c.kept``."""
        f = SimpleNamespace(
            S=T.alloc_fragment((KEYS, HEADS), "float32"),
            P=T.alloc_fragment((KEYS, HEADS), WORK),
            row=T.alloc_fragment((KEYS, HEADS), "int32"),
            frame=T.alloc_fragment((KEYS, HEADS), "float32"),
            total=T.alloc_fragment((KEYS, HEADS), "float32"),
            top=T.alloc_fragment((KEYS, HEADS), "float32"),
            left=T.alloc_fragment((HALF, HEADS), "float32"),
            right=T.alloc_fragment((HALF, HEADS), "float32"),
        )
        T.fill(f.left, 0)
        T.fill(f.right, 0)
        T.fill(f.total, 0)
        T.fill(f.top, FAR)
        T.fill(f.frame, FAR)
        if tid < HEADS:
            c.frames[half, tid] = FAR
        if tid < 2:
            c.flags[half, tid] = -1
        T.sync_threads(2 + half, 128)
        before = c.before[0] if LASTING else 0
        for k in T.serial(T.ceildiv(blocks - half, 2)):
            own(c, f, half, before, k, T.ceildiv(blocks - half, 2) - 1, to_log2, tid)

        across_lanes(f.top, c.tops, half)
        for distance in (4, 8, 16):
            for i, j in T.Parallel(KEYS, HEADS):
                f.total[i, j] += T.shfl_xor(f.total[i, j], distance)
        for i, j in T.Parallel(KEYS, HEADS):
            if i % 8 == 0:
                c.totals[half, i // 8, j] = f.total[i, j]
        given, kept = (f.right, f.left) if half == 0 else (f.left, f.right)
        if LASTING:
            last = (before + T.ceildiv(blocks - half, 2) * 2 - 2 + half) % STAGES
            give(c, given, half, last, blocks > half)
        T.sync_threads(1, 256)
        if T.And(half == 0, tid < HEADS):
            top = T.alloc_local([2], "float32")
            sums = T.alloc_local([2], "float32")
            for w in T.unroll(2):
                top[w] = FAR
                sums[w] = 0
                for r in T.unroll(8):
                    top[w] = T.max(top[w], c.tops[w, r, tid])
                    sums[w] += c.totals[w, r, tid]
            frame = T.max(c.frames[0, tid], c.frames[1, tid])
            left = T.exp2(c.frames[0, tid] - frame)
            right = T.exp2(c.frames[1, tid] - frame)
            total = sums[0] * left + sums[1] * right
            share = T.alloc_local([1], "float32")
            share[0] = total
            if T.And(c.whole, has_sink != 0):
                share[0] += T.exp2(attn_sink[T.min(c.place[1] + tid, H - 1)] * LOG2E - frame)
            share[0] = T.if_then_else(total > 0, 1.0 / share[0], 0.0)
            if FP8 and T.And(c.whole, has_kv_scale != 0):  # partials are without it
                share[0] *= kv_scale[0]
            c.weights[0, tid] = left * share[0]
            c.weights[1, tid] = right * share[0]
            c.kept[0, tid] = T.max(top[0], top[1])
            c.kept[1, tid] = total
            c.kept[2, tid] = frame
        if LASTING:
            take(c, given, kept, half, (before + T.ceildiv(blocks - 1 + half, 2) * 2 - 1 - half) % STAGES, blocks > 1 - half)
            if blocks > half:
                T.barrier_arrive(c.empty[last])
        else:
            T.sync_threads(1, 256)
            join(c, given, kept, half)

    return SimpleNamespace(consume=consume)
