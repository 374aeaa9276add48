"""Cases of test_triton_kernels.py for sparse_mla_decode; run with TRITON_INTERPRET=1. Direct stores, splits, and their combination."""

import pytest
import torch
import triton
import triton.language as tl
from interpreter_cases import FN, FNUZ, TARGETS, agree, attend, fp8, rows, strided

from aot import registry
from aot.compilers.triton import load

BF16 = torch.bfloat16
swizzle = load(registry.KERNELS / "include/dsak_rows.py", registry.KERNELS / "include").swizzle


def decode(target, *args, **options):
    return attend("sparse_mla_decode", target, *args, **options)


def cast(x, dtype, target):
    return x.to(dtype if dtype == BF16 else FNUZ if target == "gfx942" else FN)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


CASES = [  # heads, width, topk, launches, precision, dtype
    (1, 512, 1, "direct", "exact", FN),
    (8, 576, 65, "split", "high", FN),
    (16, 512, 100, "split", "exact", FN),
    (40, 576, 63, "direct", "high", FN),
    (8, 576, 63, "direct", "high", BF16),
    (16, 512, 100, "split", "high", BF16),
]
RUNS = [(t, *case) for t in ("sm90", "gfx950", "gfx942") for case in CASES if t != "sm90" or case[-1] == BF16]


@pytest.mark.parametrize(("target", "heads", "width", "topk", "launches", "precision", "dtype"), RUNS)
def test_decode(target, heads, width, topk, launches, precision, dtype):
    q, kv = cast(torch.randn(6, heads, width) * 0.5, dtype, target), cast(torch.randn(90, width), dtype, target)
    found, wanted, name = decode(target, q, kv, rows(6, topk, 90), precision=precision)
    assert launches in name and ("bf16" in name) == (dtype == BF16)
    agree(found, wanted, precision)
    assert (found[0][4] == 0).all() and (found[1][4] == -torch.inf).all() and (found[2][4] == torch.inf).all()


@TARGETS
@pytest.mark.parametrize("topk", [60, 190])
def test_options(target, topk):
    """Rope apart, strided inputs, lengths that leave splits empty, sinks, scales, no statistics, poisoned rows that nobody selects."""
    q = strided(fp8(5, 8, 512, target=target), "transposed")
    r = strided(fp8(5, 8, 64, target=target), "transposed")
    kv = torch.full((70, 592), 0x80 if target == "gfx942" else 0x7F, dtype=torch.uint8).view(q.dtype)[:, :576]
    kv[::2] = fp8(35, 576, target=target)
    index = torch.full((5, topk + 3), -1, dtype=torch.int32)[:, :topk]
    index[:] = torch.randint(0, 35, (5, topk)) * 2
    index[:, topk - 10 :] = 1  # NaN rows, beyond every length
    options = {
        "q_rope": r,
        "topk_length": torch.tensor([topk - 10, -4, 33, 0, 1], dtype=torch.int32),
        "attn_sink": torch.tensor([0.0, 1.0, -torch.inf, torch.inf, 20.0, -20.0, 3.0, 2.0]),
        "q_scale": torch.tensor([0.5]),
        "kv_scale": torch.tensor([1.7]),
        "sm_scale": 0.135,
    }
    agree(*decode(target, q, kv, index, statistics=topk > 64, **options)[:2])


@TARGETS
def test_large_logits(target):
    """The frames of the splits lie hundreds apart, both ways."""
    q, kv = fp8(2, 16, 512, target=target, scale=4), fp8(64, 512, target=target, scale=4)
    agree(*decode(target, q, kv, torch.arange(64, dtype=torch.int32).repeat(2, 3), sm_scale=1.0)[:2])


@TARGETS
@pytest.mark.parametrize("logit", [0.0, 0.25])
def test_rows_with_a_common_mean(target, logit):
    q = fp8(2, 16, 512, target=target)
    kv = (1.0 + 0.25 * torch.randn(300, 512)).to(q.dtype)
    index = torch.randint(0, 300, (2, 300), dtype=torch.int32)
    (out, _, _), (wanted, _, _), name = decode(target, q, kv, index, precision="exact", sm_scale=logit)
    gain = (out.double() * wanted).sum() / (wanted.double() ** 2).sum()
    assert "split" in name and abs(gain - 1) < 2e-3
    assert (out - wanted).abs().max() < 5e-2


@triton.jit
def places(out, XCDS: tl.constexpr):
    tl.store(out + tl.program_id(0), swizzle(tl.program_id(0), tl.num_programs(0), XCDS))


@pytest.mark.parametrize("programs", [1, 7, 8, 64, 1003])
def test_each_xcd_gets_one_stretch(programs):
    found = torch.full((programs,), -1, dtype=torch.int32)
    places[(programs,)](found, 8)
    assert sorted(found.tolist()) == list(range(programs))
    for xcd in range(min(8, programs)):
        assert (found[xcd::8].diff() == 1).all()
