"""Sparse-MLA prefill in BF16, in TileLang, with SM90's wgmma. AMD's targets have a form of their own: include/tile.py.

One block serves one query token and one tile of heads; keys come in blocks of gathered rows. K and V are the same rows: V is
their first 512 columns. A row whose index is not valid is neither read nor scored: its copy is predicated off and filled with
zeros, its logit is -inf. Logits live in base 2 (scale times log2 e); ``max_logits`` and ``lse`` go back to natural logarithms.

64 heads, 64 keys, 384 threads (D = 576; D = 512 has no third column)::

    shared memory   Q 64 x (256 | 256 | 64)            72 KB
                    K 2 stages x 64 x (256 | 256 | 64) 144 KB    row numbers, statistics, barriers 1 KB
    warpgroup 0     QK  softmax  P.V[:, :256]       QK  softmax  P.V[:, :256]  ...   224 registers
    warpgroup 1            QK  softmax  P.V[:, 256:]       QK  softmax  P.V[:, 256:] 224 registers
    warpgroup 2     gathers block n + 1 by cp.async while block n is in use; block 0 also brings Q    56 registers

Both consumers score every key: that repeats QK (1.5 times the matrix work) and in exchange needs no hand-over of P or of the running
maximum between them, keeps P in registers, and lets them take turns (barriers ``turn``) so that the softmax of one hides under the
matrix work of the other.
"""

import tilelang.language as T
from tvm.tirx import PrimFunc

from aot.registry import sibling

shared = sibling(__file__, "../include/tile_shared")
EXPLICIT, FAR = shared.EXPLICIT, shared.FAR
_symbols, _keys_of, _softmax = shared._symbols, shared._keys_of, shared._softmax
_normalise, _statistics = shared._normalise, shared._statistics


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
