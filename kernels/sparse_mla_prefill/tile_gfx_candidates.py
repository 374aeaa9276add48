"""The TileLang kernel of AMD's matrix cores for prefill: one launch, a block for each token and tile of heads."""

from aot.registry import sibling
from aot.spec import Candidate, Launch

tile = sibling(__file__, "../include/tile_gfx")


def candidates(heads: int) -> tuple[Candidate, ...]:
    """Those of blocks of ``heads`` heads; op.py says where they stand."""
    return tuple(
        Candidate(calls.name, (calls.target,), calls.when, (Launch(calls.kernel(), (f"T * cdiv(H, {heads})", 1, 1)),))
        for calls in tile.calls(heads)
    )
