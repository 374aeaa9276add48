"""The TileLang kernels for SM90 (tile_sm90.py): their arguments, and which calls a form is for. Both ops declare them with this."""

from collections.abc import Iterator
from dataclasses import dataclass

from aot.registry import sibling
from aot.spec import Arg, Kernel, f32, i32, i64, ptr

shared = sibling(__file__, "sparse_mla")

KEYS = 64
TILES = {16: "H <= 16", 32: "H > 16 and H <= 32", 64: "H > 32"}
"""Heads of a tile, and the calls that it is for."""
PROMISES = {
    16: (r"HGMMA\.64x16x16\.F32",),
    32: (r"HGMMA\.64x32x16\.F32",),
    64: (r"HGMMA\.64x64x16\.F32", r"HGMMA\.64x256x16\.F32"),
}
GATHER = {"bf16": r"LDGSTS\.E\S*\.128", "fp8": r"F2FP\.F16\.E4M3\.UNPACK_B"}
"""How rows reach shared memory: asynchronous copies, or loads that are widened in registers."""
UNSCALED = {"bf16": " and not has(q_scale) and not has(kv_scale)", "fp8": ""}
"""BF16 forms apply no scales: calls with one are left to the other kernels."""


def lasting(fp8: bool, heads: int) -> bool:
    """Whether a block of threads serves item after item, as many blocks as there are units; else each serves one (tile_sm90.py)."""
    return fp8 and heads == 16


@dataclass(frozen=True)
class Form:
    """A dtype, a place of the queries' rope part and a tile: what a candidate is made for. ``when`` is its guard."""

    dtype: str
    place: str
    d: int
    q_rope: str
    heads: int
    when: str

    @property
    def name(self) -> str:
        return f"tile_{self.dtype}_{self.place}_h{self.heads}"

    @property
    def lasting(self) -> bool:
        return lasting(self.dtype == "fp8", self.heads)

    def grid(self, items: str) -> tuple[str, int, int]:
        """For that many tokens times tiles times splits."""
        return (f"min(sm_count, {items})" if self.lasting else items, 1, 1)


def forms(dtype: str) -> Iterator[Form]:
    """Every place and tile for rows of ``dtype``. One object serves every precision level, at the accuracy of a BF16 kernel."""
    for place, rope, q_rope, where in shared.PLACES:
        for heads, calls in TILES.items():
            yield Form(dtype, place, 576 if rope else 512, q_rope, heads, f"{where} and {calls}{UNSCALED[dtype]}")


def arguments(form: Form, splits: str, statistics: str, tokens: str, first: str) -> tuple[Arg, ...]:
    """In TileLang's order: pointers by name, then scalars by name. Strides of 16-byte aligned rows count 16 bytes.

    ``splits`` is an expression; ``statistics`` the offset of the partial statistics in the workspace, which nobody reaches with one split.
    The launch serves ``tokens`` from token ``first`` on.
    """

    def of(name: str, bytes_of_a_token: str) -> Arg:
        return ptr(name, offset=shared.behind(first, bytes_of_a_token))

    size = {"fp8": 1, "bf16": 2}[form.dtype]
    unit = 16 // size
    fp8, tail = form.dtype == "fp8", form.d == 576
    q_tail = f"{0 if form.q_rope == 'q_rope' else 512 * size} + {shared.behind(first, f'{form.q_rope}.s0 * {size}')}"
    pointers = [
        ptr("attn_sink"),
        of("indices", "indices.s0 * 4"),
        of("lse", "H * 4"),
        of("max_logits", "H * 4"),
        of("out", "out.s0 * 2"),
        of("topk_length", "4"),
        ptr("q", offset=shared.behind(first, f"q.s0 * {size}"), dtype=form.dtype),
        ptr("kv", dtype=form.dtype),
        *((ptr("q_scale"), ptr("kv_scale")) if fp8 else ()),
        *((ptr("q_tail", of=form.q_rope, offset=q_tail, dtype=form.dtype),) if tail else ()),
        ptr("partial", of="workspace"),
        ptr("partial_statistics", of="workspace", offset=statistics),
    ]
    scalars = [
        i32("H"),
        i32("T", tokens),
        i32("has_length", "has(topk_length)"),
        i32("has_lse", "has(lse)"),
        i32("has_max_logits", "has(max_logits)"),
        i32("has_sink", "has(attn_sink)"),
        *((i32("has_q_scale", "has(q_scale)"), i32("has_kv_scale", "has(kv_scale)")) if fp8 else ()),
        i64("indices_s0", "indices.s0"),
        i64("kv_s0", f"kv.s0 // {unit}"),
        i64("out_s0", "out.s0 // 8"),
        i64("out_s1", "out.s1 // 8"),
        i64("q_s0", f"q.s0 // {unit}"),
        i64("q_s1", f"q.s1 // {unit}"),
        *((i64("q_tail_s0", f"{form.q_rope}.s0 // {unit}"), i64("q_tail_s1", f"{form.q_rope}.s1 // {unit}")) if tail else ()),
        i32("s_kv", "min(s_kv, 2147483647)"),
        f32("sm_scale"),
        i32("splits", splits),
        i32("topk"),
        *((i32("units", "sm_count"),) if form.lasting else ()),
    ]
    return tuple(sorted(pointers, key=lambda a: a.name) + sorted(scalars, key=lambda a: a.name))


def kernel(source: str, form: Form, splits: str = "1", statistics: str = "0", tokens: str = "T", first: str = "0") -> Kernel:
    """``source`` stands in the op's folder and names ``sparse_mla_sm90``. The rest: ``arguments``."""
    return Kernel(
        language="tilelang",
        source=source,
        entry="sparse_mla_sm90",
        args=arguments(form, splits, statistics, tokens, first),
        constants={"D": form.d, "FP8": form.dtype == "fp8", "HEADS": form.heads},
        options={"fast_math": True},
        promises=(*PROMISES[form.heads], GATHER[form.dtype]),
    )
