"""sparse_mla_prefill: declaration. What it computes stands in include/sparse_mla.py, the candidates in one file per kernel."""

from collections.abc import Mapping

from aot.registry import sibling
from aot.spec import Candidate, Op

shared = sibling(__file__, "../include/sparse_mla")
low = sibling(__file__, "low_candidates")
fp8, bf16 = (sibling(__file__, f"{dtype}_candidates") for dtype in ("fp8", "bf16"))
tile, tile_gfx = (sibling(__file__, f"{name}_candidates") for name in ("tile", "tile_gfx"))

OP = Op(
    name="sparse_mla_prefill",
    doc=f"""Multi-query attention over the latent rows that an index list selects for each token (DeepSeek Sparse Attention).

{shared.SEMANTICS}""",
    params=shared.PARAMS,
    rules=shared.RULES,
    candidates=(
        *sibling(__file__, "../include/q8").candidates(),
        *low.candidates("fp8"),
        *low.candidates("bf16", (8,)),
        *tile.candidates("bf16"),
        *low.candidates("bf16", (16, 32)),
        *tile.candidates("fp8"),
        # By docs/tuning/tile_gfx.md: one reading of a row for 64 heads is worth more than anything else; at 16 heads both kernels wait
        # for memory, and Triton's holds more waves.
        *tile_gfx.candidates(64),
        *fp8.candidates(),
        *bf16.candidates(),
        *tile_gfx.candidates(16),
    ),
)


def configured(target: str, dtype: str, configuration: Mapping[str, int]) -> tuple[Candidate, ...]:
    """The Triton candidates with one of the configurations in configurations.json."""
    if dtype == "bf16":
        made: tuple[Candidate, ...] = bf16.candidates(configuration)
    else:
        made = fp8.candidates({target: fp8.TILES[target].configured(configuration)})
    return made
