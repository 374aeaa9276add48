"""The CUDA kernels on SM90: FP8 or BF16 queries and rows. A token's keys are split over a cluster of blocks that combine their
results through distributed shared memory: one launch, no workspace, the same order of additions every time.

An item is a token and a tile of heads. Tiles are as narrow as keeps the chip's clusters few: blocks of narrow tiles take less time,
and their rows come out of the L2. Clusters are as large as fit the chip all at once: one that waits for another doubles the time.
A processing cluster of the chip (18 SMs at most) holds one of eleven to sixteen blocks and two of up to nine, with one block on an
SM. The tables are read off docs/tuning/low_head.md.

From 33 heads on a token is several tiles. At multiples of 64 heads the kernel of 64-head tiles comes before these where it is
faster (op.py).
"""

from dataclasses import dataclass

from aot.registry import sibling
from aot.spec import Candidate, Kernel, Launch

low_head = sibling(__file__, "../include/low_head")
shared = sibling(__file__, "../include/sparse_mla")


@dataclass(frozen=True)
class Cluster:
    """A cluster size and the guard on the number of items. ``stages`` where it differs from ``low_head.stages``."""

    size: int
    items: str
    stages: int = 0

    def when(self, items: str) -> str:
        """Lists of half a key block a block of threads are worth the cluster: blocks of threads without keys cost nothing."""
        blocks = "cdiv(topk, 64)"
        fewer = f" and cdiv({blocks}, 16) < cdiv({blocks}, 11)" if self.size == 16 else ""  # 11 are enough for 2051 columns
        return f"{items} {self.items} and topk > {32 * self.size if self.size > 1 else 0}{fewer}"


CLUSTERS = {
    "fp8": (
        Cluster(16, "* 20 <= sm_count"),
        Cluster(11, "* 20 <= sm_count"),
        Cluster(9, "* 16 <= sm_count"),
        Cluster(8, "* 9 <= sm_count"),
        Cluster(6, "* 6 < sm_count"),
        Cluster(7, "* 7 <= 2 * sm_count - 14"),
        Cluster(4, "* 11 <= 5 * sm_count"),
        Cluster(2, "<= sm_count"),
        Cluster(2, "* 2 <= 3 * sm_count", stages=2),
        Cluster(1, "<= 4 * sm_count"),
    ),
    "bf16": (
        Cluster(16, "* 20 <= sm_count"),
        Cluster(11, "* 20 <= sm_count"),
        Cluster(9, "* 16 <= sm_count"),
        Cluster(8, "* 9 <= sm_count"),
        Cluster(6, "* 6 < sm_count"),
        Cluster(4, "* 14 <= 3 * sm_count"),
        Cluster(3, "* 22 <= 7 * sm_count"),
        Cluster(2, "* 2 <= sm_count"),
        Cluster(1, "<= 4 * sm_count"),
    ),
}
NARROW = {("fp8", 512): 8, ("fp8", 576): 16, ("bf16", 512): 16, ("bf16", 576): 16}
"""SMs for every item of a tile of 8 heads, from which on that tile serves more than 8 heads."""
MIDDLE = {"fp8": 2, "bf16": 3}
"""Likewise for the tile of 16 heads."""


def heads(tile: int, dtype: str, d: int) -> str:
    """Which calls a tile serves that no narrower one does."""
    if tile == 32:
        return "H > 16"
    share = NARROW[dtype, d] if tile == 8 else MIDDLE[dtype]
    return f"(H <= {tile} or T * cdiv(H, {tile}) * {share} <= sm_count)"


def candidates(dtype: str) -> tuple[Candidate, ...]:
    prefix = {"fp8": "low", "bf16": "low_bf16"}[dtype]
    found: list[Candidate] = []
    for tile in low_head.TILES:
        items = f"T * cdiv(H, {tile})"
        for place, rope, q_rope, where in shared.PLACES:
            d = 576 if rope else 512
            name = f"{prefix}_{place}_h{tile}"

            def kernel(stages: int, split: bool = True, d: int = d, tile: int = tile, rope_tensor: bool = q_rope == "q_rope") -> Kernel:
                return low_head.kernel("low_decode.cu", "sparse_mla_decode_low", d, tile, rope_tensor, split, stages, dtype)

            usual = low_head.stages(d, tile, dtype, split=True)
            for cluster in CLUSTERS[dtype]:
                if cluster.stages == usual:
                    continue
                launch = Launch(kernel(cluster.stages or usual), (f"T * {cluster.size}", f"cdiv(H, {tile})", 1), (cluster.size, 1, 1))
                suffix = f"_c{cluster.size}" + (f"_s{cluster.stages}" if cluster.stages else "")
                found.append(
                    Candidate(name + suffix, ("sm90",), f"{where} and {heads(tile, dtype, d)} and {cluster.when(items)}", (launch,))
                )
            launch = Launch(kernel(low_head.stages(d, tile, dtype, split=False), split=False), ("T", f"cdiv(H, {tile})", 1))
            found.append(Candidate(name, ("sm90",), f"{where} and {heads(tile, dtype, d)}", (launch,)))
    return tuple(found)
