"""kpool_topk: declaration."""

from aot.spec import Candidate, Kernel, Launch, Op, Rule, Scalar, Tensor, i32, i64, ptr

MAX_POOLS = 2048
ARGS = (
    ptr("score"),
    i64("score_s0", "score.s0"),
    ptr("lengths"),
    ptr("page_table"),
    i64("page_table_s0", "page_table.s0"),
    ptr("page_table_row"),
    ptr("offset"),
    ptr("row_starts"),
    ptr("seq_lens"),
    ptr("out"),
    i64("out_s0", "out.s0"),
    ptr("topk_length"),
    i32("S"),
    i32("R"),
    i32("P"),
    i32("topk"),
    i32("kpool"),
)
HAS = ("page_table", "page_table_row", "offset", "row_starts", "seq_lens", "topk_length")

CUDA = Kernel(
    language="cuda",
    source="kpool_topk.cu",
    entry="kpool_topk",
    args=ARGS,
    constants={"DSAK_MAX_POOLS": MAX_POOLS},
    options={"threads": 1024, "shared": 0},
)
TRITON = Kernel(
    language="triton",
    source="kpool_topk.py",
    entry="kpool_topk",
    args=(*ARGS, *(i32(f"has_{name}", f"has({name})") for name in HAS)),
    constants={"BLOCK": 4096},
    options={"num_warps": 16},
)

OP = Op(
    name="kpool_topk",
    doc="""Select the best pools of ``kpool`` consecutive tokens for each row, and list their tokens, then the row's live tail.

    Row b scores ``n = lengths[b]`` complete pools: ``score[b, s + i]`` for i < n, with s = ``row_starts[b]`` or 0. The
    ``topk // kpool`` pools with the highest scores are taken, all of them where there are fewer; of equal scores the
    first, and a NaN is below every number. ``out[b]`` lists the positions ``kpool * i + j`` of their tokens in ascending
    order, directly after them the tail, that is the ``seq_lens[b] % kpool`` positions from ``kpool * n`` on, and then -1.
    Without ``seq_lens`` there is no tail and no column for it. With kpool 1 this is a plain top-k.

    Positions become what attention takes: with ``page_table`` slots, ``page_table[r, position]`` with r = ``page_table_row[b]`` or b
    (-1 where r or the position is outside); with ``offset`` rows of a ragged buffer, ``position + offset[b]``.
    """,
    params=(
        Tensor("score", "f32", "B S", "scores of pools", align=4),
        Tensor(
            "lengths",
            "i32",
            "B",
            "complete pools of each row; clamped to what the row of scores holds",
            layout="contiguous",
            align=4,
        ),
        Tensor("page_table", "i32", "R P", "slot of every position of every request", optional=True, align=4),
        Tensor("page_table_row", "i32", "B", "row of page_table; None: row b serves b", optional=True, layout="contiguous", align=4),
        Tensor("offset", "i32", "B", "start of the row's request in a ragged buffer", optional=True, layout="contiguous", align=4),
        Tensor("row_starts", "i32", "B", "column of score where the row's pools start", optional=True, layout="contiguous", align=4),
        Tensor("seq_lens", "i32", "B", "tokens of each row; switches the tail on", optional=True, layout="contiguous", align=4),
        Scalar("topk", "i32", "columns of history", default=2048),
        Scalar("kpool", "i32", "tokens of a pool", default=4),
        Tensor("out", "i32", "B topk+(kpool-1)*has(seq_lens)", "selected positions, slots or rows; -1 at the end", output=True, align=4),
        Tensor("topk_length", "i32", "B", "columns in use", optional=True, output=True, layout="contiguous", align=4),
    ),
    rules=(
        Rule("kpool >= 1", "kpool >= 1", "pass 1 for single tokens"),
        Rule("topk >= kpool", "topk >= kpool", "select at least one pool"),
        Rule("topk % max(1, kpool) == 0", "topk a multiple of kpool", "round topk"),
        Rule(f"topk // max(1, kpool) <= {MAX_POOLS}", f"at most {MAX_POOLS} pools", "select fewer"),
        Rule("not (has(page_table) and has(offset))", "page_table or offset, not both", "pass the one that the pool is indexed by"),
        Rule("has(page_table) or not has(page_table_row)", "page_table_row with page_table", "pass page_table, or no page_table_row"),
        Rule(
            "has(page_table_row) or not has(page_table) or R >= B",
            "a row of page_table for each row of score",
            "pass page_table_row",
        ),
    ),
    candidates=(
        Candidate("cuda", ("sm90",), "1", (Launch(CUDA, ("B", 1, 1)),)),
        Candidate("triton", ("gfx942", "gfx950"), "1", (Launch(TRITON, ("B", 1, 1)),)),
    ),
)
