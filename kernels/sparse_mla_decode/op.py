"""sparse_mla_decode: declaration. What it computes stands in include/sparse_mla.py, the candidates in one file per kernel."""

from collections.abc import Mapping

from aot.registry import sibling
from aot.spec import Candidate, Op

shared = sibling(__file__, "../include/sparse_mla")
triton = sibling(__file__, "triton_candidates")
tile = sibling(__file__, "tile_gfx_candidates")

OP = Op(
    name="sparse_mla_decode",
    doc=f"""sparse_mla_prefill for few tokens: the selected rows of a token are split over many programs.

{shared.SEMANTICS}""",
    params=shared.PARAMS,
    rules=shared.RULES,
    candidates=(
        # From about six items on; fewer are faster in clusters of tiles of 16 heads.
        *sibling(__file__, "../include/q8").candidates("T * (H // 64) * 24 >= sm_count"),
        *sibling(__file__, "low_candidates").candidates(),
        # By docs/tuning/tile.md: one reading of a row for 64 heads is worth more than anything else; at 16 heads both kernels wait for
        # memory, and Triton's holds more waves.
        *tile.candidates(64),
        *triton.candidates(),
        *tile.candidates(16),
    ),
)


def configured(target: str, dtype: str, configuration: Mapping[str, int]) -> tuple[Candidate, ...]:
    """The Triton candidates with one of the configurations in configurations.json."""
    made: tuple[Candidate, ...] = triton.candidates({(target, dtype): triton.TILES[target, dtype].configured(configuration)})
    return made
