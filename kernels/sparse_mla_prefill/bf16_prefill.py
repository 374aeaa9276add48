"""Sparse-MLA prefill in BF16, in TileLang: a general form for MFMA, in tiles of 16 to 64 heads. SM90 has include/tile_sm90.py.

One block serves one query token and one tile of heads; keys come in blocks of gathered rows. K and V are the same rows: V is
their first 512 columns. A row whose index is not valid is neither read nor scored: its copy is predicated off and filled with
zeros, its logit is -inf. Logits live in base 2 (scale times log2 e); ``max_logits`` and ``lse`` go back to natural logarithms.

One wave to every 16 heads: the whole block gathers, scores and accumulates together, with a barrier between the steps;
no reduction crosses waves, and blocks that share a compute unit overlap. Shared memory at D = 576: 37 KB with 16 heads and 16
keys (four blocks on a gfx950 unit), 117 KB with 64 heads and 32 keys (one).
"""

import tilelang.language as T
from tvm.tirx import PrimFunc

from aot.registry import sibling

shared = sibling(__file__, "../include/tile_shared")
FAR = shared.FAR


def sparse_mla_tile(D: int, HEADS: int, KEYS: int) -> PrimFunc:
    """The general form: ``HEADS`` heads and ``KEYS`` keys at a time (multiples of 16), rows of ``D`` = 512 or 576."""
    TAIL = D - 512
    threads = HEADS * 4
    policy = T.GemmWarpPolicy.FullRow
    s = shared._symbols()
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
            shared._keys_of(t, topk, topk_length, has_length, n_keys)

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
                shared._softmax(S, P, acc, rows, m, m_old, shrink, total, part, 0, sm_scale, HEADS, KEYS, 512)
                T.copy(P, P_all)
                T.sync_threads()
                T.gemm(P_all, K, acc, policy=policy)

            T.sync_threads()  # without keys nothing has ordered the loading of Q before the reuse of its memory
            T.copy(m, kept[0, :])
            T.copy(total, kept[1, :])
            T.sync_threads()
            shared._statistics(kept, max_logits, lse, has_max_logits, has_lse, H, t, h0, tx, HEADS)
            shared._normalise(acc, m, total, inverse, attn_sink, has_sink, H, h0, HEADS, 512)
            T.copy(acc, Q)
            T.sync_threads()
            for r in T.serial(HEADS * 64 // threads):
                row = r * (threads // 64) + tx // 64
                if h0 + row < H:
                    for v in T.vectorized(8):
                        out[t, h0 + row, tx % 64 * 8 + v] = Q[row, tx % 64 * 8 + v]

    return sparse_mla_bf16


sparse_mla_tile.pass_configs = shared.EXPLICIT  # type: ignore[attr-defined]
