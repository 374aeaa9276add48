"""The TileLang kernel of AMD's matrix cores for decode: one launch that stores, or partials and the combination that Triton's kernels
use too. Splits are those of splits.py.
"""

from aot.registry import sibling
from aot.spec import Candidate, Launch, i32, ptr

tile = sibling(__file__, "../include/tile_gfx")
triton = sibling(__file__, "triton_candidates")
splits_of = sibling(__file__, "splits").splits

BLOCKS = {("gfx950", "bf16"): {16: 4, 64: 1}, ("gfx950", "fp8"): {16: 4, 64: 2}, ("gfx942", "bf16"): {16: 1, 64: 1}, ("gfx942", "fp8"): {16: 3, 64: 1}}
"""Blocks that a unit holds at once, by the heads of a block: what the evidence table says of registers and LDS."""


def candidates() -> tuple[Candidate, ...]:
    found = []
    for target, dtype, form, heads, terms, place, rope, q_rope, when in tile.calls():
        splits = splits_of(heads, form.keys[heads], f"{BLOCKS[target, dtype][heads]} * sm_count", 64)
        statistics, workspace = triton.workspace(splits)
        partials = (
            ptr("partial", of="workspace"),
            ptr("partial_statistics", of="workspace", offset=statistics),
            i32("splits", splits),
        )
        made = tile.kernel(target, dtype, form, rope, q_rope, heads, terms, partials)
        first = Launch(made, (f"T * cdiv(H, {heads}) * ({splits})", 1, 1))
        second = Launch(triton.combination(dtype, splits), ("T * H * 2", 1, 1))
        name = f"tile_{target}_{dtype}_{place}_h{heads}{'_two' if terms == 2 else ''}"
        found += [
            Candidate(f"{name}_direct", (target,), f"{when} and ({splits}) == 1", (first,)),
            Candidate(f"{name}_split", (target,), when, (first, second), workspace),
        ]
    return tuple(found)
