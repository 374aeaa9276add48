"""The TileLang kernel of AMD's matrix cores (tile.py): its arguments, and how each target runs it.

Every call is served: rows of 512 and 576, BF16 and FP8 in the target's own e4m3, any head count, every ``precision``. A block takes
16 heads (one wave) or 64 (four waves that share the rows).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from aot.registry import sibling
from aot.spec import Arg, Kernel, f32, i32, i64, ptr

shared = sibling(__file__, "sparse_mla")

SOURCE = "../include/tile.py"
HEADS = {16: "H <= 16", 64: "H > 16"}
"""Heads of a block, and the calls that it serves."""
TERMS = {"fp8": {1: ("fast", "exact"), 2: ("high",)}, "bf16": {1: ("fast", "exact", "high")}}
"""Terms in which P is carried, and the levels of ``precision`` that they serve."""
ROWS = {("gfx950", "fp8"): "float8_e4m3fn", ("gfx942", "fp8"): "float8_e4m3fnuz"}
"""What fp8 is; the compiler module refuses another flavour than the target's."""


@dataclass(frozen=True)
class Form:
    """How a target runs the kernel for rows of one element type.

    ``keys`` a block takes at a time, by its heads, and whether the next ones are on their way meanwhile (``staged``). ``waves`` are those
    that the compiler is held to on a SIMD, 0 for its own choice. ``values`` says how V^T is read; ``promises`` what the code must hold.
    """

    keys: Mapping[int, int]
    staged: Mapping[int, bool]
    waves: Mapping[int, int]
    values: str
    promises: tuple[str, ...]


FORMS: dict[tuple[str, str], Form] = {
    ("gfx950", "bf16"): Form(
        {16: 32, 64: 32}, {16: True, 64: False}, {16: 1, 64: 1}, "transposed", (r"v_mfma_f32_16x16x32_bf16", r"ds_read_b64_tr_b16")
    ),
    ("gfx950", "fp8"): Form(
        {16: 32, 64: 64},
        {16: True, 64: False},
        {16: 1, 64: 2},
        "transposed",
        (r"v_mfma_f32_16x16x128_f8f6f4", r"v_mfma_f32_16x16x32_fp8_fp8", r"ds_read_b64_tr_b8"),
    ),
    ("gfx942", "bf16"): Form({16: 32, 64: 32}, {16: True, 64: False}, {16: 1, 64: 1}, "permuted", (r"v_mfma_f32_16x16x16_bf16",)),
    ("gfx942", "fp8"): Form({16: 32, 64: 64}, {16: True, 64: False}, {16: 1, 64: 1}, "permuted", (r"v_mfma_f32_16x16x32_fp8_fp8",)),
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


def kernel(target: str, dtype: str, form: Form, rope: bool, q_rope: str, heads: int, terms: int, partials: tuple[Arg, ...] = ()) -> Kernel:
    return Kernel(
        language="tilelang",
        source=SOURCE,
        entry="sparse_mla_tile",
        args=arguments(dtype, q_rope if rope else None, partials),
        constants={
            "DTYPE": ROWS.get((target, dtype), "bfloat16"),
            "D": 576 if rope else 512,
            "HEADS": heads,
            "KEYS": form.keys[heads],
            "TERMS": terms,
            "VALUES": form.values,
            "STAGED": form.staged[heads],
            "SPLIT": bool(partials),
        },
        options={"waves_per_eu": form.waves[heads]},
        promises=form.promises,
    )


def calls() -> Iterator[tuple[str, str, Form, int, int, str, bool, str, str]]:
    """Every target, element type, form, heads of a block, terms, place of the rope part, and the guard of their calls."""
    for (target, dtype), form in FORMS.items():
        for heads, which in HEADS.items():
            for terms, levels in TERMS[dtype].items():
                for place, rope, q_rope, when in shared.PLACES:
                    level = f" and precision in ({', '.join(map(repr, levels))},)" if len(TERMS[dtype]) > 1 else ""
                    yield target, dtype, form, heads, terms, place, rope, q_rope, f"{when} and {which}{level}"
