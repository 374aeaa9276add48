"""sglang's functions by our ops, on the CPU, each op by its reference: shapes, units, padding, and what is refused."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")
dsa = pytest.importorskip("dsa_kernels", reason="the runtime is not installed: pip install -e .")

from dsa_kernels.integrations import sglang  # noqa: E402
from tests import oracle, serving  # noqa: E402

FP8 = torch.float8_e4m3fn
SCALE = 0.0625


@pytest.fixture(autouse=True)
def called(monkeypatch):
    """The ops by their references; the list is of those that were called, with their arguments."""
    calls, ops = [], serving.reference_ops()

    class Recorded:
        def __getattr__(self, name):
            return lambda **given: (calls.append((name, given)), getattr(ops, name)(**given))[1]

    monkeypatch.setattr(sglang, "ops", Recorded())
    return calls


def inputs(rope=64, heads=16, tokens=5, slots=300, topk=128, dtype=torch.bfloat16):
    torch.manual_seed(2)
    q = torch.randn(tokens, heads, 512 + rope).mul(0.25).bfloat16()
    kv = torch.randn(slots, 1, 512 + rope).mul(0.25).to(dtype)
    indices = torch.randint(-1, slots, (tokens, 1, topk), dtype=torch.int32)
    indices[1:2] = -1
    return q, kv, indices


def wanted(q, kv, indices, **more):
    return oracle.function("sparse_mla_prefill")(q, kv[:, 0], indices[:, 0], SCALE, **more)


@pytest.mark.parametrize("rope", [0, 64])
@pytest.mark.parametrize(("legacy", "unit"), [({}, math.log2(math.e)), ({"use_legacy": False}, 1.0)])
def test_flash_mla_sparse_fwd(rope, legacy, unit):
    q, kv, indices = inputs(rope)
    sink, length = torch.randn(16), torch.full((5,), 100, dtype=torch.int32)
    out, max_logits, lse = sglang.flash_mla_sparse_fwd(q, kv, indices, SCALE, 512, sink, length, **legacy)
    want = wanted(q, kv, indices, attn_sink=sink, topk_length=length)
    assert out.shape == (5, 16, 512) and torch.equal(out, want[0].bfloat16())
    torch.testing.assert_close(max_logits, want[1] * unit)
    torch.testing.assert_close(lse, want[2] * unit)
    assert (out[1] == 0).all() and torch.isneginf(max_logits[1]).all() and torch.isposinf(lse[1]).all()


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_sparse_mla_q8kv8_prefill_fwd(shape):
    q, kv, indices = inputs(dtype=FP8)
    q = q.to(FP8)
    scales = {"q_scale": torch.full(shape, 0.5), "kv_scale": torch.full(shape, 2.0)}
    found = sglang.sparse_mla_q8kv8_prefill_fwd(q, kv, indices, SCALE, **scales)
    want = wanted(q, kv, indices, q_scale=0.5, kv_scale=2.0)
    for x, y in zip(found, want, strict=True):
        assert torch.equal(x, y.to(x.dtype))


def test_its_buffers_are_written_and_others_made():
    q, kv, indices = inputs(dtype=FP8)
    one = torch.ones(1)
    out, lse = torch.empty(5, 16, 512, dtype=torch.bfloat16), torch.empty(5, 16)
    found = sglang.sparse_mla_q8kv8_prefill_fwd(q.to(FP8), kv, indices, SCALE, one, one, out=out, lse=lse)
    assert found[0] is out and found[2] is lse and found[1].shape == (5, 16)
    again = sglang.sparse_mla_q8kv8_prefill_fwd(q.to(FP8), kv, indices, SCALE, one, one)
    assert all(torch.equal(x, y) and x.data_ptr() != y.data_ptr() for x, y in zip(found, again, strict=True))


TYPES = {"bf16": (torch.bfloat16, torch.bfloat16), "fp8": (FP8, FP8), "bf16 queries of fp8 rows": (torch.bfloat16, FP8)}


@pytest.mark.parametrize("rope", [0, 64])
@pytest.mark.parametrize("types", TYPES)
def test_tilelang_and_triton(rope, types, called):
    q_type, kv_type = TYPES[types]
    q, kv, indices = inputs(rope, dtype=kv_type)
    q = q.to(q_type)
    one = sglang.tilelang_sparse_fwd(q, kv, indices, SCALE)
    two = sglang.triton_sparse_mla_fwd(q[..., :512], q[..., 512:], kv, indices, SCALE)
    want = wanted(q.to(kv_type), kv, indices)[0].bfloat16()
    assert one.shape == two.shape == (1, 5, 16, 512)
    assert torch.equal(one[0], want)
    torch.testing.assert_close(two[0], want, atol=1e-3, rtol=1e-2)  # the reference adds the rope part last
    assert [name for name, _ in called].count("concat_cast_q") == 2 * (q_type != kv_type)


def test_lengths_reach_the_kernel():
    q, kv, indices = inputs()
    length = torch.tensor([128, 3, 0, 50, 1], dtype=torch.int32)
    found = sglang.triton_sparse_mla_fwd(q[..., :512], q[..., 512:], kv, indices, SCALE, 512, length, 128)
    torch.testing.assert_close(found[0], wanted(q, kv, indices, topk_length=length)[0].bfloat16(), atol=1e-3, rtol=1e-2)


@pytest.mark.parametrize("dtype", [FP8, torch.bfloat16])
@pytest.mark.parametrize("heads", [1, 40])
def test_few_tokens_are_split_over_the_chip(called, dtype, heads):
    for tokens, op in ((1, "sparse_mla_decode"), (sglang.FEW, "sparse_mla_decode"), (sglang.FEW + 1, "sparse_mla_prefill")):
        q, kv, indices = inputs(heads=heads, tokens=tokens, topk=2, dtype=dtype)
        sglang.tilelang_sparse_fwd(q.to(dtype), kv, indices, SCALE)
        assert called[-1][0] == op


def test_tensors_are_passed_as_views(called):
    q, kv, indices = inputs()
    sglang.triton_sparse_mla_fwd(q[..., :512], q[..., 512:], kv, indices, SCALE)
    name, given = called[-1]
    for argument, source in (("q", q), ("q_rope", q), ("kv", kv), ("indices", indices)):
        assert given[argument].untyped_storage().data_ptr() == source.untyped_storage().data_ptr(), name


@pytest.mark.parametrize("rope", [0, 64])
def test_keys_and_queries_are_cast_and_padded(rope):
    q, kv, _ = inputs(rope)
    pad = torch.full((7, 64, 512 + rope), 3.0).to(FP8)
    assert sglang.concat_and_cast_q_fp8_pad(pad, q[..., :512], q[..., 512:], 16) is None
    assert torch.equal(pad[:5, :16].float(), q.to(FP8).float()) and (pad[5:].float() == 3).all() and (pad[:, 16:].float() == 3).all()

    for cache in (kv, kv.to(FP8)):
        slots = torch.tensor([7, 7, 299], dtype=torch.int32)
        out = torch.full((5, 512 + rope), 3.0).to(FP8)
        assert sglang.gather_cast_kv_fp8_pad_paged(out=out, kv_cache=cache, page_table_1_flattened=slots, nope_dim=512) is out
        assert torch.equal(out[:3].float(), kv[slots.long(), 0].to(FP8).float()) and (out[3:].view(torch.uint8) == 0).all()


def test_what_is_refused():
    q, kv, indices = inputs()
    one, table, slots = torch.ones(1), torch.zeros(2, 9, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    rows, nope, rope, k = torch.zeros(2, 576, dtype=FP8), q[..., :512], q[..., 512:], kv[:3, 0]
    positions = indices[:, 0]
    calls = (
        ("flash_mla_sparse_fwd", (q, kv, indices, SCALE, 256), r"found d_v 256; wanted 512, since .*; pass d_v=512"),
        ("sparse_mla_q8kv8_prefill_fwd", (q, kv, indices, SCALE, one, one, 64), r"found d_v 64"),
        ("triton_sparse_mla_fwd", (nope, rope, kv, indices, SCALE, 64), r"found d_v 64"),
        ("tilelang_sparse_fwd", (q, kv[None], indices, SCALE), r"found kv \[1, 300, 1, 576\]; wanted \[N, 1, width\]"),
        ("tilelang_sparse_fwd", (q, kv, indices.view(5, 2, 64), SCALE), r"found indices \[5, 2, 64\]; wanted \[N, 1, width\]"),
        ("concat_and_cast_q_fp8_pad", (q, nope, rope, 17), r"found 16 heads of q_nope; wanted 17 or more"),
        ("gather_cast_kv_fp8_pad_paged", (rows, kv, slots, 512), r"found 2 rows of out; wanted 3 or more"),
        ("gather_cast_kv_fp8_pad_paged", (rows, kv, slots, 448), r"found nope_dim 448; wanted 512"),
        ("concat_cast_kv_fp8_pad", (rows, k[:, :512], k[:, 512:], 3), r"found 2 rows of out; wanted 3 or more"),
        ("concat_cast_kv_fp8_pad", (rows, k[:, :512], k[:, 512:], 2), r"found num_tokens 2; wanted 3, since k has a row for each"),
        ("gather_dequant_requant_fp8_paged_dsa", (kv, slots, 64), r"found group_size 64; wanted 128"),
        ("q8kv8_topk_length_from_indices", (slots,), r"found indices \[3\]; wanted"),
        ("transform_index_page_table_decode", (table, positions, None, 64), r"found page_size 64; wanted 1, since an index is a slot"),
        ("transform_index_page_table_prefill", (table, positions, [2, 3], 64), r"found page_size 64"),
        ("transform_index_page_table_prefill", (table, positions, [4, 3]), r"found 7 new tokens, 5 rows of .* room for 5; wanted"),
        ("transform_index_page_table_prefill", (table, positions, [1], 1, 4), r"found 1 new tokens, 5 rows of .* room for 4; wanted"),
    )
    for name, arguments, message in calls:
        with pytest.raises(dsa.ArgumentError, match=f"^{name}: {message}"):
            getattr(sglang, name)(*arguments)
