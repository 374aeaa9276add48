"""The CUDA kernels on SM90: FP8 or BF16 queries and rows. A token's keys are split over a cluster of blocks that combine their
results through distributed shared memory: one launch, no workspace, the same order of additions every time.

An item is a token and a tile of heads. Tiles are as narrow as keeps the items few: blocks of threads of a narrow tile take less
time, and the rows that tiles share come out of the L2. Clusters are as large as fit the chip all at once, for one that waits for
another doubles the time; a processing cluster of the chip (18 SMs at most) holds one of eleven to sixteen blocks and two of up to
nine, with one block on an SM. FP8 blocks that have an SM to themselves run two teams of consumers. Items that fill the chip by
themselves have a block of threads each, two or three of them on an SM. The tables are read off docs/tuning/low_head.md.

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
    """A cluster size and the guard on the number of items. ``stages`` where they differ from ``low_head.stages``; with two teams they
    are ``TEAM_STAGES``. ``spare`` is a smaller size that is as fast where it gives a block of threads no key block more.
    """

    size: int
    items: str
    stages: int = 0
    teams: int = 1
    spare: int = 0

    def when(self, items: str) -> str:
        """Lists of half a key block a block of threads are worth the cluster: blocks of threads without keys cost nothing."""
        blocks = "cdiv(topk, 64)"
        fewer = f" and cdiv({blocks}, {self.size}) < cdiv({blocks}, {self.spare})" if self.spare else ""
        return f"{items} {self.items} and topk > {32 * self.size}{fewer}"

    @property
    def suffix(self) -> str:
        return f"_c{self.size}" + (f"_s{self.stages}" if self.stages else "") + (f"_t{self.teams}" if self.teams > 1 else "")


def one_on_an_sm(teams: int) -> tuple[Cluster, ...]:
    """For blocks of threads that have an SM to themselves: up to 66 items."""
    return (
        Cluster(16, "* 20 <= sm_count", spare=11),
        Cluster(11, "* 20 <= sm_count"),
        Cluster(9, "* 16 <= sm_count", teams=teams, spare=8),
        Cluster(8, "* 9 <= sm_count", teams=teams),
        Cluster(6, "* 6 < sm_count", teams=teams),
        Cluster(4, "* 14 <= 3 * sm_count", teams=teams),
        Cluster(3, "* 22 <= 7 * sm_count", teams=teams),
        Cluster(2, "* 2 <= sm_count", teams=teams),
    )


TWO = Cluster(2, "<= sm_count")
TEAM_STAGES = {512: 6, 576: 4}
PAIRED = "({0} <= 2 * sm_count or ({0} > 3 * sm_count and {0} <= 4 * sm_count))"
"""Items for which two blocks of threads with three stages on an SM end sooner than three with two: in as many turns, shorter ones."""


def clusters(dtype: str, tile: int) -> tuple[Cluster, ...]:
    if dtype == "bf16":
        return one_on_an_sm(1)
    if tile == 32:  # from 34 items on: fewer are served by tiles of 16
        return (Cluster(4, "* 11 <= 5 * sm_count"), TWO)
    return (*one_on_an_sm(2), TWO, Cluster(2, "* 2 <= 3 * sm_count", stages=2))


NARROW = {"fp8": 8, "bf16": 16}
"""SMs for every item of a tile of 8 heads, from which on that tile serves more than 8 heads."""
MIDDLE = {"fp8": 2, "bf16": 3}
"""Likewise for the tile of 16 heads."""


CALLS = {"fp8": "", "bf16": " and (H <= 32 or T * cdiv(H, 64) <= 2 or has(q_scale) or has(kv_scale))"}
"""From 33 heads on a tile of 64 (TileLang) reads a row of twice the bytes once: two tiles of 32 are faster for the very first tokens,
and apply scales."""


def whole(tile: int, dtype: str, d: int, items: str) -> str:
    """Which calls a tile serves without splitting keys. Of BF16 rows of 512 those with scales, and so few tokens that TileLang, which is
    faster with whole lists, would split them.
    """
    left = dtype == "bf16" and d == 512 and tile > 8
    return f" and ({items} * 3 <= 2 * sm_count or has(q_scale) or has(kv_scale))" if left else ""


def heads(tile: int, dtype: str) -> str:
    """Which calls a tile serves that no narrower one does."""
    if tile == 32:
        return f"H > 16{CALLS[dtype]}"
    share = NARROW[dtype] if tile == 8 else MIDDLE[dtype]
    return f"(H <= {tile} or T * cdiv(H, {tile}) * {share} <= sm_count){CALLS[dtype]}"


def candidates(dtype: str) -> tuple[Candidate, ...]:
    prefix = {"fp8": "low", "bf16": "low_bf16"}[dtype]
    found: list[Candidate] = []
    for tile in low_head.TILES:
        items, tiles = f"T * cdiv(H, {tile})", f"cdiv(H, {tile})"
        for place, rope, q_rope, where in shared.PLACES:
            d, rope_tensor = 576 if rope else 512, q_rope == "q_rope"
            usual, fewest = (low_head.stages(d, tile, dtype, paired) for paired in (True, False))

            def kernel(stages: int, split: bool, teams: int, d: int = d, tile: int = tile, rope_tensor: bool = rope_tensor) -> Kernel:
                entry = "sparse_mla_decode_low"
                return low_head.kernel("low_decode.cu", entry, d, tile, rope_tensor, split, stages, dtype, teams)

            name, when = f"{prefix}_{place}_h{tile}", f"{where} and {heads(tile, dtype)}"
            for c in clusters(dtype, tile):
                if c.stages == usual:
                    continue  # as many as the cluster of the same size before it
                made = kernel(TEAM_STAGES[d] if c.teams > 1 else c.stages or usual, True, c.teams)
                launch = Launch(made, (f"T * {c.size}", tiles, 1), (c.size, 1, 1))
                found.append(Candidate(name + c.suffix, ("sm90",), f"{when} and {c.when(items)}", (launch,)))
            if usual != fewest:
                launch = Launch(kernel(usual, False, 1), ("T", tiles, 1))
                found.append(Candidate(f"{name}_s{usual}", ("sm90",), f"{when} and {PAIRED.format(items)}", (launch,)))
            launch = Launch(kernel(fewest, False, 1), ("T", tiles, 1))
            found.append(Candidate(name, ("sm90",), when + whole(tile, dtype, d, items), (launch,)))
    return tuple(found)
