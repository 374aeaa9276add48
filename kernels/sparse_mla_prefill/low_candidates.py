"""The CUDA kernels for few heads on SM90: FP8 or BF16 queries and rows. One block of threads per token and tile of heads.

Any head count: from 33 on a token is several tiles. In FP8 multiples of 64 have a kernel of their own before this. In BF16 the TileLang
kernels are faster from 9 heads on (op.py) and leave calls with scales to these.
"""

from collections.abc import Iterable

from aot.registry import sibling
from aot.spec import Candidate, Launch

low_head = sibling(__file__, "../include/low_head")
shared = sibling(__file__, "../include/sparse_mla")

HEADS = {8: "H <= 8", 16: "H > 8 and H <= 16", 32: "H > 16"}
"""Which head counts a tile serves."""


def candidates(dtype: str, tiles: Iterable[int] = tuple(HEADS)) -> tuple[Candidate, ...]:
    prefix = {"fp8": "low", "bf16": "low_bf16"}[dtype]
    found: list[Candidate] = []
    for tile in tiles:
        for place, rope, q_rope, where in shared.PLACES:
            made = low_head.kernel(
                "low_prefill.cu",
                "sparse_mla_prefill_low",
                576 if rope else 512,
                tile,
                rope_tensor=q_rope == "q_rope",
                dtype=dtype,
                stages=low_head.stages(576 if rope else 512, tile, dtype, paired=False),
            )
            launch = Launch(made, ("T", f"cdiv(H, {tile})", 1))
            found.append(Candidate(f"{prefix}_{place}_h{tile}", ("sm90",), f"{where} and {HEADS[tile]}", (launch,)))
    return tuple(found)
