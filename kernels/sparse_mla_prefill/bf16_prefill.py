"""Sparse-MLA prefill in BF16, in TileLang: a wgmma form for SM90 and, in tiles of 16 to 64 heads, a general form for MFMA.

One block serves one query token and one tile of heads; keys come in blocks of gathered rows. K and V are the same rows: V is
their first 512 columns. A row whose index is not valid is neither read nor scored: its copy is predicated off and filled with
zeros, its logit is -inf. Logits live in base 2 (scale times log2 e); ``max_logits`` and ``lse`` go back to natural logarithms.

wgmma form, 64 heads, 64 keys, 384 threads (D = 576; D = 512 has no third column)::

    shared memory   Q 64 x (256 | 256 | 64)            72 KB
                    K 2 stages x 64 x (256 | 256 | 64) 144 KB    row numbers, statistics, barriers 1 KB
    warpgroup 0     QK  softmax  P.V[:, :256]       QK  softmax  P.V[:, :256]  ...   224 registers
    warpgroup 1            QK  softmax  P.V[:, 256:]       QK  softmax  P.V[:, 256:] 224 registers
    warpgroup 2     gathers block n + 1 by cp.async while block n is in use; block 0 also brings Q    56 registers

Both consumers score every key: that repeats QK (1.5 times the matrix work) and in exchange needs no hand-over of P or of the running
maximum between them, keeps P in registers, and lets them take turns (barriers ``turn``) so that the softmax of one hides under the
matrix work of the other.

tile form, one wave to every 16 heads: the whole block gathers, scores and accumulates together, with a barrier between the steps;
no reduction crosses waves, and blocks that share a compute unit overlap. Shared memory at D = 576: 37 KB with 16 heads and 16
keys (four blocks on a gfx950 unit), 117 KB with 64 heads and 32 keys (one).
"""

from types import SimpleNamespace

import tilelang.language as T
from tvm.tirx import PrimFunc

LOG2E = 1.4426950408889634
LN2 = 0.6931471805599453
FAR = -1e30
"""Start of the running maximum: finite, so that a block without a valid key gives exp2(-inf - FAR) = 0 and not NaN."""

EXPLICIT = {
    "tl.disable_thread_storage_sync": True,
    "tl.disable_warp_specialized": True,
    "tl.disable_safe_memory_legalize": True,
}
"""Barriers, roles and bounds are all written out below; automatic barriers between the warpgroups would stop the producer for good."""


def _symbols() -> SimpleNamespace:
    """Run-time sizes, and strides: in units of 8 elements where rows are 16-byte aligned, so that 16-byte accesses are provable."""
    sizes = {name: T.dynamic(name, "int32") for name in ("T", "H", "s_kv", "topk")}
    strides = ("q_s0", "q_s1", "q_tail_s0", "q_tail_s1", "kv_s0", "indices_s0", "out_s0", "out_s1")
    return SimpleNamespace(**sizes, **{name: T.dynamic(name, "int64") for name in strides})


@T.macro
def _keys_of(t, topk, topk_length, has_length, n_keys):  # type: ignore[no-untyped-def]
    """Columns of row ``t`` that may hold keys."""
    n_keys[0] = topk
    if has_length != 0:
        n_keys[0] = T.max(T.min(topk, topk_length[t]), 0)


@T.macro
def _softmax(S, P, acc, rows, m, m_old, shrink, total, part, b, sm_scale, HEADS, KEYS, COLS):  # type: ignore[no-untyped-def]
    """One step of the online softmax: S becomes P, acc and ``total`` move to the new maximum."""
    T.copy(m, m_old)
    for i, j in T.Parallel(HEADS, KEYS):
        S[i, j] = T.if_then_else(rows[b, j] >= 0, S[i, j] * (sm_scale * LOG2E), -T.infinity("float32"))
    T.reduce_max(S, m, dim=1, clear=False)
    for i in T.Parallel(HEADS):
        shrink[i] = T.exp2(m_old[i] - m[i])
    for i, j in T.Parallel(HEADS, KEYS):
        S[i, j] = T.exp2(S[i, j] - m[i])
    T.reduce_sum(S, part, dim=1)
    for i in T.Parallel(HEADS):
        total[i] = total[i] * shrink[i] + part[i]
    T.copy(S, P)
    for i, j in T.Parallel(HEADS, COLS):
        acc[i, j] *= shrink[i]


@T.macro
def _normalise(acc, m, total, inverse, attn_sink, has_sink, H, h0, HEADS, COLS):  # type: ignore[no-untyped-def]
    """Divide acc by its denominator; a row without a valid key, or with an infinite sink, becomes 0."""
    T.copy(total, inverse)
    if has_sink != 0:
        for i in T.Parallel(HEADS):
            inverse[i] += T.exp2(attn_sink[T.min(h0 + i, H - 1)] * LOG2E - m[i])
    for i in T.Parallel(HEADS):
        inverse[i] = T.if_then_else(total[i] > 0, 1.0 / inverse[i], 0.0)
    for i, j in T.Parallel(HEADS, COLS):
        acc[i, j] *= inverse[i]


@T.macro
def _statistics(kept, max_logits, lse, has_max_logits, has_lse, H, t, h0, i, HEADS):  # type: ignore[no-untyped-def]
    """Thread ``i`` writes the statistics of head ``i`` from shared memory, where the maximum and the sum were kept."""
    if T.And(i < HEADS, h0 + i < H):
        if has_max_logits != 0:
            max_logits[t, h0 + i] = T.if_then_else(kept[1, i] > 0, kept[0, i] * LN2, -T.infinity("float32"))
        if has_lse != 0:
            lse[t, h0 + i] = T.if_then_else(kept[1, i] > 0, (T.log2(kept[1, i]) + kept[0, i]) * LN2, T.infinity("float32"))


def sparse_mla_wgmma(D: int) -> PrimFunc:
    """The SM90 form. ``D`` is the row width, 512 or 576."""
    HEADS, KEYS, HALF, TAIL = 64, 64, 256, D - 512
    s = _symbols()
    BF16 = "bfloat16"

    @T.macro
    def consume(half, Q, K, rows, full, empty, turn, acc, m, total, blocks, sm_scale, tx):  # type: ignore[no-untyped-def]
        """Score every block and accumulate columns ``256 * half ...`` of the output."""
        S = T.alloc_fragment((HEADS, KEYS), "float32")
        P = T.alloc_fragment((HEADS, KEYS), BF16)
        m_old = T.alloc_fragment((HEADS,), "float32")
        shrink = T.alloc_fragment((HEADS,), "float32")
        part = T.alloc_fragment((HEADS,), "float32")
        T.fill(acc, 0)
        T.fill(m, FAR)
        T.fill(total, 0)
        for n in T.serial(blocks):
            b = n % 2
            T.barrier_wait(full[b], n // 2 % 2)
            T.fence_proxy_async()  # cp.async wrote through the generic proxy, wgmma reads through the other
            T.barrier_wait(turn[half], (n % 2) ^ (1 - half))
            T.wgmma_gemm(Q[0], K[0][b, :, :], S, transpose_B=True, clear_accum=True)
            T.wgmma_gemm(Q[1], K[1][b, :, :], S, transpose_B=True)
            if TAIL:
                T.wgmma_gemm(Q[2], K[2][b, :, :], S, transpose_B=True)
                T.wait_wgmma(1)  # the other's turn begins under the last few instructions
                T.barrier_arrive(turn[1 - half])
                T.wait_wgmma(0)
            else:
                T.wait_wgmma(0)
                T.barrier_arrive(turn[1 - half])
            T.warpgroup_fence_operand(S, num_regs=32)
            _softmax(S, P, acc, rows, m, m_old, shrink, total, part, b, sm_scale, HEADS, KEYS, HALF)
            T.wgmma_gemm(P, K[half][b, :, :], acc)
            T.wait_wgmma(0)
            T.warpgroup_fence_operand(acc, num_regs=128)
            T.barrier_arrive(empty[b])

    @T.macro
    def store(half, stage, acc, out, H, t, h0, tid):  # type: ignore[no-untyped-def]
        """Through shared memory, so that every thread stores 16 bytes; K is free once both consumers are here."""
        T.sync_threads(1, 256)
        T.copy(acc, stage[0, :, :])
        T.sync_threads(2 + half, 128)
        for r in T.serial(HEADS // 4):
            row = r * 4 + tid // 32
            if h0 + row < H:
                for v in T.vectorized(8):
                    out[t, h0 + row, half * HALF + tid % 32 * 8 + v] = stage[0, row, tid % 32 * 8 + v]

    @T.prim_func
    def sparse_mla_bf16(
        q: T.StridedTensor((s.T, s.H, 512), (s.q_s0 * 8, s.q_s1 * 8, 1), BF16),
        q_tail: T.StridedTensor((s.T, s.H, 64), (s.q_tail_s0 * 8, s.q_tail_s1 * 8, 1), BF16),
        kv: T.StridedTensor((s.s_kv, D), (s.kv_s0 * 8, 1), BF16),
        indices: T.StridedTensor((s.T, s.topk), (s.indices_s0, 1), "int32"),
        topk_length: T.Tensor((s.T,), "int32"),
        attn_sink: T.Tensor((s.H,), "float32"),
        out: T.StridedTensor((s.T, s.H, 512), (s.out_s0 * 8, s.out_s1 * 8, 1), BF16),
        max_logits: T.Tensor((s.T, s.H), "float32"),
        lse: T.Tensor((s.T, s.H), "float32"),
        has_length: T.int32,
        has_sink: T.int32,
        has_max_logits: T.int32,
        has_lse: T.int32,
        sm_scale: T.float32,
        q_s0: s.q_s0,
        q_s1: s.q_s1,
        q_tail_s0: s.q_tail_s0,
        q_tail_s1: s.q_tail_s1,
        kv_s0: s.kv_s0,
        out_s0: s.out_s0,
        out_s1: s.out_s1,
    ):
        H, s_kv, topk = s.H, s.s_kv, s.topk
        with T.Kernel(s.T * T.ceildiv(H, HEADS), threads=384) as block:
            Q0 = T.alloc_shared((HEADS, HALF), BF16)
            Q1 = T.alloc_shared((HEADS, HALF), BF16)
            K0 = T.alloc_shared((2, KEYS, HALF), BF16)
            K1 = T.alloc_shared((2, KEYS, HALF), BF16)
            if TAIL:
                Q2 = T.alloc_shared((HEADS, TAIL), BF16)
                K2 = T.alloc_shared((2, KEYS, TAIL), BF16)
                Q, K = (Q0, Q1, Q2), (K0, K1, K2)
            else:
                Q, K = (Q0, Q1), (K0, K1)
            rows = T.alloc_shared((2, KEYS), "int32")  # -1 where there is none
            kept = T.alloc_shared((2, HEADS), "float32")
            full = T.alloc_barrier([256, 256])  # 128 producers, each once for its cp.asyncs and once for its plain stores
            empty = T.alloc_barrier([256, 256])
            turn = T.alloc_barrier([128, 128])

            tx = T.get_thread_binding()
            tiles = T.ceildiv(H, HEADS)
            t = T.truncdiv(block, tiles)
            h0 = T.truncmod(block, tiles) * HEADS
            n_keys = T.alloc_local([1], "int32")
            _keys_of(t, topk, topk_length, has_length, n_keys)
            blocks = T.ceildiv(n_keys[0], KEYS)

            with T.ws(2):
                T.set_max_nreg(56, 0)
                row0 = (tx - 256) // 8  # 8 threads copy one row, 16 bytes each at a time
                col0 = tx % 8 * 8
                index = T.alloc_local([4], "int32")
                if blocks > 0:
                    for r in T.unroll(4):
                        row = row0 + r * 16
                        here = h0 + row < H
                        h = T.min(h0 + row, H - 1)
                        for u in T.unroll(HALF // 64):
                            c = u * 64 + col0
                            T.ptx_cp_async(T.access_ptr(Q0[row, c], "w", 8), T.access_ptr(q[t, h, c], "r", 8), 8, here)
                            T.ptx_cp_async(T.access_ptr(Q1[row, c], "w", 8), T.access_ptr(q[t, h, HALF + c], "r", 8), 8, here)
                        if TAIL:
                            T.ptx_cp_async(T.access_ptr(Q2[row, col0], "w", 8), T.access_ptr(q_tail[t, h, col0], "r", 8), 8, here)
                for r in T.unroll(4):
                    index[r] = -1
                    if row0 + r * 16 < n_keys[0]:
                        index[r] = indices[t, row0 + r * 16]
                for n in T.serial(blocks):
                    b = n % 2
                    T.barrier_wait(empty[b], (n // 2 % 2) ^ 1)
                    for r in T.unroll(4):
                        row = row0 + r * 16
                        valid = T.And(index[r] >= 0, index[r] < s_kv)
                        key = T.if_then_else(valid, index[r], 0)
                        if tx % 8 == 0:
                            rows[b, row] = T.if_then_else(valid, key, -1)
                        for u in T.unroll(HALF // 64):
                            c = u * 64 + col0
                            T.ptx_cp_async(T.access_ptr(K0[b, row, c], "w", 8), T.access_ptr(kv[key, c], "r", 8), 8, valid)
                            T.ptx_cp_async(T.access_ptr(K1[b, row, c], "w", 8), T.access_ptr(kv[key, HALF + c], "r", 8), 8, valid)
                        if TAIL:
                            T.ptx_cp_async(T.access_ptr(K2[b, row, col0], "w", 8), T.access_ptr(kv[key, 512 + col0], "r", 8), 8, valid)
                    T.cp_async_barrier_noinc(full[b])
                    T.barrier_arrive(full[b])
                    for r in T.unroll(4):
                        index[r] = -1
                        if (n + 1) * KEYS + row0 + r * 16 < n_keys[0]:
                            index[r] = indices[t, (n + 1) * KEYS + row0 + r * 16]

            with T.ws(0):
                T.set_max_nreg(224, 1)
                acc_left = T.alloc_fragment((HEADS, HALF), "float32")
                m_left = T.alloc_fragment((HEADS,), "float32")
                total_left = T.alloc_fragment((HEADS,), "float32")
                inverse_left = T.alloc_fragment((HEADS,), "float32")
                consume(0, Q, K, rows, full, empty, turn, acc_left, m_left, total_left, blocks, sm_scale, tx)
                T.copy(m_left, kept[0, :])
                T.copy(total_left, kept[1, :])
                T.sync_threads(2, 128)
                _statistics(kept, max_logits, lse, has_max_logits, has_lse, H, t, h0, tx, HEADS)
                _normalise(acc_left, m_left, total_left, inverse_left, attn_sink, has_sink, H, h0, HEADS, HALF)
                store(0, K0, acc_left, out, H, t, h0, tx)

            with T.ws(1):
                T.set_max_nreg(224, 1)
                acc_right = T.alloc_fragment((HEADS, HALF), "float32")
                m_right = T.alloc_fragment((HEADS,), "float32")
                total_right = T.alloc_fragment((HEADS,), "float32")
                inverse_right = T.alloc_fragment((HEADS,), "float32")
                consume(1, Q, K, rows, full, empty, turn, acc_right, m_right, total_right, blocks, sm_scale, tx)
                _normalise(acc_right, m_right, total_right, inverse_right, attn_sink, has_sink, H, h0, HEADS, HALF)
                store(1, K1, acc_right, out, H, t, h0, tx - 128)

    return sparse_mla_bf16


sparse_mla_wgmma.pass_configs = EXPLICIT | {"tl.disable_shared_memory_reuse": True}  # type: ignore[attr-defined]


def sparse_mla_tile(D: int, HEADS: int, KEYS: int) -> PrimFunc:
    """The general form: ``HEADS`` heads and ``KEYS`` keys at a time (multiples of 16), rows of ``D`` = 512 or 576."""
    TAIL = D - 512
    threads = HEADS * 4
    policy = T.GemmWarpPolicy.FullRow
    s = _symbols()
    BF16 = "bfloat16"

    @T.prim_func
    def sparse_mla_bf16(
        q: T.StridedTensor((s.T, s.H, 512), (s.q_s0 * 8, s.q_s1 * 8, 1), BF16),
        q_tail: T.StridedTensor((s.T, s.H, 64), (s.q_tail_s0 * 8, s.q_tail_s1 * 8, 1), BF16),
        kv: T.StridedTensor((s.s_kv, D), (s.kv_s0 * 8, 1), BF16),
        indices: T.StridedTensor((s.T, s.topk), (s.indices_s0, 1), "int32"),
        topk_length: T.Tensor((s.T,), "int32"),
        attn_sink: T.Tensor((s.H,), "float32"),
        out: T.StridedTensor((s.T, s.H, 512), (s.out_s0 * 8, s.out_s1 * 8, 1), BF16),
        max_logits: T.Tensor((s.T, s.H), "float32"),
        lse: T.Tensor((s.T, s.H), "float32"),
        has_length: T.int32,
        has_sink: T.int32,
        has_max_logits: T.int32,
        has_lse: T.int32,
        sm_scale: T.float32,
        q_s0: s.q_s0,
        q_s1: s.q_s1,
        q_tail_s0: s.q_tail_s0,
        q_tail_s1: s.q_tail_s1,
        kv_s0: s.kv_s0,
        out_s0: s.out_s0,
        out_s1: s.out_s1,
    ):
        H, s_kv, topk = s.H, s.s_kv, s.topk
        with T.Kernel(s.T * T.ceildiv(H, HEADS), threads=threads) as block:
            Q = T.alloc_shared((HEADS, 512), BF16)
            K = T.alloc_shared((KEYS, 512), BF16)
            if TAIL:
                Q_tail = T.alloc_shared((HEADS, TAIL), BF16)
                K_tail = T.alloc_shared((KEYS, TAIL), BF16)
            P_all = T.alloc_shared((HEADS, KEYS), BF16)
            rows = T.alloc_shared((1, KEYS), "int32")
            kept = T.alloc_shared((2, HEADS), "float32")
            S = T.alloc_fragment((HEADS, KEYS), "float32")
            P = T.alloc_fragment((HEADS, KEYS), BF16)
            acc = T.alloc_fragment((HEADS, 512), "float32")
            m = T.alloc_fragment((HEADS,), "float32")
            m_old = T.alloc_fragment((HEADS,), "float32")
            shrink = T.alloc_fragment((HEADS,), "float32")
            total = T.alloc_fragment((HEADS,), "float32")
            part = T.alloc_fragment((HEADS,), "float32")
            inverse = T.alloc_fragment((HEADS,), "float32")

            tx = T.get_thread_binding()
            tiles = T.ceildiv(H, HEADS)
            t = T.truncdiv(block, tiles)
            h0 = T.truncmod(block, tiles) * HEADS
            n_keys = T.alloc_local([1], "int32")
            _keys_of(t, topk, topk_length, has_length, n_keys)

            for i, j in T.Parallel(HEADS, 512):
                Q[i, j] = T.if_then_else(h0 + i < H, q[t, h0 + i, j], 0)
            if TAIL:
                for i, j in T.Parallel(HEADS, TAIL):
                    Q_tail[i, j] = T.if_then_else(h0 + i < H, q_tail[t, h0 + i, j], 0)
            T.fill(acc, 0)
            T.fill(m, FAR)
            T.fill(total, 0)
            for n in T.serial(T.ceildiv(n_keys[0], KEYS)):
                T.sync_threads()
                if tx < KEYS:
                    index = T.alloc_local([1], "int32")
                    index[0] = -1
                    if n * KEYS + tx < n_keys[0]:
                        index[0] = indices[t, n * KEYS + tx]
                    rows[0, tx] = T.if_then_else(T.And(index[0] >= 0, index[0] < s_kv), index[0], -1)
                T.sync_threads()
                for i, j in T.Parallel(KEYS, 512):
                    K[i, j] = T.if_then_else(rows[0, i] >= 0, kv[T.max(rows[0, i], 0), j], 0)
                if TAIL:
                    for i, j in T.Parallel(KEYS, TAIL):
                        K_tail[i, j] = T.if_then_else(rows[0, i] >= 0, kv[T.max(rows[0, i], 0), 512 + j], 0)
                T.sync_threads()
                T.gemm(Q, K, S, transpose_B=True, policy=policy, clear_accum=True)
                if TAIL:
                    T.gemm(Q_tail, K_tail, S, transpose_B=True, policy=policy)
                _softmax(S, P, acc, rows, m, m_old, shrink, total, part, 0, sm_scale, HEADS, KEYS, 512)
                T.copy(P, P_all)
                T.sync_threads()
                T.gemm(P_all, K, acc, policy=policy)

            T.sync_threads()  # without keys nothing has ordered the loading of Q before the reuse of its memory
            T.copy(m, kept[0, :])
            T.copy(total, kept[1, :])
            T.sync_threads()
            _statistics(kept, max_logits, lse, has_max_logits, has_lse, H, t, h0, tx, HEADS)
            _normalise(acc, m, total, inverse, attn_sink, has_sink, H, h0, HEADS, 512)
            T.copy(acc, Q)
            T.sync_threads()
            for r in T.serial(HEADS * 64 // threads):
                row = r * (threads // 64) + tx // 64
                if h0 + row < H:
                    for v in T.vectorized(8):
                        out[t, h0 + row, tx % 64 * 8 + v] = Q[row, tx % 64 * 8 + v]

    return sparse_mla_bf16


sparse_mla_tile.pass_configs = EXPLICIT  # type: ignore[attr-defined]
