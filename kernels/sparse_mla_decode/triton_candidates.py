"""The Triton kernels: every head count, FP8 and BF16 rows, on every target. One launch that stores, or partials and their combination.

FP8 rows on sm90 are served in Gluon, Triton's lower layer, which the same compiler takes.

How many splits a token's list is cut into stands in splits.py; docs/tuning/decode.md has the measurements.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from aot.registry import sibling
from aot.spec import Candidate, Kernel, Launch, i32, i64, ptr

shared = sibling(__file__, "../include/sparse_mla")
splits_of = sibling(__file__, "splits").splits


@dataclass(frozen=True)
class Tile:
    """How a target runs a kernel: heads and keys of a program, warps that a unit (SM or CU) holds, the shortest split.

    ``narrow`` are options that differ for rows of 512. ``pv`` says which PV product serves each precision level; "" where there is
    one for all. Up to ``few`` splits are combined by FEW_SPLITS. ``alone`` is that of splits.py.
    """

    source: str
    keys: int
    warps: int
    options: Mapping[str, int]
    promises: tuple[str, ...]
    pv: Mapping[str, str]
    narrow: Mapping[str, int] = field(default_factory=dict)
    heads: int = 16
    least: int = 64
    xcds: int = 8
    few: int = 0
    alone: int = 0

    def configured(self, configuration: Mapping[str, int]) -> "Tile":
        """This tile with another of the configurations in configurations.json, for both row widths."""
        options = {k: v for k, v in configuration.items() if not k.isupper()}
        heads, keys = configuration["BLOCK_H"], configuration["BLOCK_N"]
        return replace(self, heads=heads, keys=keys, options={**self.options, **options}, narrow={})

    def chosen(self, rope: bool) -> dict[str, int]:
        return {**self.options, **({} if rope else self.narrow)}

    def splits(self, rope: bool) -> str:
        """The number of splits, an expression over the call."""
        slots = f"{self.warps // self.chosen(rope)['num_warps']} * sm_count"
        return str(splits_of(self.heads, self.keys, slots, self.least, self.alone))


LEVELS = ("fast", "exact", "high")
ANY = dict.fromkeys(LEVELS, "")
ONE = dict.fromkeys(LEVELS, "one")
TERMS = {"fast": "one", "exact": "one", "high": "two"}
AMD = {"num_warps": 2, "num_stages": 1, "waves_per_eu": 2}
SM90 = {"num_warps": 4, "num_stages": 1}
TILES = {
    ("sm90", "fp8"): Tile("fp8_decode_sm90", 64, 8, {"num_warps": 4, "maxnreg": 128}, shared.GLUON, ANY, few=8, alone=6),
    ("sm90", "bf16"): Tile("decode", 32, 8, SM90, (r"HMMA\.16816\.F32\.BF16",), ONE, xcds=1),
    ("gfx942", "fp8"): Tile("decode", 32, 8, {**AMD, "kpack": 2}, ("v_mfma_f32_16x16x32_fp8_fp8",), TERMS, narrow={"num_warps": 4}),
    ("gfx942", "bf16"): Tile("decode", 16, 8, {**AMD, "num_warps": 4}, ("v_mfma_f32_16x16x16_bf16",), ONE),
    ("gfx950", "fp8"): Tile("decode", 32, 8, AMD, ("v_mfma_f32_16x16x128_f8f6f4",), TERMS),
    ("gfx950", "bf16"): Tile("decode", 16, 8, AMD, ("v_mfma_f32_16x16x32_bf16",), ONE),
}


def workspace(splits: str, tokens: str = "T") -> tuple[str, str]:
    """Where the partial statistics start, and the bytes of the workspace: 512 elements of two bytes and two floats a partial."""
    return f"{tokens} * H * ({splits}) * 1024", f"{tokens} * H * ({splits}) * 1032"


def attention(tile: Tile, dtype: str, rope: bool, pv: str, q_rope: str, splits: str) -> Kernel:
    return Kernel(
        language="triton",
        source=f"{tile.source}.py",
        entry=tile.source,
        args=(
            *shared.arguments(dtype, q_rope),
            ptr("partial", of="workspace"),
            ptr("partial_statistics", of="workspace", offset=workspace(splits)[0]),
            i32("splits", splits),
        ),
        constants={
            "ROPE": 64 if rope else 0,
            "BLOCK_H": tile.heads,
            "BLOCK_N": tile.keys,
            **({"PV": pv, "XCDS": tile.xcds} if pv else {}),
        },
        options=tile.chosen(rope),
        promises=tile.promises,
    )


MANY_SPLITS = {"BLOCK_S": 16, "BLOCK_D": 256, "num_warps": 4}
FEW_SPLITS = {"BLOCK_S": 8, "BLOCK_D": 256, "num_warps": 1}
"""How the combination runs. One warp keeps its columns of all splits, where four of them must meet, but loads fewer splits at a time."""


def combination(dtype: str, splits: str, block: Mapping[str, int] = MANY_SPLITS, tokens: str = "T", first: str = "0") -> Kernel:
    """Of the partials of ``tokens`` from token ``first`` on."""
    return Kernel(
        language="triton",
        source="combine.py",
        entry="combine",
        args=(
            ptr("partial", of="workspace"),
            ptr("partial_statistics", of="workspace", offset=workspace(splits, tokens)[0]),
            i32("splits", splits),
            ptr("attn_sink"),
            ptr("kv_scale"),
            ptr("out", offset=shared.behind(first, "out.s0 * 2")),
            i64("out_s0", "out.s0", multiple=8),
            i64("out_s1", "out.s1", multiple=8),
            ptr("max_logits", offset=shared.behind(first, "H * 4")),
            ptr("lse", offset=shared.behind(first, "H * 4")),
            i32("H"),
            i32("has_sink", "has(attn_sink)"),
            i32("has_kv_scale", "has(kv_scale)"),
            i32("has_max_logits", "has(max_logits)"),
            i32("has_lse", "has(lse)"),
        ),
        constants={"BLOCK_S": block["BLOCK_S"], "BLOCK_D": block["BLOCK_D"], "O_TYPE": "f16" if dtype == "fp8" else "bf16"},
        options={"num_warps": block["num_warps"]},
    )


def candidates(tiles: Mapping[tuple[str, str], Tile] = TILES) -> tuple[Candidate, ...]:
    """Per target, dtype, PV product and place of the rope part: one launch where one split suffices, else two."""
    found = []
    for (target, dtype), tile in tiles.items():
        for pv in dict.fromkeys(tile.pv.values()):
            levels = ", ".join(f"'{level}'" for level, product in tile.pv.items() if product == pv)
            for name, rope, q_rope, place in shared.PLACES:
                splits = tile.splits(rope)
                made = attention(tile, dtype, rope, pv, q_rope, splits)
                grid = f"T * cdiv(H, {tile.heads})"
                first = Launch(made, (f"{grid} * ({splits})", 1, 1))
                when = f"{place} and precision in ({levels},)"
                words = "_".join((dtype, target, name, *([pv] if len(set(tile.pv.values())) > 1 else [])))
                found.append(Candidate(f"{words}_direct", (target,), f"{when} and ({splits}) == 1", (first,)))
                several = [("few_split", f"> 1 and ({splits}) <= {tile.few}", FEW_SPLITS)] if tile.few else []
                for word, number, block in (*several, ("split", "> 1", MANY_SPLITS)):
                    second = Launch(combination(dtype, splits, block), ("T * H * 2", 1, 1))
                    guard = f"{when} and ({splits}) {number}"
                    found.append(Candidate(f"{words}_{word}", (target,), guard, (first, second), workspace(splits)[1]))
    return tuple(found)
