"""On a GPU, from installed wheels: every helper op agrees with its reference byte for byte, FP8 prefill of any head count within its level.

Outputs start poisoned; inputs are strided, odd in width, and reach beyond 2^31 elements.
"""

import importlib.util
import itertools
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
dsa_kernels = pytest.importorskip("dsa_kernels")
if not torch.cuda.is_available():
    pytest.skip("found no GPU", allow_module_level=True)

pytestmark = pytest.mark.gpu
KERNELS = Path(__file__).parents[1] / "kernels"
DEVICE = torch.device("cuda")
FNUZ = getattr(torch.cuda.get_device_properties(0), "gcnArchName", "").startswith("gfx942")
FP8 = torch.float8_e4m3fnuz if FNUZ else torch.float8_e4m3fn
INT_MIN, INT_MAX = -(2**31), 2**31 - 1
FAR = 2**30
"""A stride that takes the third row beyond 2^31 elements."""


def reference(op):
    """The function of kernels/<op>/reference.py that bears the op's name, or ``reference``."""
    spec = importlib.util.spec_from_file_location(f"reference_{op}", KERNELS / op / "reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, op, None) or module.reference


def dirty(*shape, dtype=FP8):
    size = torch.empty((), dtype=dtype).element_size()
    return torch.full((*shape[:-1], shape[-1] * size), 0xFF, dtype=torch.uint8, device=DEVICE).view(dtype)


def same(found, wanted):
    torch.cuda.synchronize()
    a, b = (x.contiguous().view(torch.uint8) for x in (found, wanted))
    assert a.shape == b.shape and torch.equal(a, b), f"{int((a != b).sum())} of {a.numel()} bytes differ"


def normal(*shape, scale=1.0):
    """bf16 with special values among them: beyond e4m3, infinities, NaN, subnormals of e4m3, ties, signed zeros."""
    x = torch.randn(shape, device=DEVICE) * scale
    special = torch.tensor([448.0, -464.0, 480.0, 1e30, float("inf"), -float("inf"), float("nan"), 2.0**-9, 2.0**-10, 17.0, 19.0, -0.0])
    x.view(-1)[: len(special)] = special.to(DEVICE)[: x.numel()]
    return x.bfloat16()


def strided(x, kind):
    """``x`` [T, H, D] in another memory order; ``far`` spreads tokens (at most 3) over more than 2^31 elements."""
    if kind == "transposed":
        return x.transpose(0, 1).contiguous().transpose(0, 1)
    if kind == "slice":
        wide = torch.zeros(*x.shape[:-1], x.shape[-1] + 64, dtype=x.dtype, device=DEVICE)
        wide[..., 32 : 32 + x.shape[-1]] = x
        return wide[..., 32 : 32 + x.shape[-1]]
    if kind == "far":
        return far(x.shape, x.dtype).copy_(x)
    return x


def far(shape, dtype):
    """An uninitialised tensor of ``shape`` whose rows lie FAR elements apart."""
    need = ((shape[0] - 1) * FAR + 2**20) * torch.empty((), dtype=dtype).element_size()
    if torch.cuda.mem_get_info()[0] < need + 2**30:
        pytest.skip(f"found less than {need >> 20} MiB of free GPU memory")
    inner = torch.empty(shape[1:], device="meta").stride()
    return torch.empty(need // torch.empty((), dtype=dtype).element_size(), dtype=dtype, device=DEVICE).as_strided(shape, (FAR, *inner))


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)
    yield
    torch.cuda.empty_cache()


@pytest.mark.parametrize("rope", [0, 64])
@pytest.mark.parametrize("heads", [1, 5, 8, 16, 40, 64, 128])
@pytest.mark.parametrize(("tokens", "kind"), [(1, "plain"), (65, "transposed"), (437, "slice"), (3, "far")])
def test_concat_cast_q(rope, heads, tokens, kind):
    q = strided(normal(tokens, heads, 512, scale=200), kind)
    r = strided(normal(tokens, heads, 64), kind) if rope else None
    found, wanted = (dirty(tokens + 2, heads + 3, 512 + rope) for _ in range(2))
    dsa_kernels.concat_cast_q(q_nope=q, q_rope=r, out=found)
    same(found, reference("concat_cast_q")(q, r, wanted))


def test_concat_cast_q_writes_far():
    q = normal(3, 4, 512)
    found = far((3, 4, 512), FP8)
    dsa_kernels.concat_cast_q(q_nope=q, q_rope=None, out=found)
    same(found, reference("concat_cast_q")(q, None, dirty(3, 4, 512)))


def page_table(n, slots):
    table = torch.randint(0, slots, (n,), dtype=torch.int32)
    odd = torch.tensor([slots - 1, slots, -1, INT_MIN, INT_MAX, slots - 1], dtype=torch.int32)
    table[: len(odd)] = odd[:n]
    return table.to(DEVICE)


def pool(slots, width, dtype, stride):
    """A pool of ``slots`` rows, random at both of its ends and uninitialised between them."""
    kv = torch.empty(slots, stride, dtype=dtype, device=DEVICE)[:, :width]
    for part in (kv[:500], kv[-500:]):
        if dtype == torch.bfloat16:
            part.copy_(normal(len(part), width))
        else:
            part.view(torch.uint8).copy_(torch.randint(0, 256, part.shape, device=DEVICE))
    return kv


def ends(n, slots):
    """A page table into the random ends of ``pool``."""
    table = page_table(n, 1000)
    return torch.where((table >= 500) & (table < 1000), table + (slots - 1000), torch.where(table == 1000, slots, table)).int()


@pytest.mark.parametrize(("dtype", "width"), [("bf16", 512), ("bf16", 576), ("fp8", 512), ("fp8", 576)])
@pytest.mark.parametrize(("n", "pad", "slots"), [(1, 0, 1000), (2000, 128, 1000), (4099, 2051, 1 << 22)])
def test_gather_cast_kv(dtype, width, n, pad, slots):
    kv = pool(slots, width, torch.bfloat16 if dtype == "bf16" else FP8, width + 16)
    table = ends(n, slots)
    found, wanted = dirty(n + pad + 2, width), dirty(n + pad + 2, width)
    dsa_kernels.gather_cast_kv(kv_cache=kv, page_table=table, pad_rows=pad, out=found)
    same(found, reference("gather_cast_kv")(kv, table, wanted, pad))


@pytest.mark.parametrize("rope", [0, 64])
@pytest.mark.parametrize(("tokens", "pad", "kind"), [(1, 0, "plain"), (437, 128, "slice"), (4099, 2051, "plain"), (3, 5, "far")])
def test_concat_cast_kv(rope, tokens, pad, kind):
    k = strided(normal(tokens, 1, 512), kind)[:, 0]
    r = strided(normal(tokens, 1, 64), kind)[:, 0] if rope else None
    found, wanted = (dirty(tokens + pad + 2, 512 + rope) for _ in range(2))
    dsa_kernels.concat_cast_kv(k=k, k_rope=r, pad_rows=pad, out=found)
    same(found, reference("concat_cast_kv")(k, r, wanted, pad))


@pytest.mark.parametrize("dtype", [torch.uint8, FP8])
@pytest.mark.parametrize(("n", "pad", "slots"), [(1, 0, 1000), (4099, 2051, 1 << 22)])
def test_gather_requant_kv(dtype, n, pad, slots):
    kv = pool(slots, 656, torch.uint8, 656)
    for part in (kv[:500], kv[-500:]):
        scales = torch.logspace(-3, 3, len(part) * 4, device=DEVICE).view(-1, 4)
        part[:, 512:528] = scales[torch.randperm(len(part))].contiguous().view(torch.uint8)
        part[:, 528:] = normal(len(part), 64).view(torch.uint8)
        part[:, :512].masked_fill_(part[:, :512] == 0xFF, 0x7F)  # a requantised NaN loses its sign
    table = ends(n, slots)
    found, wanted = dirty(n + pad + 2, 576), dirty(n + pad + 2, 576)
    dsa_kernels.gather_requant_kv(kv_cache=kv.view(dtype), page_table=table, pad_rows=pad, out=found)
    same(found, reference("gather_requant_kv")(kv, table, wanted, pad))


@pytest.mark.parametrize("width", [1, 2, 127, 512, 513, 2048, 2051, 2176])
@pytest.mark.parametrize(("tokens", "kind"), [(1, "plain"), (437, "slice"), (70000, "plain"), (3, "far")])
def test_topk_length(width, tokens, kind):
    index = torch.randint(-5, 1000, (tokens, width), dtype=torch.int32, device=DEVICE)
    last = torch.randint(0, width + 1, (tokens, 1), device=DEVICE)
    index.masked_fill_(torch.arange(width, device=DEVICE) >= last, -1)
    index[0] = INT_MIN
    index[-1, 0] = INT_MAX
    index = strided(index[:, None], kind)[:, 0]
    found, wanted = (torch.full((tokens + 2,), -7, dtype=torch.int32, device=DEVICE) for _ in range(2))
    dsa_kernels.topk_length(indices=index, out=found)
    same(found, reference("topk_length")(index, wanted))


@pytest.mark.parametrize("width", [1, 64, 2048, 2051])
@pytest.mark.parametrize("lengths", [None, [3], [2, 0, 5, 1], [1] * 300 + [0] * 300 + [7]])
@pytest.mark.parametrize("kind", ["plain", "slice"])
def test_topk_transform(width, lengths, kind):
    requests = 9 if lengths is None else len(lengths)
    tokens = 11 if lengths is None else sum(lengths) + 3  # the last ones belong to no request
    positions = 3001
    table = torch.randint(0, INT_MAX, (requests, positions), dtype=torch.int32, device=DEVICE)
    cu = None if lengths is None else torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=DEVICE)
    index = torch.randint(-3, positions + 3, (tokens, width), dtype=torch.int32, device=DEVICE)
    index[0, 0], index[1, -1] = INT_MIN, INT_MAX
    table, index = (strided(x[:, None], kind)[:, 0] for x in (table, index))
    found, wanted = (torch.full((tokens, width + 2), 9, dtype=torch.int32, device=DEVICE)[:, :width] for _ in range(2))
    dsa_kernels.topk_transform(page_table=table, topk_indices=index, cu_seqlens_q=cu, out=found)
    same(found, reference("topk_transform")(table, index, cu, wanted))


def test_topk_transform_to_a_ragged_buffer():
    index = torch.randint(-3, 3001, (437, 2051), dtype=torch.int32, device=DEVICE)
    offset = torch.randint(0, 10**6, (437,), dtype=torch.int32, device=DEVICE)
    wanted = reference("topk_transform")(None, index, None, torch.empty_like(index), offset)
    same(dsa_kernels.topk_transform(topk_indices=index, offset=offset), wanted)


def test_topk_transform_far_and_in_place():
    table = strided(torch.randint(0, INT_MAX, (3, 1, 500), dtype=torch.int32, device=DEVICE), "far")[:, 0]
    index = torch.randint(-3, 503, (3, 2051), dtype=torch.int32, device=DEVICE)
    wanted = reference("topk_transform")(table, index, None, torch.empty_like(index))
    dsa_kernels.topk_transform(page_table=table, topk_indices=index, cu_seqlens_q=None, out=index)
    same(index, wanted)


# --- sparse_mla_prefill, FP8, head counts that are no multiple of 64 ---

TOLERANCE = {"fast": 4e-2, "exact": 4e-2, "high": 5e-3}


def fp8(*shape, scale=1.0):
    return (torch.randn(shape, device=DEVICE) * scale).to(FP8)


def rows(tokens, topk, s_kv):
    """Index rows of every kind: full, with a tail, with holes, out of range, empty, repeated."""
    index = torch.randint(0, s_kv, (tokens, topk), dtype=torch.int32, device=DEVICE)
    index[1::6, topk // 2 :] = -1
    index[2::6, ::3] = -1
    index[3::6, ::2] = torch.tensor([s_kv, INT_MAX, INT_MIN, -2], dtype=torch.int32, device=DEVICE).repeat(topk)[: (topk + 1) // 2]
    index[4::6] = -1
    index[5::6] = index[5::6, :1]
    return index


def prefill(q, kv, index, precision, **options):
    tokens, heads = q.shape[:2]
    out, top, lse = dirty(tokens, heads, 512, dtype=torch.bfloat16), *(dirty(tokens, heads, dtype=torch.float32) for _ in range(2))
    given = {"q": q, "kv": kv, "indices": index, "sm_scale": 0.0625, **options}
    dsa_kernels.sparse_mla_prefill(**given, precision=precision, out=out, max_logits=top, lse=lse)
    torch.cuda.synchronize()
    return (out, top, lse), reference("sparse_mla_prefill")(**given)


def agree(found, wanted, precision):
    (out, top, lse), (out_, top_, lse_) = found, wanted
    assert not out.isnan().any()
    assert (out.float() - out_).norm() <= TOLERANCE[precision] * out_.norm() + 1e-6
    # SM90's FP8 matrix units keep about 14 bits of a sum
    torch.testing.assert_close(top, top_, atol=4e-3, rtol=1e-4)
    torch.testing.assert_close(lse, lse_, atol=4e-3, rtol=1e-4)


@pytest.mark.parametrize("heads", [1, 5, 8, 16, 32, 40, 63, 96])
@pytest.mark.parametrize(("width", "rope_apart"), [(512, False), (576, False), (576, True)])
@pytest.mark.parametrize("topk", [1, 65, 2051])
@pytest.mark.parametrize("precision", ["exact", "high"])
def test_fp8_prefill(heads, width, rope_apart, topk, precision):
    q, kv = fp8(67, heads, width, scale=0.5), fp8(4096, width)
    options = {"q_rope": fp8(67, heads, 64)} if rope_apart else {}
    q = strided(q[..., :512].contiguous() if rope_apart else q, "transposed")
    agree(*prefill(q, kv, rows(67, topk, 4096), precision, **options), precision)


@pytest.mark.parametrize("heads", [8, 16])
def test_fp8_prefill_options_and_far_rows(heads):
    """Lengths, sinks, scales; a pool beyond 2^31 bytes whose unselected rows are NaN."""
    slots = 4_000_000
    kv = torch.full((slots, 576), 0x80 if FNUZ else 0x7F, dtype=torch.uint8, device=DEVICE).view(FP8)
    kv[-4000::2] = fp8(2000, 576)
    index = torch.randint(0, 2000, (66, 2051), dtype=torch.int32, device=DEVICE) * 2 + slots - 4000
    index[:, 2000:] = 1  # NaN rows, beyond every length
    options = {
        "topk_length": torch.randint(-3, 2001, (66,), dtype=torch.int32, device=DEVICE),
        "attn_sink": torch.tensor([0.0, 1.0, -torch.inf, torch.inf, 20.0, -20.0, 3.0, 2.0] * 2, device=DEVICE)[:heads],
        "q_scale": torch.tensor([0.5], device=DEVICE),
        "kv_scale": torch.tensor([1.7], device=DEVICE),
    }
    agree(*prefill(fp8(66, heads, 576), kv, index, "high", **options), "high")


@pytest.mark.parametrize("topk", [512, 2051])
@pytest.mark.parametrize("sm_scale", [0.0, 0.05])
def test_fp8_prefill_of_rows_with_a_common_mean(topk, sm_scale):
    kv = (1.0 + 0.25 * torch.randn(8192, 512, device=DEVICE)).to(FP8)
    index = torch.randint(0, 8192, (64, topk), dtype=torch.int32, device=DEVICE)
    (out, _, _), (wanted, _, _) = prefill(fp8(64, 16, 512), kv, index, "exact", sm_scale=sm_scale)
    gain = (out.double() * wanted).sum() / (wanted.double() ** 2).sum()
    assert abs(gain - 1) < 2e-3
