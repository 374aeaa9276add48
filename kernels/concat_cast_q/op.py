"""concat_cast_q: declaration."""

from aot.spec import Candidate, Kernel, Launch, Op, Rule, Tensor, i32, i64, ptr
from aot.targets import TARGETS

BLOCK_H = 8

KERNEL = Kernel(
    language="triton",
    source="concat_cast_q.py",
    entry="concat_cast_q",
    args=(
        ptr("q_nope"),
        i64("q_nope_s0", "q_nope.s0", multiple=8),
        i64("q_nope_s1", "q_nope.s1", multiple=8),
        ptr("q_rope"),
        i64("q_rope_s0", "q_rope.s0", multiple=8),
        i64("q_rope_s1", "q_rope.s1", multiple=8),
        ptr("out"),
        i64("out_s0", "out.s0", multiple=16),
        i64("out_s1", "out.s1", multiple=16),
        i32("H"),
        i32("R", multiple=64),
    ),
    constants={"BLOCK_H": BLOCK_H},
    options={"num_warps": 4},
)

OP = Op(
    name="concat_cast_q",
    doc="""Concatenate the latent and rope parts of absorbed queries and cast them to FP8 (scale 1, saturating).

    ``out[t, h] = fp8(concat(q_nope[t, h], q_rope[t, h]))`` for t < T, h < H. Values beyond the largest finite e4m3 saturate,
    infinities included; a NaN stays a NaN; everything else is the round-to-nearest-even cast. Rows and heads of ``out`` beyond
    T and H are left as they were.
    """,
    params=(
        Tensor("q_nope", "bf16", "T H 512", "latent queries, strided freely in T and H"),
        Tensor("q_rope", "bf16", "T H R", "rope queries, R = 64; None for models without rope", optional=True),
        Tensor("out", "fp8", ">=T >=H 512+64*has(q_rope)", "FP8 queries", output=True),
    ),
    rules=(
        Rule("H >= 1 and H <= 128", "1 <= H <= 128", "split the heads over ranks"),
        Rule("not has(q_rope) or R == 64", "q_rope of width 64, or none", "pass None when the model has no rope part"),
    ),
    candidates=(
        Candidate(
            name="triton",
            targets=tuple(TARGETS),
            when="1",
            launches=(Launch(KERNEL, ("T", f"cdiv(H, {BLOCK_H})", 1)),),
        ),
    ),
)
