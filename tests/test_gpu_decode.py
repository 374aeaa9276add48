"""sparse_mla_decode on a GPU, against the float32 reference: tokens, widths, heads, masks, sinks, lengths, splits, graphs.

Outputs and workspace start as NaN, inputs lie on strided storage, rows of the pool that no valid column selects are NaN.
"""

import itertools

import pytest

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch", reason="the numeric matrix builds its inputs with torch")
if not torch.cuda.is_available():
    pytest.skip("found no GPU that torch can use", allow_module_level=True)
dsa_kernels = pytest.importorskip("dsa_kernels", reason="install the runtime wheel and the wheel of this architecture")

from tests.attention import FP8, INF, Case, reference  # noqa: E402

BF16 = torch.bfloat16
TOLERANCE = {"fast": 4e-2, "exact": 4e-2, "high": 5e-3, None: 5e-3}
TOKENS = (1, 2, 65, 437)
WIDTHS = (1, 63, 64, 65, 256, 2048, 2051)
KINDS = [(512, False, FP8), (576, False, FP8), (576, True, FP8), (512, False, BF16), (576, True, BF16)]
kinds = pytest.mark.parametrize(("D", "rope", "dtype"), KINDS, ids=lambda v: str(v).removeprefix("torch."))


@pytest.fixture(scope="module")
def workspace():
    return torch.empty(32 << 20, dtype=torch.uint8, device="cuda")


def run(workspace, mask=None, **options):
    """A decode call on fresh poison, checked against the reference."""
    case = Case(op="sparse_mla_decode", **{"s_kv": 4096, "std": 0.5, "pad": 1, **options})
    if mask:
        mask(case)
    case.workspace = workspace.fill_(0xFF)  # NaN in every float type
    return check(case.run())


def check(case):
    # FP8 matrix units keep about 14 bits of a logit
    case.check(rel=TOLERANCE[case.precision], lse_tol=1e-2 if case.kv.dtype == FP8 else 1e-3, elements=False)
    return case


def bits(case):
    return [x.contiguous().view(torch.uint8) for x in (case.out, case.max_logits, case.lse)]


@kinds
@pytest.mark.parametrize("H", [8, 16, 32, 64, 128])
@pytest.mark.parametrize("precision", ["exact", "high"])
def test_tokens_and_widths(workspace, H, D, rope, dtype, precision):
    for T, topk in itertools.product(TOKENS, WIDTHS):
        run(workspace, T=T, H=H, D=D, rope=rope, dtype=dtype, topk=topk, precision=precision, seed=topk)


@pytest.mark.parametrize("dtype", [FP8, BF16])
@pytest.mark.parametrize("H", [1, 5, 17, 63, 100, 127])
def test_odd_heads(workspace, H, dtype):
    for T in (1, 7):
        run(workspace, T=T, H=H, dtype=dtype, topk=300, holes=0.3, precision="high")


def tails(case):
    case.indices[:, case.indices.shape[1] * 3 // 4 :] = -1


def interleaved(case):
    case.indices[:, ::2] = -1


def outside(case):
    case.indices[:, 1::3] = torch.tensor([4096, 2**31 - 1, -(2**31), -2], dtype=torch.int32, device="cuda").repeat(1024)[
        : case.indices[:, 1::3].shape[1]
    ]


def nothing(case):
    case.indices.fill_(-1)


def one(case):
    case.indices[:, :-1] = -1


def repeated(case):
    case.indices[:] = case.indices[:, :1].clamp(0)


@kinds
@pytest.mark.parametrize("mask", [tails, interleaved, outside, nothing, one, repeated])
def test_masks(workspace, mask, D, rope, dtype):
    for (T, topk), H in itertools.product([(1, 2051), (3, 256), (437, 65)], (8, 64)):
        case = run(workspace, mask, T=T, H=H, D=D, rope=rope, dtype=dtype, topk=topk, precision="high")
        if mask is nothing:
            assert (case.out == 0).all() and (case.max_logits == -INF).all() and (case.lse == INF).all()


@kinds
@pytest.mark.parametrize("T", [1, 6, 200])
def test_lengths_sinks_and_scales(workspace, T, D, rope, dtype):
    """Lengths of 0, below 0 and beyond the width; most splits of a short list are empty. Sinks of every kind."""

    def options(case):
        lengths = torch.tensor([2051, 0, 1, 100, -7, 9999] * (T // 6 + 1), dtype=torch.int32, device="cuda")
        case.length = lengths.roll(-T)[:T].contiguous()
        case.sink = torch.tensor([0.0, 1.0, -INF, INF, 20.0, -20.0, 3.0, 2.0], device="cuda")
        if dtype == FP8:
            case.q_scale, case.kv_scale = torch.tensor([0.5], device="cuda"), torch.tensor([1.7], device="cuda")

    case = run(workspace, options, T=T, H=8, D=D, rope=rope, dtype=dtype, topk=2051, holes=0.2, precision="high")
    assert (case.out[:, 3] == 0).all()


@pytest.mark.parametrize("dtype", [FP8, BF16])
@pytest.mark.parametrize("scale", [0.0, 0.02, 1.0])
def test_gain_of_rows_with_a_common_mean(workspace, dtype, scale):
    for T, topk in itertools.product((1, 64), (512, 2051)):
        case = run(workspace, T=T, H=16, D=512, dtype=dtype, topk=topk, mean=1.0, std=0.25, scale=scale, precision="exact")
        assert abs(case.gain() - 1) < 2e-3
        if scale < 1:
            assert (case.out.float() - case.wanted()[0]).abs().max() < (5e-2 if dtype == FP8 else 1e-2)


@pytest.mark.parametrize("dtype", [FP8, BF16])
def test_large_logits(workspace, dtype):
    """The frames of blocks and splits lie hundreds apart. FP8 matrix units keep 14 bits of a logit, which moves weights near a tie."""
    for T in (1, 64):
        case = Case(op="sparse_mla_decode", T=T, H=16, D=512, s_kv=4096, dtype=dtype, std=4.0, topk=700, scale=1.0, precision="high")
        case.workspace = workspace.fill_(0xFF)
        case.run()
        out, _, lse = case.wanted()
        assert (case.out.float() - out).norm() <= (6e-2 if dtype == FP8 else 5e-3) * out.norm()
        torch.testing.assert_close(case.lse, lse, atol=1e-3, rtol=1e-3 if dtype == FP8 else 2e-5)


@pytest.mark.parametrize("dtype", [FP8, BF16])
def test_rows_beyond_two_gigabytes(workspace, dtype):
    slots = 4_000_000 if dtype == FP8 else 2_000_000
    case = Case(op="sparse_mla_decode", T=3, H=16, s_kv=8, topk=300, dtype=dtype, precision="high")
    case.kv = torch.full((slots * 576 * dtype.itemsize,), 0x7F, dtype=torch.uint8, device="cuda").view(dtype).view(slots, 576)
    case.kv[-4096:] = (torch.randn(4096, 576, device="cuda") * 0.5).to(dtype)
    case.indices = torch.randint(slots - 4096, slots, (3, 300), dtype=torch.int32, device="cuda")
    case.poison = lambda: None  # every row but the last 4096 is a NaN (or huge) already
    case.workspace = workspace.fill_(0xFF)
    check(case.run())
    torch.cuda.empty_cache()


@pytest.mark.parametrize("dtype", [FP8, BF16])
def test_repeats_are_bitwise_equal(workspace, dtype):
    for T, topk in ((1, 2051), (8, 2048), (64, 2048), (437, 300)):
        case = run(workspace, T=T, H=16, dtype=dtype, topk=topk, precision="high")
        first = [x.clone() for x in bits(case)]
        for _ in range(30):
            case.out.fill_(torch.nan)
            workspace[: 1 << 20].fill_(0xFF)
            case.run()
            assert all(torch.equal(a, b) for a, b in zip(first, bits(case), strict=True))


@pytest.mark.parametrize("dtype", [FP8, BF16])
@pytest.mark.parametrize("T", [1, 8, 437])
def test_graph_with_changed_indices(T, dtype):
    """A captured call reads what its tensors hold when it is replayed; workspace and outputs come from the graph's pool."""
    case = Case(op="sparse_mla_decode", T=T, H=16, s_kv=4096, topk=2051, dtype=dtype, precision="high")
    case.length = torch.full((T,), 2051, dtype=torch.int32, device="cuda")
    dsa_kernels.preload()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = dsa_kernels.sparse_mla_decode(**case.inputs(), precision="high", lse=True)
    for seed in range(3):
        g = torch.Generator("cuda").manual_seed(seed)
        case.indices.copy_(torch.randint(-100, 4196, (T, 2051), generator=g, device="cuda", dtype=torch.int32))
        case.length.fill_(2051 - 1000 * seed)
        out.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        wanted, _, wanted_lse = reference(**case.inputs())
        assert (out.float() - wanted).norm() <= 5e-3 * wanted.norm()
        torch.testing.assert_close(lse, wanted_lse, atol=1e-3, rtol=1e-4)


def test_statistics_may_be_left_out(workspace):
    case = run(workspace, T=2, H=16, dtype=FP8, topk=2048, precision="high")
    out = dsa_kernels.sparse_mla_decode(**case.inputs(), precision="high")
    assert torch.equal(out, case.out)
    empty = Case(op="sparse_mla_decode", T=0, H=16, dtype=FP8)
    assert dsa_kernels.sparse_mla_decode(**empty.inputs()).shape == (0, 16, 512)
