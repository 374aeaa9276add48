"""sparse_mla_decode: declaration. What it computes stands in include/sparse_mla.py, the candidates in one file per kernel."""

from collections.abc import Mapping

from aot.registry import sibling
from aot.spec import Candidate, Op

shared = sibling(__file__, "../include/sparse_mla")
low = sibling(__file__, "low_candidates")
triton, tile, tile_gfx = (sibling(__file__, f"{name}_candidates") for name in ("triton", "tile", "tile_gfx"))

OP = Op(
    name="sparse_mla_decode",
    doc=f"""sparse_mla_prefill for few tokens: the selected rows of a token are split over many programs.

{shared.SEMANTICS}""",
    params=shared.PARAMS,
    rules=shared.RULES,
    candidates=(
        # From about six items on; fewer are faster in clusters of tiles of 16 heads.
        *sibling(__file__, "../include/q8").candidates("T * (H // 64) * 24 >= sm_count"),
        *low.candidates("fp8"),
        *low.candidates("bf16"),
        *tile.candidates("fp8"),
        *tile.candidates("bf16"),
        # By docs/tuning/tile_gfx.md: one reading of a row for 64 heads is worth more than anything else; at 16 heads both kernels wait
        # for memory, and Triton's holds more waves.
        *tile_gfx.candidates(64),
        *triton.candidates(),
        *tile_gfx.candidates(16),
    ),
)


def configured(target: str, dtype: str, configuration: Mapping[str, int]) -> tuple[Candidate, ...]:
    """The Triton candidates with one of the configurations in configurations.json."""
    made: tuple[Candidate, ...] = triton.candidates({(target, dtype): triton.TILES[target, dtype].configured(configuration)})
    return made
