"""torch.ops.dsa_kernels.*: schemas, fake kernels and compilation, on fake tensors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import toy

torch = pytest.importorskip("torch")
dsa = pytest.importorskip("dsa_kernels", reason="the runtime is not installed: pip install -e .")

T, H = 3, 16
NAMESPACE = "dsa_toys"


class Recorded:
    """A toy op whose two torch forms record what they are called with."""

    def __init__(self, op: Any, calls: list[Any]) -> None:
        self.declaration = op.declaration
        self._op, self._calls = op, calls

    def functional(self) -> Any:
        shapes = dsa_torch().Shapes(self._op.__name__, dsa_torch()._docs.parameters(self._op), lambda p, device: p["dtypes"][0])

        def run(*args: Any, **kwargs: Any) -> Any:
            self._calls.append((args, kwargs))
            made = shapes(*args, **kwargs)
            return made.zero_() if isinstance(made, torch.Tensor) else tuple(m.zero_() for m in made)

        return run

    def writing(self) -> Any:
        def run(*args: Any, **kwargs: Any) -> None:
            self._calls.append((args, kwargs))
            for value in kwargs.values():
                value.view(torch.uint8).fill_(1)

        return run


def dsa_torch() -> Any:
    import os

    if "DSA_KERNELS_PACKS" not in os.environ:
        raise RuntimeError("the fixture sets the packs")
    import dsa_kernels.torch

    return dsa_kernels.torch


@pytest.fixture(scope="module")
def registered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """The toy ops under a namespace of their own, with kernels that record instead of launching."""
    patch = pytest.MonkeyPatch()
    folder = toy.write_packs(tmp_path_factory.mktemp("packs"))
    patch.setenv("DSA_KERNELS_PACKS", str(folder))
    module = dsa_torch()
    packs = dsa.open_packs([folder])
    calls: list[Any] = []
    double = SimpleNamespace(ops=packs.ops, info=packs.info, op=lambda name: Recorded(packs.op(name), calls))
    library = module.register(double, NAMESPACE)
    yield SimpleNamespace(ops=getattr(torch.ops, NAMESPACE), calls=calls, module=module, packs=packs)
    library._destroy()
    patch.undo()


@pytest.fixture(autouse=True)
def forget(registered: SimpleNamespace) -> None:
    registered.calls.clear()


def test_schemas(registered: SimpleNamespace) -> None:
    ops = registered.ops
    assert str(ops.concat.default._schema) == f"{NAMESPACE}::concat(Tensor q_nope, Tensor? q_rope=None) -> Tensor"
    assert str(ops.concat_out.default._schema) == f"{NAMESPACE}::concat_out(Tensor q_nope, Tensor? q_rope=None, *, Tensor(a!) out) -> ()"
    inputs = "Tensor q, Tensor kv, float sm_scale, Tensor? bias=None, SymInt? n=None, str? precision=None"
    assert str(ops.attend.default._schema) == f"{NAMESPACE}::attend({inputs}) -> (Tensor, Tensor, Tensor)"
    outputs = "Tensor(a!) out, Tensor(b!)? max_logits=None, Tensor(c!)? lse=None"
    assert str(ops.attend_out.default._schema) == f"{NAMESPACE}::attend_out({inputs}, *, {outputs}) -> ()"


def test_the_real_ops_are_registered_too(registered: SimpleNamespace) -> None:
    assert "concat" in str(torch.ops.dsa_kernels.concat.default._schema)
    with pytest.raises(dsa.DeviceError, match="CPU"):
        torch.ops.dsa_kernels.concat(torch.zeros(T, H, 512, dtype=torch.bfloat16))


def q(device: str = "cuda", width: int = 512, tokens: int = T) -> Any:
    return torch.empty(tokens, H, width, dtype=torch.bfloat16, device=device)


def test_fake_kernels(registered: SimpleNamespace) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    ops = registered.ops
    with FakeTensorMode():
        out = ops.concat(q(), q(width=64))
        assert (out.shape, out.dtype, out.device.type) == ((T, H, 576), torch.float8_e4m3fn, "cuda")
        assert ops.concat(q()).shape == (T, H, 512)
        kv = torch.empty(7, 512, dtype=torch.bfloat16, device="cuda")
        found = ops.attend(q(), kv, 0.5, precision="exact")
        assert [(t.shape, t.dtype) for t in found] == [((T, H, 512), torch.bfloat16), ((T, H), torch.float32), ((T, H), torch.float32)]
        rows = torch.empty(7, 512, dtype=torch.uint8, device="cuda")
        assert ops.pad(rows).shape == (7, 512) and ops.pad(rows, pad_rows=3).shape == (10, 512)
        with pytest.raises(dsa.ArgumentError, match=r"wanted \[T, H, 512\]"):
            ops.concat(rows)
    assert not registered.calls


def test_fake_agrees_with_the_runtime(registered: SimpleNamespace) -> None:
    """The fake kernel and the C++ inference read the same expressions."""
    toy.Array.allocated = []
    x = toy.Array("u8", (7, 512))
    with pytest.raises(dsa.Error):  # no driver here, but the output is inferred and allocated before the launch
        registered.packs.pad(x, pad_rows=3)
    assert toy.Array.allocated[-1].shape == registered.ops.pad(torch.empty(7, 512, dtype=torch.uint8, device="meta"), 3).shape


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_without_breaks(registered: SimpleNamespace, backend: str, dynamic: bool) -> None:
    ops = registered.ops

    def step(a: Any, b: Any, rows: Any) -> Any:
        out = torch.empty(a.shape[0], H, 576, dtype=torch.float8_e4m3fn, device=a.device)
        ops.concat_out(a, b, out=out)
        found, _, lse = ops.attend(a, rows.view(torch.bfloat16)[:, :512], 0.5, n=a.shape[0])
        return out, found + 1, lse, ops.pad(rows, pad_rows=a.shape[0])

    compiled = torch.compile(step, backend=backend, fullgraph=True, dynamic=dynamic)
    for tokens in (3, 5):
        rows = torch.zeros(7, 1024, dtype=torch.uint8)
        out, found, lse, padded = compiled(q("cpu", tokens=tokens), q("cpu", 64, tokens), rows)
        assert out.view(torch.uint8).eq(1).all(), "the mutation is lost"
        assert (found.shape, lse.shape, padded.shape) == ((tokens, H, 512), (tokens, H), (7 + tokens, 1024))
    assert {len(args) for args, _ in registered.calls} <= {2, 3, 5}


def test_opcheck(registered: SimpleNamespace) -> None:
    checks = ("test_schema", "test_faketensor", "test_autograd_registration")
    ops = registered.ops
    torch.library.opcheck(ops.concat.default, (q("cpu"), q("cpu", 64)), test_utils=("test_schema", "test_faketensor"))
    torch.library.opcheck(ops.pad.default, (torch.zeros(7, 16, dtype=torch.uint8), 3), test_utils=checks)
    out = torch.zeros(T, H, 576, dtype=torch.uint8).view(torch.float8_e4m3fn)
    torch.library.opcheck(ops.concat_out.default, (q("cpu"), q("cpu", 64)), {"out": out}, test_utils=("test_faketensor",))


def test_flavour_follows_the_target(tmp_path: Path, registered: SimpleNamespace) -> None:
    with dsa.open_packs([toy.write_packs(tmp_path, "sm90", "gfx942")]) as packs:
        dtypes = registered.module._Dtypes(packs.info(), "concat")
        output = {"name": "out"}
        assert dtypes(output, torch.device("cuda")) == ("e4m3fnuz" if torch.version.hip else "e4m3fn")
