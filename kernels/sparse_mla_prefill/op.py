"""sparse_mla_prefill: declaration. What it computes stands in include/sparse_mla.py, the candidates in one file per kernel."""

from aot.registry import sibling
from aot.spec import Op

shared = sibling(__file__, "../include/sparse_mla")

OP = Op(
    name="sparse_mla_prefill",
    doc=f"""Multi-query attention over the latent rows that an index list selects for each token (DeepSeek Sparse Attention).

{shared.SEMANTICS}""",
    params=shared.PARAMS,
    rules=shared.RULES,
    candidates=(
        *sibling(__file__, "../include/q8").candidates(),
        *sibling(__file__, "low_candidates").candidates(),
        *sibling(__file__, "fp8_candidates").candidates(),
        *sibling(__file__, "bf16_candidates").candidates(),
    ),
)
