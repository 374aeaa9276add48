"""The Triton kernels: FP8 queries x FP8 rows, every head count, on every target. No preference here: the CUDA kernel goes first."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from aot.registry import sibling
from aot.spec import Candidate, Kernel, Launch

shared = sibling(__file__, "../include/sparse_mla")


@dataclass(frozen=True)
class Tile:
    """How a target runs its kernel. ``narrow`` are options that differ for rows of 512. ``pv`` says which PV product serves each
    precision level; "" where there is one for all.
    """

    source: str
    heads: int
    keys: int
    options: Mapping[str, int]
    promises: tuple[str, ...]
    pv: Mapping[str, str] = field(default_factory=lambda: {"fast": "one", "exact": "one", "high": "two"})
    narrow: Mapping[str, int] = field(default_factory=dict)
    xcds: int = 8

    def configured(self, configuration: Mapping[str, int]) -> "Tile":
        """This tile with another of the configurations in configurations.json, for both row widths."""
        options = {k: v for k, v in configuration.items() if not k.isupper()}
        heads, keys = configuration["BLOCK_H"], configuration["BLOCK_N"]
        return replace(self, heads=heads, keys=keys, options={**self.options, **options}, narrow={})


ONE_FOR_ALL = dict.fromkeys(("fast", "exact", "high"), "")
AMD = {"num_warps": 2, "num_stages": 1, "waves_per_eu": 2}
TILES = {
    # On sm90 the CUDA kernels serve every call; this one is their runner-up, for aot.tune to time.
    "sm90": Tile("fp8_prefill_sm90", 16, 64, {"num_warps": 4, "maxnreg": 128}, shared.GLUON, ONE_FOR_ALL),
    "gfx942": Tile("prefill", 16, 32, {**AMD, "kpack": 2}, (r"v_mfma_f32_16x16x32_fp8_fp8",), narrow={"num_warps": 4}),
    "gfx950": Tile("prefill", 16, 32, AMD, (r"v_mfma_f32_16x16x128_f8f6f4", r"v_mfma_f32_16x16x32_fp8_fp8")),
}


def kernel(tile: Tile, rope: bool, pv: str, q_rope: str) -> Kernel:
    return Kernel(
        language="triton",
        source=f"{tile.source}.py",
        entry=tile.source,
        args=shared.arguments("fp8", q_rope),
        constants={
            "ROPE": 64 if rope else 0,
            "BLOCK_H": tile.heads,
            "BLOCK_N": tile.keys,
            **({"PV": pv, "XCDS": tile.xcds} if pv else {}),
        },
        options={**tile.options, **({} if rope else tile.narrow)},
        promises=tile.promises,
    )


def candidates(tiles: Mapping[str, Tile] = TILES) -> tuple[Candidate, ...]:
    """One candidate per target, PV product and place of the rope part."""
    found = []
    for target, tile in tiles.items():
        for pv in dict.fromkeys(tile.pv.values()):
            levels = ", ".join(f"'{level}'" for level, product in tile.pv.items() if product == pv)
            for name, rope, q_rope, when in shared.PLACES:
                launch = Launch(kernel(tile, rope, pv, q_rope), (f"T * cdiv(H, {tile.heads})", 1, 1))
                when = f"{when} and precision in ({levels},)"
                found.append(Candidate("_".join(("fp8", target, name, *filter(None, (pv,)))), (target,), when, (launch,)))
    return tuple(found)
