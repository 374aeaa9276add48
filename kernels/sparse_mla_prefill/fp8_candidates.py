"""The Triton kernels: FP8 queries x FP8 rows, every head count, on every target. No preference here: the CUDA kernel goes first."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from aot.spec import Candidate, Kernel, Launch, f32, i32, i64, ptr


@dataclass(frozen=True)
class Tile:
    """How a target runs its kernel. ``pv`` says which PV product serves each precision level; "" where there is one for all."""

    source: str
    heads: int
    keys: int
    options: Mapping[str, int]
    promises: tuple[str, ...]
    pv: Mapping[str, str] = field(default_factory=lambda: {"fast": "e4m3", "exact": "e4m3", "high": "e4m3x2"})


ONE_FOR_ALL = dict.fromkeys(("fast", "exact", "high"), "")
AMD = {"num_warps": 2, "num_stages": 1, "waves_per_eu": 2}
TILES = {
    "sm90": Tile("fp8_prefill_sm90", 16, 64, {"num_warps": 4, "num_stages": 1, "maxnreg": 168}, (r"HGMMA\.64x16x16\.F32",), ONE_FOR_ALL),
    "gfx942": Tile("fp8_prefill", 16, 32, {**AMD, "kpack": 2}, (r"v_mfma_f32_16x16x32_fp8_fp8",)),
    "gfx950": Tile("fp8_prefill", 16, 32, AMD, (r"v_mfma_f32_16x16x128_f8f6f4", r"v_mfma_f32_16x16x32_fp8_fp8")),
}


def kernel(target: str, rope: bool, pv: str, q_rope: str) -> Kernel:
    tile = TILES[target]
    return Kernel(
        language="triton",
        source=f"{tile.source}.py",
        entry=tile.source,
        args=(
            ptr("q", dtype="fp8"),
            i64("q_s0", "q.s0", multiple=16),
            i64("q_s1", "q.s1", multiple=16),
            ptr("q_rope", of=q_rope, offset=512 if q_rope == "q" else 0, dtype="fp8"),
            i64("q_rope_s0", f"{q_rope}.s0", multiple=16),
            i64("q_rope_s1", f"{q_rope}.s1", multiple=16),
            ptr("kv", dtype="fp8"),
            i64("kv_s0", "kv.s0", multiple=16),
            ptr("indices"),
            i64("indices_s0", "indices.s0"),
            ptr("topk_length"),
            ptr("attn_sink"),
            ptr("q_scale"),
            ptr("kv_scale"),
            ptr("out"),
            i64("out_s0", "out.s0", multiple=8),
            i64("out_s1", "out.s1", multiple=8),
            ptr("max_logits"),
            ptr("lse"),
            f32("sm_scale"),
            i32("H"),
            i32("s_kv", "min(s_kv, 2147483647)"),
            i32("topk"),
            i32("has_length", "has(topk_length)"),
            i32("has_sink", "has(attn_sink)"),
            i32("has_q_scale", "has(q_scale)"),
            i32("has_kv_scale", "has(kv_scale)"),
            i32("has_max_logits", "has(max_logits)"),
            i32("has_lse", "has(lse)"),
        ),
        constants={"ROPE": 64 if rope else 0, "BLOCK_H": tile.heads, "BLOCK_N": tile.keys, **({"PV": pv} if pv else {})},
        options=tile.options,
        promises=tile.promises,
    )


def candidates() -> tuple[Candidate, ...]:
    """One candidate per target, PV product and place of the rope part; the two places share an object."""
    found = []
    for target, tile in TILES.items():
        for pv in dict.fromkeys(tile.pv.values()):
            levels = ", ".join(f"'{level}'" for level, product in tile.pv.items() if product == pv)
            for name, rope, q_rope, when in (
                ("d512", False, "q", "D == 512"),
                ("d576", True, "q", "D == 576 and not has(q_rope)"),
                ("d576_rope", True, "q_rope", "D == 576 and has(q_rope)"),
            ):
                launch = Launch(kernel(target, rope, pv, q_rope), (f"T * cdiv(H, {tile.heads})", 1, 1))
                when = f"{when} and precision in ({levels},)"
                found.append(Candidate("_".join(("fp8", target, name, *filter(None, (pv,)))), (target,), when, (launch,)))
    return tuple(found)
