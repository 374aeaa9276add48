"""gather_requant_kv: declaration."""

from aot.spec import Candidate, Kernel, Launch, Op, Rule, Scalar, Tensor, i32, i64, ptr
from aot.targets import TARGETS

BLOCK_T = 4


def kernel(dtype: str) -> Kernel:
    return Kernel(
        language="triton",
        source="gather_requant_kv.py",
        entry="gather_requant_kv",
        args=(
            ptr("kv_cache", dtype=dtype),
            i64("kv_cache_s0", "kv_cache.s0", multiple=16),
            ptr("page_table"),
            ptr("out"),
            i64("out_s0", "out.s0", multiple=16),
            i32("N"),
            i32("rows", "N + pad_rows"),
            i32("slots", "min(slots, 2147483647)"),
        ),
        constants={"BLOCK_T": BLOCK_T, "BYTES": dtype == "u8"},
        options={"num_warps": 4},
    )


OP = Op(
    name="gather_requant_kv",
    doc="""Gather packed 656-byte rows of a paged pool into plain FP8 rows of 576.

    A packed row is 512 e4m3 values in 4 groups of 128, one float32 scale a group, 64 bf16 rope elements. For i < N and
    ``row = kv_cache[page_table[i]]``: ``out[i] = fp8(concat(values * scales, rope))``, then ``pad_rows`` rows of zero bytes. Products are
    rounded in float32; the cast rounds to nearest even and saturates (a NaN stays a NaN). Slots may repeat; a slot outside the
    pool gives a row of zeros. Rows of ``out`` beyond N + pad_rows are left as they were.
    """,
    params=(
        Tensor("kv_cache", "u8|fp8", "slots 656", "packed pool, as bytes or viewed as FP8"),
        Tensor("page_table", "i32", "N", "slot of every row to gather", align=4),
        Scalar("pad_rows", "i32", "rows of zeros after the gathered ones", default=0),
        Tensor("out", "fp8", ">=N+pad_rows 576", "FP8 rows", output=True),
    ),
    rules=(Rule("pad_rows >= 0", "pad_rows >= 0", "pass 0 for no padding"),),
    candidates=tuple(
        Candidate(
            name=f"triton_{dtype}",
            targets=tuple(TARGETS),
            when="1",
            launches=(Launch(kernel(dtype), (f"cdiv(N + pad_rows, {BLOCK_T})", 1, 1)),),
        )
        for dtype in ("u8", "fp8")
    ),
)
