"""The consumers of tile_sm90 for 64 heads: M of the matrix products is heads.

Key blocks alternate between two warpgroups: the owner of block n scores it and hands P to the other through shared memory, and each
accumulates its own 256 output columns of every block, in order::

    warpgroup 0     QK 0  softmax  PV 0  (P 1) PV 1  QK 2  softmax  PV 2  (P 3) PV 3  ...        output columns   0..255
    warpgroup 1          (P 0) PV 0  QK 1  softmax  PV 1  (P 2) PV 2  QK 3  softmax   ...                        256..511
    warpgroup 2     gathers the columns 0..255 of block n + 2 as soon as warpgroup 0 is done with those of block n, then the others

so that no key is scored twice and the softmax of one warpgroup lies under the matrix work of the other. P takes the place of the block's
tail (columns 512..575), which nobody needs once the block is scored. Both carry the same running maximum (the frame): the owner
moves it, by more than RISE only, and publishes it beside P, so that most blocks rescale nothing. Each keeps the sum and the true
maximum of the blocks that it scored; they are put together at the end.
"""

from types import SimpleNamespace

import tilelang.language as T

from aot.registry import sibling

shared = sibling(__file__, "tile_shared")
LOG2E, FAR = shared.LOG2E, shared.FAR
RISE = 8.0
"""A frame moves when a logit exceeds it by more, in powers of two: P stays below 2^8, and float16 holds up to 2^15."""


def consumers(D: int, FP8: bool) -> SimpleNamespace:
    """``consume``: all blocks of a share, and the division by the sum."""
    HEADS, KEYS, HALF, TAIL = 64, 64, 256, D - 512
    WORK = "float16" if FP8 else "bfloat16"

    @T.macro
    def rescale(f):  # type: ignore[no-untyped-def]
        """Move the sums from the frame m_old to m. A warp whose rows all stay has nothing to do."""
        moved = T.alloc_local([1], "int32")
        moved[0] = 0
        for i in T.Parallel(HEADS):
            f.shrink[i] = T.exp2(f.m_old[i] - f.m[i])
            f.total[i] *= f.shrink[i]
            if f.m_old[i] < f.m[i]:
                moved[0] = 1
        if T.any_sync(moved[0]) != 0:
            for i, j in T.Parallel(HEADS, HALF):
                f.acc[i, j] *= f.shrink[i]

    @T.macro
    def own(c, f, half, n, to_log2, pending):  # type: ignore[no-untyped-def]
        """Score block n, hand P over, and accumulate. ``pending`` says that the product of block n - 1 still runs."""
        b = n % 2
        T.barrier_wait(c.full[b * 2], n // 2 % 2)
        T.fence_proxy_async()  # cp.async wrote through the generic proxy, wgmma reads through the other
        T.wgmma_gemm(c.Q[:, 0:HALF], c.K[b, :, 0:HALF], f.S, transpose_B=True, clear_accum=True)
        if pending:
            T.wait_wgmma(1)
            T.warpgroup_fence_operand(f.acc, num_regs=128)
            T.barrier_arrive(c.empty[(1 - b) * 2 + half])
        T.barrier_wait(c.full[b * 2 + 1], n // 2 % 2)
        T.fence_proxy_async()
        T.wgmma_gemm(c.Q[:, HALF:512], c.K[b, :, HALF:512], f.S, transpose_B=True)
        if TAIL:
            T.wgmma_gemm(c.Q_tail, c.tails[b, :, :], f.S, transpose_B=True)
        T.wait_wgmma(0)
        T.warpgroup_fence_operand(f.S, num_regs=32)
        if TAIL:
            T.sync_threads(2 + half, 128)  # a warp may still read the tail that P takes the place of
        for i, j in T.Parallel(HEADS, KEYS):
            f.S[i, j] = T.if_then_else(c.rows[b, j] >= 0, f.S[i, j] * to_log2, -T.infinity("float32"))
        T.reduce_max(f.S, f.peak, dim=1, clear=True)
        T.copy(f.m, f.m_old)
        for i in T.Parallel(HEADS):
            f.top[i] = T.max(f.top[i], f.peak[i])
            f.m[i] = T.if_then_else(f.peak[i] > f.m_old[i] + RISE, f.peak[i], f.m_old[i])
        for i, j in T.Parallel(HEADS, KEYS):
            f.S[i, j] = T.exp2(f.S[i, j] - f.m[i])
        T.reduce_sum(f.S, f.part, dim=1)
        T.copy(f.S, f.P)
        T.copy(f.P, c.tails[b, :, :])
        T.copy(f.m, c.frames[b, :])
        T.fence_proxy_async()
        T.barrier_arrive(c.ready[b])
        rescale(f)
        for i in T.Parallel(HEADS):
            f.total[i] += f.part[i]
        T.wgmma_gemm(f.P, c.K[b, :, half * HALF : half * HALF + HALF], f.acc)
        T.wait_wgmma(0)
        T.warpgroup_fence_operand(f.acc, num_regs=128)
        T.barrier_arrive(c.empty[b * 2 + half])

    @T.macro
    def other(c, f, half, n):  # type: ignore[no-untyped-def]
        """Accumulate block n, which the other warpgroup has scored; the next scores are under way before that is waited for."""
        b = n % 2
        T.barrier_wait(c.ready[b], n // 2 % 2)
        T.fence_proxy_async()
        T.copy(f.m, f.m_old)
        T.copy(c.frames[b, :], f.m)
        rescale(f)
        T.wgmma_gemm(c.tails[b, :, :], c.K[b, :, half * HALF : half * HALF + HALF], f.acc)

    @T.macro
    def consume(c, half, blocks, to_log2, kv_scale, has_kv_scale, attn_sink, has_sink, H, tid):  # type: ignore[no-untyped-def]
        """Leaves the output columns 256 * half and on in the first stage, 16 bits each, and the statistics in ``c.kept``."""
        f = SimpleNamespace(
            acc=T.alloc_fragment((HEADS, HALF), "float32"),
            S=T.alloc_fragment((HEADS, KEYS), "float32"),
            P=T.alloc_fragment((HEADS, KEYS), WORK),
            m=T.alloc_fragment((HEADS,), "float32"),
            m_old=T.alloc_fragment((HEADS,), "float32"),
            peak=T.alloc_fragment((HEADS,), "float32"),
            top=T.alloc_fragment((HEADS,), "float32"),
            shrink=T.alloc_fragment((HEADS,), "float32"),
            total=T.alloc_fragment((HEADS,), "float32"),
            part=T.alloc_fragment((HEADS,), "float32"),
        )
        T.fill(f.acc, 0)
        T.fill(f.m, FAR)
        T.fill(f.top, FAR)
        T.fill(f.total, 0)
        # WG 0: own 0, then (other 1, own 2) ...; WG 1: (other 0, own 1) ...: products in flight never cross the end of a round
        if half == 0 and blocks > 0:
            own(c, f, half, 0, to_log2, False)
        for pair in T.serial((blocks - 1 + half) // 2):
            other(c, f, half, pair * 2 + 1 - half)
            own(c, f, half, pair * 2 + 2 - half, to_log2, True)
        if (blocks + half) % 2 == 0 and blocks > 0:
            other(c, f, half, blocks - 1)
            T.wait_wgmma(0)
            T.warpgroup_fence_operand(f.acc, num_regs=128)
        T.copy(f.top, c.tops[half, 0, :])
        T.copy(f.total, c.totals[half, 0, :])
        T.sync_threads(1, 256)
        for i in T.Parallel(HEADS):
            f.top[i] = T.max(c.tops[0, 0, i], c.tops[1, 0, i])
            f.total[i] = c.totals[0, 0, i] + c.totals[1, 0, i]
            f.part[i] = f.total[i]
        if half == 0:
            T.copy(f.top, c.kept[0, :])
            T.copy(f.total, c.kept[1, :])
            T.copy(f.m, c.kept[2, :])
        if T.And(c.whole, has_sink != 0):
            for i in T.Parallel(HEADS):
                f.part[i] += T.exp2(attn_sink[T.min(c.place[1] + i, H - 1)] * LOG2E - f.m[i])
        for i in T.Parallel(HEADS):
            f.part[i] = T.if_then_else(f.total[i] > 0, 1.0 / f.part[i], 0.0)
        if FP8 and T.And(c.whole, has_kv_scale != 0):  # partials are without it
            for i in T.Parallel(HEADS):
                f.part[i] *= kv_scale[0]
        for i, j in T.Parallel(HEADS, HALF):
            f.acc[i, j] *= f.part[i]
        if FP8:
            if c.whole:
                for i, j in T.Parallel(HEADS, HALF):
                    c.K[0, i, half * HALF + j] = T.reinterpret(T.cast(f.acc[i, j], "bfloat16"), "float16")
            else:
                T.copy(f.acc, c.K[0, :, half * HALF : half * HALF + HALF])
        else:
            T.copy(f.acc, c.K[0, :, half * HALF : half * HALF + HALF])
        T.sync_threads(1, 256)

    return SimpleNamespace(consume=consume)
