"""The CUDA kernel for few heads (dsak/low_head): FP8 or BF16 queries and rows on SM90, in tiles of 8, 16 or 32 heads.

One object serves every precision level. FP8: it carries P as two e4m3 terms and adds every block to float32 sums, and a form with
one term was at most 4 % faster.
"""

from aot.registry import sibling
from aot.spec import Kernel, f32, i32, rows

shared = sibling(__file__, "sparse_mla")

TILES = (8, 16, 32)
THREADS = 256
KEYS = 64
"""Of a block."""
PRODUCER_WARPS = 4
SHARED = 232448
"""Bytes of shared memory that a block of threads may have."""


def in_tiles(dtype: str, teams: int) -> bool:
    """Whether rows come in pieces of 16 bytes, into tiles that wgmma reads, rather than whole: all but the FP8 rows of two teams."""
    return dtype == "bf16" or teams == 1


def in_lines(d: int, dtype: str, teams: int) -> bool:
    """Whether rows that come whole come by tensor copies, aligned, instead of bulk copies. Rows of 576 are no whole number of lines."""
    return not in_tiles(dtype, teams) and d == 512


def shared_bytes(d: int, heads: int, stages: int, dtype: str, teams: int = 1) -> int:
    """The kernel's shared-memory plan; its source asserts the same sum."""
    size, pieces = shared.SIZES[dtype], PRODUCER_WARPS if dtype == "bf16" else 1
    stage = KEYS * d * size if in_tiles(dtype, teams) else 8 * (8 * d + (128 if in_lines(d, dtype, teams) else 16))
    overlaps = dtype == "bf16" and stages >= 3
    query, probability, frames = heads * d * size, KEYS * 2 * heads * (1 + overlaps), 5 * heads * 4
    statistics = 32 * heads if teams > 1 else 0
    return stages * stage + query + teams * (probability + frames + statistics + 8) + (16 + 8 * pieces) * stages + 8


def stages(d: int, heads: int, dtype: str, paired: bool) -> int:
    """Blocks of rows in shared memory. FP8: three where two blocks of threads are to share an SM (``paired``) and have room for
    them, two otherwise, so that three fit at 512 and up to 16 heads. BF16: as many as one block of threads has room for.
    """
    if dtype == "bf16":
        return 3 if shared_bytes(d, heads, 3, dtype) <= SHARED else 2
    return 3 if paired and d == 512 and heads <= 16 else 2


def kernel(
    source: str, entry: str, d: int, heads: int, rope_tensor: bool, split: bool = False, stages: int = 2, dtype: str = "fp8", teams: int = 1
) -> Kernel:
    rope = "q_rope" if rope_tensor else "q"
    bf16, tiles, lines = dtype == "bf16", in_tiles(dtype, teams), in_lines(d, dtype, teams)
    pointers = [rows("kv", dtype=dtype) if lines and a.name == "kv" else a for a in shared.cuda_pointers(rope, dtype)]
    return Kernel(
        language="cuda",
        source=source,
        entry=entry,
        args=(
            *pointers,
            *shared.cuda_strides(rope),
            i32("H"),
            i32("topk"),
            i32("s_kv", "min(s_kv, 2147483647)"),
            f32("sm_scale"),
        ),
        constants={
            "DSAK_D": d,
            "DSAK_HEADS": heads,
            "DSAK_SPLIT": int(split),
            "DSAK_STAGES": stages,
            "DSAK_BF16": int(bf16),
            **({"DSAK_TEAMS": teams} if teams > 1 else {}),
            **({"DSAK_LINES": 1} if lines else {}),
            **({"DSAK_TILES": 1} if tiles and not bf16 else {}),
        },
        options={"threads": THREADS + 128 * (teams - 1), "shared": shared_bytes(d, heads, stages, dtype, teams)},
        promises=(
            r"HGMMA\.64x\d+x16\.F32\.BF16" if bf16 else r"QGMMA",
            r"LDGSTS" if tiles else r"UTMALDG" if lines else r"UBLKCP",
        ),
    )
