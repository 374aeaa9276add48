"""The TileLang kernel of AMD's matrix cores computes what the reference says, run lane by lane on the CPU with a model of its instructions.

What runs is the source that TileLang makes for gfx950 and gfx942, layouts, orders, barriers, masks and splits included. What does not
run: AMD's instructions themselves, and Clang's code for them.
"""

import math
import re
from functools import cache

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the reference is torch")
pytest.importorskip("tilelang")

from aot.registry import KERNELS, discover, sibling  # noqa: E402
from aot.targets import TARGETS  # noqa: E402
from tests import wave_cpu  # noqa: E402
from tests.oracle import function  # noqa: E402

tile = sibling(str(KERNELS / "include/op.py"), "tile_gfx")
reference = function("sparse_mla_prefill")
DTYPES = {"float8_e4m3fn": torch.float8_e4m3fn, "float8_e4m3fnuz": torch.float8_e4m3fnuz, "bfloat16": torch.bfloat16}


@cache
def kernel(folder, op, target, dtype, D, heads, terms):
    found = [
        k
        for k in discover()[op].kernels_for(TARGETS[target])
        if k.source == tile.SOURCE
        and (k.constants["D"], k.constants["HEADS"], k.constants["TERMS"]) == (D, heads, terms)
        and (k.constants["DTYPE"] == "bfloat16") == (dtype == "bf16")
    ]
    made = found[0]
    others = {"indices": "i32", "topk_length": "i32", "out": "bf16"}
    dtypes = {a.name: a.dtype or others.get(a.name, "f32") for a in made.args if a.type == "ptr"}
    dtypes = {n: TARGETS[target].fp8 if d == "fp8" else d for n, d in dtypes.items()}
    where = folder / re.sub(r"\W+", "_", f"{target}_{made.name}")
    where.mkdir()
    return made, wave_cpu.compile_kernel(made, TARGETS[target], op, dtypes, where)


class Call:
    """Inputs that show faults: strided rows, NaN in those that nothing selects and in the outputs."""

    def __init__(self, dtype, T=2, H=16, D=576, s_kv=200, topk=70, seed=0, mean=0.0, std=0.5, holes=0.2, scale=None):
        g = torch.Generator().manual_seed(seed)
        unit = 8 if dtype == torch.bfloat16 else 16
        self.scale = D**-0.5 if scale is None else scale
        self.q = (torch.randn(T, H + 1, D + unit, generator=g) * std).to(dtype)[:, :H, :D]
        self.kv = (torch.randn(s_kv, D + 2 * unit, generator=g) * std + mean).to(dtype)[:, :D]
        self.indices = torch.randint(0, s_kv, (T, topk + 3), generator=g, dtype=torch.int32)[:, :topk]
        draw = torch.rand(T, topk, generator=g)
        for low, value in ((0.0, -1), (0.5, s_kv), (0.9, -(2**31))):
            self.indices[(draw >= low * holes) & (draw < holes)] = value
        self.length = self.sink = self.q_scale = self.kv_scale = None

    def inputs(self):
        optional = {"topk_length": self.length, "attn_sink": self.sink, "q_scale": self.q_scale, "kv_scale": self.kv_scale}
        return {"q": self.q, "kv": self.kv, "indices": self.indices, "sm_scale": self.scale, **optional}

    def poison(self):
        valid = (self.indices >= 0) & (self.indices < len(self.kv))
        if self.length is not None:
            valid &= torch.arange(self.indices.shape[1]) < self.length[:, None]
        free = torch.ones(len(self.kv), dtype=torch.bool)
        free[self.indices[valid].long()] = False
        if self.kv.element_size() == 1:
            self.kv.view(torch.uint8)[free] = 0x80 if self.kv.dtype == torch.float8_e4m3fnuz else 0x7F
        else:
            self.kv[free] = math.nan

    def run(self, compiled, splits=1, backwards=False):
        made, launch = compiled
        self.poison()
        (T, H), heads = self.q.shape[:2], made.constants["HEADS"]
        size = self.q.element_size()
        unit = 16 // size

        def raw(x):
            if x is None:
                return None
            base = x if x._base is None else x._base
            return base.view(
                torch.uint8 if base.element_size() == 1 else torch.int16 if base.dtype == torch.bfloat16 else base.dtype
            ).numpy()

        out = np.full((T, H, 512), 0x7FC0, np.uint16)
        statistics = np.full((2, T, H), np.nan, np.float32)
        partial = np.full((T * splits * H, 512), 0x7FFF, np.uint16)
        top_lse = np.full((T * splits * H, 2), np.nan, np.float32)
        q = raw(self.q)
        values = {
            "q": q, "q_tail": q.reshape(-1)[512:], "kv": raw(self.kv), "indices": raw(self.indices), "topk_length": raw(self.length),
            "attn_sink": raw(self.sink), "q_scale": raw(self.q_scale), "kv_scale": raw(self.kv_scale), "out": out,
            "max_logits": statistics[0], "lse": statistics[1], "partial": partial, "partial_statistics": top_lse, "splits": splits,
            "T": T, "H": H, "s_kv": len(self.kv), "topk": self.indices.shape[1], "sm_scale": self.scale,
            "has_length": self.length is not None, "has_sink": self.sink is not None, "has_q_scale": self.q_scale is not None,
            "has_kv_scale": self.kv_scale is not None, "has_max_logits": 1, "has_lse": 1, "indices_s0": self.indices.stride(0),
            "q_s0": self.q.stride(0) // unit, "q_s1": self.q.stride(1) // unit, "q_tail_s0": self.q.stride(0) // unit,
            "q_tail_s1": self.q.stride(1) // unit, "kv_s0": self.kv.stride(0) // unit, "out_s0": H * 512 // 8, "out_s1": 512 // 8,
        }  # fmt: skip
        launch(T * -(-H // heads) * splits, backwards, values)
        if splits > 1:
            o = torch.from_numpy(partial.view(np.int16)).view(torch.bfloat16 if size == 2 else torch.float16).float()
            return self.combined(o.view(T, splits, H, 512), torch.from_numpy(top_lse).view(T, splits, H, 2))
        return torch.from_numpy(out.view(np.int16)).view(torch.bfloat16).float(), *map(torch.from_numpy, statistics)

    def combined(self, o, statistics):
        """What combine.py does."""
        top = statistics[..., 0].max(1).values.clamp(min=-1e30)
        weight = torch.exp2(statistics[..., 1] - top[:, None])
        o = torch.where(weight[..., None] > 0, o, 0.0)
        total = weight.sum(1)
        sink = torch.zeros_like(total) if self.sink is None else torch.exp2(self.sink * math.log2(math.e) - top)
        factor = torch.where(total > 0, 1 / (total + sink), 0.0) * (1.0 if self.kv_scale is None else self.kv_scale)
        none = total == 0
        maxima = torch.where(none, -math.inf, top * math.log(2))
        return (o * weight[..., None]).sum(1) * factor[..., None], maxima, torch.where(none, math.inf, (total.log2() + top) * math.log(2))

    def check(self, found, rel, exact_mean=False):
        out, maxima, lse = reference(**self.inputs())
        assert torch.isfinite(found[0]).all()
        assert (found[0] - out).norm() <= rel * out.norm() + 1e-6
        torch.testing.assert_close(found[1], maxima, atol=2e-4, rtol=2e-5)
        torch.testing.assert_close(found[2], lse, atol=2e-4, rtol=2e-5)
        empty = torch.isneginf(maxima)
        assert (found[0][empty] == 0).all() and torch.isposinf(found[2][empty]).all()
        gain = ((found[0].double() * out.double()).sum() / (out.double() ** 2).sum()).item() if (out != 0).any() else 1.0
        assert not exact_mean or abs(gain - 1) < 2e-3


REL = {("bf16", 1): 6e-3, ("fp8", 1): 4e-2, ("fp8", 2): 5e-3}
KINDS = [
    ("gfx950", "bf16", 1),
    ("gfx950", "fp8", 1),
    ("gfx950", "fp8", 2),
    ("gfx942", "bf16", 1),
    ("gfx942", "fp8", 1),
    ("gfx942", "fp8", 2),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("wave")


@pytest.fixture(params=KINDS, ids=lambda kind: "-".join(map(str, kind)))
def kind(request):
    return request.param


def dtype_of(target, dtype):
    return DTYPES[tile.ROWS.get((target, dtype), "bfloat16")]


@pytest.mark.parametrize(("D", "heads"), [(512, 16), (576, 16), (576, 64)])
def test_decode(folder, kind, D, heads):
    """Widths around a block's, splits, masks, lengths, sinks and scales; in the second call threads take turns in the other order."""
    target, dtype, terms = kind
    if heads not in tile.FORMS[target, dtype].blocks:
        pytest.skip(f"{target} has no {dtype} blocks of {heads} heads")
    compiled = kernel(folder, "sparse_mla_decode", target, dtype, D, heads, terms)
    rel = REL[dtype, terms]
    H = 16 if heads == 16 else 65
    for topk, splits in ((1, 1), (63, 1), (65, 2), (70, 3), (131, 1)):
        call = Call(dtype_of(target, dtype), T=2, H=H, D=D, topk=topk, seed=topk)
        call.check(call.run(compiled, splits), rel)
    call = Call(dtype_of(target, dtype), T=5, H=heads // 2 + 1, D=D, topk=70, holes=0.4)
    call.indices[0] = -1
    call.length = torch.tensor([70, 0, 1, 33, 999], dtype=torch.int32)
    call.sink = torch.linspace(-4, 4, call.q.shape[1])
    call.sink[:4] = torch.tensor([math.inf, -math.inf, 200.0, -200.0])
    call.q_scale, call.kv_scale = torch.tensor([0.5]), torch.tensor([1.7])
    for splits in (1, 2):
        call.check(call.run(compiled, splits, backwards=splits == 2), rel)


@pytest.mark.parametrize("D", [512, 576])
def test_prefill_keeps_the_gain_of_rows_with_a_common_mean(folder, kind, D):
    target, dtype, terms = kind
    compiled = kernel(folder, "sparse_mla_prefill", target, dtype, D, min(tile.FORMS[target, dtype].blocks), terms)
    call = Call(dtype_of(target, dtype), T=1, H=16, D=D, topk=333, s_kv=1000, mean=1.0, std=0.25, holes=0.0, scale=0.02)
    call.check(call.run(compiled), REL[dtype, terms], exact_mean=True)
