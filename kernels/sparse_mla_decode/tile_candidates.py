"""The TileLang kernels on SM90, BF16 and FP8 rows: one launch that stores, or partials and their combination.

A block has a unit to itself, so a token's list is cut into as many splits as fill the chip once; into three where the tokens alone fill
more than half of it but two thirds at most and lists are long (two full rounds of thirds end before one round of wholes does). No more
than have a key block to themselves when blocks are dealt evenly. docs/tuning/tile.md has the measurements.
"""

from aot.registry import sibling
from aot.spec import Candidate, Launch

tile = sibling(__file__, "../include/tile")
triton = sibling(__file__, "triton_candidates")


def splits(heads: int) -> str:
    """The number of splits for tiles of ``heads``, an expression over the call."""
    tiles = f"max(1, T * cdiv(H, {heads}))"
    filling = f"3 if topk >= 1024 and 2 * {tiles} > sm_count and 3 * {tiles} <= 2 * sm_count else sm_count // {tiles}"
    blocks = f"cdiv(topk, {tile.KEYS})"
    return f"cdiv({blocks}, cdiv({blocks}, max(1, min(64, {filling}))))"


def candidates(dtype: str) -> tuple[Candidate, ...]:
    """Two for every row width, place of the rope part and tile: one split, or several."""
    found = []
    for f in tile.forms(dtype):
        cut = splits(f.heads)
        statistics, workspace = triton.workspace(cut)
        attention = Launch(tile.kernel("tile_decode.py", f, cut, statistics), f.grid(f"T * cdiv(H, {f.heads}) * ({cut})"))
        combine = Launch(triton.combination(dtype, cut), ("T * H * 2", 1, 1))
        found += [
            Candidate(f"{f.name}_direct", ("sm90",), f"{f.when} and ({cut}) == 1", (attention,)),
            Candidate(f"{f.name}_split", ("sm90",), f"{f.when} and ({cut}) > 1", (attention, combine), workspace),
        ]
    return tuple(found)
