"""The prefill kernels for few heads on a GPU, against the float32 reference on the same FP8 or BF16 numbers. All levels share a kernel."""

import functools
import tempfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch", reason="the numeric matrix builds its inputs with torch")
if not torch.cuda.is_available():
    pytest.skip("found no GPU that torch can use", allow_module_level=True)
dsa_kernels = pytest.importorskip("dsa_kernels", reason="install the runtime wheel and the wheel of this architecture")
if torch.cuda.get_device_capability() != (9, 0) or torch.version.cuda is None:
    pytest.skip("found no SM90 device", allow_module_level=True)

from aot.trial import alone  # noqa: E402
from tests.attention import BF16, FP8, INF, Case, check_nans  # noqa: E402

SM_SCALE = 0.0625
FOLDER = tempfile.TemporaryDirectory()
HEADS = (8, 16, 32)
dtypes = pytest.mark.parametrize("dtype", [FP8, BF16], ids=["fp8", "bf16"])


@functools.cache
def ops():
    """The op with these kernels alone: in BF16 others stand before them for many calls."""
    return alone("sparse_mla_prefill", Path(FOLDER.name), "low_")


def low(**options):
    return Case(**{"dtype": FP8, "scale": SM_SCALE, "H": 16, "ops": ops(), **options})


def check(case, lse_tol=3e-4, rel=3e-3):
    case.check(rel=rel, lse_tol=lse_tol, elements=False)
    return case


@pytest.mark.parametrize(
    ("dtype", "H", "scaled", "name"),
    [
        (FP8, 8, True, "low_d576_h8"),
        (FP8, 33, False, "low_d576_h32"),
        (BF16, 8, False, "low_bf16_d576_h8"),
        (BF16, 9, False, "tile_bf16_d576_h16"),
        (BF16, 32, False, "tile_bf16_d576_h32"),
        (BF16, 32, True, "low_bf16_d576_h32"),
        (BF16, 64, False, "tile_bf16_d576_h64"),
    ],
)
def test_which_kernel_is_taken(dtype, H, scaled, name):
    case = low(T=2, H=H, dtype=dtype)
    case.kv_scale = torch.ones(1, device="cuda") if scaled else None
    assert f"{name}: chosen" in dsa_kernels.explain("sparse_mla_prefill", **case.inputs())
    case.run().check(elements=False)


@dtypes
@pytest.mark.parametrize("D", [512, 576])
@pytest.mark.parametrize("H", HEADS)
def test_full_rows(D, H, dtype):
    check(low(dtype=dtype, T=65, H=H, D=D, s_kv=4096, topk=2048, pad=1).run(), lse_tol=1e-5)


@dtypes
@pytest.mark.parametrize("D", [512, 576])
@pytest.mark.parametrize("H", [1, 3, 7, 9, 15, 17, 24, 31, 33, 48, 63, 65, 96])
def test_every_head_count(H, D, dtype):
    check(low(dtype=dtype, T=5, H=H, D=D, topk=330, holes=0.2, pad=1).run())


@pytest.mark.parametrize("H", HEADS)
@pytest.mark.parametrize(("std", "lse_tol"), [(0.05, 1e-5), (1.0, 5e-3)])
def test_spreads(std, lse_tol, H):
    check(low(T=65, H=H, std=std, s_kv=4096, topk=2048).run(), lse_tol=lse_tol)


@pytest.mark.parametrize("D", [512, 576])
@pytest.mark.parametrize("H", HEADS)
def test_lse_of_logits_of_20_to_40(D, H):
    case = low(T=65, H=H, D=D, std=1.0, scale=0.25, s_kv=4096, topk=2048).run()
    _, max_logits, lse = case.wanted()
    assert max_logits.max() > 20
    assert (case.lse - lse).abs().max() < 1e-2 and (case.max_logits - max_logits).abs().max() < 1e-2


@dtypes
@pytest.mark.parametrize("D", [512, 576])
@pytest.mark.parametrize("topk", [1, 2, 63, 64, 65, 127, 128, 129, 512, 2051, 2176])
def test_widths(topk, D, dtype):
    for H in HEADS:
        check(low(dtype=dtype, T=5, H=H, D=D, topk=topk, s_kv=4096, pad=1).run())


@dtypes
@pytest.mark.parametrize("s_kv", [1, 32, 95, 65536])
@pytest.mark.parametrize("T", [1, 2, 65, 437])
def test_sizes(T, s_kv, dtype):
    for H in HEADS:
        check(low(dtype=dtype, T=T, H=H, s_kv=s_kv, topk=128, holes=0.2).run())


@dtypes
@pytest.mark.parametrize("H", HEADS)
def test_rope_as_its_own_tensor_is_the_same(H, dtype):
    split, joined = low(dtype=dtype, H=H, rope=True, pad=1), low(dtype=dtype, H=H)
    joined.q = torch.cat((split.q.view(torch.uint8), split.q_rope.view(torch.uint8)), dim=-1).view(dtype)
    joined.kv, joined.indices = split.kv, split.indices
    check(split.run())
    joined.run()
    assert torch.equal(split.out, joined.out) and torch.equal(split.lse, joined.lse)


@dtypes
def test_levels_share_the_kernel(dtype):
    case = low(dtype=dtype, T=9, topk=512).run()
    want = case.out.clone()
    for case.precision in ("fast", "exact", "high"):
        assert torch.equal(case.run().out, want)


@dtypes
@pytest.mark.parametrize("D", [512, 576])
@pytest.mark.parametrize("H", HEADS)
def test_masks_and_empty_rows(D, H, dtype):
    case = low(dtype=dtype, T=300, D=D, H=H, topk=330, holes=0.5)
    case.indices[0::7] = -1
    case.indices[1::7] = case.kv.shape[0]
    case.indices[2::7, :-1] = -1
    case.indices[3::7] = case.indices[3::7, :1].clamp(0, 100)
    case.indices[4::7, 64:192] = -(2**31)  # whole blocks masked between valid ones
    check(case.run())


@dtypes
@pytest.mark.parametrize("H", HEADS)
def test_lengths(H, dtype):
    case = low(dtype=dtype, T=400, H=H, s_kv=4096, topk=2051)
    case.length = torch.randint(0, 2052, (400,), dtype=torch.int32, device="cuda")
    case.length[:8] = torch.tensor([0, 1, 63, 64, 65, 2051, 5000, -3], dtype=torch.int32, device="cuda")
    check(case.run())
    case.length[:] = 0
    case.run()
    assert (case.out == 0).all() and torch.isposinf(case.lse).all() and torch.isneginf(case.max_logits).all()


@dtypes
@pytest.mark.parametrize("H", HEADS)
def test_sinks_and_scales(H, dtype):
    case = low(dtype=dtype, T=70, H=H, topk=512, holes=0.3)
    case.sink = torch.linspace(-8, 8, H, device="cuda")
    case.sink[:6] = torch.tensor([INF, -INF, 200.0, -200.0, 1e30, -1e30])
    case.q_scale, case.kv_scale = (torch.tensor([x], device="cuda") for x in (0.7, 1.9))
    case.indices[0] = -1
    check(case.run())
    assert (case.out[:, 0] == 0).all()
    with_sink = case.lse.clone(), case.max_logits.clone()
    case.sink = None
    case.run()
    assert torch.equal(with_sink[0], case.lse) and torch.equal(with_sink[1], case.max_logits)


@dtypes
@pytest.mark.parametrize("scale", [0.0, -0.0625])
def test_scales_that_are_not_positive(scale, dtype):
    check(low(dtype=dtype, T=65, topk=512, scale=scale, holes=0.2).run())


@dtypes
@pytest.mark.parametrize("H", HEADS)
def test_a_nan_that_is_selected_comes_out_where_it_belongs(H, dtype):
    check_nans(low(T=70, H=H, dtype=dtype, s_kv=20_000, topk=330, holes=0.2, pad=1), row=7, head=H - 1)


@dtypes
def test_scales_beyond_all_measure(dtype):
    """A factor that float32 cannot hold: the largest logit takes all. A NaN comes out."""
    case = low(T=9, dtype=dtype, topk=330, holes=0.2)
    case.q_scale = torch.tensor([1e38], device="cuda")
    case.run()
    assert torch.isfinite(case.out).all()
    for value in (INF, -INF):
        case.q_scale.fill_(value)
        case.run()
        assert torch.isfinite(case.out).all()
    case.q_scale.fill_(float("nan"))
    case.run()
    assert torch.isnan(case.out).all() and torch.isnan(case.lse).all()


@dtypes
@pytest.mark.parametrize("D", [512, 576])
@pytest.mark.parametrize("topk", [512, 2048, 2051])
@pytest.mark.parametrize("rows", ["equal", "mean", "flat"])
def test_coherent_rows_are_exact(rows, topk, D, dtype):
    """Equal rows, rows with a common mean, and a flat softmax over them: right within 5e-3, gain within 2e-3."""
    for H in HEADS:
        case = low(dtype=dtype, T=33, H=H, D=D, s_kv=4096, topk=topk, mean=1.0, scale=0.0 if rows == "flat" else SM_SCALE)
        if rows == "equal":
            case.kv[:] = case.kv[:1].clone()
        case.run()
        out = case.wanted()[0]
        assert (case.out.float() - out).norm() <= 5e-3 * out.norm()
        assert abs(case.gain() - 1) < 2e-3


@dtypes
def test_large_logits_keep_one_frame(dtype):
    """Logits in the hundreds move the softmax frame in most blocks: a block left in an old frame would stand out."""
    for H in HEADS:
        case = low(dtype=dtype, T=65, H=H, std=4.0, s_kv=4096, topk=2048).run()
        out = case.wanted()[0]
        assert torch.isfinite(case.out).all()
        assert (case.out.float() - out).norm() <= 1e-2 * out.norm()


@dtypes
def test_statistics_are_optional(dtype):
    case = low(dtype=dtype, T=9).run()
    out = torch.full_like(case.out, float("nan"))
    ops().sparse_mla_prefill(case.q, case.kv, case.indices, case.scale, out=out)
    assert torch.equal(out, case.out)


@dtypes
def test_no_tokens_and_no_rows(dtype):
    empty = low(dtype=dtype, T=4)
    out = ops().sparse_mla_prefill(empty.q[:0], empty.kv, empty.indices[:0], SM_SCALE)
    assert out.shape == (0, 16, 512)
    case = low(dtype=dtype, T=2, s_kv=8)
    case.kv = case.kv[:0]
    case.run()
    assert (case.out == 0).all() and torch.isposinf(case.lse).all()


@dtypes
@pytest.mark.parametrize("D", [512, 576])
@pytest.mark.parametrize("H", HEADS)
def test_many_blocks_repeat_exactly(D, H, dtype):
    """1500 tokens of ragged lengths, 100 times: a race would show as differing bits."""
    case = low(dtype=dtype, T=1500, H=H, D=D, topk=640, s_kv=8192, holes=0.1)
    case.length = torch.randint(0, 641, (1500,), dtype=torch.int32, device="cuda")
    case.run()
    first = case.out.clone(), case.lse.clone()
    for _ in range(100):
        case.out.fill_(float("nan"))
        case.run()
        assert torch.equal(case.out, first[0]) and torch.equal(case.lse, first[1])
    check(case)


@dtypes
def test_many_tokens(dtype):
    """270,000 tokens in one launch: offsets of q and out beyond 2^31 elements, more blocks than 65535."""
    tokens, sample = 270_000, slice(None, None, 4001)
    case = low(dtype=dtype, T=tokens, D=512, topk=64, s_kv=4096)
    case.run()
    for name in ("q", "indices", "out", "max_logits", "lse"):
        setattr(case, name, getattr(case, name)[sample])
    check(case)


@dtypes
def test_beyond_four_gigabytes(dtype):
    rows = 2**32 // 576 // dtype.itemsize + 4096
    case = low(dtype=dtype, T=3, topk=128, s_kv=64)
    kv = torch.full((rows, 576 * dtype.itemsize), 0x7F, dtype=torch.uint8, device="cuda").view(dtype)
    kv.view(torch.uint8)[-64:] = case.kv.view(torch.uint8)
    case.kv = kv
    case.indices += rows - 64
    check(case.run())
