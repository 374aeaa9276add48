"""The TileLang kernels of sm90 on a GPU, against the float32 reference, whether or not they come first for a call.

Prefill and decode, BF16 and FP8 rows, tiles of 16, 32 and 64 heads. Outputs and workspace start as NaN, inputs lie on strided storage,
rows of the pool that no valid column selects are NaN.
"""

import itertools
import math

import pytest

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch", reason="the numeric matrix builds its inputs with torch")
if not torch.cuda.is_available():
    pytest.skip("found no GPU that torch can use", allow_module_level=True)
dsa_kernels = pytest.importorskip("dsa_kernels", reason="install the runtime wheel and the wheel of this architecture")

from aot.trial import alone  # noqa: E402
from tests.attention import FP8, INF, Case  # noqa: E402

BF16 = torch.bfloat16
OPS = ("sparse_mla_prefill", "sparse_mla_decode")
KINDS = [(512, False, FP8), (576, False, FP8), (576, True, FP8), (512, False, BF16), (576, False, BF16), (576, True, BF16)]
kinds = pytest.mark.parametrize(("D", "rope", "dtype"), KINDS, ids=lambda v: {FP8: "fp8", BF16: "bf16"}.get(v, str(v)))
heads = pytest.mark.parametrize("H", [16, 32, 64])
dtypes = pytest.mark.parametrize("dtype", [FP8, BF16], ids=["fp8", "bf16"])


@pytest.fixture(scope="module", params=OPS)
def tile(request, tmp_path_factory):
    """``tile(**options)``: a case whose op has no other candidates than the TileLang ones."""
    if torch.version.hip:
        pytest.skip("found no device of sm90; the kernels are for it")
    packs = alone(request.param, tmp_path_factory.mktemp("packs"), "tile_")
    workspace = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")

    def case(**options):
        made = Case(op=request.param, ops=packs, **{"s_kv": 4096, "std": 0.5, "pad": 1, **options})
        if request.param == "sparse_mla_decode":
            made.workspace = workspace.fill_(0xFF)  # NaN in every float type
        return made

    yield case
    torch.cuda.synchronize()
    packs.close()


def check(case):
    case.run().check(rel=5e-3, lse_tol=1e-3, elements=False)
    return case


@kinds
@pytest.mark.parametrize("H", [1, 8, 16, 17, 32, 33, 64, 100, 128])
def test_heads(tile, H, D, rope, dtype):
    for T, topk in ((1, 2051), (5, 300)):
        check(tile(T=T, H=H, D=D, rope=rope, dtype=dtype, topk=topk, holes=0.1))


@heads
@dtypes
def test_tokens_and_widths(tile, H, dtype):
    for T, topk in itertools.product((1, 2, 65, 437), (1, 63, 64, 65, 127, 129, 256, 2048, 2051)):
        check(tile(T=T, H=H, D=512, dtype=dtype, topk=topk, seed=topk))


@kinds
@heads
def test_masks(tile, H, D, rope, dtype):
    case = tile(T=7, H=H, D=D, rope=rope, dtype=dtype, topk=400, holes=0.5)
    case.indices[0] = -1
    case.indices[1] = len(case.kv)
    case.indices[2, :-1] = -1
    case.indices[3] = case.indices[3, :1].clamp(0, 100)
    case.indices[4, :256] = -1
    case.indices[5, 64:] = -1
    check(case)


@kinds
@heads
@pytest.mark.parametrize("T", [1, 6, 200])
def test_lengths_sinks_and_scales(tile, T, H, D, rope, dtype):
    """Lengths of 0, below 0 and beyond the width; most splits of a short list are empty. Sinks of every kind."""
    case = tile(T=T, H=H, D=D, rope=rope, dtype=dtype, topk=2051)
    lengths = torch.tensor([2051, 0, 1, 100, -7, 9999], dtype=torch.int32, device="cuda")
    case.length = lengths.repeat(T // 6 + 1).roll(-T)[:T].contiguous()
    case.sink = torch.linspace(-8, 8, H, device="cuda")
    case.sink[:4] = torch.tensor([INF, -INF, 200.0, -200.0])
    if dtype == FP8:  # with scales BF16 is left to other kernels: test_declarations.py
        case.q_scale, case.kv_scale = torch.tensor([0.5], device="cuda"), torch.tensor([1.7], device="cuda")
    check(case)
    assert (case.out[:, 0] == 0).all()


@heads
@dtypes
@pytest.mark.parametrize("std", [0.05, 1.0])
def test_spreads(tile, H, std, dtype):
    """Flat and sharp softmax; logits that rise from block to block, so that the frame moves every time."""
    check(tile(T=3, H=H, dtype=dtype, std=std, topk=2048, scale=0.5))
    case = tile(T=2, H=H, dtype=dtype, topk=1024)
    order = (case.q[:, 0].float() @ case.kv.float().T).argsort(dim=1)
    case.indices = order[:, -1024:].int().contiguous()
    case.scale = 1.0
    check(case)


@heads
@dtypes
@pytest.mark.parametrize("D", [512, 576])
def test_coherent_rows_keep_their_gain(tile, D, H, dtype):
    """Rows with a common mean: the projection on the reference is 1 within 2e-3."""
    case = check(tile(T=2, H=H, D=D, dtype=dtype, topk=2051, std=0.25, mean=1.0))
    assert abs(case.gain() - 1) < 2e-3


def test_no_rows_at_all(tile):
    for H in (16, 64):
        case = tile(T=2, H=H, s_kv=8)
        case.kv = case.kv[:0]
        case.run()
        assert (case.out == 0).all() and torch.isposinf(case.lse).all() and torch.isneginf(case.max_logits).all()


def test_every_precision_is_served_alike(tile):
    case = tile(H=16, dtype=FP8).run()
    first = case.out.clone()
    for case.precision in ("fast", "exact", "high"):
        case.out.fill_(math.nan)
        assert torch.equal(case.run().out, first)


@heads
@dtypes
@pytest.mark.parametrize(("T", "D"), [(3, 576), (1500, 512), (1500, 576)])
def test_repeats_are_equal(tile, T, D, H, dtype):
    """Ragged lengths, 1000 times: a race would show as differing bits."""
    case = tile(T=T, H=H, D=D, dtype=dtype, topk=640, s_kv=8192, holes=0.1)
    case.length = torch.randint(0, 641, (T,), dtype=torch.int32, device="cuda")
    case.run()
    first = case.out.clone(), case.lse.clone()
    differing = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(1000):
        case.out.fill_(math.nan)
        case.launch()
        differing += (case.out.view(torch.int16) != first[0].view(torch.int16)).sum() + (case.lse != first[1]).sum()
    assert differing.item() == 0
    case.check(rel=5e-3, lse_tol=1e-3, elements=False)


prefill = pytest.mark.parametrize("tile", ["sparse_mla_prefill"], indirect=True)
UNITS = torch.cuda.get_device_properties(0).multi_processor_count


@prefill
@kinds
@pytest.mark.parametrize(
    ("H", "T", "rounds"),
    [
        (16, UNITS + 1, True),
        (16, UNITS + UNITS // 2, True),
        (16, UNITS + UNITS // 2 + 1, False),
        (16, UNITS, False),
        (5, UNITS - 1, False),
        (32, 2 * UNITS + 4, True),
        (64, UNITS + 7, True),
        (100, UNITS // 2 + 5, True),
        (128, 2 * (UNITS // 2) + 1, True),
    ],
)
def test_the_last_round(tile, H, T, rounds, D, rope, dtype):
    """In FP8, tokens beyond whole rounds of the units are cut into splits and put together; lengths leave some splits empty."""
    case = tile(T=T, H=H, D=D, rope=rope, dtype=dtype, topk=1100, holes=0.2)
    case.sink = torch.linspace(-3, 3, H, device="cuda")
    case.length = torch.tensor([1100, 70, 0, 999], dtype=torch.int32, device="cuda").repeat(T // 4 + 1)[:T].flip(0).contiguous()
    if dtype == FP8:
        case.q_scale, case.kv_scale = torch.tensor([0.5], device="cuda"), torch.tensor([1.7], device="cuda")
    chosen = [x for x in case.ops.explain(case.op, **case.inputs()).splitlines() if ": chosen" in x]
    assert [("_rounds" in x) for x in chosen] == [rounds and dtype == FP8]
    check(case)
    before = case.out.clone(), case.lse.clone()
    case.out.fill_(math.nan)
    case.launch()
    assert torch.equal(case.out, before[0]) and torch.equal(case.lse, before[1])


@prefill
def test_the_last_round_far_away(tile):
    T = 500 * UNITS + 3
    case = tile(T=T, H=64, D=512, dtype=FP8, topk=1024, pad=0).run()
    for name in ("q", "indices", "out", "max_logits", "lse"):
        setattr(case, name, getattr(case, name)[-5:])
    case.check(rel=5e-3, lse_tol=1e-3, elements=False)


@dtypes
def test_beyond_four_gigabytes(tile, dtype):
    rows = 2**32 // (576 * dtype.itemsize) + 4096
    free, _ = torch.cuda.mem_get_info()
    if free < rows * 576 * dtype.itemsize * 2:
        pytest.skip(f"found {free >> 30} GiB of free device memory; wanted {rows * 576 * dtype.itemsize * 2 >> 30}")
    for H in (16, 64):
        case = tile(T=3, H=H, dtype=dtype, topk=128, s_kv=64, pad=0)
        poison = torch.full((rows, 576 * dtype.itemsize), 0x7F, dtype=torch.uint8, device="cuda").view(dtype)
        poison[-64:].view(torch.uint8)[:] = case.kv.view(torch.uint8)
        case.kv = poison
        case.indices += rows - 64
        check(case)


def test_many_tokens(tile):
    """70,000 tokens in one launch: offsets of q and out beyond 2^31 elements."""
    sample = slice(None, None, 1009)
    for H, dtype in ((64, BF16), (16, FP8)):
        case = tile(T=70_000, H=H, D=512, dtype=dtype, topk=64).run()
        for name in ("q", "indices", "out", "max_logits", "lse"):
            setattr(case, name, getattr(case, name)[sample])
        case.check(rel=5e-3, lse_tol=1e-3, elements=False)
