"""The TileLang kernel of AMD's matrix cores (tile_wave.py): its arguments, and how each target runs it.

Every call is served: rows of 512 and 576, BF16 and FP8 in the target's own e4m3, any head count, every ``precision``. A block takes
16 heads (one wave) or 64 (four waves that share the rows).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from aot.registry import sibling
from aot.spec import Arg, Kernel, f32, i32, i64, ptr

shared = sibling(__file__, "sparse_mla")

SOURCE = "../include/tile_wave.py"
HEADS = {16: "H <= 16", 64: "H > 16"}
"""Heads of a block, and the calls that it serves."""
TERMS = {"fp8": {1: ("fast", "exact"), 2: ("high",)}, "bf16": {1: ("fast", "exact", "high")}}
"""Terms in which P is carried, and the levels of ``precision`` that they serve."""
ROWS = {("gfx950", "fp8"): "float8_e4m3fn", ("gfx942", "fp8"): "float8_e4m3fnuz"}
"""What fp8 is; the compiler module refuses another flavour than the target's."""


@dataclass(frozen=True)
class Block:
    """What a block takes: ``keys`` at a time, the next ones on their way meanwhile (``staged``) or not, ``parked`` of its queries' 64-byte
    steps in LDS. ``waves`` is what the compiler is held to on a SIMD (1: 512 registers a lane, 2: 256), ``per_unit`` the blocks that a unit
    holds by the evidence table.
    """

    keys: int
    staged: bool
    parked: int
    waves: int
    per_unit: int


@dataclass(frozen=True)
class Form:
    """How a target runs the kernel for rows of one element type: blocks by their heads, how V^T is read, what the code must hold."""

    blocks: Mapping[int, Block]
    values: str
    promises: tuple[str, ...]


FORMS: dict[tuple[str, str], Form] = {
    ("gfx950", "bf16"): Form(
        {16: Block(32, True, 0, 1, 4), 64: Block(32, False, 8, 2, 2)}, "transposed", (r"v_mfma_f32_16x16x32_bf16", r"ds_read_b64_tr_b16")
    ),
    ("gfx950", "fp8"): Form(
        {16: Block(32, False, 4, 2, 7), 64: Block(64, False, 0, 2, 2)},
        "transposed",
        (r"v_mfma_f32_16x16x128_f8f6f4", r"v_mfma_f32_16x16x32_fp8_fp8", r"ds_read_b64_tr_b8"),
    ),
    # a block of 16 heads and 32 BF16 rows would be alone on a unit, with one wave
    ("gfx942", "bf16"): Form({64: Block(32, False, 0, 1, 1)}, "permuted", (r"v_mfma_f32_16x16x16_bf16", r"v_perm_b32")),
    ("gfx942", "fp8"): Form(
        {16: Block(32, True, 0, 1, 3), 64: Block(32, False, 2, 2, 2)}, "permuted", (r"v_mfma_f32_16x16x32_fp8_fp8", r"v_perm_b32")
    ),
}


def arguments(dtype: str, q_rope: str | None, partials: tuple[Arg, ...] = ()) -> tuple[Arg, ...]:
    """In TileLang's order: pointers by name, then scalars by name. Strides of 16-byte aligned rows count 16 bytes.

    ``q_rope`` is the tensor that holds the queries' rope part, None for rows of 512. ``partials`` are what a split decode adds.
    """
    size = 2 if dtype == "bf16" else 1
    unit = 16 // size
    flags = ("topk_length", "length"), ("attn_sink", "sink"), *((n, n) for n in ("q_scale", "kv_scale", "max_logits", "lse"))
    found = [
        *(ptr(n) for n in ("attn_sink", "indices", "kv_scale", "lse", "max_logits", "out", "q_scale", "topk_length")),
        ptr("kv", dtype=dtype),
        ptr("q", dtype=dtype),
        *(i32(n) for n in ("H", "T", "topk")),
        i32("s_kv", "min(s_kv, 2147483647)"),
        f32("sm_scale"),
        *(i32(f"has_{short}", f"has({name})") for name, short in flags),
        i64("indices_s0", "indices.s0"),
        *(i64(f"{n}_s{axis}", f"{n}.s{axis} // {unit if n == 'q' else 8}") for n in ("q", "out") for axis in (0, 1)),
        i64("kv_s0", f"kv.s0 // {unit}"),
        *partials,
    ]
    if q_rope:
        found.append(ptr("q_tail", of=q_rope, offset=512 * size if q_rope == "q" else 0, dtype=dtype))
        found += [i64(f"q_tail_s{axis}", f"{q_rope}.s{axis} // {unit}") for axis in (0, 1)]
    return tuple(sorted(found, key=lambda a: (a.type != "ptr", a.name)))


def kernel(target: str, dtype: str, heads: int, terms: int, rope: bool, q_rope: str, partials: tuple[Arg, ...] = ()) -> Kernel:
    form = FORMS[target, dtype]
    block = form.blocks[heads]
    return Kernel(
        language="tilelang",
        source=SOURCE,
        entry="sparse_mla_tile",
        args=arguments(dtype, q_rope if rope else None, partials),
        constants={
            "DTYPE": ROWS.get((target, dtype), "bfloat16"),
            "D": 576 if rope else 512,
            "HEADS": heads,
            "KEYS": block.keys,
            "TERMS": terms,
            "VALUES": form.values,
            "STAGED": block.staged,
            "PARKED": block.parked,
            "SPLIT": bool(partials),
        },
        options={"waves_per_eu": block.waves},
        promises=form.promises,
    )


@dataclass(frozen=True)
class Calls:
    """Calls that one kernel serves: their guard, what names them, and the arguments of ``kernel``."""

    when: str
    target: str
    dtype: str
    heads: int
    terms: int
    rope: bool
    q_rope: str
    place: str

    @property
    def name(self) -> str:
        return f"tile_{self.target}_{self.dtype}_{self.place}_h{self.heads}{'_two' if self.terms == 2 else ''}"

    @property
    def block(self) -> Block:
        return FORMS[self.target, self.dtype].blocks[self.heads]

    def kernel(self, partials: tuple[Arg, ...] = ()) -> Kernel:
        return kernel(self.target, self.dtype, self.heads, self.terms, self.rope, self.q_rope, partials)


def calls(heads: int) -> Iterator[Calls]:
    """Those of blocks of ``heads`` heads, for every target, element type, number of terms and place of the rope part."""
    for (target, dtype), form in FORMS.items():
        if heads not in form.blocks:
            continue
        for terms, levels in TERMS[dtype].items():
            level = f" and precision in ({', '.join(map(repr, levels))},)" if len(TERMS[dtype]) > 1 else ""
            for place, rope, q_rope, where in shared.PLACES:
                yield Calls(f"{where} and {HEADS[heads]}{level}", target, dtype, heads, terms, rope, q_rope, place)
