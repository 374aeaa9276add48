"""The CUDA kernel of 64-head tiles without a GPU: its own sources on a machine that lands copies late."""

import ctypes
import functools
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
emulated = pytest.importorskip("tests.emulated")
if emulated.COMPILER is None:
    pytest.skip("found no C++ compiler", allow_module_level=True)

from aot.registry import KERNELS, load  # noqa: E402

q8: Any = load(KERNELS / "include/q8.py")
FORMS = [(d, precision) for d in (512, 576) for precision in ("exact", "high", "fast")]
forms = pytest.mark.parametrize(("d", "precision"), FORMS)
TOLERANCE = {"exact": 3e-2, "fast": 3e-2, "high": 3e-3}


@functools.cache
def library(d: int, precision: str, folder: Path) -> ctypes.CDLL:
    return emulated.compiled(q8.kernel(d, precision, False, False), "q8.cpp", folder / f"{d}{precision}.so")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("emulated")


@dataclass
class Call:
    """Rows of q, and heads of the output, are further apart than they are wide; rows that no valid column selects are NaN."""

    d: int
    precision: str
    tokens: int
    heads: int
    topk: int
    s_kv: int = 200
    seed: int = 0
    length: Any = None
    sink: Any = None
    whole: int = -1  # items; the others are cut into `splits` parts
    splits: int = 1
    scalars: Any = field(default=None, init=False)

    def __post_init__(self):
        g = torch.Generator().manual_seed(self.seed)
        T, H = self.tokens, self.heads
        self.q = torch.randn(T, H, self.d + 16, generator=g).mul(0.25).to(torch.float8_e4m3fn)[..., : self.d]
        self.kv = torch.randn(self.s_kv, self.d, generator=g).mul(0.25).to(torch.float8_e4m3fn)
        self.indices = torch.randint(0, self.s_kv, (T, self.topk), generator=g, dtype=torch.int32)
        self.indices[torch.rand(T, self.topk, generator=g) < 0.2] = -1
        self.place = torch.full((T, H, 512 + 8), torch.nan, dtype=torch.bfloat16)
        self.out = self.place[..., :512]
        self.max_logits, self.lse = (torch.full((T, H), torch.nan) for _ in range(2))

    def run(self, folder, grid):
        items, T, H = self.tokens * self.heads // 64, self.tokens, self.heads
        whole = items if self.whole < 0 else self.whole
        parts = (items - whole) * self.splits
        self.parts = torch.full((max(parts, 1), 64, 512), torch.nan, dtype=torch.float16)
        self.scalars = torch.full((max(parts, 1), 64, 2), torch.nan)
        valid = self.indices >= 0
        if self.length is not None:
            valid &= torch.arange(self.topk) < self.length[:, None]
        free = torch.ones(self.s_kv, dtype=torch.bool)
        free[self.indices[valid].long()] = False
        self.kv.view(torch.uint8)[free] = 0x7F

        def at(x, offset=0):
            return ctypes.c_void_p(None if x is None else x.data_ptr() + offset)

        q, out = self.q, self.out
        strides = (ctypes.c_longlong * 8)(*q.stride()[:2], *q.stride()[:2], self.d, self.topk, *out.stride()[:2])
        code = library(self.d, self.precision, folder).emulate(
            *(min(grid, whole + parts), self.seed, at(q), at(q, 512), at(self.kv), at(self.indices), at(self.length), at(self.sink)),
            *(None, None, at(out), at(self.max_logits), at(self.lse), at(self.parts), at(self.scalars), strides),
            *(T, H, self.topk, self.s_kv, whole, self.splits, ctypes.c_float(0.0625)),
        )
        assert code == 0, {1: "deadlock", 2: "copies that nobody waited for"}[code]
        self.combine(whole)
        assert torch.isnan(self.place[..., 512:]).all(), "written beside the output"
        return self

    def combine(self, whole):
        """What the second launch does with the parts of the items from ``whole`` on."""
        tiles = self.heads // 64
        for item in range(whole, self.tokens * tiles):
            first = (item - whole) * self.splits
            log2, maxima = self.scalars[first : first + self.splits].unbind(-1)
            lse = torch.logsumexp(log2 * math.log(2), 0)
            weights = (log2 * math.log(2) - lse).exp().nan_to_num(0)
            token, heads = item // tiles, slice(item % tiles * 64, item % tiles * 64 + 64)
            self.out[token, heads] = (self.parts[first : first + self.splits].float() * weights[..., None]).sum(0).bfloat16()
            self.lse[token, heads] = torch.where(lse.isneginf(), torch.inf, lse)
            self.max_logits[token, heads] = maxima.amax(0)

    def check(self):
        inputs = (self.q, self.kv, self.indices, 0.0625)
        out, max_logits, lse = emulated.reference(*inputs, topk_length=self.length, attn_sink=self.sink)
        assert torch.isfinite(self.out).all()
        assert (self.out.float() - out).norm() <= TOLERANCE[self.precision] * out.norm() + 1e-6
        torch.testing.assert_close(self.max_logits, max_logits, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(self.lse, lse, atol=1e-5, rtol=1e-5)


@forms
def test_units_of_several_blocks(d, precision, folder):
    Call(d, precision, tokens=5, heads=64, topk=330).run(folder, 2).check()


@forms
def test_units_of_one_block(d, precision, folder):
    """The next unit's Q must come before this one's only block is done."""
    Call(d, precision, tokens=7, heads=64, topk=50, seed=1).run(folder, 1).check()


@forms
def test_two_tiles_of_heads_lengths_and_sinks(d, precision, folder):
    length = torch.tensor([0, 1, 64, 131], dtype=torch.int32)
    Call(d, precision, tokens=4, heads=128, topk=131, seed=2, length=length, sink=torch.linspace(-3, 3, 128)).run(folder, 3).check()


@pytest.mark.parametrize("seed", range(3))
def test_parts_after_whole_items(seed, folder):
    """Parts of one block and of none, by themselves and behind whole items."""
    d, precision = FORMS[seed]
    Call(d, precision, tokens=5, heads=64, topk=300, seed=seed, whole=4, splits=6).run(folder, 3).check()
    Call(d, precision, tokens=2, heads=64, topk=200, seed=seed, whole=0, splits=3).run(folder, 4).check()
