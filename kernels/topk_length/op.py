"""topk_length: declaration."""

from aot.spec import Candidate, Kernel, Launch, Op, Rule, Tensor, i32, i64, ptr
from aot.targets import TARGETS

KERNEL = Kernel(
    language="triton",
    source="topk_length.py",
    entry="topk_length",
    args=(ptr("indices"), i64("indices_s0", "indices.s0"), ptr("out"), i32("topk")),
    constants={"BLOCK": 512},
    options={"num_warps": 1},
)

OP = Op(
    name="topk_length",
    doc="""Number of columns of each index row up to its last selected one.

    ``out[t]`` is the last column c with ``indices[t, c] >= 0``, plus one, and at least 1: a row without any selection keeps one
    masked column. Meant for ``topk_length`` of sparse_mla_prefill, which then skips the -1 tails.
    """,
    params=(
        Tensor("indices", "i32", "T topk", "selected rows; negative is none", align=4),
        Tensor("out", "i32", ">=T", "lengths", output=True, align=4),
    ),
    rules=(Rule("topk >= 1", "topk >= 1", "pass at least one column, -1 where nothing is selected"),),
    candidates=(Candidate(name="triton", targets=tuple(TARGETS), when="1", launches=(Launch(KERNEL, ("T", 1, 1)),)),),
)
