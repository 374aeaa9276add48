"""topk_transform: declaration."""

from aot.spec import Candidate, Kernel, Launch, Op, Rule, Tensor, i32, i64, ptr
from aot.targets import TARGETS

BLOCK = 1024

KERNEL = Kernel(
    language="triton",
    source="topk_transform.py",
    entry="topk_transform",
    args=(
        ptr("page_table"),
        i64("page_table_s0", "page_table.s0"),
        ptr("topk_indices"),
        i64("topk_indices_s0", "topk_indices.s0"),
        ptr("cu_seqlens_q"),
        ptr("offset"),
        ptr("out"),
        i64("out_s0", "out.s0"),
        i32("B"),
        i32("P"),
        i32("topk"),
        i32("prefill", "has(cu_seqlens_q)"),
        i32("ragged", "has(offset)"),
    ),
    constants={"BLOCK": BLOCK, "BLOCK_B": 256},
    options={"num_warps": 4},
)

OP = Op(
    name="topk_transform",
    doc="""Turn positions selected within requests into slots of the KV pool, or into rows of a ragged buffer.

    With ``page_table``: ``out[t, c] = page_table[r, topk_indices[t, c]]``, where r is the request of token t: t itself without
    ``cu_seqlens_q`` (decode, or a page table that is expanded to one row per token), else the r with
    ``cu_seqlens_q[r] <= t < cu_seqlens_q[r + 1]``. Positions outside 0..P-1, and tokens beyond the last request, give -1.
    With ``offset``: ``out[t, c] = topk_indices[t, c] + offset[t]``, -1 where the position is negative.
    ``out`` may be ``topk_indices`` itself.
    """,
    params=(
        Tensor("page_table", "i32", "B P", "slot of every position of every request", optional=True, align=4),
        Tensor("topk_indices", "i32", "T topk", "selected positions; negative is none", align=4),
        Tensor(
            "cu_seqlens_q", "i32", "B+1", "first token of every request, then their end; None: row t serves token t", optional=True, align=4
        ),
        Tensor("offset", "i32", "T", "row where the token's request starts", optional=True, align=4),
        Tensor("out", "i32", "T topk", "selected slots or rows, -1 for none", output=True, align=4),
    ),
    rules=(
        Rule("topk >= 1", "topk >= 1", "pass at least one column, -1 where nothing is selected"),
        Rule("has(page_table) != has(offset)", "page_table or offset, one of them", "pass the one that the pool is indexed by"),
        Rule("has(page_table) or not has(cu_seqlens_q)", "cu_seqlens_q with page_table", "leave it out: offset has a row for every token"),
    ),
    candidates=(
        Candidate(
            name="triton",
            targets=tuple(TARGETS),
            when="1",
            launches=(Launch(KERNEL, ("T", f"cdiv(topk, {BLOCK})", 1)),),
        ),
    ),
)
