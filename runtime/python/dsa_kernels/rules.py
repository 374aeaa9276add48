"""The rules of ``check_config``: what a configuration must not be, as one table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .config import AMD, BACKENDS, RAW8, Config
from .layouts import LAYOUTS

Test = Callable[[Config], bool]


@dataclass(frozen=True)
class Rule:
    """``broken`` says whether a configuration breaks it; the texts may name the configuration's fields in braces."""

    name: str
    broken: Test
    found: str
    wanted: str
    fix: str

    def message(self, config: Config) -> str:
        names = {n: getattr(config, n) for n in (*config.__dataclass_fields__, "width", "vendor")}
        return "{}: found {}; wanted {}; {}".format(self.name, *(t.format_map(names) for t in (self.found, self.wanted, self.fix)))


def _prefill(name: str) -> Test:
    return lambda c: c.prefill == name


def _reads(backend: str, layout: str) -> bool:
    return layout in BACKENDS[backend].pools


def _q8_tail(c: Config) -> bool:
    """Whether the pool under a Q8 prefill has rows that a KPool tail may name: BF16 or raw."""
    return not LAYOUTS[c.kv_layout].packed


def _tilelang_fp8(c: Config) -> bool:
    return "tilelang" in c.pair and c.fp8 and c.device not in AMD


def _triton_prefill(c: Config) -> bool:
    """The shapes that the engine's Triton prefill takes under that variable; all others go to TileLang without a word."""
    return (c.prefill, c.device, c.fp8, c.heads, c.rope_dim, c.width) == ("tilelang", "gfx950", True, 16, 64, 2048)


EFFECTS: dict[str, tuple[str, Test]] = {
    "SGLANG_DSA_TRITON_PREFILL": (
        "prefill tilelang on gfx950 with FP8 KV, 16 heads, rope 64 and 2048 columns; pass prefill='triton', which takes any shape",
        _triton_prefill,
    ),
    "SGLANG_ENABLE_DSA_Q8KV8_TOPK_LENGTH": ("prefill flashmla_sparse_q8", _prefill("flashmla_sparse_q8")),
    "SGLANG_ENABLE_DSA_Q8KV8_BORN_FP8_Q": ("prefill flashmla_sparse_q8", _prefill("flashmla_sparse_q8")),
    "SGLANG_ENABLE_DSA_Q8KV8_KV_CAT_FUSION": ("prefill flashmla_sparse_q8", _prefill("flashmla_sparse_q8")),
}
"""Environment variables, and the configurations in which each has an effect."""


def _idle(variable: str) -> Rule:
    where, effective = EFFECTS[variable]
    return Rule(
        variable,
        lambda c: c.environment.get(variable, "").lower() not in ("", "0", "false") and not effective(c),
        "the environment variable set with prefill {prefill}, decode {decode} on {device}, {kv_dtype}, {heads} heads, rope "
        "{rope_dim}, {width} columns, where it has no effect",
        where,
        "unset it",
    )


RULES: tuple[Rule, ...] = (
    # backends and where they run
    Rule(
        "prefill-only backend",
        lambda c: "decode" not in BACKENDS[c.decode].phases,
        "decode {decode}, which only prefills",
        "a backend that decodes",
        "keep it for prefill, with decode flashmla_kv over packed FP8 or tilelang over raw FP8",
    ),
    Rule(
        "prefill device",
        lambda c: c.device not in BACKENDS[c.prefill].devices,
        "prefill {prefill} on {device}",
        "a backend that runs on {device} ({vendor})",
        "flashmla_sparse_q8 and fa3 are SM90's, trtllm SM100's, aiter AMD's; tilelang and triton run on both vendors' devices",
    ),
    Rule(
        "decode device",
        lambda c: c.device not in BACKENDS[c.decode].devices,
        "decode {decode} on {device}",
        "a backend that runs on {device} ({vendor})",
        "flashmla_kv and fa3 are NVIDIA's, aiter AMD's; tilelang and triton run on both vendors' devices",
    ),
    # pools
    Rule(
        "layout name",
        lambda c: c.kv_layout not in LAYOUTS,
        "kv_layout {kv_layout}",
        f"one of {', '.join(LAYOUTS)}",
        "leave it out for the one that the backends store",
    ),
    Rule(
        "layout geometry",
        lambda c: c.kv_layout in LAYOUTS and (LAYOUTS[c.kv_layout].rope, c.kv_layout.startswith("bf16")) != (c.rope_dim, not c.fp8),
        "kv_layout {kv_layout} with rope {rope_dim} and {kv_dtype}",
        "a layout of that rope width and type",
        "leave kv_layout out, or correct the model's rope width or the KV type",
    ),
    Rule(
        "prefill pool",
        lambda c: c.kv_layout in LAYOUTS and not _reads(c.prefill, c.kv_layout),
        "prefill {prefill} over a {kv_layout} pool",
        "a pool that it reads",
        "Q8 reads raw, bf16 and packed rows, the packed ones with rope; flashmla_sparse bf16 and packed with rope; tilelang, triton bf16 "
        "and raw; flashinfer_sparse_mla has a layout of its own that is not covered",
    ),
    Rule(
        "decode pool",
        lambda c: c.kv_layout in LAYOUTS and "decode" in BACKENDS[c.decode].phases and not _reads(c.decode, c.kv_layout),
        "decode {decode} over a {kv_layout} pool",
        "a pool that it reads",
        "pass kv_layout='raw8-512' or 'raw8-576' with tilelang or triton decode, or decode flashmla_kv over packed rows",
    ),
    # TileLang over FP8 on NVIDIA
    Rule(
        "tilelang fp8 device",
        lambda c: _tilelang_fp8(c) and c.device in ("sm80", "sm86"),
        "tilelang over FP8 KV on {device}",
        "SM89 or newer",
        "use bfloat16 KV there",
    ),
    Rule(
        "tilelang fp8 pair",
        lambda c: _tilelang_fp8(c) and c.pair not in (("tilelang", "tilelang"), ("flashmla_sparse_q8", "tilelang")),
        "prefill {prefill} and decode {decode} over FP8 KV",
        "tilelang for both phases, or flashmla_sparse_q8 with tilelang: other pairs store other rows",
        "change one of the two, or use bfloat16 KV",
    ),
    Rule(
        "raw dcp",
        lambda c: c.kv_layout in RAW8 and c.dcp > 1 and c.device not in AMD,
        "dcp {dcp} over raw FP8 KV ({kv_layout})",
        "dcp 1",
        "raw rows are not exchanged between ranks; use bfloat16 KV with dcp",
    ),
    # Q8 prefill
    Rule(
        "q8 hisparse",
        lambda c: c.prefill == "flashmla_sparse_q8" and c.hisparse,
        "flashmla_sparse_q8 with HiSparse",
        "HiSparse off",
        "turn HiSparse off, or prefill with flashmla_sparse",
    ),
    Rule(
        "q8 mixed chunks",
        lambda c: c.prefill == "flashmla_sparse_q8" and c.mixed_chunks,
        "flashmla_sparse_q8 with mixed chunks",
        "chunks of prefill alone",
        "turn mixed chunks off, or prefill with flashmla_sparse",
    ),
    # KPool: index rows end in a tail of columns
    Rule(
        "kpool q8 pool",
        lambda c: c.kpool > 1 and c.prefill == "flashmla_sparse_q8" and c.kv_layout in LAYOUTS and not _q8_tail(c),
        "kpool {kpool} with flashmla_sparse_q8 over packed FP8 rows ({kv_layout})",
        "bf16 or raw FP8 rows",
        "use bfloat16 KV, or decode tilelang, whose pool is raw",
    ),
    Rule(
        "kpool prefill",
        lambda c: c.kpool > 1 and "prefill" not in BACKENDS[c.prefill].tails,
        "kpool {kpool} with prefill {prefill}, which takes no rows of {width} columns",
        "one of fa3, trtllm, tilelang, triton, flashmla_sparse_q8",
        "engines replace flashmla_sparse by fa3 on SM90 and trtllm on SM100 without a word; name the one that you want",
    ),
    Rule(
        "kpool decode",
        lambda c: c.kpool > 1 and "decode" not in BACKENDS[c.decode].tails,
        "kpool {kpool} with decode {decode}, which takes no rows of {width} columns",
        "one of fa3, trtllm, tilelang, triton",
        "name one of them",
    ),
    Rule("kpool width", lambda c: c.index_topk % c.kpool > 0, "index_topk {index_topk} with kpool {kpool}", "a multiple", "correct either"),
    # what would abort at the first request, or do nothing
    Rule(
        "aiter scales",
        lambda c: "aiter" in c.pair and c.fp8 and not (c.q_scale and c.kv_scale),
        "aiter over FP8 KV with q_scale {q_scale}, kv_scale {kv_scale}",
        "both: its kernel aborts the process with one or none",
        "pass an identity scale for what has none, or use tilelang or triton",
    ),
    Rule(
        "scales without effect",
        lambda c: (c.q_scale or c.kv_scale) and "aiter" not in c.pair and not _any_fp8(c),
        "q_scale {q_scale}, kv_scale {kv_scale} where attention is in bfloat16",
        "no scales",
        "leave them out",
    ),
    Rule(
        "precision without effect",
        lambda c: c.precision is not None and not _any_fp8(c),
        "precision {precision} where no kernel of this package computes in FP8",
        "no precision",
        "leave it out: bfloat16 rows are served at one accuracy",
    ),
    *map(_idle, EFFECTS),
)


def _any_fp8(c: Config) -> bool:
    return ("prefill" in BACKENDS[c.prefill].ours and c.computes_fp8("prefill")) or (
        "decode" in BACKENDS[c.decode].ours and c.kv_layout in RAW8
    )
