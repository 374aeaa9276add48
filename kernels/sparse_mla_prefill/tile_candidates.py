"""The TileLang kernels on SM90: BF16 rows, and FP8 rows widened to float16, in tiles of 16, 32 and 64 heads.

A block of threads has a unit to itself, so tokens come in rounds of as many as there are units, and a few in the last round keep the
chip as long as a full one: 4 tokens of 4096 a thirty-second of the time. Where they fill half of a round at most, they are cut into
splits that do fill it, as in decode, by a second launch of the same kernel. That is worth 2 % of FP8's time and nothing of BF16's,
whose blocks wait for memory and end at different times (docs/tuning/tile.md).
"""

from typing import Any

from aot.registry import sibling
from aot.spec import Candidate, Launch

tile = sibling(__file__, "../include/tile")
triton = sibling(__file__, "../sparse_mla_decode/triton_candidates")

BLOCKS = f"cdiv(topk, {tile.KEYS})"
LONG = 16
"""Key blocks from which on a round takes longer than two launches more, about 12 us."""


def in_rounds(f: Any) -> Candidate:
    """Whole rounds by one launch, the tokens left over by two."""
    tiles = f"cdiv(H, {f.heads})"
    left = f"(T % max(1, sm_count // {tiles}))"
    whole = f"(T - {left})"
    cut = f"cdiv({BLOCKS}, cdiv({BLOCKS}, min(64, sm_count // max(1, {left} * {tiles}))))"
    statistics, workspace = triton.workspace(cut, left)
    launches = (
        Launch(tile.kernel("tile_prefill.py", f, tokens=whole), f.grid(f"{whole} * {tiles}")),
        Launch(tile.kernel("tile_prefill.py", f, cut, statistics, left, whole), f.grid(f"{left} * {tiles} * ({cut})")),
        Launch(triton.combination(f.dtype, cut, tokens=left, first=whole), (f"{left} * H * 2", 1, 1)),
    )
    few = f"{left} > 0 and {whole} > 0 and 2 * {left} * {tiles} <= sm_count and {BLOCKS} >= {LONG}"
    return Candidate(f"{f.name}_rounds", ("sm90",), f"{f.when} and {few}", launches, workspace)


def candidates(dtype: str) -> tuple[Candidate, ...]:
    """Every row width, place of the rope part and tile for rows of ``dtype``."""
    found: list[Candidate] = []
    for f in tile.forms(dtype):
        if dtype == "fp8":
            found.append(in_rounds(f))
        direct = Launch(tile.kernel("tile_prefill.py", f), f.grid(f"T * cdiv(H, {f.heads})"))
        found.append(Candidate(f.name, ("sm90",), f.when, (direct,)))
    return tuple(found)
