"""The CUDA kernel for few heads (dsak/low_head): FP8 queries x FP8 rows on SM90, in tiles of 8, 16 or 32 heads.

One object serves every precision level: it carries P as two e4m3 terms and adds every block to float32 sums, and a form with one
term was at most 4 % faster.
"""

from aot.registry import sibling
from aot.spec import Kernel, f32, i32

shared = sibling(__file__, "sparse_mla")

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
            *shared.cuda_pointers(rope),
            *shared.cuda_strides(rope),
            i32("H"),
            i32("topk"),
            i32("s_kv", "min(s_kv, 2147483647)"),
            f32("sm_scale"),
        ),
        constants={"DSAK_D": d, "DSAK_HEADS": heads, "DSAK_SPLIT": int(split), "DSAK_STAGES": stages},
        options={"threads": THREADS, "shared": shared_bytes(d, heads, stages)},
        promises=(r"QGMMA", r"UBLKCP"),
    )
