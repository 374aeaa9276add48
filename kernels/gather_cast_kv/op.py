"""gather_cast_kv: declaration."""

from aot.spec import Candidate, Kernel, Launch, Op, Rule, Scalar, Tensor, i32, i64, ptr
from aot.targets import TARGETS

BLOCK_T = 8
STRIDE = {"bf16": 8, "fp8": 16}  # elements in 16 bytes


def kernel(dtype: str) -> Kernel:
    return Kernel(
        language="triton",
        source="gather_cast_kv.py",
        entry="gather_cast_kv",
        args=(
            ptr("kv_cache", dtype=dtype),
            i64("kv_cache_s0", "kv_cache.s0", multiple=STRIDE[dtype]),
            ptr("page_table"),
            ptr("out"),
            i64("out_s0", "out.s0", multiple=16),
            i32("N"),
            i32("rows", "N + pad_rows"),
            i32("slots", "min(slots, 2147483647)"),
            i32("D", multiple=64),
        ),
        constants={"BLOCK_T": BLOCK_T, "RAW": dtype == "fp8"},
        options={"num_warps": 4},
    )


OP = Op(
    name="gather_cast_kv",
    doc="""Gather latent rows of a paged pool into a contiguous FP8 buffer.

    ``out[i] = fp8(kv_cache[page_table[i]])`` for i < N, then ``pad_rows`` rows of zero bytes. From a bf16 pool the cast has scale 1,
    rounds to nearest even and saturates (infinities included; a NaN stays a NaN); from an FP8 pool rows are copied byte for
    byte. Slots may repeat; a slot outside the pool gives a row of zeros. Rows of ``out`` beyond N + pad_rows are left as they were.
    """,
    params=(
        Tensor("kv_cache", "bf16|fp8", "slots D", "pool of rows of 512 latent elements, or 576 with rope"),
        Tensor("page_table", "i32", "N", "slot of every row to gather", align=4),
        Scalar("pad_rows", "i32", "rows of zeros after the gathered ones", default=0),
        Tensor("out", "fp8", ">=N+pad_rows D", "FP8 rows", output=True),
    ),
    rules=(
        Rule("D in (512, 576)", "rows of 512 or 576 elements", "dequantise packed rows with gather_requant_kv"),
        Rule("pad_rows >= 0", "pad_rows >= 0", "pass 0 for no padding"),
    ),
    candidates=tuple(
        Candidate(
            name=f"triton_{dtype}",
            targets=tuple(TARGETS),
            when="1",
            launches=(Launch(kernel(dtype), (f"cdiv(N + pad_rows, {BLOCK_T})", 1, 1)),),
        )
        for dtype in STRIDE
    ),
)
