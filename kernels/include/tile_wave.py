"""Sparse MLA on AMD's matrix cores, in TileLang: prefill and decode, BF16 and raw FP8 rows of 512 or 576, any head count.

A wave of 64 lanes serves 16 heads of one token: it scores the keys of a block, keeps their softmax, and accumulates O over all 512
columns. Waves of a block share the gathered rows. Nothing but the rows crosses lanes: with the products turned round,

    S^T [keys, heads]  = K Q^T        lane (g, i) gets head i and keys 8 g .. 8 g + 7 of every 32
    O^T [512, heads]  += V^T P^T      and needs P for head i and any eight keys, V for column i and the same eight

so P goes from one product to the next in registers, and a lane has one maximum and one sum (i: its place in a group of 16, g: the
group). The keys of a lane are neighbours because the rows of a tile of S^T are chosen so: tile 2 a + b has row i = key 32 a +
8 (i // 4) + 4 b + i % 4. tests/test_tile_order.py models the orders.

    LDS         K [KEYS][D + padding], every gathered row once, key and value at once      rows [2][KEYS] indices, -1 where none
                parked: some of Q, where registers are short
    registers   of a lane: O 128, Q 36 or 72 (less what is parked), S, and in STAGED forms its part of the next block of rows

    STAGED      memory ──> registers: block n + 1 ─────┐ (in flight while block n is in use)
                LDS ──> K Q^T ──> softmax ──> V^T P^T ─┴──> barrier, registers to LDS, barrier
    else        memory ──> LDS: block n, barrier ──> K Q^T ──> softmax ──> V^T P^T ──> barrier; the unit's other blocks fill the wait

V^T is read from the rows by LDS reads that transpose (``VALUES`` = "transposed", gfx950), or eight rows of eight elements at a time,
which change places in registers ("permuted", where there is no such read). ``TERMS``: P in one term of the rows' type, its sum of rounded
weights the divisor, so that rows with a common mean come out exact; or (FP8) in two. P is carried at the largest e4m3 times its value.
"""

from pathlib import Path
from typing import Any

import tilelang.language as T
from tvm.tirx import BufferLoad, PrimFunc

from aot.registry import sibling

shared = sibling(__file__, "tile_shared")
HEADER = Path(__file__).parent / "hip/dsak_wave.h"
MODEL = '#include "dsak_wave_model.h"\n'
LARGEST = {"bfloat16": 1.0, "float8_e4m3fn": 448.0, "float8_e4m3fnuz": 240.0}
"""Element types of the rows, and the factor at which P is carried."""
XCDS = 8
"""Dies of a part; blocks are dealt to them in turn."""


def wave_header(model: bool) -> str:
    """The instructions that the kernel calls; ``model`` for the plain CUDA C++ that stands for them in tests."""
    text = HEADER.read_text()
    return text.replace(MODEL, HEADER.with_name("dsak_wave_model.h").read_text()) if model else text


def pitch(row_bytes: int) -> int:
    """Bytes from row to row in LDS: 4 banks of 64 times an odd number, so that no two of the 8 or 4 rows that lanes read together
    meet in a bank; three times where rows of 32 bytes are read and must not overlap."""
    return row_bytes + (48 if row_bytes == 1024 else 16)


def call(name: str, *places: Any) -> Any:
    """A call of ``dsak_<name>`` of the header with the addresses of the elements ``places``."""
    return T.call_extern("void", f"dsak_{name}", *(T.address_of(p) if isinstance(p, BufferLoad) else p for p in places))


def sparse_mla_tile(
    DTYPE: str, D: int, HEADS: int, KEYS: int, TERMS: int, VALUES: str, STAGED: bool, PARKED: int, SPLIT: bool, MODEL: bool = False
) -> PrimFunc:
    """``HEADS`` heads (a multiple of 16) and ``KEYS`` keys (of 32) at a time; rows of ``D`` = 512 or 576. ``SPLIT``: decode."""
    SIZE = 2 if DTYPE == "bfloat16" else 1
    E = 16 // SIZE  # elements in 16 bytes
    TAIL = D - 512
    THREADS = HEADS * 4
    STEPS = D // (4 * E)  # of a product over D: 64 bytes of a row, 16 a lane
    PITCH = pitch(D * SIZE) // SIZE
    CHUNKS, TAIL_CHUNKS = 512 // E, TAIL // E  # copies of 16 bytes in a row
    COPIES, TAIL_COPIES = KEYS * CHUNKS // THREADS, -(-KEYS * TAIL_CHUNKS // THREADS)  # of one thread
    P_SCALE = LARGEST[DTYPE]
    O_TYPE = "bfloat16" if SIZE == 2 else "float16"
    ONE_TERM = TERMS == 1
    TRANSPOSED = VALUES == "transposed"
    s = shared._symbols()

    @T.macro
    def fetch(staged, rows, b, kv, tx):  # type: ignore[no-untyped-def]
        """This thread's part of a block of rows. A row of index -1 is not read and becomes zeros."""
        key = T.alloc_local([COPIES], "int32")
        for u in T.unroll(COPIES // 4):
            for v in T.vectorized(4):
                key[u * 4 + v] = rows[b, tx // CHUNKS * COPIES + u * 4 + v]
        for u in T.unroll(COPIES):
            call("fetch", staged[u * E], kv[key[u], tx % CHUNKS * E], key[u] >= 0)
        if TAIL:
            for u in T.unroll(TAIL_COPIES):
                at = u * THREADS + tx
                if at < KEYS * TAIL_CHUNKS:
                    row = rows[b, at // TAIL_CHUNKS]
                    call("fetch", staged[(COPIES + u) * E], kv[row, 512 + at % TAIL_CHUNKS * E], row >= 0)

    @T.macro
    def store_rows(K, staged, tx):  # type: ignore[no-untyped-def]
        for u in T.unroll(COPIES):
            for v in T.vectorized(E):
                K[tx // CHUNKS * COPIES + u, tx % CHUNKS * E + v] = staged[u * E + v]
        if TAIL:
            for u in T.unroll(TAIL_COPIES):
                at = u * THREADS + tx
                if at < KEYS * TAIL_CHUNKS:
                    for v in T.vectorized(E):
                        K[at // TAIL_CHUNKS, 512 + at % TAIL_CHUNKS * E + v] = staged[(COPIES + u) * E + v]

    @T.macro
    def score(S, K, Q, at, step, i, g):  # type: ignore[no-untyped-def]
        """Two 64-byte steps of every S, from ``step`` on; this lane's part of the query is in Q from ``at`` on."""
        k_part = T.alloc_local([2 * E], DTYPE)
        for tile in T.unroll(KEYS // 16):
            row = tile // 2 * 32 + i // 4 * 8 + tile % 2 * 4 + i % 4
            for part in T.unroll(2):
                for v in T.vectorized(E):
                    k_part[part * E + v] = K[row, ((step + part) * 4 + g) * E + v]
            if SIZE == 1:
                call("mma_deep", S[tile * 4], k_part[0], Q[at])
            else:
                call("mma", S[tile * 4], k_part[0], Q[at])
                call("mma", S[tile * 4], k_part[E], Q[at + E])

    @T.macro
    def scores(S, K, Q, parked, i, g, tx):  # type: ignore[no-untyped-def]
        """S[8 a + k] = <row 32 a + 8 g + k, this lane's query>."""
        q_part = T.alloc_local([2 * E], DTYPE)
        last = T.alloc_local([E], DTYPE)
        for x in T.unroll(KEYS // 4):
            S[x] = 0.0
        for step in T.unroll(PARKED // 2):
            for part in T.unroll(2):
                for v in T.vectorized(E):
                    q_part[part * E + v] = parked[2 * step + part, tx, v]
            score(S, K, q_part, 0, 2 * step, i, g)
        for step in T.unroll((STEPS - PARKED) // 2):
            score(S, K, Q, 2 * step * E, PARKED + 2 * step, i, g)
        if STEPS % 2:  # 576 bytes are nine times 64
            for tile in T.unroll(KEYS // 16):
                for v in T.vectorized(E):
                    last[v] = K[tile // 2 * 32 + i // 4 * 8 + tile % 2 * 4 + i % 4, ((STEPS - 1) * 4 + g) * E + v]
                for part in T.unroll(2):
                    call("mma", S[tile * 4], last[part * 8], Q[(STEPS - PARKED - 1) * E + part * 8])

    @T.macro
    def softmax(S, rows, b, acc, weights, m, total, to_log2, g):  # type: ignore[no-untyped-def]
        """One step of the online softmax. S becomes P, from 0 to ``P_SCALE``; what was summed moves to the new maximum."""
        top = T.alloc_local([1], "float32")
        shrink = T.alloc_local([1], "float32")
        top[0] = m[0]
        for x in T.unroll(KEYS // 4):
            S[x] = T.if_then_else(rows[b, x // 8 * 32 + g * 8 + x % 8] >= 0, S[x] * to_log2, -T.infinity("float32"))
        for x in T.unroll(KEYS // 4):
            top[0] = T.max(top[0], S[x])
        top[0] = T.max(top[0], T.call_extern("float32", "dsak_across", top[0], 16))
        top[0] = T.max(top[0], T.call_extern("float32", "dsak_across", top[0], 32))
        shrink[0] = T.exp2(m[0] - top[0])
        m[0] = top[0]
        total[0] = total[0] * shrink[0]
        for x in T.unroll(KEYS // 4):
            S[x] = T.exp2(S[x] - top[0])
            total[0] = total[0] + S[x]
            S[x] = S[x] * P_SCALE
        for x in T.unroll(128):
            acc[x] = acc[x] * shrink[0]
        weights[0] = weights[0] * shrink[0]

    @T.macro
    def values(K, P, P_rest, acc, i, g):  # type: ignore[no-untyped-def]
        """acc += V^T P^T: [4 n .. 4 n + 3] are columns 16 n + 4 g + 0..3 ("transposed") or, for n = 8 a + c, columns
        8 (16 a + 4 g + 0..3) + c ("permuted")."""
        part = T.alloc_local([8 if TRANSPOSED else 64], DTYPE)
        rest = T.alloc_local([8 if TRANSPOSED else 64], DTYPE)
        if TRANSPOSED:
            WIDE = 8 // SIZE  # elements in 8 bytes
            row = g * 8 + i // (16 // WIDE)
            col = i % (16 // WIDE) * WIDE
            for n in T.unroll(32):
                for a in T.unroll(KEYS // 32):
                    call("transposed", part[0], K[a * 32 + row, n * 16 + col], K[a * 32 + row + 4 * (SIZE - 1), n * 16 + col])
                    call("mma", acc[n * 4], part[0], P[a * 8])
                    if TERMS == 2:
                        call("mma", acc[n * 4], part[0], P_rest[a * 8])
        else:
            for n in T.unroll(4):
                for a in T.unroll(KEYS // 32):
                    for k in T.unroll(8):
                        for v in T.vectorized(8):
                            rest[k * 8 + v] = K[a * 32 + g * 8 + k, (n * 16 + i) * 8 + v]
                    call("columns", part[0], rest[0])
                    for c in T.unroll(8):
                        call("mma", acc[(n * 8 + c) * 4], part[c * 8], P[a * 8])
                        if TERMS == 2:
                            call("mma", acc[(n * 8 + c) * 4], part[c * 8], P_rest[a * 8])

    @T.macro
    def store_values(out, t, h, acc, factor, g):  # type: ignore[no-untyped-def]
        """Row (t, h) of ``out`` becomes acc times ``factor``, in the order that ``values`` left."""
        if TRANSPOSED:
            for n in T.unroll(32):
                for v in T.vectorized(4):
                    out[t, h, n * 16 + g * 4 + v] = acc[n * 4 + v] * factor
        else:
            for n in T.unroll(4):
                for r in T.unroll(4):
                    for v in T.vectorized(8):
                        out[t, h, (n * 16 + g * 4 + r) * 8 + v] = acc[(n * 8 + v) * 4 + r] * factor

    @T.prim_func
    def sparse_mla_tile(
        q: T.StridedTensor((s.T, s.H, 512), (s.q_s0 * E, s.q_s1 * E, 1), DTYPE),
        q_tail: T.StridedTensor((s.T, s.H, 64), (s.q_tail_s0 * E, s.q_tail_s1 * E, 1), DTYPE),
        kv: T.StridedTensor((s.s_kv, D), (s.kv_s0 * E, 1), DTYPE),
        indices: T.StridedTensor((s.T, s.topk), (s.indices_s0, 1), "int32"),
        topk_length: T.Tensor((s.T,), "int32"),
        attn_sink: T.Tensor((s.H,), "float32"),
        q_scale: T.Tensor((1,), "float32"),
        kv_scale: T.Tensor((1,), "float32"),
        out: T.StridedTensor((s.T, s.H, 512), (s.out_s0 * 8, s.out_s1 * 8, 1), "bfloat16"),
        max_logits: T.Tensor((s.T, s.H), "float32"),
        lse: T.Tensor((s.T, s.H), "float32"),
        partial: T.Tensor((s.T, 1, 512), O_TYPE),
        partial_statistics: T.Tensor((s.T, 2), "float32"),
        has_length: T.int32,
        has_sink: T.int32,
        has_q_scale: T.int32,
        has_kv_scale: T.int32,
        has_max_logits: T.int32,
        has_lse: T.int32,
        sm_scale: T.float32,
        splits: T.int32,
        q_s0: s.q_s0,
        q_s1: s.q_s1,
        q_tail_s0: s.q_tail_s0,
        q_tail_s1: s.q_tail_s1,
        kv_s0: s.kv_s0,
        out_s0: s.out_s0,
        out_s1: s.out_s1,
    ):
        H, s_kv, topk = s.H, s.s_kv, s.topk
        parts = splits if SPLIT else 1
        programs = s.T * T.ceildiv(H, HEADS) * parts
        with T.Kernel(programs, threads=THREADS, prelude=wave_header(MODEL)) as program:
            K = T.alloc_shared((KEYS, PITCH), DTYPE)
            rows = T.alloc_shared((2, KEYS), "int32")
            Q = T.alloc_local([(STEPS - PARKED) * E], DTYPE)
            parked = T.alloc_shared((max(PARKED, 1), THREADS if PARKED else 1, E), DTYPE)
            staged = T.alloc_local([(COPIES + TAIL_COPIES) * E], DTYPE)
            S = T.alloc_local([KEYS // 4], "float32")
            P = T.alloc_local([KEYS // 4], DTYPE)
            P_rest = T.alloc_local([KEYS // 4], DTYPE)
            acc = T.alloc_local([128], "float32")
            weights = T.alloc_local([1], "float32")  # the sum of the rounded P
            m = T.alloc_local([1], "float32")
            total = T.alloc_local([1], "float32")
            to_log2 = T.alloc_local([1], "float32")
            kv_factor = T.alloc_local([1], "float32")
            factor = T.alloc_local([1], "float32")
            index = T.alloc_local([1], "int32")
            n_keys = T.alloc_local([1], "int32")
            t_of = T.alloc_local([1], "int32")
            split_of = T.alloc_local([1], "int32")
            head_of = T.alloc_local([1], "int32")

            tx = T.get_thread_binding()
            i = tx % 16
            g = tx // 16 % 4
            # neighbours in the work list share a token, so that its rows come from memory once; each die gets one stretch of the list
            die = program % XCDS
            work = die * (programs // XCDS) + T.min(die, programs % XCDS) + program // XCDS
            tiles = T.ceildiv(H, HEADS)
            # kept in 32 bits: as expressions they would be divided anew, in 64 bits, for every address
            t_of[0] = T.truncdiv(work, tiles * parts)
            split_of[0] = T.truncmod(T.truncdiv(work, tiles), parts)
            head_of[0] = T.truncmod(work, tiles) * HEADS + tx // 64 * 16 + i
            t, split, head = t_of[0], split_of[0], head_of[0]
            h = T.min(head, H - 1)

            shared._keys_of(t, topk, topk_length, has_length, n_keys)
            width = T.truncdiv(T.truncdiv(n_keys[0] + KEYS - 1, KEYS) + parts - 1, parts) * KEYS
            start = T.min(split * width, n_keys[0])
            stop = T.min(start + width, n_keys[0])
            blocks = T.truncdiv(stop - start + KEYS - 1, KEYS)

            to_log2[0] = sm_scale * shared.LOG2E
            kv_factor[0] = 1.0
            if has_q_scale != 0:
                to_log2[0] = to_log2[0] * q_scale[0]
            if has_kv_scale != 0:
                kv_factor[0] = kv_scale[0]
                to_log2[0] = to_log2[0] * kv_scale[0]
            for step in T.unroll(PARKED):
                for v in T.vectorized(E):
                    parked[step, tx, v] = q[t, h, (step * 4 + g) * E + v]
            for step in T.unroll(512 // (4 * E) - PARKED):
                for v in T.vectorized(E):
                    Q[step * E + v] = q[t, h, ((PARKED + step) * 4 + g) * E + v]
            if TAIL:
                for step in T.unroll(TAIL // (4 * E)):
                    for v in T.vectorized(E):
                        Q[(512 // (4 * E) - PARKED + step) * E + v] = q_tail[t, h, (step * 4 + g) * E + v]
            for x in T.unroll(128):
                acc[x] = 0.0
            weights[0] = 0.0
            m[0] = shared.FAR
            total[0] = 0.0

            # indices of block n + 1 are on their way while block n is in use, and in STAGED forms its rows too
            index[0] = -1
            if T.And(tx < KEYS, start + tx < stop):
                index[0] = indices[t, start + tx]
            if STAGED:
                if tx < KEYS:
                    rows[0, tx] = T.if_then_else(T.And(index[0] >= 0, index[0] < s_kv), index[0], -1)
                index[0] = -1
                if T.And(tx < KEYS, start + KEYS + tx < stop):
                    index[0] = indices[t, start + KEYS + tx]
                T.sync_threads()
                fetch(staged, rows, 0, kv, tx)
            for n in T.serial(blocks):
                b = n % 2 if STAGED else 0
                ahead = 2 if STAGED else 1
                T.sync_threads()  # every wave is done with the block before
                if STAGED:
                    store_rows(K, staged, tx)
                if tx < KEYS:
                    rows[1 - b if STAGED else 0, tx] = T.if_then_else(T.And(index[0] >= 0, index[0] < s_kv), index[0], -1)
                index[0] = -1
                if T.And(tx < KEYS, start + (n + ahead) * KEYS + tx < stop):
                    index[0] = indices[t, start + (n + ahead) * KEYS + tx]
                T.sync_threads()
                if STAGED:
                    fetch(staged, rows, 1 - b, kv, tx)
                else:
                    fetch(staged, rows, 0, kv, tx)
                    store_rows(K, staged, tx)
                    T.sync_threads()
                scores(S, K, Q, parked, i, g, tx)
                softmax(S, rows, b, acc, weights, m, total, to_log2[0], g)
                for a in T.unroll(KEYS // 32):
                    call("round", P[a * 8], S[a * 8])
                    if ONE_TERM:
                        weights[0] = weights[0] + T.call_extern("float32", "dsak_sum", T.address_of(P[a * 8]))
                    else:
                        call("rest", S[a * 8], P[a * 8])
                        call("round", P_rest[a * 8], S[a * 8])
                values(K, P, P_rest, acc, i, g)

            total[0] = total[0] + T.call_extern("float32", "dsak_across", total[0], 16)
            total[0] = total[0] + T.call_extern("float32", "dsak_across", total[0], 32)
            if ONE_TERM:
                weights[0] = weights[0] + T.call_extern("float32", "dsak_across", weights[0], 16)
                weights[0] = weights[0] + T.call_extern("float32", "dsak_across", weights[0], 32)
                factor[0] = T.if_then_else(total[0] > 0, 1.0 / weights[0], 0.0)  # a weighted mean, whatever P was rounded to
            else:
                factor[0] = T.if_then_else(total[0] > 0, (1.0 / P_SCALE) / total[0], 0.0)
            if head < H:
                if parts == 1:
                    if has_sink != 0:
                        factor[0] = factor[0] * T.if_then_else(
                            total[0] > 0, total[0] / (total[0] + T.exp2(attn_sink[h] * shared.LOG2E - m[0])), 0.0
                        )
                    factor[0] = factor[0] * kv_factor[0]
                    store_values(out, t, h, acc, factor[0], g)
                    if g == 0:
                        if has_max_logits != 0:
                            max_logits[t, h] = T.if_then_else(total[0] > 0, m[0] * shared.LN2, -T.infinity("float32"))
                        if has_lse != 0:
                            lse[t, h] = T.if_then_else(total[0] > 0, (T.log2(total[0]) + m[0]) * shared.LN2, T.infinity("float32"))
                if SPLIT:  # noqa: SIM102 (one is for the factory, the other for the kernel)
                    if parts > 1:
                        at = T.cast(t * parts + split, "int64") * H + h
                        if total[0] > 0:
                            store_values(partial, at, 0, acc, factor[0], g)
                        if g == 0:
                            none = -T.infinity("float32")
                            partial_statistics[at, 0] = T.if_then_else(total[0] > 0, m[0], none)
                            partial_statistics[at, 1] = T.if_then_else(total[0] > 0, T.log2(total[0]) + m[0], none)

    return sparse_mla_tile


sparse_mla_tile.pass_configs = shared.EXPLICIT  # type: ignore[attr-defined]
