"""FP8 prefill in TileLang, cut into rounds: the two parts are all tokens, each once, and the splits of the second fill a round at most."""

from hypothesis import given
from hypothesis import strategies as st

from aot.expr import parse
from aot.registry import discover

CANDIDATES = [c for c in discover()["sparse_mla_prefill"].candidates if c.name.endswith("_rounds")]
Q, INDICES, OUT = 640, 2200, 5000
"""Strides of a token in elements."""


def value(text, call):
    return int(parse(str(text))(call))


@given(
    c=st.sampled_from(CANDIDATES),
    T=st.integers(1, 5000),
    H=st.integers(1, 128),
    topk=st.integers(1, 4096),
    units=st.sampled_from([1, 66, 114, 132, 144]),
)
def test_the_parts_are_the_tokens(c, T, H, topk, units):
    call = {"T": T, "H": H, "topk": topk, "sm_count": units, "q.s0": Q, "q_rope.s0": Q, "indices.s0": INDICES, "out.s0": OUT}
    direct, split, combine = c.launches
    heads = direct.kernel.constants["HEADS"]
    tiles = -(-H // heads)

    def args(x):
        found = {a.name: a for a in x.kernel.args}
        scalars = {n: value(a.value, call) for n, a in found.items() if n in ("T", "splits")}
        return scalars | {n: value(a.offset, call) for n, a in found.items() if a.type == "ptr"}

    first, second, last = map(args, (direct, split, combine))
    whole, left, splits = first["T"], second["T"], second["splits"]
    assert whole + left == T and first["splits"] == 1 and last["splits"] == splits
    blocks = [min(n, units) if heads == 16 else n for n in (whole * tiles, left * tiles * splits)]
    assert [value(x.grid[0], call) for x in c.launches] == [*blocks, left * H * 2]
    assert not any(v for n, v in first.items() if n not in ("T", "splits", "q_tail"))
    assert (second["q"], second["indices"], second["topk_length"]) == (whole * Q, whole * INDICES * 4, whole * 4)
    assert (last["out"], last["lse"], last["max_logits"]) == (whole * OUT * 2, whole * H * 4, whole * H * 4)
    if "q_tail" in second:
        assert second["q_tail"] - first["q_tail"] == whole * Q
    few = c.when[c.when.index("(T %") :]
    if parse(few)(call):
        blocks = -(-topk // 64)
        assert whole % max(1, units // tiles) == 0 and left > 0
        assert left * tiles * splits <= units and splits > 1
        assert (splits - 1) * -(-blocks // splits) < blocks  # every split has a key block
        assert value(c.workspace, call) == left * H * splits * 1032
        assert second["partial_statistics"] == last["partial_statistics"] == left * H * splits * 1024


def test_only_fp8_is_cut():
    assert CANDIDATES and all("fp8" in c.name for c in CANDIDATES)
