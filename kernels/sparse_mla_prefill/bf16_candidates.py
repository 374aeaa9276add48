"""The Triton kernel for BF16 queries x BF16 rows on gfx942, where few heads have no kernel in TileLang."""

from collections.abc import Mapping

from aot.registry import sibling
from aot.spec import Candidate, Kernel, Launch

shared = sibling(__file__, "../include/sparse_mla")


GFX942 = {"BLOCK_H": 16, "BLOCK_N": 16, "num_warps": 4, "waves_per_eu": 2}


def gfx942(rope: bool, q_rope: str, configuration: Mapping[str, int]) -> Kernel:
    """The Triton kernel that serves FP8 rows on AMD; 16 keys keep BF16 rows within two waves a SIMD."""
    return Kernel(
        language="triton",
        source="prefill.py",
        entry="prefill",
        args=shared.arguments("bf16", q_rope),
        constants={"ROPE": 64 if rope else 0, "PV": "one", "XCDS": 8, **{k: v for k, v in configuration.items() if k.isupper()}},
        options={"num_stages": 1, **{k: v for k, v in configuration.items() if not k.isupper()}},
        promises=(r"v_mfma_f32_16x16x16_bf16",),
    )


def candidates(configuration: Mapping[str, int] = GFX942) -> tuple[Candidate, ...]:
    grid = (f"T * cdiv(H, {configuration['BLOCK_H']})", 1, 1)
    return tuple(
        Candidate(f"bf16_gfx942_{name}", ("gfx942",), when, (Launch(gfx942(rope, q_rope, configuration), grid),))
        for name, rope, q_rope, when in shared.PLACES
    )
