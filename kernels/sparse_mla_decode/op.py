"""sparse_mla_decode: declaration. What it computes stands in include/sparse_mla.py, the candidates in one file per kernel."""

from aot.registry import sibling
from aot.spec import Op

shared = sibling(__file__, "../include/sparse_mla")

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
        *sibling(__file__, "triton_candidates").candidates(),
    ),
)
