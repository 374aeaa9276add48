"""How the 64-head kernel cuts left-over items, and the calls that the sparse MLA ops refuse: by the declarations' own expressions."""

import functools
import itertools

import pytest

from aot import registry
from aot.expr import parse as parse_text
from aot.targets import TARGETS
from tests.test_decode_splits import env

parse = functools.cache(parse_text)

OPS = {name: registry.load(registry.KERNELS / name / "op.py").OP for name in ("sparse_mla_prefill", "sparse_mla_decode")}
UNITS = (1, 2, 78, 114, 132, 144)
TOKENS = (0, 1, 2, 7, 33, 66, 67, 131, 132, 133, 437, 4096, 70000)
WIDTHS = (1, 64, 127, 128, 511, 512, 2051, 2176)
PART = 64 * 512 * 2 + 64 * 2 * 4


def value(text, call):
    return parse(str(text))(call)


def chosen(op, call):
    return next(c for c in OPS[op].candidates_for(TARGETS["sm90"]) if value(c.when, call))


@pytest.mark.parametrize("precision", ["exact", "high", "fast"])
@pytest.mark.parametrize(("D", "rope"), [(512, False), (576, False), (576, True)])
def test_every_unit_has_a_place(D, rope, precision):
    for units, T, H, topk in itertools.product(UNITS, TOKENS, (64, 128), WIDTHS):
        call = {**env("sm90", "fp8", T, H, topk, rope, D, precision), "sm_count": units}
        c = chosen("sparse_mla_prefill", call)
        assert c.name.startswith("q8_")
        items, attention = T * (H // 64), c.launches[0]
        args = {a.name: a for a in attention.kernel.args}
        whole, splits = (value(args[n].value, call) for n in ("whole_items", "splits"))
        parts = (items - whole) * splits
        grid = value(attention.grid[0], call)
        assert grid == min(units, whole + parts)
        assert whole % units == 0 or parts == 0
        if c.name.endswith("_split"):
            assert 2 <= splits <= 2 * -(-topk // 128) and items - whole > 0 and parts <= units
            assert value(c.workspace, call) == parts * PART
            scalars = [a for x in c.launches for a in x.kernel.args if a.name == "partial_scalars"]
            assert [value(a.offset, call) for a in scalars] == [parts * 64 * 512 * 2] * 2
            combine = c.launches[1]
            heads = 1 if splits >= 8 else 4
            assert [value(g, call) for g in combine.grid] == [items - whole, 64 // heads, 1]
            also = {a.name: value(a.value, call) for a in combine.kernel.args if a.name in ("whole_items", "splits", "heads")}
            assert also == {"whole_items": whole, "splits": splits, "heads": heads}
        else:
            assert (whole, splits, value(c.workspace, call)) == (items, 1, 0)


def test_padding_to_128_columns_keeps_the_cut():
    for units, T, H, topk in itertools.product(UNITS, TOKENS, (64, 128), (1, 65, 385, 2051)):
        plain, padded = ({**env("sm90", "fp8", T, H, x), "sm_count": units} for x in (topk, -(-topk // 128) * 128))
        a, b = chosen("sparse_mla_prefill", plain), chosen("sparse_mla_prefill", padded)
        assert a.name == b.name
        splits = [[value(x.value, call) for x in c.launches[0].kernel.args if x.name == "splits"] for c, call in ((a, plain), (b, padded))]
        assert splits[0] == splits[1]


@pytest.mark.parametrize(("T", "name"), [(1, "low_"), (5, "low_"), (6, "q8_"), (64, "q8_"), (256, "q8_")])
def test_decode_of_64_heads_changes_kernels_at_six_items(T, name):
    assert chosen("sparse_mla_decode", env("sm90", "fp8", T, 64, 2112)).name.startswith(name)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("topk", (1, 2051, 2**30), (0, 2**30 + 1, 2**31 - 1)),
        ("kv.s0", (0, 512, 2**31 - 1), (-512, 2**31, 2**32)),
        ("sm_scale", (0.0625, -0.0625, 0.0, 1e19), (1e20, 1e29, float("inf"), float("nan"))),
        ("H", (1, 17, 128), (0, 129)),
    ],
)
def test_sizes_that_a_kernel_would_cut_are_refused(op, field, good, bad):
    call = env("sm90", "fp8", 4, 64, 2048)
    rules = [r for r in OPS[op].rules if field in parse(r.check).names]
    assert rules
    for x in good:
        assert all(value(r.check, {**call, field: x}) for r in rules), x
    for x in bad:
        assert not all(value(r.check, {**call, field: x}) for r in rules), x
