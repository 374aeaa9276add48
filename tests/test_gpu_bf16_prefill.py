"""sparse_mla_prefill in BF16 on a GPU, against the float32 reference: every head tile, width, mask, sink and stride."""

import math

import pytest

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch", reason="the numeric matrix builds its inputs with torch")
if not torch.cuda.is_available():
    pytest.skip("found no GPU that torch can use", allow_module_level=True)
dsa_kernels = pytest.importorskip("dsa_kernels", reason="install the runtime wheel and the wheel of this architecture")

from tests.attention import INF, Case  # noqa: E402


@pytest.mark.parametrize("D", [512, 576])
@pytest.mark.parametrize("H", [1, 8, 16, 17, 32, 64, 65, 100, 128])
def test_heads(H, D):
    Case(H=H, D=D, pad=1).run().check()


@pytest.mark.parametrize("topk", [1, 2, 31, 63, 64, 65, 127, 129, 512, 2048, 2051, 2176])
def test_widths(topk):
    Case(T=3, topk=topk, s_kv=4096, holes=0.2).run().check()


@pytest.mark.parametrize("s_kv", [1, 32, 95, 65536])
@pytest.mark.parametrize("T", [1, 2, 65, 437])
def test_sizes(T, s_kv):
    Case(T=T, H=16, s_kv=s_kv, topk=128, D=512).run().check()


@pytest.mark.parametrize("std", [0.05, 1.0])
def test_spreads(std):
    """Flat and sharp softmax."""
    Case(std=std, topk=2048, s_kv=4096).run().check()


def test_rope_as_its_own_tensor_is_the_same():
    split = Case(rope=True, pad=1)
    joined = Case()
    joined.q = torch.cat((split.q, split.q_rope), dim=-1)
    joined.kv, joined.indices = split.kv, split.indices
    split.run().check()
    joined.run()
    assert torch.equal(split.out, joined.out) and torch.equal(split.lse, joined.lse)


@pytest.mark.parametrize("H", [16, 64])
def test_masks_and_empty_rows(H):
    case = Case(T=6, H=H, topk=200, holes=0.5)
    case.indices[0] = -1
    case.indices[1] = case.kv.shape[0]
    case.indices[2, :-1] = -1
    case.indices[3] = case.indices[3, 0].clamp(0, 100)
    case.run().check()


@pytest.mark.parametrize("H", [16, 64])
def test_lengths(H):
    case = Case(T=8, H=H, topk=200)
    case.length = torch.tensor([0, 1, 63, 64, 65, 199, 200, 1000], dtype=torch.int32, device="cuda")
    case.run().check()
    case.length = torch.tensor([-5] * 8, dtype=torch.int32, device="cuda")
    case.run()
    assert (case.out == 0).all() and torch.isposinf(case.lse).all() and torch.isneginf(case.max_logits).all()


def test_no_rows_at_all():
    """kv without rows: everything is masked, nothing is read."""
    case = Case(T=2, s_kv=8)
    case.kv = case.kv[:0]
    case.run()
    assert (case.out == 0).all() and torch.isposinf(case.lse).all()


@pytest.mark.parametrize("H", [16, 64])
def test_sinks(H):
    case = Case(T=4, H=H, holes=0.3)
    case.indices[0] = -1
    case.sink = torch.linspace(-8, 8, H, device="cuda")
    case.sink[:4] = torch.tensor([INF, -INF, 200.0, -200.0])
    case.run().check()
    assert (case.out[:, 0] == 0).all()
    plain = Case(T=4, H=H, holes=0.3)
    plain.indices[0] = -1
    plain.run()
    assert torch.equal(plain.out[:, 1], case.out[:, 1])
    assert torch.equal(plain.lse, case.lse) and torch.equal(plain.max_logits, case.max_logits)


def test_statistics_are_optional():
    case = Case().run()
    out = torch.full_like(case.out, math.nan)
    dsa_kernels.sparse_mla_prefill(case.q, case.kv, case.indices, case.scale, out=out)
    assert torch.equal(out, case.out)


def test_duplicates_count():
    case = Case(T=2, topk=256)
    case.indices[:, 128:] = case.indices[:, :1]
    case.run().check()


@pytest.mark.parametrize("D", [512, 576])
def test_coherent_rows_keep_their_gain(D):
    """Rows with a common mean: the projection on the reference is 1 within 2e-3."""
    case = Case(T=2, D=D, topk=2051, s_kv=4096)
    case.kv += 1.0
    case.run().check()
    assert abs(case.gain() - 1) < 2e-3


def test_every_precision_is_served_alike():
    case = Case().run()
    for precision in ("fast", "exact", "high"):
        out = torch.empty_like(case.out)
        dsa_kernels.sparse_mla_prefill(case.q, case.kv, case.indices, case.scale, precision=precision, out=out)
        assert torch.equal(out, case.out)


@pytest.mark.parametrize("H", [16, 64, 128])
def test_many_blocks_repeat_exactly(H):
    """A thousand blocks, fifty times: races would show as differing bits."""
    case = Case(T=1024, H=H, D=576, topk=640, s_kv=16384, holes=0.1).run()
    first = case.out.clone()
    for _ in range(50):
        case.run()
        assert torch.equal(case.out, first)
    sample = Case(T=1024, H=H, D=576, topk=640, s_kv=16384, holes=0.1)
    for name in ("q", "indices", "out", "max_logits", "lse"):
        setattr(sample, name, getattr(case, name)[::64])
    sample.kv = case.kv
    sample.check()


def test_beyond_four_gigabytes():
    """Row offsets need 64 bits: the selected rows lie past 2^32 bytes."""
    rows = 2**32 // 1152 + 4096
    free, _ = torch.cuda.mem_get_info()
    if free < rows * 1152 * 2:
        pytest.skip(f"found {free >> 30} GiB of free device memory; wanted {rows * 1152 * 2 >> 30}")
    case = Case(T=2, H=16, topk=128, s_kv=64)
    kv = torch.zeros((rows, 576), dtype=torch.bfloat16, device="cuda")
    kv[-64:] = case.kv
    case.kv = kv
    case.indices += rows - 64
    case.run().check()
