"""How sparse_mla_decode cuts a call: every shape is served on every target, splits fill the chip, none of them is idle."""

import functools
import itertools

import pytest

from aot import registry
from aot.expr import parse as parse_text
from aot.targets import TARGETS

parse = functools.cache(parse_text)

OP = registry.load(registry.KERNELS / "sparse_mla_decode/op.py").OP
TILES = registry.load(registry.KERNELS / "sparse_mla_decode/triton_candidates.py").TILES
TILE = registry.load(registry.KERNELS / "sparse_mla_decode/tile_candidates.py")
TOKENS = (1, 2, 7, 8, 33, 64, 65, 100, 256, 437, 512, 4096, 70000)
WIDTHS = (1, 63, 64, 65, 256, 1000, 2048, 2051, 2176, 8192)


def env(target, dtype, T, H, topk, rope=False, D=512, precision="high"):
    """What the expressions of a call read."""
    t = TARGETS[target]
    element = t.fp8 if dtype == "fp8" else dtype
    found = {"T": T, "H": H, "topk": topk, "D": D, "Dq": 512 if rope else D, "R": 64 if rope else 0, "s_kv": 65536, "sm_count": t.units}
    found |= {"shared_memory": t.shared_memory, "precision": precision, "sm_scale": 0.1}
    for x in OP.tensors.values():
        found[f"has({x.name})"] = int(not x.optional or (rope and x.name == "q_rope"))
        found[f"{x.name}.dtype"] = element
        found |= {f"{x.name}.{kind}{i}": 512 for kind in "sd" for i in range(3)}
    return found


def served(call, target):
    """The Triton candidate that takes the call."""
    for c in OP.candidates_for(TARGETS[target]):
        if all(x.kernel.language == "triton" for x in c.launches) and parse(c.when)(call):
            return c
    return None


@pytest.mark.parametrize(("target", "dtype"), TILES)
@pytest.mark.parametrize(("D", "rope"), [(512, False), (576, False), (576, True)])
def test_every_shape_is_served(target, dtype, D, rope):
    for T, H, topk, precision in itertools.product((1, 64, 70000), (1, 8, 16, 17, 64, 128), (1, 65, 2051), ("fast", "exact", "high")):
        call = env(target, dtype, T, H, topk, rope, D, precision)
        c = served(call, target)
        assert c, (T, H, topk, precision)
        launches = [[int(parse(g)(call)) for g in x.grid] for x in c.launches]
        assert len(launches) == (2 if c.name.endswith("_split") else 1)
        assert all(0 < g[0] < 2**31 and g[1:] == [1, 1] for g in launches)
        assert (int(parse(c.workspace)(call)) > 0) == c.name.endswith("_split")


@pytest.mark.parametrize(("target", "dtype"), TILES)
@pytest.mark.parametrize("rope", [False, True])
def test_splits_fill_the_chip_and_none_is_idle(target, dtype, rope):
    tile, units = TILES[target, dtype], TARGETS[target].units
    slots = tile.warps // tile.chosen(rope)["num_warps"] * units
    splits_of = parse(tile.splits(rope))
    for T, H, topk in itertools.product(TOKENS, (8, 16, 64, 128), WIDTHS):
        splits = int(splits_of({"T": T, "H": H, "topk": topk, "sm_count": units}))
        tiles, blocks = T * -(-H // 16), -(-topk // tile.keys)
        assert 1 <= splits <= min(64, blocks)
        assert (splits - 1) * -(-blocks // splits) < blocks, "the last split has a block"
        assert splits == 1 or tiles * splits <= slots or (splits <= 3 and tiles * splits <= 2 * slots)


@pytest.mark.parametrize("heads", TILE.tile.TILES)
def test_tile_splits_fill_the_chip_and_none_is_idle(heads):
    splits_of = parse(TILE.splits(heads))
    for T, H, topk in itertools.product(TOKENS, (8, 16, 64, 128), WIDTHS):
        splits = int(splits_of({"T": T, "H": H, "topk": topk, "sm_count": 132}))
        tiles, blocks = T * -(-H // heads), -(-topk // TILE.tile.KEYS)
        assert 1 <= splits <= min(64, blocks)
        assert (splits - 1) * -(-blocks // splits) < blocks, "the last split has a block"
        assert splits == 1 or tiles * splits <= 132 or (splits <= 3 and tiles * splits <= 2 * 132)


@pytest.mark.parametrize(("target", "dtype"), [("sm90", "bf16"), ("sm90", "fp8")])
@pytest.mark.parametrize(("D", "rope"), [(512, False), (576, False), (576, True)])
def test_tile_serves_every_shape(target, dtype, D, rope):
    """In one launch or two, and the partials lie in the workspace."""
    for T, H, topk in itertools.product((1, 64, 70000), (1, 16, 17, 33, 128), (1, 65, 2051)):
        call = env(target, dtype, T, H, topk, rope, D)
        c = next(c for c in OP.candidates_for(TARGETS[target]) if c.name.startswith(f"tile_{dtype}") and parse(c.when)(call))
        splits = next(int(parse(a.value)(call)) for a in c.launches[0].kernel.args if a.name == "splits")
        assert (splits > 1) == (len(c.launches) == 2) == c.name.endswith("_split")
        heads = c.launches[0].kernel.constants["HEADS"]
        items = T * -(-H // heads) * splits
        assert int(parse(c.launches[0].grid[0])(call)) == (min(items, 132) if (dtype, heads) == ("fp8", 16) else items)
        if splits > 1:
            assert int(parse(c.workspace)(call)) == T * H * splits * (512 * 2 + 2 * 4)


@pytest.mark.parametrize(
    ("T", "topk", "splits"),
    [
        (1, 2048, 32),
        (8, 2048, 16),
        (16, 2048, 8),
        (20, 2048, 11),
        (64, 2048, 4),
        (128, 2051, 2),
        (160, 2048, 3),
        (256, 2048, 1),
        (437, 2048, 1),
    ],
)
def test_measured_splits_on_sm90(T, topk, splits):
    assert parse(TILES["sm90", "fp8"].splits(False))({"T": T, "H": 16, "topk": topk, "sm_count": 132}) == splits


def test_few_splits_have_a_combination_of_their_own():
    for T, topk in itertools.product(TOKENS, WIDTHS):
        call = env("sm90", "fp8", T, 16, topk)
        splits = int(parse(TILES["sm90", "fp8"].splits(False))(call))
        c = served(call, "sm90")
        assert c.name == "fp8_sm90_d512_" + ("direct" if splits == 1 else "few_split" if splits <= 8 else "split")


@pytest.mark.parametrize("name", [c.name for c in OP.candidates if c.launches[0].kernel.language == "triton" and c.workspace != "0"])
def test_partials_lie_in_the_workspace(name):
    (c,) = (c for c in OP.candidates if c.name == name)
    call = env(c.targets[0], name.split("_")[0], 5, 24, 2051)
    splits = next(int(parse(a.value)(call)) for a in c.launches[0].kernel.args if a.name == "splits")
    for x in c.launches:
        offsets = [int(parse(a.offset)(call)) for a in x.kernel.args if a.value == "workspace"]
        assert offsets == [0, 5 * 24 * splits * 512 * 2]
    assert int(parse(c.workspace)(call)) == 5 * 24 * splits * (512 * 2 + 2 * 4)


TILE_GFX = registry.sibling(str(registry.KERNELS / "include/op.py"), "tile_gfx")


def taken(call, target, languages):
    """The first candidate that takes the call and whose attention kernel is in one of ``languages``."""
    for c in OP.candidates_for(TARGETS[target]):
        if c.launches[0].kernel.language in languages and parse(c.when)(call):
            return c
    return None


@pytest.mark.parametrize(("target", "dtype"), TILE_GFX.FORMS)
@pytest.mark.parametrize(("D", "rope"), [(512, False), (576, False), (576, True)])
def test_tilelang_serves_every_shape_that_fills_the_chip(target, dtype, D, rope):
    """Blocks of 64 heads go before Triton from there on; what TileLang does not serve, Triton does; at 16 heads Triton goes first."""
    form = TILE_GFX.FORMS[target, dtype]
    for T, H, topk, precision in itertools.product((1, 64, 70000), (1, 8, 16, 17, 64, 128), (1, 65, 2051), ("fast", "exact", "high")):
        call = env(target, dtype, T, H, topk, rope, D, precision)
        c = taken(call, target, ("tilelang",))
        wide = H > 16
        fills = T * -(-H // 64) * -(-topk // 64) >= TARGETS[target].units
        assert bool(c) == ((64 in form.blocks and fills) if wide else 16 in form.blocks), (T, H, topk, precision)
        first = taken(call, target, ("tilelang", "triton"))
        assert first and first.launches[0].kernel.language == ("tilelang" if wide and c else "triton")
        if c:
            assert f"_h{64 if wide else 16}" in c.name and ("_two" in c.name) == (dtype == "fp8" and precision == "high")
            launches = [[int(parse(g)(call)) for g in x.grid] for x in c.launches]
            splits = launches[0][0] // (T * -(-H // (64 if wide else 16)))
            assert splits >= 1 and len(launches) == (2 if c.name.endswith("_split") else 1) == min(splits, 2)
            assert all(0 < g[0] < 2**31 and g[1:] == [1, 1] for g in launches)
            assert int(parse(c.workspace)(call)) == (T * H * splits * 1032 if splits > 1 else 0)


@pytest.mark.parametrize(("target", "dtype"), TILE_GFX.FORMS)
def test_splits_of_tilelang_fill_the_chip_and_none_is_idle(target, dtype):
    for T, H, topk in itertools.product(TOKENS, (8, 16, 64, 128), WIDTHS):
        c = taken(env(target, dtype, T, H, topk), target, ("tilelang",))
        if c:
            heads = 16 if H <= 16 else 64
            block = TILE_GFX.FORMS[target, dtype].blocks[heads]
            splits = int(parse(c.launches[0].grid[0])(env(target, dtype, T, H, topk))) // (T * -(-H // heads))
            blocks = -(-topk // block.keys)
            each = -(-blocks // splits)
            assert (splits - 1) * each < blocks, "the last split has a block"
            assert splits == 1 or T * -(-H // heads) * splits <= 3 * block.per_unit * TARGETS[target].units


def first(call):
    return next(c.name for c in OP.candidates_for(TARGETS["sm90"]) if parse(c.when)(call))


@pytest.mark.parametrize(
    ("dtype", "D", "scales", "names"),
    [
        (
            "fp8",
            512,
            False,
            {
                66: "c2_t2",
                67: "c2",
                132: "c2",
                133: "c2_s2",
                198: "c2_s2",
                199: "s3",
                264: "s3",
                265: "",
                396: "",
                397: "s3",
                528: "s3",
                529: "",
            },
        ),
        ("fp8", 576, False, {66: "c2_t2", 67: "c2", 132: "c2", 133: "", 4096: ""}),
        ("bf16", 512, False, {66: "c2", 67: "", 88: "", 89: "tile", 4096: "tile"}),
        ("bf16", 512, True, {66: "c2", 67: "", 89: "", 4096: ""}),
        ("bf16", 576, False, {66: "c2", 67: "", 4096: ""}),
    ],
)
def test_lists_of_sixteen_heads_go_where_132_sms_end_soonest(dtype, D, scales, names):
    """Clusters of CUDA blocks, whole lists with two or three stages, TileLang: docs/tuning/low_head.md and decode.md."""
    cuda = {"fp8": "low", "bf16": "low_bf16"}[dtype] + f"_d{D}_h16"
    for T, name in names.items():
        call = env("sm90", dtype, T, 16, 2051, D=D) | {"has(kv_scale)": int(scales)}
        assert first(call) == (f"tile_bf16_d{D}_h16_direct" if name == "tile" else f"{cuda}_{name}" if name else cuda), T


def test_kernels_that_split_keys_are_launched_in_clusters_and_no_others():
    for c in OP.candidates_for(TARGETS["sm90"]):
        for x in c.launches:
            if "DSAK_SPLIT" in x.kernel.constants:
                assert (x.cluster[0] >= 2) == bool(x.kernel.constants["DSAK_SPLIT"]), c.name
