"""The TileLang kernel of AMD's matrix cores for prefill: one launch, a block for each token and tile of heads."""

from aot.registry import sibling
from aot.spec import Candidate, Launch

tile = sibling(__file__, "../include/tile_gfx")


def candidates() -> tuple[Candidate, ...]:
    found = []
    for target, dtype, form, heads, terms, place, rope, q_rope, when in tile.calls():
        launch = Launch(tile.kernel(target, dtype, form, rope, q_rope, heads, terms), (f"T * cdiv(H, {heads})", 1, 1))
        name = f"tile_{target}_{dtype}_{place}_h{heads}{'_two' if terms == 2 else ''}"
        found.append(Candidate(name, (target,), when, (launch,)))
    return tuple(found)
