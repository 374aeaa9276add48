"""Sparse MLA attention as serving engines call it: ``DsaPrefill`` and ``DsaDecode`` put the ops of this package in sequence.

    plan = DsaPrefill(check_config(...), sm_scale)
    chosen = plan.select(batch, positions)                     # or plan.select_pools(batch, score, lengths, seq_lens)
    out = plan(q_nope, q_rope, chosen, batch, pool=pool)       # or k=, k_rope= where no request has a cached prefix

Plans hold no tensors and no state. Whatever a call needs is allocated by torch's allocator on the current stream, nothing waits for
the device, so calls may be captured (after ``dsa_kernels.preload()``) and plans on several streams do not meet. Keys read from the
pool and fresh keys become the same bytes in the same order, so both give bitwise equal results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

import dsa_kernels

from .config import BACKENDS, Config
from .errors import ArgumentError
from .layouts import LATENT


@dataclass(frozen=True)
class Batch:
    """What the layers of one forward pass share; int32 tensors on the device, each needed only where its line says.

    ``page_table`` [B, P]: slot of every position of every request, where keys are read in place (raw FP8 and BF16 pools).
    ``cu_seqlens_q`` [B + 1]: first token of every request, then their end; None: row t of page_table serves token t.
    ``request`` [T]: row of page_table of every token, for ``select_pools``; None: row t.
    ``slots`` [N]: slot of every context token, request after request ("ragged order"), where keys are gathered.
    ``offset`` [T]: row in ragged order where the token's request starts, where keys are gathered or fresh.
    ``fresh``: no request has a cached prefix, and calls pass ``k`` (and ``k_rope``) of every context token, in ragged order.
    """

    page_table: torch.Tensor | None = None
    cu_seqlens_q: torch.Tensor | None = None
    request: torch.Tensor | None = None
    slots: torch.Tensor | None = None
    offset: torch.Tensor | None = None
    fresh: bool = False


@dataclass(frozen=True)
class Selected:
    """Rows of keys that each token attends to: ``indices`` [T, width] int32, -1 for none, and ``length`` [T], the columns in use."""

    indices: torch.Tensor
    length: torch.Tensor | None


ROUTES: dict[tuple[str, str, bool], str] = {
    ("fp8", "raw8", False): "",
    ("fp8", "raw8", True): "concat_cast_kv",
    ("fp8", "bf16", False): "gather_cast_kv",
    ("fp8", "bf16", True): "concat_cast_kv",
    ("fp8", "pack", False): "gather_requant_kv",
    ("bf16", "bf16", False): "",
    ("bf16", "bf16", True): "concat",
}
"""How keys are made: by type of attention, kind of layout, and whether they are fresh; "" reads the pool in place.

Packed rows have no fresh form: what is read back from such a pool was rounded twice, so fresh keys would differ from it.
"""


class _Plan:
    phase: ClassVar[str]
    attend: ClassVar[str]
    in_place_only: ClassVar[bool]

    def __init__(self, config: Config, sm_scale: float, ops: Any = None) -> None:
        """``sm_scale`` is the softmax scale in natural units; ``ops`` is where ops are looked up, by default this package.

        Raises ``ArgumentError`` where the configuration's backend of this phase is not one that this package serves, or its pool
        not one that it reads; and, with this package's ops, ``NoPack`` where the device's kernels are not installed and
        ``NoCandidate``, with the trace, where none of them serves the configuration. No driver is started.
        """
        self.config, self.sm_scale, self.ops = config, sm_scale, dsa_kernels if ops is None else ops
        backend = getattr(config, self.phase)
        if self.phase not in BACKENDS[backend].ours:
            ours = ", ".join(name for name, b in BACKENDS.items() if self.phase in b.ours)
            raise ArgumentError(
                f"found {self.phase} {backend}, whose kernels are the engine's; wanted one of {ours}; let the engine run it"
            )
        self.compute = "fp8" if config.computes_fp8(self.phase) else "bf16"
        kind = config.kv_layout.split("-")[0]
        self.routes = {fresh: ROUTES[key] for fresh in (False, True) if (key := (self.compute, kind, fresh)) in ROUTES}
        if self.in_place_only:
            self.routes = {fresh: made for fresh, made in self.routes.items() if not made}
        if not self.routes:
            raise ArgumentError(
                f"found {self.phase} {backend} over a {config.kv_layout} pool; wanted rows that {self.attend} takes; packed rows are "
                "served in prefill alone, with flashmla_sparse_q8"
            )
        if ops is None:
            self._find_candidate()

    def _find_candidate(self) -> None:
        """Ask for the candidate of a call of one token, so that a configuration without any fails now."""
        config = self.config
        dtype = config.layout.fp8 if self.compute == "fp8" else "bf16"
        apart = config.rope_dim if self.compute == "bf16" else 0  # bf16 queries keep their rope part in a tensor of its own

        def view(dtype: str, *shape: int) -> dsa_kernels.View:
            return dsa_kernels.View(0, shape, dtype, vendor=config.vendor)

        given: dict[str, Any] = {
            "q": view(dtype, 1, config.heads, LATENT + config.rope_dim - apart),
            "kv": view(dtype, 1 << 20, LATENT + config.rope_dim),
            "indices": view("i32", 1, config.width),
            "q_rope": view(dtype, 1, config.heads, apart) if apart else None,
            "out": view("bf16", 1, config.heads, LATENT),
        }
        dsa_kernels.select(self.attend, target=config.device, sm_scale=self.sm_scale, precision=config.precision, **given)

    def select(self, batch: Batch, positions: torch.Tensor) -> Selected:
        """``positions`` [T, width] int32, selected within each token's request and -1 for none, as rows of the keys."""
        if self._ragged(batch):
            indices = self.ops.topk_transform(topk_indices=positions, offset=_given("offset", batch.offset))
        else:
            table = _given("page_table", batch.page_table)
            indices = self.ops.topk_transform(page_table=table, topk_indices=positions, cu_seqlens_q=batch.cu_seqlens_q)
        return Selected(indices, self.ops.topk_length(indices=indices) if self.phase == "prefill" else None)

    def select_pools(
        self,
        batch: Batch,
        score: torch.Tensor,
        lengths: torch.Tensor,
        seq_lens: torch.Tensor,
        row_starts: torch.Tensor | None = None,
    ) -> Selected:
        """The best pools of each token and its live tail, as rows of the keys, in one launch.

        ``score`` [T, S] float32, ``lengths`` [T] complete pools, ``seq_lens`` [T] tokens that the token sees, itself included,
        ``row_starts`` [T] the column of score where its pools start. See ``help(dsa_kernels.kpool_topk)``.
        """
        where: dict[str, Any] = {"page_table": batch.page_table, "page_table_row": batch.request}
        if self._ragged(batch):
            where = {"offset": _given("offset", batch.offset)}
        else:
            _given("page_table", batch.page_table)
        sizes = {"topk": self.config.index_topk, "kpool": self.config.kpool}
        found = self.ops.kpool_topk(
            score=score, lengths=lengths, seq_lens=seq_lens, row_starts=row_starts, topk_length=True, **where, **sizes
        )
        return Selected(*found)

    def __call__(
        self,
        q_nope: torch.Tensor,
        q_rope: torch.Tensor | None,
        selected: Selected,
        batch: Batch,
        *,
        pool: torch.Tensor | None = None,
        k: torch.Tensor | None = None,
        k_rope: torch.Tensor | None = None,
        attn_sink: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
        lse: bool = False,
    ) -> Any:
        """Attention of bf16 queries ``q_nope`` [T, H, 512] and ``q_rope`` [T, H, 64] (None without rope): bf16 [T, H, 512].

        ``pool`` [slots, width] or [slots, 1, width] holds the keys, or, with ``batch.fresh``, ``k`` [N, 512] and ``k_rope``
        [N, 64] in bf16. With ``lse`` the float32 log-sum-exp [T, H] is returned too. Raises ``ArgumentError`` where tensors disagree
        with the configuration, and what the ops raise.
        """
        self._check(q_nope, q_rope, batch, pool, k)
        kv = self._keys(batch, pool, k, k_rope)
        if self.compute == "fp8":
            q_nope, q_rope = self.ops.concat_cast_q(q_nope=q_nope, q_rope=q_rope), None
        given = {"precision": self.config.precision, "attn_sink": attn_sink, "out": out, "lse": lse or None}
        return getattr(self.ops, self.attend)(
            q=q_nope,
            kv=kv,
            indices=selected.indices,
            sm_scale=self.sm_scale,
            q_rope=q_rope,
            topk_length=selected.length,
            **{name: value for name, value in given.items() if value is not None},
        )

    def _ragged(self, batch: Batch) -> bool:
        """Whether indices are rows of a buffer in ragged order, and not slots of the pool."""
        if batch.fresh not in self.routes:
            found = "a fresh batch" if batch.fresh else "a batch with a cached prefix"
            raise ArgumentError(
                f"found {found} in {self.phase} over a {self.config.kv_layout} pool; wanted one whose keys are in the pool: rows read back "
                "differ from fresh ones where they were rounded twice, and decode reads in place; pass pool and fresh=False"
            )
        return bool(self.routes[batch.fresh])

    def _keys(self, batch: Batch, pool: torch.Tensor | None, k: torch.Tensor | None, k_rope: torch.Tensor | None) -> torch.Tensor:
        self._ragged(batch)
        made: torch.Tensor
        match self.routes[batch.fresh]:
            case "concat":
                assert k is not None
                return k if k_rope is None else torch.cat((k, k_rope), -1)
            case "concat_cast_kv":
                made = self.ops.concat_cast_kv(k=k, k_rope=k_rope)
                return made
        assert pool is not None
        rows = (pool[:, 0] if pool.ndim == 3 else pool).view(self.config.layout.pool(0).dtype)
        if not self.routes[batch.fresh]:
            return rows
        made = getattr(self.ops, self.routes[batch.fresh])(kv_cache=rows, page_table=_given("slots", batch.slots))
        return made

    def _check(
        self, q_nope: torch.Tensor, q_rope: torch.Tensor | None, batch: Batch, pool: torch.Tensor | None, k: torch.Tensor | None
    ) -> None:
        config = self.config
        if q_nope.ndim != 3 or q_nope.shape[1] != config.heads or (q_rope is not None) != bool(config.rope_dim):
            shape = None if q_rope is None else list(q_rope.shape)
            raise ArgumentError(
                f"found q_nope {list(q_nope.shape)}, q_rope {shape}; wanted {config.heads} heads and "
                f"{'a' if config.rope_dim else 'no'} q_rope; pass what the configuration says, or check another one"
            )
        if (pool is None) != batch.fresh or (k is None) == batch.fresh:
            found = ", ".join(name for name, x in (("pool", pool), ("k", k)) if x is not None) or "neither pool nor k"
            raise ArgumentError(f"found {found} with batch.fresh {batch.fresh}; wanted k if it is and pool if not; pass one of them")
        if pool is not None and pool.shape[-1] * pool.element_size() != config.row_bytes:
            raise ArgumentError(
                f"found a pool of {pool.shape[-1] * pool.element_size()} bytes a row; wanted {config.row_bytes}, the layout "
                f"{config.kv_layout}; allocate it with layouts.kv_layout({config.kv_layout!r}).pool(slots)"
            )


def _given(name: str, tensor: torch.Tensor | None) -> torch.Tensor:
    if tensor is None:
        raise ArgumentError(f"found no batch.{name}; wanted it for keys of this kind; see help(dsa_kernels.attention.Batch)")
    return tensor


class DsaPrefill(_Plan):
    """Attention of new tokens: few requests with many tokens each, or many. See the module."""

    phase, attend, in_place_only = "prefill", "sparse_mla_prefill", False


class DsaDecode(_Plan):
    """Attention of one token a request, or a few (speculative verify): the pool is read in place. See the module."""

    phase, attend, in_place_only = "decode", "sparse_mla_decode", True
