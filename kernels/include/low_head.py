"""The CUDA kernel for few heads (dsak/low_head): FP8 queries x FP8 rows on SM90, in tiles of 8, 16 or 32 heads.

One object serves every precision level: it carries P as two e4m3 terms and adds every block to float32 sums, and a form with one
term was at most 4 % faster.
"""

from aot.spec import Kernel, f32, i32, i64, ptr

TILES = (8, 16, 32)
THREADS = 256


def shared_bytes(d: int, heads: int, stages: int) -> int:
    """The kernel's shared-memory plan; its source asserts the same sum."""
    rows = stages * 8 * (8 * d + 16)
    query, probability, frames = heads * d, 64 * 2 * heads, 5 * heads * 4
    return rows + query + probability + frames + 24 * stages + 16


def kernel(source: str, entry: str, d: int, heads: int, rope_tensor: bool, split: bool = False, stages: int = 2) -> Kernel:
    rope = "q_rope" if rope_tensor else "q"
    return Kernel(
        language="cuda",
        source=source,
        entry=entry,
        args=(
            ptr("q", dtype="fp8"),
            ptr("q_rope", of=rope, offset=0 if rope_tensor else 512, dtype="fp8"),
            ptr("kv", dtype="fp8"),
            ptr("indices"),
            ptr("topk_length"),
            ptr("attn_sink"),
            ptr("q_scale"),
            ptr("kv_scale"),
            ptr("out"),
            ptr("max_logits"),
            ptr("lse"),
            i64("q_stride_t", "q.s0"),
            i64("q_stride_h", "q.s1"),
            i64("q_rope_stride_t", f"{rope}.s0"),
            i64("q_rope_stride_h", f"{rope}.s1"),
            i64("kv_stride", "kv.s0"),
            i64("indices_stride", "indices.s0"),
            i64("out_stride_t", "out.s0"),
            i64("out_stride_h", "out.s1"),
            i32("H"),
            i32("topk"),
            i32("s_kv", "min(s_kv, 2147483647)"),
            f32("sm_scale"),
        ),
        constants={"DSAK_D": d, "DSAK_HEADS": heads, "DSAK_SPLIT": int(split), "DSAK_STAGES": stages},
        options={"threads": THREADS, "shared": shared_bytes(d, heads, stages)},
        promises=(r"QGMMA", r"UBLKCP"),
    )
