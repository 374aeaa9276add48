"""Whether a serving configuration can work, said before it serves: ``check_config``. The rules are data, one row each.

Backends have the names of the serving engine's flags. Where our kernels do more than the engine's (any head count, any top-k
width, raw FP8 rows with rope), the rules accept it; what they reject fails at start here and not at the first request.
Identity of a device is its architecture's name: gfx950 reports compute capability major 9, so a number never tells one from SM90.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from .errors import ArgumentError
from .layouts import LATENT, LAYOUTS, ROPE, Layout, kv_layout

DEVICES = {
    "sm80": ("nvidia", ""),
    "sm86": ("nvidia", ""),
    "sm89": ("nvidia", "e4m3fn"),
    "sm90": ("nvidia", "e4m3fn"),
    "sm100": ("nvidia", "e4m3fn"),
    "sm103": ("nvidia", "e4m3fn"),
    "sm120": ("nvidia", "e4m3fn"),
    "sm121": ("nvidia", "e4m3fn"),
    "gfx942": ("amd", "e4m3fnuz"),
    "gfx950": ("amd", "e4m3fn"),
}
"""Vendor and FP8 flavour; no flavour where the matrix units take none."""
AMD = tuple(name for name, (vendor, _) in DEVICES.items() if vendor == "amd")
NVIDIA = tuple(name for name in DEVICES if name not in AMD)
BLACKWELL = ("sm100", "sm103")


@dataclass(frozen=True)
class Backend:
    """Where a backend runs, in which phases, what pools it reads, and in which phases it takes rows with a KPool tail.

    ``ours`` are the phases that this package's kernels serve.
    """

    devices: tuple[str, ...]
    pools: tuple[str, ...]
    phases: tuple[str, ...] = ("prefill", "decode")
    tails: tuple[str, ...] = ()
    ours: tuple[str, ...] = ()


BF16, RAW8 = ("bf16-512", "bf16-576"), ("raw8-512", "raw8-576")
BOTH = ("prefill", "decode")
BACKENDS = {
    "flashmla_sparse_q8": Backend(("sm90",), (*BF16, *RAW8, "pack-656"), ("prefill",), ("prefill",), ("prefill",)),
    "flashmla_sparse": Backend(("sm90", *BLACKWELL), (*BF16, "pack-656"), ours=BOTH),
    "flashmla_kv": Backend(("sm90", *BLACKWELL), ("pack-656", "pack-528")),
    "flashinfer_sparse_mla": Backend(("sm120", "sm121"), ()),
    "fa3": Backend(("sm90",), BF16, tails=BOTH),
    "trtllm": Backend(BLACKWELL, (*BF16, "raw8-576"), tails=BOTH),
    "tilelang": Backend((*NVIDIA, *AMD), (*BF16, *RAW8), tails=BOTH, ours=BOTH),
    "triton": Backend((*NVIDIA, *AMD), (*BF16, *RAW8), tails=BOTH, ours=BOTH),
    "aiter": Backend(AMD, ("bf16-576", "raw8-576")),
}
RAW_PAIRS = {("tilelang", "tilelang"), ("triton", "triton"), ("trtllm", "trtllm")}
"""Backends of prefill and decode that together store unscaled FP8 rows on NVIDIA; AMD's always do."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """A checked configuration, made by ``check_config``; its parameters are the fields."""

    prefill: str
    decode: str
    device: str
    kv_dtype: str
    kv_layout: str
    kv_lora_rank: int
    rope_dim: int
    heads: int
    index_topk: int = 2048
    kpool: int = 1
    dcp: int = 1
    hisparse: bool = False
    mixed_chunks: bool = False
    precision: str | None = None
    q_scale: bool = False
    kv_scale: bool = False
    environment: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    @property
    def vendor(self) -> str:
        return DEVICES[self.device][0]

    @property
    def layout(self) -> Layout:
        return kv_layout(self.kv_layout, DEVICES[self.device][1] or "e4m3fn")

    @property
    def row_bytes(self) -> int:
        return self.layout.row_bytes

    @property
    def width(self) -> int:
        """Columns of an index row: ``index_topk``, and with a KPool its live tail."""
        return self.index_topk + self.kpool - 1

    @property
    def pair(self) -> tuple[str, str]:
        return self.prefill, self.decode

    @property
    def fp8(self) -> bool:
        return self.kv_dtype == "fp8_e4m3"

    def computes_fp8(self, phase: str) -> bool:
        """Whether attention of ``phase`` multiplies FP8 rows."""
        return (self.prefill if phase == "prefill" else self.decode) == "flashmla_sparse_q8" or self.kv_layout.startswith("raw8")


def raw_fp8_nope(prefill: str, decode: str, kv_lora_rank: int, rope_dim: int) -> bool:
    """Whether this pair stores unscaled FP8 rows of 512 on SM90: Q8 prefill, TileLang decode, rank 512, no rope.

    The one predicate of argument check, backend check and pool allocation. It asks for the geometry, never for a model's name;
    both numbers must be ints, else ``ArgumentError``.
    """
    for name, value in (("kv_lora_rank", kv_lora_rank), ("rope_dim", rope_dim)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise ArgumentError(f"found {name} {value!r}; wanted an int; pass the width that the model's configuration has")
    return (prefill, decode, kv_lora_rank, rope_dim) == ("flashmla_sparse_q8", "tilelang", LATENT, 0)


def pool_layout(prefill: str, decode: str, kv_dtype: str, kv_lora_rank: int, rope_dim: int, device: str) -> str:
    """The layout that a pool of this configuration has when none is asked for. Parameters as in ``check_config``."""
    raw = raw_fp8_nope(prefill, decode, kv_lora_rank, rope_dim)
    if kv_dtype == "bfloat16":
        return f"bf16-{LATENT + rope_dim}"
    if raw or (prefill, decode) in RAW_PAIRS or device in AMD:
        return f"raw8-{LATENT + rope_dim}"
    return "pack-656" if rope_dim else "pack-528"


def kv_row_bytes(*, prefill: str, decode: str, kv_dtype: str, kv_lora_rank: int, rope_dim: int, device: str) -> int:
    """Bytes of a pool row. Parameters and errors as in ``check_config``; ``Config.row_bytes`` is the same of a checked one."""
    _raise_first(_STRUCTURE, locals())
    return LAYOUTS[pool_layout(prefill, decode, kv_dtype, kv_lora_rank, rope_dim, device)].row_bytes


def check_config(
    *,
    prefill: str | None,
    decode: str | None,
    device: str,
    kv_dtype: str,
    kv_lora_rank: int,
    rope_dim: int,
    heads: int,
    kv_layout: str | None = None,
    index_topk: int = 2048,
    kpool: int = 1,
    dcp: int = 1,
    hisparse: bool = False,
    mixed_chunks: bool = False,
    precision: str | None = None,
    q_scale: bool = False,
    kv_scale: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Config:
    """Check a serving configuration and return it, its pool layout resolved.

    ``prefill``, ``decode``: backends, both. ``device``: an architecture's name (``DEVICES``). ``kv_dtype``: ``bfloat16`` or
    ``fp8_e4m3``. ``kv_layout``: a name in ``layouts.LAYOUTS``; None: the one that the backends store. ``heads``: query heads on a
    rank. ``kpool``: tokens of a pool that the indexer scores as one. ``dcp``: decode context parallel size. ``q_scale``,
    ``kv_scale``: whether the engine passes those scales. ``environment``: default ``os.environ``.

    Raises ``ArgumentError`` with every rule that is broken, each with what was found, what was wanted and what to do. An option or
    an environment variable that has no effect in this configuration breaks a rule too.
    """
    given = {name: value for name, value in locals().items() if name not in ("environment", "kv_layout")}
    _raise_first(_STRUCTURE, given)
    from .rules import RULES

    chosen = kv_layout or pool_layout(str(prefill), str(decode), kv_dtype, kv_lora_rank, rope_dim, device)
    config = Config(**given, kv_layout=chosen, environment=os.environ if environment is None else environment)
    broken = [rule.message(config) for rule in RULES if rule.broken(config)]
    if broken:
        raise ArgumentError("\n".join(broken))
    return config


def _is_int(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


_PHASE = (
    lambda v: v in BACKENDS,
    f"one of {', '.join(BACKENDS)}",
    "name both phases: with one left out, engines take a default of another vendor",
)
_STRUCTURE: dict[str, tuple[Callable[[object], bool], str, str]] = {
    "device": (
        lambda v: isinstance(v, str) and v in DEVICES,
        f"an architecture's name, one of {', '.join(DEVICES)}",
        "a compute capability does not do: gfx950 reports major 9 like SM90",
    ),
    "prefill": _PHASE,
    "decode": _PHASE,
    "kv_dtype": (lambda v: v in ("bfloat16", "fp8_e4m3"), "bfloat16 or fp8_e4m3", "no kernel reads another pool; set --kv-cache-dtype"),
    "kv_lora_rank": (lambda v: _is_int(v, LATENT, LATENT), f"the int {LATENT}", "no other latent width is served"),
    "rope_dim": (lambda v: _is_int(v, 0, ROPE) and v in (0, ROPE), f"the int {ROPE}, or 0 without rope", "pass the model's width"),
    "heads": (lambda v: _is_int(v, 1, 128), "1 to 128 query heads on a rank", "split the heads over ranks"),
    "index_topk": (lambda v: _is_int(v, 1, 1 << 20), "a positive int", "pass the model's index_topk"),
    "kpool": (lambda v: _is_int(v, 1, 64), "1 to 64 tokens a pool", "pass 1 for a model without pools"),
    "dcp": (lambda v: _is_int(v, 1, 1024), "a positive int", "pass 1 for no context parallelism"),
    "precision": (
        lambda v: v in (None, "fast", "exact", "high"),
        "fast, exact, high or None",
        "see help(dsa_kernels.sparse_mla_prefill)",
    ),
}
"""What an argument must be before rules can be asked: test, wanted, what to do."""


def _raise_first(structure: Mapping[str, tuple[Callable[[object], bool], str, str]], given: Mapping[str, object]) -> None:
    for name, (holds, wanted, fix) in structure.items():
        if name in given and not holds(given[name]):
            raise ArgumentError(f"found {name} {given[name]!r}; wanted {wanted}; {fix}")
