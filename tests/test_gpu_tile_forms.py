"""The TileLang kernel of AMD's matrix cores, on an NVIDIA GPU with a model of its instructions, against the float32 reference.

For the packs of tests/tile_forms.py, which says what this shows and what it does not. Outputs and workspace start as NaN, inputs lie on
strided storage, rows that no valid column selects are NaN.
"""

import os

import pytest

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch", reason="the numeric matrix builds its inputs with torch")
if not torch.cuda.is_available():
    pytest.skip("found no GPU that torch can use", allow_module_level=True)
dsa_kernels = pytest.importorskip("dsa_kernels", reason="install the runtime wheel")

from tests.attention import FP8, INF, Case  # noqa: E402

if (form := os.path.basename(os.environ.get("DSA_KERNELS_PACKS", ""))) not in ("gfx950", "gfx942"):
    pytest.skip("found no pack of tests/tile_forms.py in DSA_KERNELS_PACKS", allow_module_level=True)

BF16 = torch.bfloat16
REL = {(FP8, "exact"): 4e-2, (FP8, "high"): 5e-3, (BF16, "exact"): 6e-3, (BF16, "high"): 6e-3}
KINDS = [(512, False, FP8), (576, False, FP8), (576, True, FP8), (512, False, BF16), (576, True, BF16), (576, False, BF16)]
kinds = pytest.mark.parametrize(("D", "rope", "dtype"), KINDS, ids=lambda v: str(v).removeprefix("torch."))


def heads_of(dtype, few):
    """Every tile; gfx942 has none of 16 heads for BF16."""
    return few if form == "gfx950" or dtype == FP8 else tuple(h + 16 if h <= 16 else h for h in few)


def run(op, change=None, precision="high", mean=0.0, **options):
    case = Case(op=op, precision=precision, mean=mean, **{"s_kv": 4096, "std": 0.5, "pad": 1, **options})
    if change:
        change(case)
    if op == "sparse_mla_decode":
        case.workspace = torch.full((64 << 20,), 0xFF, dtype=torch.uint8, device="cuda")
    case.run().check(rel=REL[case.kv.dtype, precision], lse_tol=1e-3, elements=False)
    return case


@kinds
@pytest.mark.parametrize("precision", ["exact", "high"])
def test_heads_and_widths(D, rope, dtype, precision):
    for H, widths in zip(
        heads_of(dtype, (8, 16, 17, 64, 100, 128)), ((1, 63), (65, 2051), (63, 300), (65, 2051), (1, 129), (2048,)), strict=True
    ):
        for topk in widths:
            run("sparse_mla_decode", T=3, H=H, D=D, rope=rope, dtype=dtype, topk=topk, precision=precision, seed=topk)
            run("sparse_mla_prefill", T=2, H=H, D=D, rope=rope, dtype=dtype, topk=min(topk, 300), precision=precision, seed=topk)


def hard(case):
    topk = case.indices.shape[1]
    case.indices[0] = -1
    case.indices[1] = len(case.kv)
    case.indices[2, :-1] = -1
    case.indices[3] = case.indices[3, :1].clamp(0, 100)
    case.length = torch.tensor([topk, topk, topk, topk, 0, 1, 63, 65, -7, 9999], dtype=torch.int32, device="cuda")
    case.sink = torch.linspace(-8, 8, case.H, device="cuda")
    case.sink[:4] = torch.tensor([INF, -INF, 200.0, -200.0])
    case.q_scale, case.kv_scale = torch.tensor([0.5], device="cuda"), torch.tensor([1.7], device="cuda")


@kinds
@pytest.mark.parametrize("op", ["sparse_mla_decode", "sparse_mla_prefill"])
def test_masks_lengths_sinks_and_scales(op, D, rope, dtype):
    for H in heads_of(dtype, (8, 65)):
        case = run(op, hard, T=10, H=H, D=D, rope=rope, dtype=dtype, topk=200, holes=0.4)
        assert (case.out[:, 0] == 0).all()


@kinds
def test_gain_of_rows_with_a_common_mean(D, rope, dtype):
    for H, precision in zip(heads_of(dtype, (16, 64)), ("exact", "high"), strict=True):
        case = run(
            "sparse_mla_decode", T=2, H=H, D=D, rope=rope, dtype=dtype, topk=2051, mean=1.0, std=0.25, scale=0.02, precision=precision
        )
        assert abs(case.gain() - 1) < 2e-3


@pytest.mark.parametrize("dtype", [FP8, BF16])
def test_many_tokens_take_one_launch(dtype):
    """Enough tokens for one split each, dealt over the dies."""
    run("sparse_mla_decode", T=1200, H=heads_of(dtype, (16,))[0], D=512, dtype=dtype, topk=65)
    run("sparse_mla_prefill", T=437, H=heads_of(dtype, (16,))[0], D=576, dtype=dtype, topk=64)


@pytest.mark.parametrize("dtype", [FP8, BF16])
def test_repeats_are_bitwise_equal(dtype):
    for H in heads_of(dtype, (16, 64)):
        case = run("sparse_mla_decode", T=16, H=H, D=576, dtype=dtype, topk=300, holes=0.1)
        first = [x.contiguous().view(torch.uint8).clone() for x in (case.out, case.max_logits, case.lse)]
        for _ in range(500):
            case.launch()
        torch.cuda.synchronize()
        assert all(
            torch.equal(a, x.contiguous().view(torch.uint8)) for a, x in zip(first, (case.out, case.max_logits, case.lse), strict=True)
        )
