"""The TileLang kernel of AMD's matrix cores computes what the reference says, run lane by lane on the CPU with a model of its instructions.

What runs is the source that TileLang makes for gfx950 and gfx942, layouts, orders, barriers, masks and splits included. What does not
run: AMD's instructions themselves, and Clang's code for them.
"""

import math
import re
from functools import cache

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
def compiler(op, target, folder):
    """Compiles each kernel of ``op`` once."""

    @cache
    def compiled(kernel):
        where = folder / re.sub(r"\W+", "_", f"{op}_{target}_{kernel.name}")
        where.mkdir()
        return wave_cpu.compile_kernel(kernel, TARGETS[target], discover()[op], where)

    return compiled


class Call:
    """Inputs that show faults: strided rows, NaN in those that nothing selects, in the outputs and in the workspace."""

    def __init__(
        self, target, dtype, terms=1, T=2, H=16, D=576, rope=False, s_kv=200, topk=70, seed=0, mean=0.0, std=0.5, holes=0.2, scale=None
    ):
        g = torch.Generator().manual_seed(seed)
        self.target, self.dtype, self.terms = target, dtype, terms
        element = DTYPES[tile.ROWS.get((target, dtype), "bfloat16")]
        unit = 16 // element.itemsize
        self.scale = D**-0.5 if scale is None else scale
        self.q = (torch.randn(T, H + 1, 512 if rope else D + unit, generator=g) * std).to(element)[:, :H, : 512 if rope else D]
        self.q_rope = (torch.randn(T, H, 64 + unit, generator=g) * std).to(element)[..., :64] if rope else None
        self.kv = (torch.randn(s_kv, D + 2 * unit, generator=g) * std + mean).to(element)[:, :D]
        self.indices = torch.randint(0, s_kv, (T, topk + 3), generator=g, dtype=torch.int32)[:, :topk]
        draw = torch.rand(T, topk, generator=g)
        for low, value in ((0.0, -1), (0.5, s_kv), (0.9, -(2**31))):
            self.indices[(draw >= low * holes) & (draw < holes)] = value
        self.length = self.sink = self.q_scale = self.kv_scale = None

    def inputs(self):
        optional = {"q_rope": self.q_rope, "topk_length": self.length, "attn_sink": self.sink}
        scales = {"q_scale": self.q_scale, "kv_scale": self.kv_scale}
        return {"q": self.q, "kv": self.kv, "indices": self.indices, "sm_scale": self.scale, **optional, **scales}

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

    def run(self, op, folder, splits=1, backwards=False):
        """out, max_logits and lse of a chip with so few units that a call gets up to ``splits`` splits."""
        self.poison()
        T, H = self.q.shape[:2]
        heads = 16 if H <= 16 else 64
        block = tile.FORMS[self.target, self.dtype].blocks[heads]
        units = -(-T * -(-H // heads) * splits // block.per_unit)
        out = torch.full((T, H, 520), math.nan, dtype=torch.bfloat16)[..., :512]
        given = self.inputs() | {
            "out": out,
            "max_logits": torch.full((T, H), math.nan),
            "lse": torch.full((T, H), math.nan),
            "sm_count": min(units, T * -(-H // 64) * -(-self.indices.shape[1] // 64)),
            "precision": "high" if self.terms == 2 else "exact",
        }
        name, second = wave_cpu.call(discover()[op], TARGETS[self.target], given, compiler(op, self.target, folder), backwards)
        assert f"h{heads}" in name and ("_two" in name) == (self.terms == 2)
        self.splits = 1 if second is None else second["splits"]
        if second is None:
            assert torch.isnan(out._base[..., 512:]).all()
            return out.float(), given["max_logits"], given["lse"]
        workspace, start = second["partial_statistics"]
        partial = workspace[: T * H * self.splits * 1024].view(torch.bfloat16 if self.dtype == "bf16" else torch.float16)
        statistics = workspace[start:].view(torch.float32)
        return self.combined(partial.view(T, self.splits, H, 512).float(), statistics.view(T, self.splits, H, 2))

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

    def check(self, found, exact_mean=False):
        out, maxima, lse = reference(**self.inputs())
        assert torch.isfinite(found[0]).all()
        assert (found[0] - out).norm() <= REL[self.dtype, self.terms] * out.norm() + 1e-6
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


@pytest.mark.parametrize(("D", "rope", "heads"), [(512, False, 16), (576, True, 16), (576, False, 64)])
def test_decode(folder, kind, D, rope, heads):
    """Widths around a block's, splits, masks, lengths, sinks and scales; in the last call threads take turns in the other order."""
    target, dtype, terms = kind
    if heads not in tile.FORMS[target, dtype].blocks:
        pytest.skip(f"{target} has no {dtype} blocks of {heads} heads")
    H = 16 if heads == 16 else 65
    for topk, splits in ((1, 1), (63, 1), (65, 2), (130, 3), (131, 1)):
        call = Call(target, dtype, terms, T=8 if splits == 1 else 2, H=H, D=D, rope=rope, topk=topk, seed=topk)
        call.check(call.run("sparse_mla_decode", folder, splits))
        assert (call.splits > 1) == (splits > 1)
    for splits in (1, 2):
        call = Call(target, dtype, terms, T=5, H=heads // 2 + 1, D=D, rope=rope, topk=70, holes=0.4)
        hard(call)
        call.check(call.run("sparse_mla_decode", folder, splits, backwards=splits == 2))


def hard(call):
    call.indices[0] = -1
    call.length = torch.tensor([70, 0, 1, 33, 999], dtype=torch.int32)
    call.sink = torch.linspace(-4, 4, call.q.shape[1])
    call.sink[:4] = torch.tensor([math.inf, -math.inf, 200.0, -200.0])
    call.q_scale, call.kv_scale = torch.tensor([0.5]), torch.tensor([1.7])


@pytest.mark.parametrize("D", [512, 576])
def test_prefill(folder, kind, D):
    """The same, and rows with a common mean keep their gain."""
    target, dtype, terms = kind
    H = min(tile.FORMS[target, dtype].blocks)
    call = Call(target, dtype, terms, T=1, H=H, D=D, topk=333, s_kv=1000, mean=1.0, std=0.25, holes=0.0, scale=0.02)
    call.check(call.run("sparse_mla_prefill", folder), exact_mean=True)
    call = Call(target, dtype, terms, T=5, H=min(H + 3, 64) if H > 16 else 7, D=D, topk=70, holes=0.4)
    hard(call)
    call.check(call.run("sparse_mla_prefill", folder, backwards=True))
