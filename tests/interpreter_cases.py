"""Cases of test_triton_kernels.py; run with TRITON_INTERPRET=1. Casts and index kernels must agree byte for byte."""

import itertools

import interpreted
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

FN, FNUZ = torch.float8_e4m3fn, torch.float8_e4m3fnuz
INT_MIN, INT_MAX = -(2**31), 2**31 - 1
FEW = settings(max_examples=12, deadline=None, derandomize=True)


def dirty(*shape: int, dtype: torch.dtype = FN) -> torch.Tensor:
    """Bytes that no kernel writes by chance (in e4m3fn: a NaN)."""
    return torch.full((*shape, torch.empty((), dtype=dtype).element_size()), 0xFF, dtype=torch.uint8).view(dtype).squeeze(-1)


def same(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert found.shape == wanted.shape
    a, b = (x.contiguous().view(torch.uint8) for x in (found, wanted))
    assert torch.equal(a, b), f"{int((a != b).sum())} of {a.numel()} bytes differ"


def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
    """bf16 with the special values among them: beyond e4m3, infinities, NaN, subnormals of e4m3, ties, signed zeros."""
    x = torch.randn(shape) * scale
    special = torch.tensor([448.0, -464.0, 480.0, 1e30, float("inf"), -float("inf"), float("nan"), 2.0**-9, 2.0**-10, 17.0, 19.0, -0.0])
    flat = x.view(-1)
    flat[: len(special)] = special[: flat.numel()]
    return x.view(shape).bfloat16()


def strided(x: torch.Tensor, kind: str) -> torch.Tensor:
    """``x`` [T, H, D] in another memory order."""
    if kind == "transposed":
        return x.transpose(0, 1).contiguous().transpose(0, 1)
    if kind == "slice":
        wide = torch.full((*x.shape[:-1], x.shape[-1] + 64), 7.0).to(x.dtype)
        wide[..., 32 : 32 + x.shape[-1]] = x
        return wide[..., 32 : 32 + x.shape[-1]]
    return x


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("target", ["sm90", "gfx942"])
@pytest.mark.parametrize(("heads", "kind"), [(1, "plain"), (5, "transposed"), (16, "slice"), (40, "transposed"), (128, "plain")])
@pytest.mark.parametrize("rope", [0, 64])
def test_concat_cast_q(heads, kind, rope, target):
    dtype = FNUZ if target == "gfx942" else FN
    q = strided(normal(3, heads, 512, scale=200), kind)
    r = strided(normal(3, heads, 64), kind) if rope else None
    found, wanted = (dirty(5, heads + 3, 512 + rope, dtype=dtype) for _ in range(2))
    interpreted.call("concat_cast_q", target, q_nope=q, q_rope=r, out=found)
    interpreted.reference("concat_cast_q").concat_cast_q(q, r, wanted)
    same(found, wanted)


@pytest.mark.parametrize(("dtype", "width"), [("bf16", 512), ("bf16", 576), ("fp8", 512), ("fp8", 576)])
@pytest.mark.parametrize("pad", [0, 11])
def test_gather_cast_kv(dtype, width, pad):
    pool = strided(normal(40, 1, width), "slice")[:, 0]
    if dtype == "fp8":
        pool = torch.randint(0, 256, (40, width + 32), dtype=torch.uint8).view(FN)[:, 16 : 16 + width]
    table = torch.tensor([3, 39, 3, -1, 40, 0, INT_MIN, INT_MAX, 17], dtype=torch.int32)
    found, wanted = dirty(22, width), dirty(22, width)
    interpreted.call("gather_cast_kv", kv_cache=pool, page_table=table, pad_rows=pad, out=found)
    interpreted.reference("gather_cast_kv").gather_cast_kv(pool, table, wanted, pad)
    same(found, wanted)


@pytest.mark.parametrize("rope", [0, 64])
@pytest.mark.parametrize(("tokens", "pad"), [(1, 0), (13, 5), (0, 3)])
def test_concat_cast_kv(rope, tokens, pad):
    k = strided(normal(tokens, 1, 512), "slice")[:, 0]
    r = normal(tokens, 64) if rope else None
    found, wanted = dirty(tokens + pad + 2, 512 + rope), dirty(tokens + pad + 2, 512 + rope)
    interpreted.call("concat_cast_kv", k=k, k_rope=r, pad_rows=pad, out=found)
    interpreted.reference("concat_cast_kv").concat_cast_kv(k, r, wanted, pad)
    same(found, wanted)


@pytest.mark.parametrize("dtype", [torch.uint8, FN])
def test_gather_requant_kv(dtype):
    slots = 12
    pool = torch.empty(slots, 672, dtype=torch.uint8)
    pool[:, :512] = torch.randint(0, 256, (slots, 512), dtype=torch.uint8)
    pool[:, 512:528] = torch.logspace(-3, 3, slots * 4).view(slots, 4).contiguous().view(torch.uint8)
    pool[:, 528:656] = normal(slots, 64).view(torch.uint8)
    pool = pool[:, :656].view(dtype)
    table = torch.tensor([3, 11, 3, -1, 12, 0, INT_MAX], dtype=torch.int32)
    found, wanted = dirty(14, 576), dirty(14, 576)
    interpreted.call("gather_requant_kv", kv_cache=pool, page_table=table, pad_rows=4, out=found)
    interpreted.reference("gather_requant_kv").gather_requant_kv(pool, table, wanted, 4)
    same(found, wanted)


@FEW
@given(width=st.sampled_from([1, 2, 127, 512, 513, 2048, 2051, 2176]), data=st.data())
def test_topk_length(width, data):
    rows = torch.full((4, width + 3), -1, dtype=torch.int32)[:, :width]
    for row in rows:
        for c in data.draw(st.lists(st.integers(0, width - 1), max_size=3)):
            row[c] = data.draw(st.sampled_from([0, 5, INT_MAX]))
        row[data.draw(st.integers(0, width - 1))] = INT_MIN
    found, wanted = (torch.full((6,), -7, dtype=torch.int32) for _ in range(2))
    interpreted.call("topk_length", indices=rows, out=found)
    interpreted.reference("topk_length").topk_length(rows, wanted)
    same(found, wanted)


@FEW
@given(width=st.sampled_from([1, 64, 2048, 2051]), lengths=st.none() | st.lists(st.integers(0, 3), min_size=1, max_size=5))
def test_topk_transform(width, lengths):
    positions = 300
    tokens = 6
    requests = tokens - 1 if lengths is None else len(lengths)
    table = torch.randint(0, 2**31 - 1, (requests, positions + 5), dtype=torch.int32)[:, :positions]
    cu = None if lengths is None else torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
    index = torch.randint(-3, positions + 3, (tokens, width + 1), dtype=torch.int32)[:, :width]
    index[0, 0], index[1, -1] = INT_MIN, INT_MAX
    found, wanted = (torch.full((tokens, width + 2), 9, dtype=torch.int32)[:, :width] for _ in range(2))
    interpreted.call("topk_transform", page_table=table, topk_indices=index, cu_seqlens_q=cu, out=found)
    interpreted.reference("topk_transform").topk_transform(table, index, cu, wanted)
    same(found, wanted)


def test_topk_transform_to_a_ragged_buffer():
    index = torch.randint(-3, 3001, (7, 2052), dtype=torch.int32)[:, :2051]
    index[0, 0] = INT_MIN
    offset = torch.randint(0, 10**6, (7,), dtype=torch.int32)
    found, wanted = (torch.full((7, 2051), 9, dtype=torch.int32) for _ in range(2))
    interpreted.call("topk_transform", topk_indices=index, offset=offset, out=found)
    interpreted.reference("topk_transform").topk_transform(None, index, None, wanted, offset)
    same(found, wanted)


def test_topk_transform_of_many_requests():
    """More requests than one step of the search counts, empty ones among them; and in place."""
    lengths = torch.randint(0, 2, (700,))
    cu = torch.cat((torch.zeros(1), lengths.cumsum(0))).int()
    tokens = int(cu[-1]) + 2
    table = torch.randint(0, 1000, (700, 8), dtype=torch.int32)
    index = torch.randint(0, 8, (tokens, 3), dtype=torch.int32)
    wanted = torch.empty_like(index)
    interpreted.reference("topk_transform").topk_transform(table, index, cu, wanted)
    interpreted.call("topk_transform", page_table=table, topk_indices=index, cu_seqlens_q=cu, out=index)
    same(index, wanted)


# --- sparse_mla_prefill ---

TOLERANCE = {"fast": 4e-2, "exact": 4e-2, "high": 4e-3}
"""Norm of the difference over the norm of the reference, per precision level."""


def attend(op, target, q, kv, indices, *, precision="high", statistics=True, **options):
    """Outputs of ``op`` and of the oracle, and the name of the candidate that served."""
    tokens, heads = q.shape[:2]
    out = dirty(tokens, heads, 512, dtype=torch.bfloat16)
    top, lse = ((dirty(tokens, heads, dtype=torch.float32) if statistics else None) for _ in range(2))
    given = {"q": q, "kv": kv, "indices": indices, "sm_scale": options.pop("sm_scale", 0.0625), "precision": precision, **options}
    name = interpreted.call(op, target, **given, out=out, max_logits=top, lse=lse)
    given.pop("precision")
    return (out, top, lse), interpreted.reference(op).reference(**given), name


def prefill(target, *args, **options):
    return attend("sparse_mla_prefill", target, *args, **options)[:2]


def agree(found, wanted, precision="high"):
    (out, top, lse), (out_, top_, lse_) = found, wanted
    assert not out.isnan().any()
    assert (out.float() - out_).norm() <= TOLERANCE[precision] * out_.norm() + 1e-6
    if top is not None:
        torch.testing.assert_close(top, top_, atol=2e-4, rtol=2e-5)
        torch.testing.assert_close(lse, lse_, atol=2e-4, rtol=2e-5)


def fp8(*shape: int, target: str = "sm90", scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(shape) * scale).to(FNUZ if target == "gfx942" else FN)


def rows(tokens: int, topk: int, s_kv: int) -> torch.Tensor:
    """Index rows of every kind: full, with a tail, with holes, out of range, empty, repeated."""
    index = torch.randint(0, s_kv, (tokens, topk), dtype=torch.int32)
    kinds = [
        lambda r: None,
        lambda r: r[topk // 2 :].fill_(-1),
        lambda r: r[::3].fill_(-1),
        lambda r: r[::2].copy_(torch.tensor([s_kv, INT_MAX, INT_MIN, -2], dtype=torch.int32).repeat(topk)[: len(r[::2])]),
        lambda r: r.fill_(-1),
        lambda r: r.fill_(int(r[0])),
    ]
    for row, kind in zip(index, itertools.cycle(kinds), strict=False):
        kind(row)
    return index


# FP8 rows on sm90 are served in Gluon, which has no interpreter: tests/test_gpu_gluon.py
TARGETS = pytest.mark.parametrize("target", ["gfx950", "gfx942"])


@TARGETS
@pytest.mark.parametrize(("heads", "width", "topk"), [(1, 512, 1), (5, 576, 65), (16, 512, 130), (40, 576, 33), (128, 512, 40)])
@pytest.mark.parametrize("precision", ["exact", "high"])
def test_prefill(target, heads, width, topk, precision):
    q, kv = fp8(6, heads, width, target=target, scale=0.5), fp8(90, width, target=target)
    found, wanted = prefill(target, q, kv, rows(6, topk, 90), precision=precision)
    agree(found, wanted, precision)
    assert (found[0][4] == 0).all() and (found[1][4] == -torch.inf).all() and (found[2][4] == torch.inf).all()


@pytest.mark.parametrize("width", [512, 576])
def test_prefill_bf16(width):
    q, kv = (torch.randn(6, 24, width) * 0.5).bfloat16(), torch.randn(90, width).bfloat16()
    agree(*prefill("gfx942", q, kv, rows(6, 33, 90)))


@TARGETS
def test_prefill_options(target):
    """Rope in a tensor of its own, strided inputs, lengths, sinks, scales, no statistics, poisoned rows that nobody selects."""
    q = strided(fp8(5, 8, 512, target=target), "transposed")
    r = strided(fp8(5, 8, 64, target=target), "transposed")
    kv = torch.full((70, 592), 0x80 if target == "gfx942" else 0x7F, dtype=torch.uint8).view(q.dtype)[:, :576]
    kv[::2] = fp8(35, 576, target=target)
    index = torch.full((5, 80), -1, dtype=torch.int32)[:, :77]
    index[:] = torch.randint(0, 35, (5, 77)) * 2
    index[:, 60:] = 1  # NaN rows, beyond every length
    options = {
        "q_rope": r,
        "topk_length": torch.tensor([60, -4, 33, 0, 59], dtype=torch.int32),
        "attn_sink": torch.tensor([0.0, 1.0, -torch.inf, torch.inf, 20.0, -20.0, 3.0, 2.0]),
        "q_scale": torch.tensor([0.5]),
        "kv_scale": torch.tensor([1.7]),
        "sm_scale": 0.135,
    }
    agree(*prefill(target, q, kv, index, **options))
    agree(*prefill(target, q, kv, index, statistics=False, **options))
    joined = torch.cat((q.view(torch.uint8), r.view(torch.uint8)), -1).view(q.dtype)
    del options["q_rope"]
    agree(*prefill(target, joined, kv, index, **options))


@TARGETS
def test_prefill_with_large_logits(target):
    """The softmax frame moves by hundreds between blocks, both ways."""
    q, kv = fp8(2, 16, 512, target=target, scale=4), fp8(64, 512, target=target, scale=4)
    agree(*prefill(target, q, kv, torch.arange(64, dtype=torch.int32).repeat(2, 3), sm_scale=1.0))


@TARGETS
@pytest.mark.parametrize("logit", [0.0, 0.25])
def test_prefill_of_rows_with_a_common_mean(target, logit):
    """Coherent rows are exact: the gain of the output over the reference is one, flat or peaked."""
    q = fp8(2, 16, 512, target=target)
    kv = (1.0 + 0.25 * torch.randn(300, 512)).to(q.dtype)
    index = torch.randint(0, 300, (2, 300), dtype=torch.int32)
    (out, _, _), (wanted, _, _) = prefill(target, q, kv, index, precision="exact", sm_scale=logit)
    gain = (out.double() * wanted).sum() / (wanted.double() ** 2).sum()
    assert abs(gain - 1) < 2e-3
    assert (out - wanted).abs().max() < 5e-2


@TARGETS
def test_prefill_of_equal_rows(target):
    kv = fp8(1, 512, target=target).view(torch.uint8).repeat(50, 1).view(FNUZ if target == "gfx942" else FN)
    q = fp8(1, 16, 512, target=target)
    (out, _, _), _ = prefill(target, q, kv, torch.arange(50, dtype=torch.int32)[None].repeat(1, 10), precision="exact")
    torch.testing.assert_close(out[0], kv[:1].float().bfloat16().expand(16, 512), atol=0, rtol=5e-3)
