"""concat_cast_kv: declaration."""

from aot.spec import Candidate, Kernel, Launch, Op, Rule, Scalar, Tensor, i32, i64, ptr
from aot.targets import TARGETS

BLOCK_T = 8

KERNEL = Kernel(
    language="triton",
    source="concat_cast_kv.py",
    entry="concat_cast_kv",
    args=(
        ptr("k"),
        i64("k_s0", "k.s0", multiple=8),
        ptr("k_rope"),
        i64("k_rope_s0", "k_rope.s0", multiple=8),
        ptr("out"),
        i64("out_s0", "out.s0", multiple=16),
        i32("T"),
        i32("rows", "T + pad_rows"),
        i32("R", multiple=64),
    ),
    constants={"BLOCK_T": BLOCK_T},
    options={"num_warps": 4},
)

OP = Op(
    name="concat_cast_kv",
    doc="""Concatenate the latent and rope parts of fresh keys and cast them to FP8 (scale 1, saturating).

    ``out[t] = fp8(concat(k[t], k_rope[t]))`` for t < T, then ``pad_rows`` rows of zero bytes. The cast rounds to nearest even and
    saturates (infinities included; a NaN stays a NaN). Rows of ``out`` beyond T + pad_rows are left as they were.
    """,
    params=(
        Tensor("k", "bf16", "T 512", "latent keys"),
        Tensor("k_rope", "bf16", "T R", "rope keys, R = 64; None for models without rope", optional=True),
        Scalar("pad_rows", "i32", "rows of zeros after the tokens", default=0),
        Tensor("out", "fp8", ">=T+pad_rows 512+64*has(k_rope)", "FP8 rows", output=True),
    ),
    rules=(
        Rule("not has(k_rope) or R == 64", "k_rope of width 64, or none", "pass None when the model has no rope part"),
        Rule("pad_rows >= 0", "pad_rows >= 0", "pass 0 for no padding"),
    ),
    candidates=(
        Candidate(
            name="triton",
            targets=tuple(TARGETS),
            when="1",
            launches=(Launch(KERNEL, (f"cdiv(T + pad_rows, {BLOCK_T})", 1, 1)),),
        ),
    ),
)
