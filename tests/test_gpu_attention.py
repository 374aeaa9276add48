"""On a GPU, from installed wheels: attention plans at the geometries of three models, keys fresh and from the pool bitwise equal."""

import pytest

torch = pytest.importorskip("torch")
dsa_kernels = pytest.importorskip("dsa_kernels")
if not torch.cuda.is_available():
    pytest.skip("found no GPU", allow_module_level=True)

from dsa_kernels.attention import DsaDecode, DsaPrefill  # noqa: E402
from tests import serving  # noqa: E402

pytestmark = pytest.mark.gpu
SCALE = 0.0625
PROPERTIES = torch.cuda.get_device_properties(0)
ARCH = PROPERTIES.gcnArchName.split(":")[0] if torch.version.hip else f"sm{PROPERTIES.major}{PROPERTIES.minor}"
Q8 = "flashmla_sparse_q8"
MODELS = {  # heads, rope, kpool
    "GLM-5.3-Flash, 16 heads": (16, 0, 4),
    "GLM-5.3-Flash, 64 heads": (64, 0, 4),
    "GLM-5.1, 16 heads": (16, 64, 1),
    "GLM-5.1, 64 heads": (64, 64, 1),
    "DeepSeek-V3.2, 128 heads": (128, 64, 1),
}
POOLS = {
    "q8 over raw": (Q8, "tilelang", "fp8_e4m3"),
    "q8 over bf16": (Q8, "fa3", "bfloat16"),
    "q8 over packed": (Q8, "flashmla_kv", "fp8_e4m3"),
    "raw": ("tilelang", "tilelang", "fp8_e4m3"),
    "bf16": ("tilelang", "tilelang", "bfloat16"),
}


def config(model, pool):
    heads, rope, kpool = MODELS[model]
    if ("q8" in pool and ARCH != "sm90") or (pool == "q8 over packed" and kpool > 1):
        pytest.skip(f"{pool} is no pool of {model} on {ARCH}")
    prefill, decode, kv_dtype = POOLS[pool]
    layout = f"raw8-{512 + rope}" if "raw" in pool else None
    given = {"prefill": prefill, "decode": decode, "kv_dtype": kv_dtype, "kv_layout": layout, "device": ARCH, "environment": {}}
    return dsa_kernels.check_config(**given, kv_lora_rank=512, rope_dim=rope, heads=heads, kpool=kpool)


def agree(found, wanted):
    assert torch.isfinite(found).all()
    assert (found.float() - wanted).abs().mean() < 0.03
    torch.testing.assert_close(found.float(), wanted, atol=0.25, rtol=0.30)
    assert (found.float() - wanted).norm() < 0.06 * wanted.norm()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("pool", POOLS)
def test_prefill(model, pool):
    chosen = config(model, pool)
    requests, plan = serving.Requests(chosen, "cuda"), DsaPrefill(chosen, SCALE)
    found, lse = requests.run(plan, fresh=False, lse=True)
    wanted, wanted_lse = requests.wanted(SCALE)
    agree(found, wanted)
    torch.testing.assert_close(lse, wanted_lse, atol=0.1, rtol=0.02)
    if "packed" not in pool:
        assert torch.equal(requests.run(plan, fresh=True), found)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("pool", ["raw", "bf16"])
def test_decode(model, pool):
    chosen = config(model, pool)
    requests = serving.Requests(chosen, "cuda")
    agree(requests.run(DsaDecode(chosen, SCALE), fresh=False), requests.wanted(SCALE)[0])


def test_two_plans_on_two_streams():
    names = ("GLM-5.3-Flash, 16 heads", "raw"), ("GLM-5.1, 64 heads", "raw")
    plans = [DsaPrefill(config(*name), SCALE) for name in names]
    requests = [serving.Requests(plan.config, "cuda") for plan in plans]
    wanted = [r.run(p, fresh=False) for r, p in zip(requests, plans, strict=True)]
    streams = [torch.cuda.Stream() for _ in plans]
    torch.cuda.synchronize()
    found = [[], []]
    for turn in range(40):
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                found[i].append(requests[i].run(plans[i], fresh=turn % 2 == 1))
    torch.cuda.synchronize()
    assert all(torch.equal(x, w) for xs, w in zip(found, wanted, strict=True) for x in xs)


@pytest.mark.parametrize("plan_type", [DsaPrefill, DsaDecode])
def test_captured(plan_type):
    chosen = config("GLM-5.3-Flash, 16 heads", "raw")
    requests, plan = serving.Requests(chosen, "cuda"), plan_type(chosen, SCALE)
    dsa_kernels.preload()
    wanted = requests.run(plan, fresh=False)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = requests.run(plan, fresh=False)
    for _ in range(3):
        found.fill_(float("nan"))
        graph.replay()
        assert torch.equal(found, wanted)
