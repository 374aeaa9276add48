"""sparse_mla_prefill in BF16 on a GPU, against the float32 reference: every head tile, width, mask, sink and stride."""

import importlib.util
import math
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch", reason="the numeric matrix builds its inputs with torch")
if not torch.cuda.is_available():
    pytest.skip("found no GPU that torch can use", allow_module_level=True)
dsa_kernels = pytest.importorskip("dsa_kernels", reason="install the runtime wheel and the wheel of this architecture")

REFERENCE = Path(__file__).parents[1] / "kernels/sparse_mla_prefill/reference.py"
INF = float("inf")


@pytest.fixture(scope="module")
def reference():
    spec = importlib.util.spec_from_file_location("sparse_mla_prefill_reference", REFERENCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.reference


class Case:
    """Inputs on strided storage, rows that no valid column selects poisoned with NaN, outputs poisoned too."""

    def __init__(self, T=4, H=64, D=576, s_kv=1024, topk=256, rope=False, std=0.25, pad=0, seed=0, holes=0.0, device="cuda"):
        g = torch.Generator(device).manual_seed(seed)

        def normal(*shape):
            return (torch.randn(shape, generator=g, device=device) * std).bfloat16()

        self.H, self.D, self.scale = H, D, D**-0.5
        self.q = normal(T, H + pad, (512 if rope else D) + 8 * pad)[:, :H, : 512 if rope else D]
        self.q_rope = normal(T, H, 64 + 8 * pad)[..., :64] if rope else None
        self.kv = normal(s_kv, D + 8 * pad)[:, :D]
        self.indices = torch.randint(0, s_kv, (T, topk + pad), generator=g, device=device, dtype=torch.int32)[:, :topk]
        if holes:
            draw = torch.rand((T, topk), generator=g, device=device)
            for low, value in ((0.0, -1), (0.5, s_kv), (0.75, 2**31 - 1), (0.9, -(2**31))):
                self.indices[(draw >= low * holes) & (draw < holes)] = value
        self.length = self.sink = None
        self.out = torch.full((T, H + pad, 512 + 8 * pad), math.nan, dtype=torch.bfloat16, device=device)[:, :H, :512]
        self.max_logits = torch.full((T, H), math.nan, device=device)
        self.lse = torch.full((T, H), math.nan, device=device)

    def poison(self):
        valid = (self.indices >= 0) & (self.indices < len(self.kv))
        if self.length is not None:
            valid &= torch.arange(self.indices.shape[1], device=valid.device) < self.length[:, None]
        free = torch.ones(len(self.kv), dtype=torch.bool, device=valid.device)
        free[self.indices[valid].long()] = False
        self.kv[free] = math.nan

    def run(self):
        self.poison()
        dsa_kernels.sparse_mla_prefill(
            self.q,
            self.kv,
            self.indices,
            self.scale,
            q_rope=self.q_rope,
            topk_length=self.length,
            attn_sink=self.sink,
            out=self.out,
            max_logits=self.max_logits,
            lse=self.lse,
        )
        torch.cuda.synchronize()
        return self

    def check(self, reference, rel=6e-3):
        out, max_logits, lse = reference(
            self.q, self.kv, self.indices, self.scale, q_rope=self.q_rope, topk_length=self.length, attn_sink=self.sink
        )
        got = self.out.float()
        assert torch.isfinite(got).all()
        assert (got - out).norm() <= rel * out.norm() + 1e-6
        torch.testing.assert_close(got, out, atol=2e-3 + 8e-3 * out.abs().max().item(), rtol=1e-2)
        torch.testing.assert_close(self.max_logits, max_logits, atol=2e-4, rtol=2e-5)
        torch.testing.assert_close(self.lse, lse, atol=2e-4, rtol=2e-5)
        empty = torch.isneginf(max_logits)
        assert (got[empty] == 0).all() and torch.isposinf(self.lse[empty]).all()
        if (parent := self.out._base) is not None and parent.shape[1] > self.H:
            assert torch.isnan(parent[:, self.H :]).all() and torch.isnan(parent[:, :, 512:]).all()


@pytest.mark.parametrize("D", [512, 576])
@pytest.mark.parametrize("H", [1, 8, 16, 17, 32, 64, 65, 100, 128])
def test_heads(reference, H, D):
    Case(H=H, D=D, pad=1).run().check(reference)


@pytest.mark.parametrize("topk", [1, 2, 31, 63, 64, 65, 127, 129, 512, 2048, 2051, 2176])
def test_widths(reference, topk):
    Case(T=3, topk=topk, s_kv=4096, holes=0.2).run().check(reference)


@pytest.mark.parametrize("s_kv", [1, 32, 95, 65536])
@pytest.mark.parametrize("T", [1, 2, 65, 437])
def test_sizes(reference, T, s_kv):
    Case(T=T, H=16, s_kv=s_kv, topk=128, D=512).run().check(reference)


@pytest.mark.parametrize("std", [0.05, 1.0])
def test_spreads(reference, std):
    """Flat and sharp softmax."""
    Case(std=std, topk=2048, s_kv=4096).run().check(reference)


def test_rope_as_its_own_tensor_is_the_same(reference):
    split = Case(rope=True, pad=1)
    joined = Case()
    joined.q = torch.cat((split.q, split.q_rope), dim=-1)
    joined.kv, joined.indices = split.kv, split.indices
    split.run().check(reference)
    joined.run()
    assert torch.equal(split.out, joined.out) and torch.equal(split.lse, joined.lse)


@pytest.mark.parametrize("H", [16, 64])
def test_masks_and_empty_rows(reference, H):
    case = Case(T=6, H=H, topk=200, holes=0.5)
    case.indices[0] = -1
    case.indices[1] = case.kv.shape[0]
    case.indices[2, :-1] = -1
    case.indices[3] = case.indices[3, 0].clamp(0, 100)
    case.run().check(reference)


@pytest.mark.parametrize("H", [16, 64])
def test_lengths(reference, H):
    case = Case(T=8, H=H, topk=200)
    case.length = torch.tensor([0, 1, 63, 64, 65, 199, 200, 1000], dtype=torch.int32, device="cuda")
    case.run().check(reference)
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
def test_sinks(reference, H):
    case = Case(T=4, H=H, holes=0.3)
    case.indices[0] = -1
    case.sink = torch.linspace(-8, 8, H, device="cuda")
    case.sink[:4] = torch.tensor([INF, -INF, 200.0, -200.0])
    case.run().check(reference)
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


def test_duplicates_count(reference):
    case = Case(T=2, topk=256)
    case.indices[:, 128:] = case.indices[:, :1]
    case.run().check(reference)


@pytest.mark.parametrize("D", [512, 576])
def test_coherent_rows_keep_their_gain(reference, D):
    """Rows with a common mean: the projection on the reference is 1 within 2e-3."""
    case = Case(T=2, D=D, topk=2051, s_kv=4096)
    case.kv += 1.0
    case.run().check(reference)
    want = reference(case.q, case.kv, case.indices, case.scale)[0]
    assert abs((case.out.float() * want).sum() / (want * want).sum() - 1) < 2e-3


def test_every_precision_is_served_alike():
    case = Case().run()
    for precision in ("fast", "exact", "high"):
        out = torch.empty_like(case.out)
        dsa_kernels.sparse_mla_prefill(case.q, case.kv, case.indices, case.scale, precision=precision, out=out)
        assert torch.equal(out, case.out)


@pytest.mark.parametrize("H", [16, 64, 128])
def test_many_blocks_repeat_exactly(reference, H):
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
    sample.check(reference)


def test_beyond_four_gigabytes(reference):
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
    case.run().check(reference)
