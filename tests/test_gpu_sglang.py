"""On a GPU, from installed wheels: sglang's functions against the references, without a wait for the device, and in a graph."""

import contextlib
import math

import pytest

torch = pytest.importorskip("torch")
dsa_kernels = pytest.importorskip("dsa_kernels")
if not torch.cuda.is_available():
    pytest.skip("found no GPU", allow_module_level=True)

from dsa_kernels.integrations import sglang  # noqa: E402
from dsa_kernels.layouts import FLAVOURS, kv_layout  # noqa: E402
from tests import oracle  # noqa: E402

pytestmark = pytest.mark.gpu
SCALE = 0.0625
FNUZ = bool(torch.version.hip) and torch.cuda.get_device_properties(0).gcnArchName.startswith("gfx942")
FLAVOUR = "e4m3fnuz" if FNUZ else "e4m3fn"
FP8 = getattr(torch, FLAVOURS[FLAVOUR])
TOKENS = (3, sglang.FEW + 41)
"""A call for each of the two attention ops."""


@pytest.fixture(autouse=True, scope="module")
def loaded():
    dsa_kernels.preload()


@contextlib.contextmanager
def no_waiting():
    """Any wait for the device raises."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def inputs(tokens, heads, rope, q_type, kv_type, topk=2176, slots=5000):
    """Strided queries and index rows; slots that no token selects hold NaN; the second token selects none."""
    torch.manual_seed(7)
    q = (torch.randn(tokens, heads + 1, 512 + rope, device="cuda") * 0.25).to(q_type)[:, :heads]
    kv = (torch.randn(slots, 1, 512 + rope, device="cuda") * 0.25).to(kv_type)
    indices = torch.randint(-1, slots // 2, (tokens, 1, topk + 4), device="cuda", dtype=torch.int32)[..., :topk]
    indices[:, :, topk - 125 :] = -1
    indices[1] = -1
    kv.view(torch.uint8)[slots // 2 :] = 0xFF
    return q, kv, indices


def wanted(q, kv, indices, **more):
    return oracle.function("sparse_mla_prefill")(q, kv[:, 0], indices[:, 0], SCALE, **more)


def agree(found, want, fp8=False):
    """From 64 heads on FP8 carries P in one term of three bits."""
    assert torch.isfinite(found).all()
    assert (found.float() - want).norm() < (4e-2 if fp8 and want.shape[1] >= 64 else 6e-3) * want.norm()
    assert (found.reshape(want.shape)[1] == 0).all()


def agree_statistics(found, want, unit=1.0):
    for x, y, empty in zip(found, want, (-math.inf, math.inf), strict=True):
        assert (x[1] == empty).all()
        torch.testing.assert_close(x, y * unit, atol=1e-2, rtol=1e-4)


GEOMETRIES = [(16, 0), (64, 0), (16, 64), (128, 64)]
SOME = pytest.mark.parametrize(("heads", "rope"), GEOMETRIES)
MANY = pytest.mark.parametrize("tokens", TOKENS)


@SOME
@MANY
def test_flash_mla_sparse_fwd(tokens, heads, rope):
    q, kv, indices = inputs(tokens, heads, rope, torch.bfloat16, torch.bfloat16)
    length = torch.full((tokens,), 1000, device="cuda", dtype=torch.int32)
    sink = torch.randn(heads, device="cuda")
    with no_waiting():
        legacy = sglang.flash_mla_sparse_fwd(q, kv, indices, SCALE, attn_sink=sink, topk_length=length)
        natural = sglang.flash_mla_sparse_fwd(q, kv, indices, SCALE, attn_sink=sink, topk_length=length, use_legacy=False)
    want = wanted(q, kv, indices, attn_sink=sink, topk_length=length)
    agree(legacy[0], want[0])
    assert torch.equal(legacy[0], natural[0]) and legacy[0].data_ptr() != natural[0].data_ptr()
    agree_statistics(natural[1:], want[1:])
    agree_statistics(legacy[1:], want[1:], math.log2(math.e))


@SOME
@MANY
def test_sparse_mla_q8kv8_prefill_fwd(tokens, heads, rope):
    q, kv, indices = inputs(tokens, heads, rope, FP8, FP8)
    one, two = torch.ones(1, device="cuda"), torch.full((), 2.0, device="cuda")
    lse = torch.empty(tokens, heads, device="cuda")
    with no_waiting():
        length = sglang.q8kv8_topk_length_from_indices(indices[:, 0])
        found = sglang.sparse_mla_q8kv8_prefill_fwd(q, kv, indices, SCALE, one, two, topk_length=length, lse=lse)
    want = wanted(q, kv, indices, kv_scale=2.0)
    assert found[2] is lse
    agree(found[0], want[0], fp8=True)
    agree_statistics(found[1:], want[1:])


TYPES = {"bf16": (torch.bfloat16, torch.bfloat16), "fp8": (FP8, FP8), "bf16 queries of fp8 rows": (torch.bfloat16, FP8)}


@SOME
@MANY
@pytest.mark.parametrize("types", TYPES)
def test_tilelang_and_triton(tokens, heads, rope, types):
    q_type, kv_type = TYPES[types]
    q, kv, indices = inputs(tokens, heads, rope, q_type, kv_type)
    with no_waiting():
        one = sglang.tilelang_sparse_fwd(q, kv, indices, SCALE)
        two = sglang.triton_sparse_mla_fwd(q[..., :512], q[..., 512:], kv, indices, SCALE)
    assert one.shape == two.shape == (1, tokens, heads, 512)
    want = wanted(q.to(kv_type), kv, indices)[0]
    agree(one[0], want, kv_type == FP8)
    agree(two[0], want, kv_type == FP8)


@MANY
def test_in_a_graph(tokens):
    q, kv, indices = inputs(tokens, 16, 64, torch.bfloat16, FP8)
    eager = sglang.tilelang_sparse_fwd(q, kv, indices, SCALE)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = sglang.tilelang_sparse_fwd(q, kv, indices, SCALE)
    for _ in range(1000):
        captured.fill_(7)
        graph.replay()
        assert torch.equal(captured, eager)


@pytest.mark.parametrize("rope", [0, 64])
def test_queries_and_keys(rope):
    normal = torch.randn(300, 9, 512 + rope, device="cuda").bfloat16()
    q, k, pool = normal[:5, :8], normal[:7, :1], normal[:, 8:]
    slots = torch.tensor([7, 7, 299], device="cuda", dtype=torch.int32)
    pad, rows, gathered, copied = (torch.full(s, 3.0, device="cuda").to(FP8) for s in ((6, 64, 512 + rope), *[(9, 512 + rope)] * 3))
    with no_waiting():
        sglang.concat_and_cast_q_fp8_pad(pad, q[..., :512], q[..., 512:], 8)
        sglang.concat_cast_kv_fp8_pad(rows, k[..., :512], k[..., 512:], 7)
        sglang.gather_cast_kv_fp8_pad_paged(gathered, pool, slots, 512)
        sglang.gather_cast_kv_fp8_pad_paged(copied, pool.to(FP8), slots, 512)
    assert torch.equal(pad[:5, :8].float(), q.to(FP8).float()) and (pad[5:].float() == 3).all() and (pad[:, 8:].float() == 3).all()
    for found, want in ((rows, k[:, 0]), (gathered, pool[slots.long(), 0]), (copied, pool[slots.long(), 0])):
        assert torch.equal(found[: len(want)].float(), want.to(FP8).float()) and (found[len(want) :].view(torch.uint8) == 0).all()


def test_packed_rows():
    layout = kv_layout("pack-656", FLAVOUR)
    pool = layout.pool(50, "cuda")
    layout.write(pool, torch.arange(50, device="cuda"), torch.randn(50, 512, device="cuda"), torch.randn(50, 64, device="cuda"))
    slots = torch.tensor([9, 3, 9], device="cuda", dtype=torch.int32)
    out = torch.full((5, 1, 576), 3.0, device="cuda").to(FP8)
    with no_waiting():
        fresh = sglang.gather_dequant_requant_fp8_paged_dsa(pool.view(FP8)[:, None], slots, extra_rows=2)
        into = sglang.gather_dequant_requant_fp8_paged_dsa(pool.view(FP8)[:, None], slots, extra_rows=2, out=out)
    assert fresh.shape == (5, 1, 576) and into.data_ptr() == out.data_ptr() and torch.equal(fresh.view(torch.uint8), out.view(torch.uint8))
    assert torch.equal(fresh[:3, 0].float(), layout.read(pool, slots).to(FP8).float()) and (fresh[3:].view(torch.uint8) == 0).all()


@pytest.mark.parametrize("topk", [3, 2048, 2051])
def test_indices(topk):
    table = torch.randperm(6000, device="cuda").int().view(6, 1000)
    positions = torch.randint(-1, 1000, (6, topk), device="cuda", dtype=torch.int32)
    starts = torch.tensor([0, 4, 6], device="cuda", dtype=torch.int32)
    with no_waiting():
        own = sglang.transform_index_page_table_decode(table, positions)
        expanded = sglang.transform_index_page_table_prefill(table, positions, [4, 1], page_table_is_expanded=True, output_num_tokens=8)
        by_lengths = sglang.transform_index_page_table_prefill(table[:2], positions, [4, 2])
        by_starts = sglang.transform_index_page_table_prefill(table[:2], positions, [4, 2], cu_seqlens_q=starts)
    slots = positions.where(positions < 0, table.gather(1, positions.clamp(min=0).long()))
    assert torch.equal(own, slots)
    assert torch.equal(expanded[:5], slots[:5]) and (expanded[5:] == -1).all() and len(expanded) == 8
    request = torch.tensor([0, 0, 0, 0, 1, 1], device="cuda")
    slots = positions.where(positions < 0, table[request].gather(1, positions.clamp(min=0).long()))
    assert torch.equal(by_lengths, slots) and torch.equal(by_starts, slots)
