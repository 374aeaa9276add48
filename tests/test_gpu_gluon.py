"""The Gluon kernels of FP8 rows on a GPU, against the float32 reference: other kernels stand before them in the shipped order.

They have no interpreter and no emulator, so every contract of the ops is run here: lists, masks, lengths, sinks, scales, strides, heads
that fill no tile, splits and direct stores. Outputs and workspace start as NaN, rows that no valid column selects are NaN.
"""

import pytest

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch", reason="the numeric matrix builds its inputs with torch")
if not torch.cuda.is_available():
    pytest.skip("found no GPU that torch can use", allow_module_level=True)
dsa_kernels = pytest.importorskip("dsa_kernels", reason="install the runtime wheel and the wheel of this architecture")

from aot import trial  # noqa: E402
from tests.attention import FP8, INF, Case  # noqa: E402

OPS = ("sparse_mla_decode", "sparse_mla_prefill")
PLACES = [(512, False), (576, False), (576, True)]
places = pytest.mark.parametrize(("D", "rope"), PLACES)
ops = pytest.mark.parametrize("op", OPS)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Each op with its Gluon candidates only."""
    folder = tmp_path_factory.mktemp("gluon")
    opened = {op: trial.alone(op, folder, "fp8_sm90_") for op in OPS}
    yield opened
    for packs in opened.values():
        packs.close()


@pytest.fixture(scope="module")
def workspace():
    return torch.empty(64 << 20, dtype=torch.uint8, device="cuda")


@pytest.fixture
def run(alone, workspace):
    def made(op, change=None, **options):
        case = Case(op=op, ops=alone[op], dtype=FP8, precision="high", **{"s_kv": 4096, "std": 0.5, "pad": 1, **options})
        if change:
            change(case)
        if op == "sparse_mla_decode":
            case.workspace = workspace.fill_(0xFF)
        case.run().check(rel=2.5e-3, lse_tol=2e-3, elements=False)
        return case

    return made


@ops
@places
@pytest.mark.parametrize("H", [1, 8, 16, 17, 64, 128])
def test_tokens_and_widths(run, op, D, rope, H):
    for T, topk in ((1, 1), (1, 2051), (2, 63), (3, 64), (7, 65), (65, 2048), (200, 640)):
        run(op, T=T, H=H, D=D, rope=rope, topk=topk, holes=0.2, seed=topk)


def tail(case):
    case.indices[:, case.indices.shape[1] * 3 // 4 :] = -1


def nothing(case):
    case.indices.fill_(-1)


def one(case):
    case.indices[:, :-1] = -1


def repeated(case):
    case.indices[:] = case.indices[:, :1].clamp(0)


@ops
@places
@pytest.mark.parametrize("mask", [tail, nothing, one, repeated])
def test_masks(run, op, D, rope, mask):
    for T, topk in ((1, 2051), (3, 256), (300, 65)):
        case = run(op, mask, T=T, H=16, D=D, rope=rope, topk=topk)
        if mask is nothing:
            assert (case.out == 0).all() and (case.max_logits == -INF).all() and (case.lse == INF).all()


@ops
@places
@pytest.mark.parametrize("T", [1, 64, 200])
def test_lengths_sinks_and_scales(run, op, D, rope, T):
    def options(case):
        lengths = torch.tensor([2051, 0, 1, 100, -7, 9999] * (T // 6 + 1), dtype=torch.int32, device="cuda")
        case.length = lengths.roll(-T)[:T].contiguous()
        case.sink = torch.tensor([0.0, 1.0, -INF, INF, 20.0, -20.0, 3.0, 2.0], device="cuda")
        case.q_scale, case.kv_scale = torch.tensor([0.5], device="cuda"), torch.tensor([1.7], device="cuda")

    case = run(op, options, T=T, H=8, D=D, rope=rope, topk=2051, holes=0.2)
    assert (case.out[:, 3] == 0).all()


@ops
def test_rows_with_a_common_mean_are_exact(run, op):
    for T, topk in ((1, 512), (64, 2051), (300, 2051)):
        case = run(op, T=T, H=16, D=512, topk=topk, mean=1.0, std=0.25, scale=0.02)
        assert abs(case.gain() - 1) < 1e-3


@ops
@pytest.mark.parametrize("T", [1, 64, 300])
def test_every_run_gives_the_same_bits(run, op, T):
    case = run(op, T=T, H=16, D=576, topk=2051)
    first = [x.clone() for x in (case.out, case.max_logits, case.lse)]
    for _ in range(20):
        case.launch()
    assert all(torch.equal(a, b) for a, b in zip(first, (case.out, case.max_logits, case.lse), strict=True))


@ops
def test_rows_beyond_four_gib(run, op):
    """Slot ids whose bytes do not fit 32 bits."""

    def far(case):
        pool = torch.empty(8_000_000, 576, dtype=torch.uint8, device="cuda").fill_(0x7F).view(FP8)
        pool[-4096:] = case.kv[:4096]
        case.indices = torch.where(case.indices >= 0, case.indices + (len(pool) - 4096), case.indices)
        case.kv = pool

    run(op, far, T=2, H=16, D=576, topk=300)
