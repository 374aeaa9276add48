"""What the TileLang attention forms share: sizes, the online softmax, its ends."""

from types import SimpleNamespace

import tilelang.language as T

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
