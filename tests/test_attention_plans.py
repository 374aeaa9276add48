"""Attention plans on the CPU, each op by its reference: what is composed is attention over the tokens that were selected."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
dsa = pytest.importorskip("dsa_kernels", reason="the runtime is not installed: pip install -e .")

from dsa_kernels import _packs  # noqa: E402
from dsa_kernels.attention import ROUTES, Batch, DsaDecode, DsaPrefill  # noqa: E402
from tests import cabi, serving  # noqa: E402

SCALE = 0.0625
Q8 = "flashmla_sparse_q8"
# prefill, decode, KV type, layout: every pool that plans read
POOLS = {
    "q8 over raw": (Q8, "tilelang", "fp8_e4m3", None),
    "q8 over bf16": (Q8, "fa3", "bfloat16", None),
    "q8 over packed": (Q8, "flashmla_kv", "fp8_e4m3", None),
    "raw": ("tilelang", "tilelang", "fp8_e4m3", None),
    "bf16": ("tilelang", "tilelang", "bfloat16", None),
}


def config(pool, rope, kpool=1, heads=16, topk=2048, **more):
    prefill, decode, kv_dtype, layout = POOLS[pool]
    if pool == "q8 over raw" and rope:
        layout = "raw8-576"
    given = {"prefill": prefill, "decode": decode, "kv_dtype": kv_dtype, "kv_layout": layout, "rope_dim": rope, "kpool": kpool}
    return dsa.check_config(**given, kv_lora_rank=512, heads=heads, index_topk=topk, device="sm90", environment={}, **more)


CASES = [(pool, rope, kpool) for pool in POOLS for rope in (0, 64) for kpool in (1, 4) if "packed" not in pool or (rope, kpool) == (64, 1)]


@pytest.mark.parametrize("topk", [64, 2048])
@pytest.mark.parametrize(("pool", "rope", "kpool"), CASES)
def test_prefill(pool, rope, kpool, topk):
    chosen = config(pool, rope, kpool, topk=topk)
    requests, plan = serving.Requests(chosen), DsaPrefill(chosen, SCALE, serving.reference_ops())
    found, lse = requests.run(plan, fresh=False, lse=True)
    wanted, wanted_lse = requests.wanted(SCALE)
    assert found.shape == wanted.shape and (found.float() - wanted).norm() < 0.04 * wanted.norm()
    assert (lse - wanted_lse).abs().max() < 0.1
    if "packed" not in pool:
        assert torch.equal(requests.run(plan, fresh=True), found)


@pytest.mark.parametrize(("pool", "rope", "kpool"), [c for c in CASES if "q8" not in c[0] or c[0] == "q8 over raw"])
def test_decode(pool, rope, kpool):
    chosen = config(pool, rope, kpool, topk=64)
    requests, plan = serving.Requests(chosen), DsaDecode(chosen, SCALE, serving.reference_ops())
    found, wanted = requests.run(plan, fresh=False), requests.wanted(SCALE)[0]
    assert (found.float() - wanted).norm() < 0.04 * wanted.norm()


def test_pools_of_three_dimensions_and_bytes():
    chosen = config("raw", 64)
    requests, plan = serving.Requests(chosen), DsaPrefill(chosen, SCALE, serving.reference_ops())
    found = requests.run(plan, fresh=False)
    requests.pool = requests.pool.view(torch.uint8)[:, None]
    assert torch.equal(requests.run(plan, fresh=False), found)


def test_what_ops_are_called():
    """No gather over a raw pool, one of the referenced slots over others; no top-k length in decode."""
    for pool, plan_type, wanted in (
        ("raw", DsaPrefill, ["topk_transform", "topk_length", "concat_cast_q", "sparse_mla_prefill"]),
        ("raw", DsaDecode, ["topk_transform", "concat_cast_q", "sparse_mla_decode"]),
        ("bf16", DsaPrefill, ["topk_transform", "topk_length", "sparse_mla_prefill"]),
        ("q8 over bf16", DsaPrefill, ["topk_transform", "topk_length", "gather_cast_kv", "concat_cast_q", "sparse_mla_prefill"]),
        ("q8 over packed", DsaPrefill, ["topk_transform", "topk_length", "gather_requant_kv", "concat_cast_q", "sparse_mla_prefill"]),
    ):
        called = []

        class Recorded:
            def __getattr__(self, name, called=called):
                called.append(name)
                return getattr(serving.reference_ops(), name)

        chosen = config(pool, 64)
        serving.Requests(chosen).run(plan_type(chosen, SCALE, Recorded()), fresh=False)
        assert called == wanted


def test_gathers_reference_only_their_slots():
    assert all("gather" not in op for (_, kind, _), op in ROUTES.items() if kind == "raw8")


def test_options_reach_the_kernel():
    chosen = config("raw", 0, precision="exact")
    seen = {}
    ops = serving.reference_ops()
    attend = ops.sparse_mla_prefill
    ops.sparse_mla_prefill = lambda **given: (seen.update(given), attend(**given))[1]
    sink, out = torch.zeros(16), torch.empty(7, 16, 512, dtype=torch.bfloat16)
    serving.Requests(chosen).run(DsaPrefill(chosen, SCALE, ops), fresh=False, attn_sink=sink, out=out)
    assert seen["precision"] == "exact" and seen["attn_sink"] is sink and seen["out"] is out and "lse" not in seen


PACKS = Path(__file__).parents[1] / "packs"


@pytest.fixture
def packs(monkeypatch):
    """The packs of the tree."""
    targets = ("sm90", "gfx942", "gfx950")
    if missing := [t for t in targets if not (PACKS / t / "manifest.json").exists()]:
        pytest.skip(f"found no pack for {', '.join(missing)}; python -m aot.build --arch {','.join(targets)}")
    with dsa.open_packs([PACKS]) as opened:
        monkeypatch.setattr(_packs, "_default", opened)
        yield opened


@pytest.mark.parametrize(("pool", "rope", "kpool"), CASES)
@pytest.mark.parametrize("heads", [3, 16, 64, 128])
def test_a_kernel_is_found_when_the_plan_is_made(packs, pool, rope, kpool, heads):
    chosen = config(pool, rope, kpool, heads)
    DsaPrefill(chosen, SCALE)
    if pool in ("raw", "bf16"):
        DsaDecode(chosen, SCALE)


@pytest.mark.parametrize("device", ["gfx942", "gfx950"])
@pytest.mark.parametrize("kv_dtype", ["bfloat16", "fp8_e4m3"])
@pytest.mark.parametrize("rope", [0, 64])
def test_a_kernel_is_found_on_amd(packs, device, kv_dtype, rope):
    given = {"prefill": "tilelang", "decode": "tilelang", "kv_dtype": kv_dtype, "device": device, "environment": {}}
    chosen = dsa.check_config(**given, kv_lora_rank=512, rope_dim=rope, heads=8)
    DsaDecode(chosen, SCALE)
    DsaPrefill(chosen, SCALE)


def test_or_its_absence_is_told(packs, tmp_path, monkeypatch):
    """A pack without BF16 prefill: the plan for BF16 rows raises when it is made, with the trace."""
    shutil.copytree(PACKS / "gfx942", tmp_path / "gfx942")

    def without_bf16(manifest):
        op = next(o for o in manifest["ops"] if o["name"] == "sparse_mla_prefill")
        op["candidates"] = [c for c in op["candidates"] if not c["name"].startswith("bf16")]

    cabi.edit_manifest(tmp_path / "gfx942", without_bf16)
    given = {"prefill": "tilelang", "decode": "tilelang", "kv_dtype": "bfloat16", "device": "gfx942", "environment": {}}
    chosen = dsa.check_config(**given, kv_lora_rank=512, rope_dim=64, heads=8)
    with dsa.open_packs([tmp_path]) as opened:
        monkeypatch.setattr(_packs, "_default", opened)
        with pytest.raises(dsa.NoCandidate, match=r"(?s)found no candidate.*sparse_mla_prefill on gfx942.*rejected"):
            DsaPrefill(chosen, SCALE)


def test_a_device_without_a_pack(packs):
    chosen = dsa.check_config(
        prefill="triton", decode="triton", kv_dtype="bfloat16", device="sm120", environment={}, kv_lora_rank=512, rope_dim=64, heads=8
    )
    with pytest.raises(dsa.NoPack, match="sm120"):
        DsaPrefill(chosen, SCALE)


@pytest.fixture
def raw():
    chosen = config("raw", 64)
    return serving.Requests(chosen), DsaPrefill(chosen, SCALE, serving.reference_ops())


def test_plans_of_other_backends_are_refused():
    with pytest.raises(
        dsa.ArgumentError, match=r"found decode flashmla_kv, whose kernels are the engine's; wanted one of flashmla_sparse, "
    ):
        DsaDecode(config("q8 over packed", 64), SCALE)
    given = {"prefill": "flashmla_sparse", "decode": "flashmla_kv", "kv_dtype": "fp8_e4m3", "device": "sm90", "environment": {}}
    chosen = dsa.check_config(**given, kv_lora_rank=512, rope_dim=64, heads=64)
    with pytest.raises(dsa.ArgumentError, match=r"found prefill flashmla_sparse over a pack-656 pool.*flashmla_sparse_q8"):
        DsaPrefill(chosen, SCALE)


@pytest.mark.parametrize(("pool", "plan"), [("q8 over packed", DsaPrefill), ("raw", DsaDecode)])
def test_fresh_keys_where_there_is_no_such_route(pool, plan):
    chosen = config(pool, 64)
    with pytest.raises(dsa.ArgumentError, match=r"found a fresh batch in .* over a .* pool; wanted .*pass pool and fresh=False"):
        serving.Requests(chosen).run(plan(chosen, SCALE, serving.reference_ops()), fresh=True)


def test_tensors_that_disagree_with_the_configuration(raw):
    requests, plan = raw
    batch = Batch(**requests.batch)
    selected = plan.select(batch, requests.positions)
    q, r, pool = requests.q_nope, requests.q_rope, requests.pool
    for call, message in (
        (lambda: plan(q[:, :8], r, selected, batch, pool=pool), r"found q_nope \[7, 8, 512\].*wanted 16 heads and a q_rope"),
        (lambda: plan(q, None, selected, batch, pool=pool), r"q_rope None; wanted 16 heads and a q_rope"),
        (lambda: plan(q, r, selected, batch), r"found neither pool nor k with batch.fresh False; wanted k if it is and pool if not"),
        (lambda: plan(q, r, selected, batch, k=requests.k), r"found k with batch.fresh False"),
        (lambda: plan(q, r, selected, batch, pool=pool[:, :512]), r"found a pool of 512 bytes a row; wanted 576, the layout raw8-576"),
        (lambda: plan.select(Batch(), requests.positions), r"found no batch.page_table"),
        (lambda: plan.select(Batch(fresh=True), requests.positions), r"found no batch.offset"),
    ):
        with pytest.raises(dsa.ArgumentError, match=message):
            call()
