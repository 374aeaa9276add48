"""The sparse attention functions of sglang, by the ops of this package: its names, arguments and returns.

A function has the signature of the one that it stands in for: ``sglang_plugin`` compares the two before it replaces anything. Tensors
are passed on as views. What a function returns is allocated by the call, or the caller's own buffer where there is one; nothing
waits for the device. All heads, widths and strides that the ops take are served, so the padding that sglang adds to heads, to
index rows and behind the keys is allowed and not needed. Raises what the ops raise, ``ArgumentError`` above all.

Letters: T tokens, H heads, D elements of a row (512, or 576 with rope), R rope elements (64 or 0), s_kv rows of keys or slots of the pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import e, log2
from typing import TYPE_CHECKING, Any

import dsa_kernels as ops

from ..errors import ArgumentError
from ..layouts import GROUP, LATENT

if TYPE_CHECKING:
    import torch

FEW = 264
"""Up to so many tokens a call goes to ``sparse_mla_decode``, which splits their lists over the chip, and beyond to prefill, which is
as fast then for most calls: measured, docs/tuning/decode.md. Two for each of 132 SMs.
"""


# ---- attention ----------------------------------------------------------------------------------------------------------------


def flash_mla_sparse_fwd(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    sm_scale: float,
    d_v: int = 512,
    attn_sink: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
    *,
    use_legacy: bool = True,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """BF16 attention: ``q`` [T, H, D], ``kv`` [s_kv, 1, D], ``indices`` [T, 1, topk] -> out [T, H, 512], max_logits, lse [T, H].

    ``max_logits`` and ``lse`` are float32, in base 2 with ``use_legacy`` and natural without. A token with no valid column has out 0,
    max_logits -inf, lse +inf.
    """
    found = _attend("flash_mla_sparse_fwd", d_v, q, kv, indices, sm_scale, attn_sink=attn_sink, topk_length=topk_length, **STATISTICS)
    out, max_logits, lse = found
    if use_legacy:
        max_logits.mul_(log2(e))
        lse.mul_(log2(e))
    return out, max_logits, lse


def sparse_mla_q8kv8_prefill_fwd(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    sm_scale: float,
    q_scale: torch.Tensor,
    kv_scale: torch.Tensor,
    d_v: int = 512,
    attn_sink: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
    *,
    out: torch.Tensor | None = None,
    max_logits: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """FP8 attention: as ``flash_mla_sparse_fwd``, with scales of one float32 each on the device, and natural statistics.

    ``out`` bf16 [T, H, 512], ``max_logits`` and ``lse`` float32 [T, H] are written where given.
    """
    given = {"out": out, "max_logits": max_logits, "lse": lse}
    found = _attend(
        "sparse_mla_q8kv8_prefill_fwd",
        d_v,
        q,
        kv,
        indices,
        sm_scale,
        q_scale=q_scale.view(-1),
        kv_scale=kv_scale.view(-1),
        attn_sink=attn_sink,
        topk_length=topk_length,
        **{name: True if buffer is None else buffer for name, buffer in given.items()},
    )
    return found[0], found[1], found[2]


def tilelang_sparse_fwd(q: torch.Tensor, kv: torch.Tensor, indices: torch.Tensor, sm_scale: float, d_v: int = 512) -> torch.Tensor:
    """``q`` [T, H, D], ``kv`` [slots, 1, D], ``indices`` [T, 1, topk] -> bf16 [1, T, H, 512].

    BF16, or FP8 rows with queries of either type; BF16 queries of FP8 rows are cast first.
    """
    if _mixed(q, kv):
        q = _cast(q[..., :LATENT], q[..., LATENT:])
    return _only(_attend("tilelang_sparse_fwd", d_v, q, kv, indices, sm_scale))


def triton_sparse_mla_fwd(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    sm_scale: float,
    d_v: int = 512,
    topk_length: torch.Tensor | None = None,
    max_topk_length: int | None = None,
) -> torch.Tensor:
    """``q_nope`` [T, H, 512] and ``q_rope`` [T, H, R] apart; otherwise ``tilelang_sparse_fwd``, with ``topk_length`` int32 [T].

    ``max_topk_length``, the largest of them as the host knows it, is a hint that is not needed: lengths are read on the device.
    """
    rope: torch.Tensor | None = q_rope
    if _mixed(q_nope, kv):
        q_nope, rope = _cast(q_nope, q_rope), None
    return _only(_attend("triton_sparse_mla_fwd", d_v, q_nope, kv, indices, sm_scale, q_rope=_some(rope), topk_length=topk_length))


STATISTICS = {"max_logits": True, "lse": True}


def _attend(name: str, d_v: int, q: torch.Tensor, kv: torch.Tensor, indices: torch.Tensor, sm_scale: float, **optional: Any) -> Any:
    _wants(name, "d_v", d_v, LATENT, "values are the latent part of a row")
    attend = ops.sparse_mla_decode if q.shape[0] <= FEW else ops.sparse_mla_prefill
    return attend(q=q, kv=_rows(name, "kv", kv), indices=_rows(name, "indices", indices), sm_scale=sm_scale, **optional)


def _only(out: torch.Tensor) -> torch.Tensor:
    return out.unsqueeze(0)


def _mixed(q: torch.Tensor, kv: torch.Tensor) -> bool:
    """Whether queries are wider than the FP8 rows that they are for."""
    return bool(kv.element_size() == 1 < q.element_size())


def _cast(q_nope: torch.Tensor, q_rope: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = ops.concat_cast_q(q_nope=q_nope, q_rope=_some(q_rope))
    return made


# ---- queries and keys ---------------------------------------------------------------------------------------------------------


def concat_and_cast_q_fp8_pad(q_fp8_pad: torch.Tensor, q_nope: torch.Tensor, q_rope: torch.Tensor, num_heads: int) -> None:
    """The first ``num_heads`` of ``q_nope`` bf16 [T, H, 512] and ``q_rope`` [T, H, R] as FP8 to ``q_fp8_pad`` [>= T, >= num_heads, D].

    What is beyond those tokens and heads stays as it was.
    """
    _enough("concat_and_cast_q_fp8_pad", "heads of q_nope", q_nope.shape[1], num_heads)
    rope = _some(q_rope)
    ops.concat_cast_q(q_nope=q_nope[:, :num_heads], q_rope=None if rope is None else rope[:, :num_heads], out=q_fp8_pad)


def gather_cast_kv_fp8_pad_paged(
    out: torch.Tensor, kv_cache: torch.Tensor, page_table_1_flattened: torch.Tensor, nope_dim: int
) -> torch.Tensor:
    """Rows of a pool, ``kv_cache`` bf16 or FP8 [slots, 1, D], at slots [N], as FP8 to ``out`` [>= N, D]; the rest of ``out`` is zeroed."""
    name = "gather_cast_kv_fp8_pad_paged"
    _wants(name, "nope_dim", nope_dim, LATENT, "rows begin with the latent part")
    rows, table = _rows(name, "kv_cache", kv_cache), page_table_1_flattened
    ops.gather_cast_kv(kv_cache=rows, page_table=table, pad_rows=_rest(name, out, len(table)), out=_rows(name, "out", out))
    return out


def concat_cast_kv_fp8_pad(out: torch.Tensor, k: torch.Tensor, k_rope: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """``k`` bf16 [T, 512] and ``k_rope`` [T, R] as FP8 to ``out`` [>= T, D], T = ``num_tokens``; the rest of ``out`` is zeroed.

    Both may have a dimension of one in the middle.
    """
    name = "concat_cast_kv_fp8_pad"
    latent, rope = _rows(name, "k", k), _some(k_rope)
    _wants(name, "num_tokens", num_tokens, len(latent), "k has a row for each")
    rope = None if rope is None else _rows(name, "k_rope", rope)
    ops.concat_cast_kv(k=latent, k_rope=rope, pad_rows=_rest(name, out, num_tokens), out=_rows(name, "out", out))
    return out


def gather_dequant_requant_fp8_paged_dsa(
    quant_k_cache: torch.Tensor,
    page_table_1_flattened: torch.Tensor,
    group_size: int = 128,
    extra_rows: int = 0,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Packed rows of a pool, ``quant_k_cache`` [slots, 1, 656], at slots [N], as FP8 rows [N + extra_rows, 1, 576], the last ones zero."""
    name = "gather_dequant_requant_fp8_paged_dsa"
    _wants(name, "group_size", group_size, GROUP, "packed rows have four scales")
    made: torch.Tensor = ops.gather_requant_kv(
        kv_cache=_rows(name, "quant_k_cache", quant_k_cache),
        page_table=page_table_1_flattened,
        pad_rows=extra_rows,
        out=None if out is None else _rows(name, "out", out),
    )
    return made.unsqueeze(1)


# ---- indices ------------------------------------------------------------------------------------------------------------------


def q8kv8_topk_length_from_indices(indices: torch.Tensor) -> torch.Tensor:
    """int32 [T]: the last column of ``indices`` int32 [T, topk] that is not negative, plus one; at least 1."""
    made: torch.Tensor = ops.topk_length(indices=_rows("q8kv8_topk_length_from_indices", "indices", indices))
    return made


def transform_index_page_table_decode(
    page_table: torch.Tensor, topk_indices: torch.Tensor, result: torch.Tensor | None = None, page_size: int = 1
) -> torch.Tensor:
    """Slots int32 [T, topk] of the positions ``topk_indices``, by row t of ``page_table`` [T, P]; -1 where a position is outside it."""
    _wants("transform_index_page_table_decode", "page_size", page_size, 1, "an index is a slot")
    made: torch.Tensor = ops.topk_transform(page_table=page_table, topk_indices=topk_indices, out=result)
    return made


def transform_index_page_table_prefill(
    page_table: torch.Tensor,
    topk_indices: torch.Tensor,
    extend_lens_cpu: Sequence[int],
    page_size: int = 1,
    output_num_tokens: int | None = None,
    page_table_is_expanded: bool = False,
    cu_seqlens_q: torch.Tensor | None = None,
) -> torch.Tensor:
    """The same for requests of several tokens: [output_num_tokens, topk], by default one row for each of ``topk_indices``.

    Row r of ``page_table`` serves request r, or token r where it is expanded. Requests are ``extend_lens_cpu`` tokens long, or as
    ``cu_seqlens_q`` int32 [B + 1] on the device says; without it the lengths are copied there from pinned memory, so pass it when a
    graph is captured. Rows beyond the last request are -1.
    """
    name = "transform_index_page_table_prefill"
    _wants(name, "page_size", page_size, 1, "an index is a slot")
    rows, topk = topk_indices.shape
    new = sum(extend_lens_cpu)
    wanted = rows if output_num_tokens is None else output_num_tokens
    if not new <= rows <= wanted:
        raise ArgumentError(
            f"{name}: found {new} new tokens, {rows} rows of topk_indices and room for {wanted}; wanted none of them larger than the next; "
            "pass a row for every token and output_num_tokens no smaller"
        )
    served = rows if new and cu_seqlens_q is not None and not page_table_is_expanded else new
    made: torch.Tensor = topk_indices.new_empty((wanted, topk))
    made[served:].fill_(-1)
    if served:
        table, starts = page_table, None
        if not page_table_is_expanded:
            starts = _starts(extend_lens_cpu, topk_indices) if cu_seqlens_q is None else cu_seqlens_q
            table = page_table[: len(starts) - 1]
        ops.topk_transform(page_table=table, topk_indices=topk_indices[:served], cu_seqlens_q=starts, out=made[:served])
    return made


def _starts(lengths: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    """int32 [B + 1] on the device of ``like``: first token of every request, then their end. The host does not wait."""
    from itertools import accumulate

    import torch

    starts = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, pin_memory=like.is_cuda)
    return starts.to(like.device, non_blocking=True)


# ---- arguments ----------------------------------------------------------------------------------------------------------------


def _wants(name: str, argument: str, found: int, wanted: int, why: str) -> None:
    if found != wanted:
        raise ArgumentError(f"{name}: found {argument} {found}; wanted {wanted}, since {why}; pass {argument}={wanted}")


def _rows(name: str, argument: str, x: torch.Tensor) -> torch.Tensor:
    """``x`` [N, 1, width] or [N, width] as [N, width]."""
    if x.ndim == 3 and x.shape[1] == 1:
        return x.squeeze(1)
    if x.ndim != 2:
        raise ArgumentError(f"{name}: found {argument} {list(x.shape)}; wanted [N, 1, width] or [N, width]; reshape it")
    return x


def _some(x: torch.Tensor | None) -> torch.Tensor | None:
    """None for the rope part of a model without one, which sglang passes as a tensor of width 0."""
    return None if x is None or x.shape[-1] == 0 else x


def _rest(name: str, out: torch.Tensor, rows: int) -> int:
    """Rows of ``out`` behind the first ``rows``."""
    _enough(name, "rows of out", len(out), rows)
    return len(out) - rows


def _enough(name: str, what: str, found: int, wanted: int) -> None:
    if found < wanted:
        raise ArgumentError(f"{name}: found {found} {what}; wanted {wanted} or more; pass tensors that agree")
