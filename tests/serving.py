"""Two requests as a serving engine has them, for tests of the attention plans; and the ops as their references do them, on the CPU."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import torch

from tests import oracle

CONTEXTS, NEW = (300, 520), (4, 3)
"""Tokens of each request, and how many of them are new."""


def _allocate(op, shape, dtype):
    """``op`` with its output allocated from the call where none is given: the references write into tensors."""

    def call(out=None, **given):
        if out is None:
            out = torch.empty(shape(given), dtype=dtype(given))
        return oracle.function(op)(**given, out=out)

    return call


def _kpool_topk(topk_length, **given):
    rows = len(given["score"])
    length = torch.empty(rows, dtype=torch.int32) if topk_length else None
    tail = given["kpool"] - 1 if given.get("seq_lens") is not None else 0
    out = torch.empty(rows, given["topk"] + tail, dtype=torch.int32)
    oracle.function("kpool_topk")(**given, out=out, topk_length=length)
    return out, length


def _topk_transform(topk_indices, page_table=None, cu_seqlens_q=None, offset=None, out=None):
    out = torch.empty_like(topk_indices) if out is None else out
    return oracle.function("topk_transform")(page_table, topk_indices, cu_seqlens_q, out, offset)


def _attend(out=True, max_logits=None, lse=None, precision=None, **given):
    made, largest, sums = oracle.function("sparse_mla_prefill")(**given)
    asked = ((out, made.bfloat16()), (max_logits, largest), (lse, sums))
    found = tuple(value if wish is True else wish.copy_(value) for wish, value in asked if wish is not None)
    return found if len(found) > 1 else found[0]


def reference_ops(fp8=torch.float8_e4m3fn) -> SimpleNamespace:
    """A stand-in for the package: every op that plans call, by its reference."""
    return SimpleNamespace(
        topk_transform=_topk_transform,
        kpool_topk=_kpool_topk,
        topk_length=_allocate("topk_length", lambda g: (len(g["indices"]),), lambda g: torch.int32),
        concat_cast_q=_allocate("concat_cast_q", lambda g: (*g["q_nope"].shape[:2], 512 + 64 * (g["q_rope"] is not None)), lambda g: fp8),
        concat_cast_kv=_allocate("concat_cast_kv", lambda g: (len(g["k"]), 512 + 64 * (g["k_rope"] is not None)), lambda g: fp8),
        gather_cast_kv=_allocate("gather_cast_kv", lambda g: (len(g["page_table"]), g["kv_cache"].shape[1]), lambda g: fp8),
        gather_requant_kv=_allocate("gather_requant_kv", lambda g: (len(g["page_table"]) + g.get("pad_rows", 0), 576), lambda g: fp8),
        sparse_mla_prefill=_attend,
        sparse_mla_decode=_attend,
    )


class Requests:
    """Keys of all tokens in ragged order, a pool that holds them at scattered slots, queries of the new tokens, and what they select.

    Slots that no token has are filled with NaN, and tokens of neighbouring requests lie between each other.
    """

    def __init__(self, config: Any, device: str = "cpu") -> None:
        torch.manual_seed(5)
        self.config, rope = config, config.rope_dim
        normal = functools.partial(torch.randn, device=device)
        n, t = sum(CONTEXTS), sum(NEW)
        self.k = (normal(n, 512) * 0.25).bfloat16()
        self.k_rope = (normal(n, 64) * 0.25).bfloat16() if rope else None
        self.q_nope = (normal(t, config.heads, 512) * 0.25).bfloat16()
        self.q_rope = (normal(t, config.heads, 64) * 0.25).bfloat16() if rope else None
        slots = torch.randperm(2 * n, device=device)[:n].int()
        self.pool = config.layout.pool(2 * n, device)
        self.pool.view(torch.uint8).fill_(0x7F if config.fp8 else 0xFF)
        config.layout.write(self.pool, slots, self.k, self.k_rope)

        starts = [0, CONTEXTS[0]]
        table = torch.full((2, max(CONTEXTS) + 9), 2 * n + 5, dtype=torch.int32, device=device)
        request = [r for r in range(2) for _ in range(NEW[r])]
        seen = [CONTEXTS[r] - NEW[r] + i + 1 for r in range(2) for i in range(NEW[r])]
        for r in range(2):
            table[r, : CONTEXTS[r]] = slots[starts[r] : starts[r] + CONTEXTS[r]]

        def ints(values):
            return torch.tensor(values, dtype=torch.int32, device=device)

        self.offset = ints([starts[r] for r in request])
        self.batch = {
            "page_table": table, "cu_seqlens_q": ints([0, NEW[0], t]), "request": ints(request), "slots": slots, "offset": self.offset,
        }  # fmt: skip
        self.seq_lens = ints(seen)
        self.lengths = self.seq_lens // config.kpool
        self.score = normal(t, max(CONTEXTS) // config.kpool + 2)
        if config.kpool == 1:
            # Two thirds of what each token sees, in any order, and holes.
            self.positions = torch.full((t, config.index_topk), -1, dtype=torch.int32, device=device)
            for row, most in zip(self.positions, seen, strict=True):
                kept = torch.randperm(most, device=device)[: min(2 * most // 3, config.index_topk)].int()
                row[: len(kept)] = kept
            self.positions[:, 5] = -1
        else:
            self.positions = torch.full((t, config.width), -1, dtype=torch.int32, device=device)
            pools = {"topk": config.index_topk, "kpool": config.kpool}
            oracle.function("kpool_topk")(self.score, self.lengths, self.positions, seq_lens=self.seq_lens, **pools)

    def run(self, plan: Any, fresh: bool, **options: Any) -> Any:
        """What the plan says, keys fresh or from the pool."""
        from dsa_kernels.attention import Batch

        batch = Batch(**self.batch, fresh=fresh)
        if self.config.kpool > 1:
            selected = plan.select_pools(batch, self.score, self.lengths, self.seq_lens)
        else:
            selected = plan.select(batch, self.positions)
        keys = {"k": self.k, "k_rope": self.k_rope} if fresh else {"pool": self.pool}
        return plan(self.q_nope, self.q_rope, selected, batch, **keys, **options)

    def wanted(self, sm_scale: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Attention in float32 over the keys as they are, before any cast: out and lse."""
        indices = torch.where(self.positions < 0, -1, self.positions + self.offset[:, None])
        keys = self.k if self.k_rope is None else torch.cat((self.k, self.k_rope), -1)
        out, _, lse = oracle.function("sparse_mla_prefill")(self.q_nope, keys, indices, sm_scale, q_rope=self.q_rope)
        return out, lse
