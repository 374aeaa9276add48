"""The CUDA kernel for few heads without a GPU: its own sources on a machine that lands copies late and lets CTAs fall behind."""

import pytest

torch = pytest.importorskip("torch")
emulated = pytest.importorskip("tests.emulated")
if emulated.COMPILER is None:
    pytest.skip("found no C++ compiler", allow_module_level=True)

from tests.emulated import Call, Form  # noqa: E402

FORMS = {
    "fp8": Form("fp8", 512, 16),
    "fp8, 8 heads": Form("fp8", 576, 8),
    "fp8, 32 heads": Form("fp8", 512, 32),
    "fp8, in lines, two teams": Form("fp8", 512, 16, stages=6, teams=2),
    "fp8, in one piece, two teams": Form("fp8", 576, 8, stages=4, teams=2),
    "bf16, overlapping": Form("bf16", 512, 16),
    "bf16, in turn": Form("bf16", 576, 16),
    "bf16, 8 heads": Form("bf16", 512, 8),
}
forms = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("emulated")


@forms
def test_clusters(form, folder):
    for seed, (size, topk) in enumerate(((2, 330), (2, 577), (9, 700))):
        Call(form, topk=topk, seed=seed).run(folder, size).check()


WHOLE = [Form(dtype, 512 if heads < 32 else 576, heads, split=False) for dtype in ("fp8", "bf16") for heads in (8, 16, 32)]


@pytest.mark.parametrize("form", [*WHOLE, Form("fp8", 512, 16, split=False, stages=3)], ids=str)
def test_without_clusters(form, folder):
    Call(form, tokens=2, heads=form.heads - 3).run(folder).check()


def empty_runs(indices):
    blocks = torch.arange(indices.shape[1]) // 64
    indices[:, blocks % 4 != 0] = -1


def far_apart(indices):
    indices[:, 64:-70] = -1


def one_key(indices):
    indices[:, 1:] = -1


def none(indices):
    indices[0] = -1


@forms
@pytest.mark.parametrize("mask", [empty_runs, far_apart, one_key, none])
def test_blocks_without_keys(mask, form, folder):
    call = Call(form, tokens=2, heads=form.heads - 3, topk=777, seed=3)
    mask(call.indices)
    call.run(folder, 2).check()


@forms
def test_lengths_and_sinks(form, folder):
    call = Call(form, tokens=4, topk=400, seed=4)
    call.length = torch.tensor([0, 1, 131, 400], dtype=torch.int32)
    call.sink = torch.linspace(-3, 3, form.heads)
    call.run(folder, 3).check()


@forms
def test_frames_that_move(form, folder):
    """Later keys have larger logits: the frame moves in block after block, and older sums must follow."""
    call = Call(form, topk=600, s_kv=600, holes=0.0, seed=5)
    call.indices[0] = torch.arange(600, dtype=torch.int32)
    grown = call.kv.float() * torch.linspace(0.1, 12, 600)[:, None]
    call.kv = grown.to(call.kv.dtype)
    call.q = (call.q.float() * 8).to(call.q.dtype)
    call.run(folder, 2)
    out = emulated.reference(call.q, call.kv, call.indices, 0.0625)[0]
    assert (call.out.float() - out).norm() <= 4e-3 * out.norm()


@pytest.mark.parametrize("seed", range(4))
def test_a_cluster_of_nine_whose_blocks_fill_the_ring_exactly(seed, folder):
    """Three or four blocks a CTA and three stages: the last stage is lent while its rows are still wanted, or not at all."""
    for name in ("fp8", "bf16, overlapping"):
        Call(FORMS[name], topk=2051, s_kv=3000, seed=seed).run(folder, 9).check()


@forms
def test_a_nan_comes_out_where_it_belongs(form, folder):
    call = Call(form, tokens=3, topk=200, s_kv=20_000, seed=6)
    row = call.indices[0][call.indices[0] >= 0][7].item()
    if form.dtype == "fp8":
        call.kv.view(torch.uint8)[row, 17] = call.q.view(torch.uint8)[2, 5, 17] = 0x7F
    else:
        call.kv[row, 17] = call.q[2, 5, 17] = torch.nan
    call.run(folder, 2)
    wrong = torch.zeros_like(call.lse, dtype=torch.bool)
    wrong[2, 5] = True
    wrong |= (call.indices == row).any(1, keepdim=True)
    for x in (call.out, call.max_logits, call.lse):
        assert torch.isnan(x[wrong]).all() and torch.isfinite(x[~wrong]).all()
