"""The Python side on a real device with torch: allocation, streams, graphs, compilation, refusals."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
dsa = pytest.importorskip("dsa_kernels", reason="the runtime is not installed: pip install -e .")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no device"),
]
T, H = 37, 16


@pytest.fixture(scope="module")
def packs() -> Any:
    from dsa_kernels._packs import find_packs

    paths, _ = find_packs()
    if not paths:
        pytest.skip("no pack is installed")
    return dsa.open_packs(paths)


@pytest.fixture(scope="module")
def ops(packs: Any) -> Iterator[Any]:
    """``torch.ops`` of the installed packs, under a name that no other test uses."""
    import dsa_kernels.torch

    library = dsa_kernels.torch.register(packs, "dsa_gpu")
    yield torch.ops.dsa_gpu
    library._destroy()


@pytest.fixture(scope="module")
def q() -> Any:
    generator = torch.Generator("cuda").manual_seed(1)
    sizes = (T, H, 512), (T, H, 64)
    return [torch.randn(s, device="cuda", dtype=torch.bfloat16, generator=generator) * 50 for s in sizes]


def fp8() -> Any:
    gfx942 = torch.version.hip and "gfx942" in torch.cuda.get_device_properties(0).gcnArchName
    return torch.float8_e4m3fnuz if gfx942 else torch.float8_e4m3fn


def expected(*parts: Any) -> Any:
    limit = torch.finfo(fp8()).max
    return torch.cat(parts, -1).float().clamp(-limit, limit).to(fp8())


def same(found: Any, wanted: Any) -> bool:
    return bool(torch.equal(found.view(torch.uint8), wanted.view(torch.uint8)))


def test_graph_on_first_use_after_preload(packs: Any, q: Any) -> None:
    packs.preload()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = packs.concat_cast_q(*q)
    out.view(torch.uint8).zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert same(out, expected(*q))


def test_outputs(packs: Any, q: Any) -> None:
    out = packs.concat_cast_q(*q)
    assert (out.shape, out.dtype, out.device, out.is_contiguous()) == ((T, H, 576), fp8(), q[0].device, True)
    assert same(out, expected(*q))
    assert same(packs.concat_cast_q(q[0]), expected(q[0]))
    mine = torch.empty_like(out)
    assert packs.concat_cast_q(*q, out=mine) is mine and same(mine, expected(*q))


def test_streams(packs: Any, q: Any) -> None:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        out = packs.concat_cast_q(*q)
    stream.synchronize()
    assert same(out, expected(*q))
    out.view(torch.uint8).zero_()
    stream.wait_stream(torch.cuda.current_stream())
    packs.concat_cast_q(*q, out=out, stream=stream)
    stream.synchronize()
    assert same(out, expected(*q))
    with pytest.raises(dsa.ArgumentError, match="current stream"):
        packs.concat_cast_q(*q, stream=stream)


def test_nothing_leaks(packs: Any, q: Any) -> None:
    packs.concat_cast_q(*q)
    gc.collect()
    before = torch.cuda.memory_allocated()
    for _ in range(1000):
        packs.concat_cast_q(*q)
    assert torch.cuda.memory_allocated() == before


def test_parameters_need_no_detach(packs: Any, q: Any, ops: Any) -> None:
    parameter = torch.nn.Parameter(q[0])
    assert same(packs.concat_cast_q(parameter, q[1]), expected(*q))
    assert not ops.concat_cast_q(parameter, q[1]).requires_grad


def test_torch_ops(q: Any, ops: Any) -> None:
    assert same(ops.concat_cast_q(*q), expected(*q))
    out = torch.zeros(T, H, 576, device="cuda", dtype=torch.uint8).view(fp8())
    assert ops.concat_cast_q_out(*q, out=out) is None
    assert same(out, expected(*q))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compile(q: Any, ops: Any, backend: str) -> None:
    def step(a: Any, b: Any) -> Any:
        return ops.concat_cast_q(a * 1, b).view(torch.uint8) + 0

    assert torch.equal(torch.compile(step, backend=backend, fullgraph=True)(*q), expected(*q).view(torch.uint8))


WRONG: dict[str, Callable[[Any, Any], Any]] = {
    "CPU": lambda call, q: call(q[0].cpu(), q[1]),
    "one on the CPU": lambda call, q: call(q[0], q[1].cpu()),
    "dtype": lambda call, q: call(q[0].float(), q[1]),
    "width": lambda call, q: call(q[0][..., :500], q[1]),
    "tokens": lambda call, q: call(q[0][:-1], q[1]),
}


@pytest.mark.parametrize("what", WRONG)
def test_refusals(packs: Any, q: Any, ops: Any, what: str) -> None:
    for call in (packs.concat_cast_q, ops.concat_cast_q):
        with pytest.raises(dsa.Error, match="found"):
            WRONG[what](call, q)
