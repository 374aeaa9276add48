"""How the TileLang kernels for SM90 bring queries and key rows into shared memory, as 16-bit operands of wgmma.

Both go in panels of 64 columns, 128 bytes a row in 16-bit elements: a few neighbouring threads cover a panel of a row with 16-byte
accesses, and with the 128-byte swizzle every store of a quarter warp touches all banks once.

- BF16 rows are copied by predicated cp.async, eight threads to a panel; a row that is not valid is filled with zeros and not read.
- FP8 rows are loaded into registers, four threads to a panel, widened to float16 (exact for every e4m3 value) and stored. The loads of a
  block are issued before its stage is waited for, so that registers are one more stage of the pipeline.

A block's row numbers go beside it, -1 where an index is not valid.
"""

from types import SimpleNamespace

import tilelang.language as T

WIDEN = """
__device__ __forceinline__ uint2 dsak_widen4(unsigned int x) {
  uint2 y;
  asm("{ .reg .b16 a, b; mov.b32 {a, b}, %2; cvt.rn.f16x2.e4m3x2 %0, a; cvt.rn.f16x2.e4m3x2 %1, b; }"
      : "=r"(y.x), "=r"(y.y)
      : "r"(x));
  return y;
}
__device__ __forceinline__ void dsak_widen(void* low, void* high, const void* from) {
  uint4 x = *static_cast<const uint4*>(from);
  uint2 a = dsak_widen4(x.x), b = dsak_widen4(x.y), c = dsak_widen4(x.z), d = dsak_widen4(x.w);
  *static_cast<uint4*>(low) = make_uint4(a.x, a.y, b.x, b.y);
  *static_cast<uint4*>(high) = make_uint4(c.x, c.y, d.x, d.y);
}
"""
"""16 e4m3 elements to float16, two to an instruction; TileLang's own cast takes them one by one."""


def movers(D: int, FP8: bool, HEADS: int, STAGES: int, SIDES: int, PRODUCERS: int, LASTING: bool) -> SimpleNamespace:
    """The macros of queries and producers for rows of ``D`` elements, tiles of ``HEADS`` heads and ``STAGES`` stages of 64 keys.

    With two ``SIDES`` a stage is freed and filled in two parts, columns 0..255 and the rest. ``PRODUCERS`` threads gather.
    """
    KEYS, TAIL = 64, D - 512
    UNIT = 16 if FP8 else 8  # elements in 16 bytes
    ACROSS = 64 // UNIT  # threads to a panel of a row

    @T.macro
    def put(to, raw, k):  # type: ignore[no-untyped-def]
        """16 bytes of a row to shared memory, at the first of two places; of FP8 ones, widened, the upper half at the second."""
        if FP8:
            T.call_extern("handle", "dsak_widen", T.access_ptr(to[0], "w", 8), T.access_ptr(to[1], "w", 8), T.access_ptr(raw[k], "r", 1))
        else:
            T.sts128(to[0], raw[k])

    Q_ROWS = min(HEADS, 256 // ACROSS)
    GROUPS = 256 // ACROSS // Q_ROWS  # groups of threads that take turns in the panels

    @T.macro
    def request_queries(g, raw, t, h0, tid):  # type: ignore[no-untyped-def]
        """256 threads load the first 512 columns of the tile's queries; heads from H on are zeros."""
        row0 = tid // ACROSS % Q_ROWS
        col0 = tid // ACROSS // Q_ROWS * 64 + tid % ACROSS * UNIT
        for r in T.unroll(HEADS // Q_ROWS):
            for u in T.unroll(8 // GROUPS):
                row = row0 + r * Q_ROWS
                h = T.min(h0 + row, g.H - 1)
                raw[r * (8 // GROUPS) + u] = T.ldg128(g.q[t, h, u * GROUPS * 64 + col0], pred=h0 + row < g.H)

    @T.macro
    def put_queries(c, raw, tid):  # type: ignore[no-untyped-def]
        """To shared memory."""
        row0 = tid // ACROSS % Q_ROWS
        col0 = tid // ACROSS // Q_ROWS * 64 + tid % ACROSS * UNIT
        for r in T.unroll(HEADS // Q_ROWS):
            for u in T.unroll(8 // GROUPS):
                row = row0 + r * Q_ROWS
                at = u * GROUPS * 64 + col0
                put((c.Q[row, at], c.Q[row, at + 8 if FP8 else at]), raw, r * (8 // GROUPS) + u)

    @T.macro
    def request_tail(g, tail, row, t, h0, tid):  # type: ignore[no-untyped-def]
        """The other 64 columns of a row of the tile."""
        at = tid % ACROSS * UNIT
        tail[0] = T.ldg128(g.q_tail[t, T.min(h0 + row, g.H - 1), at], pred=h0 + row < g.H)

    @T.macro
    def put_tail(c, tail, row, tid):  # type: ignore[no-untyped-def]
        at = tid % ACROSS * UNIT
        put((c.Q_tail[row, at], c.Q_tail[row, at + 8 if FP8 else at]), tail, 0)

    @T.macro
    def load_queries(c, g, raw, tail, t, h0, tid):  # type: ignore[no-untyped-def]
        """256 threads bring the tile's queries to shared memory."""
        request_queries(g, raw, t, h0, tid)
        put_queries(c, raw, tid)
        if TAIL:
            for r in T.unroll(T.ceildiv(HEADS * ACROSS, 256)):
                row = tid // ACROSS + r * (256 // ACROSS)
                if row < HEADS:
                    request_tail(g, tail, row, t, h0, tid)
                    put_tail(c, tail, row, tid)
        T.fence_proxy_async()
        T.sync_threads(1, 256)

    # a count of blocks is never negative, which TileLang knows of a loop but not of ``before``
    whole, rest = (T.truncdiv, T.truncmod) if LASTING else (T.floordiv, T.floormod)
    ROWS = PRODUCERS // ACROSS  # of a pass of the producers
    PASSES = KEYS // ROWS
    PANELS = D // 64
    PIECES = PASSES * PANELS  # 16-byte loads of a thread for a block
    FIRST = PASSES * 4 if SIDES == 2 else PIECES  # of them for the first side
    SLOTS = PIECES if HEADS == 16 else 12 if (D, HEADS) == (512, 64) else 8  # of them in flight, as many as there are registers for

    @T.macro
    def request(kv, index, raw, k, col0):  # type: ignore[no-untyped-def]
        """Load piece k of a thread's share of a block: four panels of every row, then the others."""
        row = index[T.if_then_else(k < PASSES * 4, k // 4, (k - PASSES * 4) // (PANELS - 4))]
        panel = T.if_then_else(k < PASSES * 4, k % 4, 4 + (k - PASSES * 4) % (PANELS - 4))
        raw[k % SLOTS] = T.ldg128(kv[T.max(row, 0), panel * 64 + col0], pred=row >= 0)

    @T.macro
    def widen(c, kv, index, raw, b, row0, col0, k):  # type: ignore[no-untyped-def]
        """Piece k from registers to stage b; as the first ones leave, the last ones are requested."""
        row = row0 + T.if_then_else(k < PASSES * 4, k // 4, (k - PASSES * 4) // (PANELS - 4)) * ROWS
        panel = T.if_then_else(k < PASSES * 4, k % 4, 4 + (k - PASSES * 4) % (PANELS - 4))
        if panel < 8:
            at = panel * 64 + col0
            put((c.K[b, row, at], c.K[b, row, at + 8]), raw, k % SLOTS)
        if TAIL and panel == 8:
            put((c.tails[b, row, col0], c.tails[b, row, col0 + 8]), raw, k % SLOTS)
        if k + SLOTS < PIECES:
            request(kv, index, raw, k + SLOTS, col0)

    @T.macro
    def copy(c, kv, index, b, row0, col0, first, panels):  # type: ignore[no-untyped-def]
        """``panels`` panels of a block's rows to stage b by cp.async."""
        for r in T.unroll(PASSES):
            row = row0 + r * ROWS
            key = T.max(index[r], 0)
            for u in T.unroll(panels):
                at = (first + u) * 64 + col0
                T.ptx_cp_async(T.access_ptr(c.K[b, row, at], "w", 8), T.access_ptr(kv[key, at], "r", 8), 8, index[r] >= 0)

    @T.macro
    def copy_tails(c, kv, index, b, row0, col0):  # type: ignore[no-untyped-def]
        for r in T.unroll(PASSES):
            row = row0 + r * ROWS
            key = T.max(index[r], 0)
            T.ptx_cp_async(T.access_ptr(c.tails[b, row, col0], "w", 8), T.access_ptr(kv[key, 512 + col0], "r", 8), 8, index[r] >= 0)

    @T.macro
    def look(g, ahead, r, t, start, stop, row0):  # type: ignore[no-untyped-def]
        """Load a producer's index of pass r, of the block at column ``start``."""
        ahead[r] = -1
        if start + row0 + r * ROWS < stop:
            ahead[r] = g.indices[t, start + row0 + r * ROWS]

    @T.macro
    def look_first(g, ahead, t, start, stop, tid):  # type: ignore[no-untyped-def]
        for r in T.unroll(PASSES):
            look(g, ahead, r, t, start, stop, tid // ACROSS)

    @T.macro
    def gather(c, g, ahead, here, then, tid):  # type: ignore[no-untyped-def]
        """The producers bring the keys of ``here``, block after block, each when its stage is free.

        ``here`` is a token, the first column and the one after the last. The indices of a block are loaded one block ahead, so that rows
        need not wait for them: ``ahead`` has those of the first block, and in the end those of what comes next, ``then``.
        """
        blocks = T.ceildiv(here[2] - here[1], KEYS)
        row0 = tid // ACROSS
        col0 = tid % ACROSS * UNIT
        index = T.alloc_local((PASSES,), "int32")
        if FP8:
            raw = T.alloc_local((SLOTS,), "uint32x4")
        before = c.before[0] if LASTING else 0
        for i in T.serial(blocks):
            n = before + i
            b = rest(n, STAGES)
            for r in T.unroll(PASSES):
                index[r] = T.if_then_else(T.And(ahead[r] >= 0, ahead[r] < g.s_kv), ahead[r], -1)
                if LASTING:
                    more = i + 1 < blocks
                    first = T.if_then_else(more, here[1] + (i + 1) * KEYS, then[1])
                    look(g, ahead, r, T.if_then_else(more, here[0], then[0]), first, T.if_then_else(more, here[2], then[2]), row0)
                else:
                    look(g, ahead, r, here[0], here[1] + (i + 1) * KEYS, here[2], row0)
            if FP8:
                for k in T.unroll(SLOTS):
                    request(g.kv, index, raw, k, col0)
            for side in T.unroll(SIDES):
                T.barrier_wait(c.empty[b * SIDES + side], (whole(n, STAGES) % 2) ^ 1)
                if T.And(side == SIDES - 1, tid % ACROSS == 0):
                    for r in T.unroll(PASSES):
                        c.rows[b, row0 + r * ROWS] = index[r]
                if FP8:
                    for k in T.unroll(PIECES):
                        if (k < FIRST) == (side == 0):
                            widen(c, g.kv, index, raw, b, row0, col0, k)
                    if HEADS == 64:  # consumers have a fence of their own, and this one waits for loads in flight: slower with fewer heads
                        T.fence_proxy_async()
                else:
                    copy(c, g.kv, index, b, row0, col0, side * (8 // SIDES), 8 // SIDES)
                    if TAIL and side == SIDES - 1:
                        copy_tails(c, g.kv, index, b, row0, col0)
                    T.cp_async_barrier_noinc(c.full[b * SIDES + side])
                T.barrier_arrive(c.full[b * SIDES + side])
        if LASTING:
            if blocks == 0:
                look_first(g, ahead, then[0], then[1], then[2], tid)
            c.before[0] += blocks

    return SimpleNamespace(
        load_queries=load_queries,
        request_queries=request_queries,
        put_queries=put_queries,
        request_tail=request_tail,
        put_tail=put_tail,
        look_first=look_first,
        gather=gather,
        passes=PASSES,
        queries=HEADS // Q_ROWS * (8 // GROUPS),
        across=ACROSS,
    )
