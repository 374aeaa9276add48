"""The FP8 x FP8 kernel of 64-head tiles on a GPU, against the float32 reference on the same FP8 numbers, at every precision level."""

import math

import pytest

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch", reason="the numeric matrix builds its inputs with torch")
if not torch.cuda.is_available():
    pytest.skip("found no GPU that torch can use", allow_module_level=True)
dsa_kernels = pytest.importorskip("dsa_kernels", reason="install the runtime wheel and the wheel of this architecture")
if torch.cuda.get_device_capability() != (9, 0) or torch.version.cuda is None:
    pytest.skip("found no SM90 device", allow_module_level=True)

from tests.attention import FP8, INF, Case  # noqa: E402

LEVELS = ("fast", "exact", "high")
ERROR = {"fast": 2.6e-2, "exact": 2.6e-2, "high": 3e-3}  # relative, of the norm: the rounding of P to e4m3, once or twice
SM_SCALE = 0.0625


def q8(precision="exact", **options):
    options = {"dtype": FP8, "precision": precision, "scale": SM_SCALE, **options}
    return Case(**options)


def check(case, lse_tol=5e-4, slack=1.0):
    """Rows of few keys show the rounding of single weights: ``slack`` widens the bound there."""
    case.check(rel=ERROR[case.precision] * slack, lse_tol=lse_tol, elements=False)


@pytest.mark.parametrize("precision", LEVELS)
@pytest.mark.parametrize("D", [512, 576])
@pytest.mark.parametrize("H", [64, 128])
def test_full_rows(D, H, precision):
    case = q8(precision, T=65, H=H, D=D, s_kv=4096, topk=2048, pad=1).run()
    check(case, lse_tol=1e-5)


@pytest.mark.parametrize("precision", LEVELS)
@pytest.mark.parametrize(("std", "lse_tol"), [(0.05, 1e-5), (1.0, 1e-2)])
def test_spreads(std, lse_tol, precision):
    case = q8(precision, T=65, std=std, s_kv=4096, topk=2048).run()
    out, _, lse = case.wanted()
    assert (case.out.float() - out).norm() <= 4e-2 * out.norm()
    assert (case.lse - lse).abs().max() < lse_tol


@pytest.mark.parametrize("D", [512, 576])
@pytest.mark.parametrize("topk", [1, 2, 63, 64, 65, 127, 128, 129, 512, 2051, 2176])
def test_widths(topk, D):
    check(q8(T=5, D=D, topk=topk, s_kv=4096, pad=1).run(), slack=1.5)


@pytest.mark.parametrize("s_kv", [1, 32, 95, 65536])
@pytest.mark.parametrize("T", [1, 2, 65, 437])
def test_sizes(T, s_kv):
    check(q8(T=T, s_kv=s_kv, topk=128, holes=0.2).run(), slack=1.5)


@pytest.mark.parametrize("precision", LEVELS)
def test_rope_as_its_own_tensor_is_the_same(precision):
    split, joined = q8(precision, rope=True, pad=1), q8(precision)
    joined.q = torch.cat((split.q.view(torch.uint8), split.q_rope.view(torch.uint8)), dim=-1).view(FP8)
    joined.kv, joined.indices = split.kv, split.indices
    check(split.run())
    joined.run()
    assert torch.equal(split.out, joined.out) and torch.equal(split.lse, joined.lse)


@pytest.mark.parametrize("D", [512, 576])
@pytest.mark.parametrize("repeated", [0, 1])
def test_queries_that_tokens_or_heads_share(repeated, D):
    """A stride of 0, in memory once."""
    case = q8(T=140, H=128, D=D, topk=330)
    case.q = case.q.narrow(repeated, 0, 1).expand_as(case.q)
    assert case.q.stride(repeated) == 0
    check(case.run(), slack=1.5)


@pytest.mark.parametrize("precision", LEVELS)
@pytest.mark.parametrize("D", [512, 576])
def test_masks_and_empty_rows(D, precision):
    case = q8(precision, T=300, D=D, H=128, topk=330, holes=0.5)
    case.indices[0::7] = -1
    case.indices[1::7] = case.kv.shape[0]
    case.indices[2::7, :-1] = -1
    case.indices[3::7] = case.indices[3::7, :1].clamp(0, 100)
    case.indices[4::7, 64:192] = -(2**31)  # whole blocks masked between valid ones
    check(case.run(), slack=1.5)


@pytest.mark.parametrize("precision", LEVELS)
def test_lengths(precision):
    case = q8(precision, T=400, H=128, s_kv=4096, topk=2051)
    case.length = torch.randint(0, 2052, (400,), dtype=torch.int32, device="cuda")
    case.length[:8] = torch.tensor([0, 1, 63, 64, 65, 2051, 5000, -3], dtype=torch.int32, device="cuda")
    check(case.run())
    case.length[:] = 0
    case.run()
    assert (case.out == 0).all() and torch.isposinf(case.lse).all() and torch.isneginf(case.max_logits).all()


@pytest.mark.parametrize("precision", LEVELS)
def test_sinks_and_scales(precision):
    case = q8(precision, T=70, H=128, topk=512, holes=0.3)
    case.sink = torch.linspace(-8, 8, 128, device="cuda")
    case.sink[:6] = torch.tensor([INF, -INF, 200.0, -200.0, 1e30, -1e30])
    case.q_scale, case.kv_scale = (torch.tensor([x], device="cuda") for x in (0.7, 1.9))
    case.indices[0] = -1
    check(case.run())
    assert (case.out[:, 0] == 0).all()
    with_sink = case.lse.clone(), case.max_logits.clone()
    case.sink = None
    case.run()
    assert torch.equal(with_sink[0], case.lse) and torch.equal(with_sink[1], case.max_logits)


@pytest.mark.parametrize("scale", [0.0, -0.0625])
def test_scales_that_are_not_positive(scale):
    check(q8(T=65, topk=512, scale=scale, holes=0.2).run(), slack=1.5)


def whole_items():
    """Tokens that fill a round of the multiprocessors, so that none is cut into parts."""
    return torch.cuda.get_device_properties(0).multi_processor_count


@pytest.mark.parametrize("precision", LEVELS)
@pytest.mark.parametrize("q_scale", [0.0, -0.7, 1e-30, 3e4, 1e15, -1e15, 1e38, INF, -INF, math.nan])
def test_device_scales_of_any_kind(q_scale, precision):
    """Huge scales pick the largest logits; the inputs are small integers, so that scores are exact and ties are ties."""
    case = q8(precision, T=whole_items(), topk=512, s_kv=4096, holes=0.2, mean=0.0)
    case.q, case.kv = (x.float().mul(4).round().clamp(-1, 1).to(FP8) for x in (case.q, case.kv))
    case.q_scale, case.kv_scale = (torch.tensor([x], device="cuda") for x in (q_scale, 2.0))
    case.indices[5] = -1
    case.run()
    some = torch.ones_like(case.lse, dtype=torch.bool)
    some[5] = False
    assert (case.out[5] == 0).all() and torch.isposinf(case.lse[5]).all() and torch.isneginf(case.max_logits[5]).all()
    if not math.isfinite(q_scale):
        assert torch.isnan(case.out[some]).all() and torch.isnan(case.lse[some]).all() and torch.isnan(case.max_logits[some]).all()
        return
    out, max_logits, lse = case.wanted()
    assert (case.out.float() - out).norm() <= ERROR[precision] * 1.5 * out.norm()
    if abs(q_scale) < 1e18:  # beyond 1e19 the product of the scales counts as that
        torch.testing.assert_close(case.lse[some], lse[some], atol=1e-3, rtol=2e-5)
        torch.testing.assert_close(case.max_logits[some], max_logits[some], atol=1e-3, rtol=2e-5)


@pytest.mark.parametrize("precision", LEVELS)
@pytest.mark.parametrize("D", [512, 576])
@pytest.mark.parametrize("parts", [False, True])
def test_nan_in_what_is_selected_comes_out(parts, D, precision):
    """A NaN in a row reaches every head of the tokens that select it, one in a query its own head, and neither anything else."""
    case = q8(precision, T=16 if parts else whole_items(), D=D, s_kv=4096, topk=1024, holes=0.2)
    case.indices[case.indices == 7] = 8
    case.indices[0::5, 900] = 7
    case.indices[5] = -1
    case.indices[5, 70] = 7  # nothing else
    case.indices[10] = 7
    case.kv.view(torch.uint8)[7, D - 3] = 0x7F
    case.q.view(torch.uint8)[1, 2, 17] = 0x7F
    case.indices[2] = -1
    case.q.view(torch.uint8)[2, 3, 17] = 0x7F  # of a token without a valid key
    case.run()
    assert is_split(case) == parts
    wrong = torch.zeros_like(case.lse, dtype=torch.bool)
    wrong[0::5] = True
    wrong[1, 2] = True
    out, max_logits, lse = case.wanted()
    for name, got, want in (("out", case.out, out), ("max_logits", case.max_logits, max_logits), ("lse", case.lse, lse)):
        assert torch.equal(torch.isnan(got).reshape(*wrong.shape, -1).all(-1), wrong), name
        assert torch.equal(torch.isnan(got).reshape(*wrong.shape, -1).any(-1), wrong), name
        assert torch.isnan(want[wrong]).all(), name
    right = ~wrong
    assert (case.out.float()[right] - out[right]).norm() <= ERROR[precision] * 1.5 * out[right].norm()
    torch.testing.assert_close(case.lse[right], lse[right], atol=1e-3, rtol=2e-5)
    torch.testing.assert_close(case.max_logits[right], max_logits[right], atol=2e-3, rtol=2e-5)


@pytest.mark.parametrize("precision", ["exact", "high"])
@pytest.mark.parametrize("tokens", [1, 7, 16, 33, 66, "whole and parts"])
def test_padding_changes_no_bit(tokens, precision):
    """2051 columns, and the same with 125 columns of -1 behind: also where items are cut into parts."""
    tokens = whole_items() + 3 if isinstance(tokens, str) else tokens
    case = q8(precision, T=tokens, D=512, s_kv=4096, topk=2051).run()
    assert is_split(case)
    plain = case.out.clone(), case.lse.clone(), case.max_logits.clone()
    case.indices = torch.nn.functional.pad(case.indices, (0, 125), value=-1)
    case.run()
    assert all(torch.equal(a, b) for a, b in zip(plain, (case.out, case.lse, case.max_logits), strict=True))


@pytest.mark.parametrize("precision", ["exact", "high"])
@pytest.mark.parametrize("D", [512, 576])
@pytest.mark.parametrize("topk", [512, 2048, 2051])
@pytest.mark.parametrize("rows", ["equal", "mean", "flat"])
def test_coherent_rows_are_exact(rows, topk, D, precision):
    """Equal rows, rows with a common mean, and a flat softmax over them: right within 5e-3, gain within 2e-3."""
    case = q8(precision, T=65, D=D, s_kv=4096, topk=topk, mean=1.0, scale=0.0 if rows == "flat" else SM_SCALE)
    if rows == "equal":
        case.kv[:] = case.kv[:1].clone()
    case.run()
    out = case.wanted()[0]
    assert (case.out.float() - out).norm() <= 5e-3 * out.norm()
    assert abs(case.gain() - 1) < 2e-3


def test_large_logits_keep_one_frame():
    """Logits in the hundreds move the softmax frame in most blocks: a block left in an old frame would stand out."""
    case = q8(T=65, H=128, std=4.0, s_kv=4096, topk=2048).run()
    out = case.wanted()[0]
    assert torch.isfinite(case.out).all()
    assert (case.out.float() - out).norm() <= 4e-2 * out.norm()


def test_statistics_are_optional():
    case = q8(T=9).run()
    out = torch.full_like(case.out, float("nan"))
    dsa_kernels.sparse_mla_prefill(case.q, case.kv, case.indices, case.scale, out=out)
    assert torch.equal(out, case.out)  # exact is the default from 64 heads on


def is_split(case):
    return "_split: chosen" in dsa_kernels.explain("sparse_mla_prefill", **case.inputs(), precision=case.precision)


@pytest.mark.parametrize("precision", LEVELS)
@pytest.mark.parametrize("D", [512, 576])
@pytest.mark.parametrize("topk", [63, 129, 512, 2051])
def test_parts_of_left_over_tokens(topk, D, precision):
    """Tokens that do not fill a round of the multiprocessors are cut by their keys and put together again."""
    units = whole_items()
    case = q8(precision, T=units + 3, D=D, s_kv=4096, topk=topk, holes=0.2)
    case.length = torch.randint(0, topk + 1, (units + 3,), dtype=torch.int32, device="cuda")
    case.length[-3:] = torch.tensor([topk, 1, 0], dtype=torch.int32, device="cuda")  # more parts than blocks, and none
    case.sink = torch.linspace(-4, 4, 64, device="cuda")
    case.q_scale, case.kv_scale = (torch.tensor([x], device="cuda") for x in (0.7, 1.9))
    check(case.run(), slack=1.5)
    assert is_split(case) == (topk >= 512)


@pytest.mark.parametrize("precision", LEVELS)
@pytest.mark.parametrize("T", [1, 2, 7, 16, 17, 33, 66, 67, 131])
def test_few_tokens(T, precision):
    case = q8(precision, T=T, D=512, s_kv=4096, topk=2112).run()
    check(case, slack=1.1)
    case.indices[:, 1:] = -1  # one key: every other part is empty, and lse is a single logit with the whole error of its chain
    check(case.run(), lse_tol=1e-3, slack=1.5)
    case.indices[0] = -1
    check(case.run(), lse_tol=1e-3, slack=1.5)


def test_the_workspace_may_hold_anything():
    case = q8(T=3, D=512, s_kv=4096, topk=2051).run()
    first = case.out.clone(), case.lse.clone(), case.max_logits.clone()
    for byte in (0x00, 0x7F, 0xFF):
        workspace = torch.full((1 << 24,), byte, dtype=torch.uint8, device="cuda")
        outputs = {"out": case.out, "max_logits": case.max_logits, "lse": case.lse}
        dsa_kernels.sparse_mla_prefill(**case.inputs(), precision="exact", workspace=workspace, **outputs)
        assert all(torch.equal(a, b) for a, b in zip(first, (case.out, case.lse, case.max_logits), strict=True))


def test_no_tokens_and_no_rows():
    empty = q8(T=4)
    out = dsa_kernels.sparse_mla_prefill(empty.q[:0], empty.kv, empty.indices[:0], SM_SCALE)
    assert out.shape == (0, 64, 512)
    case = q8(T=2, s_kv=8)
    case.kv = case.kv[:0]
    case.run()
    assert (case.out == 0).all() and torch.isposinf(case.lse).all()


@pytest.mark.parametrize("precision", LEVELS)
@pytest.mark.parametrize("D", [512, 576])
def test_many_blocks_repeat_exactly(D, precision):
    """1500 tokens of ragged lengths, 1000 times: a race would show as differing bits. At 576 the output's rows lie apart."""
    case = q8(precision, T=1500, D=D, topk=640, s_kv=8192, holes=0.1, pad=int(D == 576))
    case.length = torch.randint(0, 641, (1500,), dtype=torch.int32, device="cuda")
    case.run()
    first = case.out.clone(), case.lse.clone()
    differing = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(1000):
        case.out.fill_(float("nan"))
        case.launch()
        differing += (case.out.view(torch.int16) != first[0].view(torch.int16)).sum() + (case.lse != first[1]).sum()
    assert differing.item() == 0
    check(case)


def test_many_tokens():
    """70,000 tokens in one launch: offsets of q and out beyond 2^31 elements."""
    tokens, sample = 70_000, slice(None, None, 1009)
    case = q8(T=tokens, D=512, topk=64, s_kv=4096)
    case.run()
    for name in ("q", "indices", "out", "max_logits", "lse"):
        setattr(case, name, getattr(case, name)[sample])
    check(case, slack=1.5)


def test_beyond_four_gigabytes():
    rows = 2**32 // 576 + 4096
    case = q8(T=3, topk=128, s_kv=64)
    kv = torch.full((rows, 576), 0x7F, dtype=torch.uint8, device="cuda").view(FP8)
    kv.view(torch.uint8)[-64:] = case.kv.view(torch.uint8)
    case.kv = kv
    case.indices += rows - 64
    check(case.run(), slack=1.5)
