"""The TileLang kernel of AMD's matrix cores for decode: one launch that stores, or partials and the combination that Triton's kernels
use too. Splits are those of splits.py.

Blocks of 64 heads read a row once for all of them, but there are fewer: calls that leave units without one even when every 64 columns
are a split go to the kernels of 16-head tiles.
"""

from aot.registry import sibling
from aot.spec import Candidate, Launch, i32, ptr

tile = sibling(__file__, "../include/tile_gfx")
triton = sibling(__file__, "triton_candidates")
splits_of = sibling(__file__, "splits").splits

LEAST = 64
"""Columns of the shortest split."""
FILLED = {16: "", 64: f" and T * cdiv(H, 64) * cdiv(topk, {LEAST}) >= sm_count"}


def candidates(heads: int) -> tuple[Candidate, ...]:
    """Those of blocks of ``heads`` heads; op.py says where they stand."""
    found = []
    for calls in tile.calls(heads):
        splits = splits_of(heads, calls.block.keys, f"{calls.block.per_unit} * sm_count", LEAST)
        statistics, workspace = triton.workspace(splits)
        partials = (
            ptr("partial", of="workspace"),
            ptr("partial_statistics", of="workspace", offset=statistics),
            i32("splits", splits),
        )
        first = Launch(calls.kernel(partials), (f"T * cdiv(H, {heads}) * ({splits})", 1, 1))
        second = Launch(triton.combination(calls.dtype, splits), ("T * H * 2", 1, 1))
        when = f"{calls.when}{FILLED[heads]}"
        found += [
            Candidate(f"{calls.name}_direct", (calls.target,), f"{when} and ({splits}) == 1", (first,)),
            Candidate(f"{calls.name}_split", (calls.target,), f"{when} and ({splits}) > 1", (first, second), workspace),
        ]
    return tuple(found)
