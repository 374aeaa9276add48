"""The CUDA kernel for few heads: FP8 queries x FP8 rows on SM90. One block per token and tile of heads."""

from aot.registry import sibling
from aot.spec import Candidate, Launch

low_head = sibling(__file__, "../include/low_head")
shared = sibling(__file__, "../include/sparse_mla")

HEADS = {8: "H <= 8", 16: "H > 8 and H <= 16", 32: "H > 16"}
"""Which head counts a tile serves. From 33 on a token is several tiles; multiples of 64 have a kernel of their own before this."""


def candidates() -> tuple[Candidate, ...]:
    return tuple(
        Candidate(
            name=f"low_{place}_h{tile}",
            targets=("sm90",),
            when=f"{where} and {heads}",
            launches=(
                Launch(
                    low_head.kernel("low_prefill.cu", "sparse_mla_prefill_low", 576 if rope else 512, tile, q_rope == "q_rope"),
                    ("T", f"cdiv(H, {tile})", 1),
                ),
            ),
        )
        for tile, heads in HEADS.items()
        for place, rope, q_rope, where in shared.PLACES
    )
