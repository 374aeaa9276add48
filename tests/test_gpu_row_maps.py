"""On a GPU, from installed wheels: rows that come through a tensor map, at any stride that the ops take and wherever they lie."""

import pytest

torch = pytest.importorskip("torch")
dsa_kernels = pytest.importorskip("dsa_kernels")
if not torch.cuda.is_available():
    pytest.skip("found no GPU", allow_module_level=True)

from tests.attention import FP8, reference  # noqa: E402

pytestmark = pytest.mark.gpu
T, H, D = 5, 8, 512


def rows(count, stride, seed=0):
    g = torch.Generator("cuda").manual_seed(seed)
    return (torch.randn(count * max(stride, 16) + D, generator=g, device="cuda") * 0.25).to(FP8).as_strided((count, D), (stride, 1))


def given(kv, topk=300):
    g = torch.Generator("cuda").manual_seed(1)
    q = (torch.randn(T, H, D, generator=g, device="cuda") * 0.25).to(FP8)
    indices = torch.randint(-9, len(kv) + 9, (T, topk), generator=g, device="cuda", dtype=torch.int32)
    return q, kv, indices, 0.0625


def agrees(out, inputs):
    wanted, _, _ = reference(*inputs)
    assert torch.isfinite(out).all()
    assert (out.float() - wanted).norm() <= 3e-3 * wanted.norm() + 1e-6


@pytest.mark.parametrize("op", ["sparse_mla_decode", "sparse_mla_prefill"])
@pytest.mark.parametrize("stride", [0, 16, 496, 512, 528, 656, 1024])
def test_strides(op, stride):
    inputs = given(rows(900, stride))
    agrees(getattr(dsa_kernels, op)(*inputs), inputs)


def test_one_row_and_none():
    inputs = given(rows(1, 512))
    agrees(dsa_kernels.sparse_mla_decode(*inputs), inputs)
    assert not dsa_kernels.sparse_mla_decode(*given(rows(1, 512)[:0])).any()


def test_tensors_take_turns():
    calls = [given(rows(900, 528, seed)) for seed in range(3)] + [given(rows(400, 528, 3))]
    outs = [dsa_kernels.sparse_mla_decode(*calls[i % 4]) for i in range(12)]
    for i, out in enumerate(outs):
        agrees(out, calls[i % 4])
