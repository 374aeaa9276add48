"""sparse_mla_prefill: declaration. What it computes stands in include/sparse_mla.py, the candidates in one file per kernel."""

from collections.abc import Mapping

from aot.registry import sibling
from aot.spec import Candidate, Op

shared = sibling(__file__, "../include/sparse_mla")
low = sibling(__file__, "low_candidates")
fp8, bf16 = (sibling(__file__, f"{dtype}_candidates") for dtype in ("fp8", "bf16"))
tile = sibling(__file__, "tile_candidates")

OP = Op(
    name="sparse_mla_prefill",
    doc=f"""Multi-query attention over the latent rows that an index list selects for each token (DeepSeek Sparse Attention).

{shared.SEMANTICS}""",
    params=shared.PARAMS,
    rules=shared.RULES,
    candidates=(
        *sibling(__file__, "../include/q8").candidates(),
        *low.candidates("fp8"),
        *low.candidates("bf16"),
        *tile.candidates("fp8"),
        *fp8.candidates(),
        *tile.candidates("bf16"),
        *bf16.candidates(),
    ),
)


def configured(target: str, dtype: str, configuration: Mapping[str, int]) -> tuple[Candidate, ...]:
    """The Triton candidates with one of the configurations in configurations.json."""
    if dtype == "bf16":
        made: tuple[Candidate, ...] = bf16.gfx942_candidates(configuration)
    else:
        made = fp8.candidates({target: fp8.TILES[target].configured(configuration)})
    return made
