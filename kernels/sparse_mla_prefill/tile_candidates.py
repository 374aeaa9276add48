"""The TileLang kernels on SM90: BF16 rows, and FP8 rows widened to float16, in tiles of 16, 32 and 64 heads."""

from aot.registry import sibling
from aot.spec import Candidate, Launch

tile = sibling(__file__, "../include/tile")


def candidates(dtype: str) -> tuple[Candidate, ...]:
    """Every row width, place of the rope part and tile for rows of ``dtype``."""
    return tuple(
        Candidate(f.name, ("sm90",), f.when, (Launch(tile.kernel("tile_prefill.py", f), (f"T * cdiv(H, {f.heads})", 1, 1)),))
        for f in tile.forms(dtype)
    )
