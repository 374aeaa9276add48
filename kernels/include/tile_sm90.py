"""Sparse MLA in TileLang for SM90 on wgmma: prefill, and decode over a share of the keys, BF16 or FP8 rows, 16 to 64 heads at a time.

One block serves one token, one tile of heads and one split of the token's list: an item. With FP8 rows and 16 heads (LASTING) there are
as many blocks as units, and each serves item after item, so that the next one's first rows come during the results of the one before.
Keys come in blocks of 64 gathered rows; K and V are the same rows, V is their first 512 columns. Warpgroup 2, with 16 heads 3 as well,
gathers (tile_rows.py), warpgroups 0 and 1 score and accumulate: with 64 heads as tile_wide.py says, with 16 or 32 as tile_narrow.py does.
Every role, barrier and fence is written out.

    shared memory (KB)     Q       K, stages x 64 x 512     tails (and P)    statistics, row numbers, barriers
    64 heads, D = 576      72      2 x 64                   16               3
    16 heads, D = 512      16      3 x 64                   P 4              5

A split writes O divided by its sum, and its statistics, as kernels/sparse_mla_decode/partials.py says; with one split the output itself.
"""

from types import SimpleNamespace

import tilelang.language as T
from tvm.tirx import PrimFunc

from aot.registry import sibling

shared = sibling(__file__, "tile_shared")
tile = sibling(__file__, "tile")
tile_rows = sibling(__file__, "tile_rows")
wide = sibling(__file__, "tile_wide")
narrow = sibling(__file__, "tile_narrow")
LOG2E, LN2 = shared.LOG2E, shared.LN2


def sparse_mla_sm90(D: int, FP8: bool, HEADS: int) -> PrimFunc:
    """``D`` is the row width, 512 or 576; ``FP8`` says that q and kv are e4m3, else BF16; ``HEADS`` of a tile are 16, 32 or 64."""
    KEYS, TAIL, WIDE = 64, D - 512, HEADS == 64
    UNIT = 16 if FP8 else 8  # elements in 16 bytes
    STAGES = 3 if D == 512 and HEADS == 16 else 2
    SIDES = 2 if WIDE or (STAGES == 2 and not FP8) else 1  # parts of a stage that are freed and filled on their own
    PRODUCERS = 256 if HEADS == 16 else 128
    GIVEN, WORK = ("float8_e4m3fn", "float16") if FP8 else ("bfloat16", "bfloat16")
    # 504 a lane of three warpgroups, 512 of four: producers of FP8 rows hold a block of them in registers
    FEW, MANY = {16: (88, 168), 32: (72, 216), 64: (88, 208)}[HEADS] if FP8 or HEADS == 16 else (56, 224)
    LASTING = tile.lasting(FP8, HEADS)  # the host asks the same
    PARTS = 1 if WIDE else 8
    s = shared._symbols()
    splits_of_a_list = T.dynamic("splits", "int32")
    move = tile_rows.movers(D, FP8, HEADS, STAGES, SIDES, PRODUCERS, LASTING)
    compute = wide.consumers(D, FP8) if WIDE else narrow.consumers(D, FP8, HEADS, STAGES, SIDES, LASTING)

    @T.macro
    def scale(g, to_log2):  # type: ignore[no-untyped-def]
        """From products to base-2 logits."""
        to_log2[0] = g.sm_scale * LOG2E
        if FP8:
            if g.has_q_scale != 0:
                to_log2[0] *= g.q_scale[0]
            if g.has_kv_scale != 0:
                to_log2[0] *= g.kv_scale[0]

    @T.macro
    def finish(c, g, tid):  # type: ignore[no-untyped-def]
        """256 threads: from shared memory to the output or the partials, 16 bytes at a time, and the statistics of a head to a thread."""
        t = c.place[0]
        h0 = c.place[1]
        split = c.place[2]
        for r in T.serial(HEADS // 4):
            row = r * 4 + tid // 64
            at = tid % 64 * 8
            if h0 + row < g.H:
                if c.whole:
                    T.stg128(g.out[t, h0 + row, at], T.lds128(c.Q[row, at] if LASTING else c.K[0, row, at]))
                else:
                    T.stg128(g.partial[t, split, h0 + row, at * 2], T.lds128(c.Q[row, at] if LASTING else c.K[0, row, at]))
        if T.And(tid < HEADS, h0 + tid < g.H):
            top = T.if_then_else(c.kept[1, tid] > 0, c.kept[0, tid], -T.infinity("float32"))
            log2_sum = T.log2(c.kept[1, tid]) + c.kept[2, tid]
            if c.whole:
                if g.has_max_logits != 0:
                    g.max_logits[t, h0 + tid] = top * LN2
                if g.has_lse != 0:
                    g.lse[t, h0 + tid] = T.if_then_else(c.kept[1, tid] > 0, log2_sum * LN2, T.infinity("float32"))
            else:
                none = T.if_then_else(c.kept[1, tid] > 0, log2_sum, -T.infinity("float32"))
                T.stg32(g.partial_statistics[t, split, h0 + tid, 0], T.reinterpret(top, "uint32"))
                T.stg32(g.partial_statistics[t, split, h0 + tid, 4], T.reinterpret(none, "uint32"))

    @T.macro
    def share(g, t, split, n_keys):  # type: ignore[no-untyped-def]
        """The columns of a split: the first, and the one after the last."""
        shared._keys_of(t, g.topk, g.topk_length, g.has_length, n_keys)
        width = T.ceildiv(T.ceildiv(n_keys[0], KEYS), g.splits) * KEYS
        start = T.min(split * width, n_keys[0])
        stop = T.min(start + width, n_keys[0])
        return start, stop

    @T.macro
    def locate(g, item, at, n_keys):  # type: ignore[no-untyped-def]
        """To ``at``: token, first head and split of an item, its first column and the one after its last."""
        tiles = T.ceildiv(g.H, HEADS)
        at[0] = T.truncdiv(T.truncdiv(item, tiles), g.splits)
        at[1] = T.truncmod(item, tiles) * HEADS
        at[2] = T.truncmod(T.truncdiv(item, tiles), g.splits)
        start, stop = share(g, at[0], at[2], n_keys)
        at[3] = start
        at[4] = stop

    @T.macro
    def keep_place(c, t, h0, split):  # type: ignore[no-untyped-def]
        c.place[0] = t
        c.place[1] = h0
        c.place[2] = split

    @T.macro
    def attend(c, g, half, blocks, to_log2, tx):  # type: ignore[no-untyped-def]
        """From queries to the output."""
        compute.consume(c, half, blocks, to_log2[0], g.kv_scale, g.has_kv_scale, g.attn_sink, g.has_sink, g.H, tx - half * 128)
        finish(c, g, tx)

    @T.macro
    def consume_one(c, g, half, t, h0, blocks, to_log2, tx):  # type: ignore[no-untyped-def]
        """A consumer warpgroup's work on the block's only item."""
        raw = T.alloc_local((move.queries,), "uint32x4")
        tail = T.alloc_local((1,), "uint32x4")
        move.load_queries(c, g, raw, tail, t, h0, tx)
        scale(g, to_log2)
        attend(c, g, half, blocks, to_log2, tx)

    @T.macro
    def produce(c, g, t, start, stop, tid):  # type: ignore[no-untyped-def]
        """A producer's work on the block's only item."""
        ahead = T.alloc_local((move.passes,), "int32")
        move.look_first(g, ahead, t, start, stop, tid)
        move.gather(c, g, ahead, (t, start, stop), None, tid)

    @T.macro
    def consume_all(c, g, half, at, block, to_log2, n_keys, tx):  # type: ignore[no-untyped-def]
        """A consumer warpgroup's work on item after item, each with the next one's queries in registers."""
        raw = T.alloc_local((move.queries,), "uint32x4")
        tail = T.alloc_local((1,), "uint32x4")
        item = T.alloc_local([1], "int32")
        blocks = T.alloc_local([1], "int32")
        c.before[0] = 0
        item[0] = block
        move.request_queries(g, raw, at[0], at[1], tx)
        if TAIL:
            move.request_tail(g, tail, tx // move.across, at[0], at[1], tx)
        scale(g, to_log2)
        while item[0] < g.items:
            blocks[0] = T.ceildiv(at[4] - at[3], KEYS)
            if half == 0 and tx == 0:
                keep_place(c, at[0], at[1], at[2])
            move.put_queries(c, raw, tx)
            if TAIL and tx // move.across < HEADS:
                move.put_tail(c, tail, tx // move.across, tx)
            T.fence_proxy_async()
            T.sync_threads(1, 256)
            item[0] += g.units
            if item[0] < g.items:
                locate(g, item[0], at, n_keys)
                move.request_queries(g, raw, at[0], at[1], tx)
                if TAIL:
                    move.request_tail(g, tail, tx // move.across, at[0], at[1], tx)
            attend(c, g, half, blocks[0], to_log2, tx)
            c.before[0] += blocks[0]
            T.sync_threads(1, 256)  # the output is out of the queries' place

    @T.macro
    def produce_all(c, g, at, block, n_keys, tid):  # type: ignore[no-untyped-def]
        """A producer's work on item after item; what is kept in ``at`` and ``here`` is not divided out again in every block."""
        ahead = T.alloc_local((move.passes,), "int32")
        here = T.alloc_local([3], "int32")
        item = T.alloc_local([1], "int32")
        c.before[0] = 0
        item[0] = block
        move.look_first(g, ahead, at[0], at[3], at[4], tid)
        while item[0] < g.items:
            here[0] = at[0]
            here[1] = at[3]
            here[2] = at[4]
            item[0] += g.units
            at[4] = 0  # nothing comes next
            if item[0] < g.items:
                locate(g, item[0], at, n_keys)
            move.gather(c, g, ahead, (here[0], here[1], here[2]), (at[0], at[3], at[4]), tid)

    @T.prim_func
    def sparse_mla(
        q: T.StridedTensor((s.T, s.H, 512), (s.q_s0 * UNIT, s.q_s1 * UNIT, 1), GIVEN),
        q_tail: T.StridedTensor((s.T, s.H, 64), (s.q_tail_s0 * UNIT, s.q_tail_s1 * UNIT, 1), GIVEN),
        kv: T.StridedTensor((s.s_kv, D), (s.kv_s0 * UNIT, 1), GIVEN),
        indices: T.StridedTensor((s.T, s.topk), (s.indices_s0, 1), "int32"),
        topk_length: T.Tensor((s.T,), "int32"),
        attn_sink: T.Tensor((s.H,), "float32"),
        q_scale: T.Tensor((1,), "float32"),
        kv_scale: T.Tensor((1,), "float32"),
        out: T.StridedTensor((s.T, s.H, 512), (s.out_s0 * 8, s.out_s1 * 8, 1), "bfloat16"),
        partial: T.Tensor((s.T, splits_of_a_list, s.H, 1024), "uint8"),
        partial_statistics: T.Tensor((s.T, splits_of_a_list, s.H, 8), "uint8"),
        max_logits: T.Tensor((s.T, s.H), "float32"),
        lse: T.Tensor((s.T, s.H), "float32"),
        has_length: T.int32,
        has_sink: T.int32,
        has_q_scale: T.int32,
        has_kv_scale: T.int32,
        has_max_logits: T.int32,
        has_lse: T.int32,
        sm_scale: T.float32,
        units: T.int32,
        q_s0: s.q_s0,
        q_s1: s.q_s1,
        q_tail_s0: s.q_tail_s0,
        q_tail_s1: s.q_tail_s1,
        kv_s0: s.kv_s0,
        out_s0: s.out_s0,
        out_s1: s.out_s1,
    ):
        H, s_kv, topk, splits = s.H, s.s_kv, s.topk, splits_of_a_list
        items = s.T * splits * T.ceildiv(H, HEADS)
        with T.Kernel(units if LASTING else items, threads=256 + PRODUCERS) as block:
            if FP8:
                T.import_source(tile_rows.WIDEN)
            # TileLang lays shared memory out by the names that buffers are assigned to: each has one of its own
            Q = T.alloc_shared((HEADS, 512), WORK)
            K = T.alloc_shared((STAGES, KEYS, 512), WORK)
            rows = T.alloc_shared((STAGES, KEYS), "int32")  # -1 where there is none
            kept = T.alloc_shared((3, HEADS), "float32")  # maximum, sum, frame
            # of each producer its stores, and with BF16 its cp.asyncs
            full = T.alloc_barrier([PRODUCERS * (1 if FP8 else 2)] * (STAGES * SIDES))
            empty = T.alloc_barrier([128] * (STAGES * SIDES))
            before = T.alloc_local([1], "int32")  # key blocks of the items before
            place = T.alloc_shared((3,), "int32")  # token, first head, split: kept here, since the accumulators want the registers
            frames = T.alloc_shared((2, HEADS), "float32")
            # the first index of these is the warpgroup; narrow forms keep the eight parts of a warp's lanes
            tops = T.alloc_shared((2, PARTS, HEADS), "float32")
            totals = T.alloc_shared((2, PARTS, HEADS), "float32")
            Q_tail = tails = P = weights = flags = ready = None
            if TAIL:
                Q_tail = T.alloc_shared((HEADS, 64), WORK)
            if TAIL or WIDE:
                tails = T.alloc_shared((2, KEYS, 64), WORK)
            if WIDE:
                ready = T.alloc_barrier([128, 128])
            else:
                P = T.alloc_shared((4, KEYS, HEADS), WORK)  # two for each warpgroup: a warp may still read the last one
                weights = T.alloc_shared((2, HEADS), "float32")
                flags = T.alloc_shared((2, 2), "int32")
            c = SimpleNamespace(
                whole=splits == 1,
                Q=Q,
                Q_tail=Q_tail,
                K=K,
                tails=tails,
                rows=rows,
                kept=kept,
                full=full,
                empty=empty,
                place=place,
                before=before,
                frames=frames,
                tops=tops,
                totals=totals,
                ready=ready,
                P=P,
                weights=weights,
                flags=flags,
            )
            tx = T.get_thread_binding()
            to_log2 = T.alloc_local([1], "float32")
            n_keys = T.alloc_local([1], "int32")
            g = SimpleNamespace(
                H=H,
                s_kv=s_kv,
                topk=topk,
                splits=splits,
                items=items,
                units=units,
                q=q,
                q_tail=q_tail,
                kv=kv,
                indices=indices,
                topk_length=topk_length,
                attn_sink=attn_sink,
                q_scale=q_scale,
                kv_scale=kv_scale,
                out=out,
                partial=partial,
                partial_statistics=partial_statistics,
                max_logits=max_logits,
                lse=lse,
                has_length=has_length,
                has_sink=has_sink,
                has_q_scale=has_q_scale,
                has_kv_scale=has_kv_scale,
                has_max_logits=has_max_logits,
                has_lse=has_lse,
                sm_scale=sm_scale,
            )
            if LASTING:
                at = T.alloc_local([5], "int32")
                locate(g, block, at, n_keys)
                with T.ws(*range(2, 2 + PRODUCERS // 128)):
                    T.set_max_nreg(FEW, 0)
                    produce_all(c, g, at, block, n_keys, tx - 256)
                with T.ws(0):
                    T.set_max_nreg(MANY, 1)
                    consume_all(c, g, 0, at, block, to_log2, n_keys, tx)
                with T.ws(1):
                    T.set_max_nreg(MANY, 1)
                    consume_all(c, g, 1, at, block, to_log2, n_keys, tx)
            else:
                tiles = T.ceildiv(H, HEADS)
                t = T.truncdiv(T.truncdiv(block, tiles), splits)
                split = T.truncmod(T.truncdiv(block, tiles), splits)
                h0 = T.truncmod(block, tiles) * HEADS
                start, stop = share(g, t, split, n_keys)
                blocks = T.ceildiv(stop - start, KEYS)
                with T.ws(*range(2, 2 + PRODUCERS // 128)):
                    T.set_max_nreg(FEW, 0)
                    produce(c, g, t, start, stop, tx - 256)
                with T.ws(0):
                    T.set_max_nreg(MANY, 1)
                    if tx == 0:
                        keep_place(c, t, h0, split)
                    consume_one(c, g, 0, t, h0, blocks, to_log2, tx)
                with T.ws(1):
                    T.set_max_nreg(MANY, 1)
                    consume_one(c, g, 1, t, h0, blocks, to_log2, tx)

    return sparse_mla


sparse_mla_sm90.pass_configs = shared.EXPLICIT | {"tl.disable_shared_memory_reuse": True}  # type: ignore[attr-defined]
