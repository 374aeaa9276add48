"""The CUDA kernels: FP8 queries x FP8 rows on SM90. A token's keys are split over a cluster of blocks that combine their results
through distributed shared memory: one launch, no workspace, the same order of additions every time.

A cluster is as large as keeps the chip full and no larger. An item is a token and a tile of heads; the table below says up to
how many items, against the number of SMs, a cluster size is taken, and from which list width on: about half a key block for every
block of threads, for those without one cost nothing. It is read off docs/tuning/low_head.md. With items enough a block serves an
item alone.

From 33 heads on a token is several tiles. Tiles of 16 heads are the fastest while there are few; beyond that, at multiples of 64
heads, the kernel of 64-head tiles comes first (op.py).
"""

from dataclasses import dataclass

from aot.registry import sibling
from aot.spec import Candidate, Kernel, Launch

low_head = sibling(__file__, "../include/low_head")
shared = sibling(__file__, "../include/sparse_mla")


@dataclass(frozen=True)
class Cluster:
    """A cluster size, the guard on the number of items, and the narrowest list it is for."""

    size: int
    items: str
    topk: int


CLUSTERS = (
    Cluster(16, "* 32 <= sm_count", 512),
    Cluster(8, "* 8 <= sm_count", 256),
    Cluster(4, "* 4 <= sm_count", 128),
    Cluster(2, "<= sm_count", 64),
    Cluster(1, "<= 4 * sm_count", 0),
)
HEADS = {8: "H <= 8", 16: "(H > 8 and H <= 16 or H > 32 and T * cdiv(H, 16) <= sm_count)", 32: "H > 16"}
"""Which calls a tile serves, in the order of the tiles."""


def candidates(dtype: str) -> tuple[Candidate, ...]:
    prefix = {"fp8": "low", "bf16": "low_bf16"}[dtype]
    found: list[Candidate] = []
    for tile, heads in HEADS.items():
        items = f"T * cdiv(H, {tile})"
        for place, rope, q_rope, where in shared.PLACES:
            d = 576 if rope else 512

            def kernel(split: bool, d: int = d, tile: int = tile, rope_tensor: bool = q_rope == "q_rope") -> Kernel:
                stages = low_head.stages(d, tile, dtype, split)
                return low_head.kernel("low_decode.cu", "sparse_mla_decode_low", d, tile, rope_tensor, split, stages, dtype)

            for cluster in CLUSTERS:
                launch = Launch(kernel(True), (f"T * {cluster.size}", f"cdiv(H, {tile})", 1), (cluster.size, 1, 1))
                when = f"{where} and {heads} and {items} {cluster.items} and topk > {cluster.topk}"
                found.append(Candidate(f"{prefix}_{place}_h{tile}_c{cluster.size}", ("sm90",), when, (launch,)))
            launch = Launch(kernel(False), ("T", f"cdiv(H, {tile})", 1))
            found.append(Candidate(f"{prefix}_{place}_h{tile}", ("sm90",), f"{where} and {heads}", (launch,)))
    return tuple(found)
