"""The C ABI: every call that breaks an op's contract is refused before anything is launched, and says why."""

from __future__ import annotations

import ctypes as c
import hashlib
from pathlib import Path
from typing import Any

import pytest

from tests import cabi
from tests.cabi import CPU, CUDA, ROCM, Runtime, Standin, candidate, launch, ptr, scalar, tensor, tensor_param
from tests.cabi_ops import X, call, refused

# Bad calls.


def altered(t: cabi.Tensor, **fields: Any) -> cabi.Tensor:
    """A tensor that no library makes."""
    for name, value in fields.items():
        setattr(t, name, value)
    return t


NO_SHAPE = c.POINTER(c.c_int64)()
BAD = [
    ("dtype", {"x": tensor("f32", [6, 512])}, "ARGUMENT", "scale: x: found dtype f32, wanted bf16 or f16; cast it before the call"),
    ("dtype", {"x": tensor("f64", [6, 512])}, "ARGUMENT", "x: found dtype float64, wanted bf16 or f16"),
    ("lanes", {"x": tensor("bf16", [6, 512], lanes=2)}, "ARGUMENT", "x: found dtype bf16x2"),
    ("rank", {"x": tensor("bf16", [6, 2, 512])}, "ARGUMENT", "x: found 3 dimensions (shape [6, 2, 512]), wanted 2"),
    ("huge rank", {"x": altered(tensor("bf16", [6, 512]), ndim=2**30)}, "ARGUMENT", "x: found 1073741824 dimensions, wanted 2"),
    ("negative rank", {"x": altered(tensor("bf16", [6, 512]), ndim=-1)}, "ARGUMENT", "x: found -1 dimensions, wanted 2"),
    ("null shape", {"x": altered(tensor("bf16", [6, 512]), shape=NO_SHAPE)}, "ARGUMENT", "x: found a tensor with a null shape"),
    ("null shape of another rank", {"x": altered(tensor("bf16", [6]), shape=NO_SHAPE)}, "ARGUMENT", "x: found a tensor with a null sh"),
    ("width", {"out": tensor("bf16", [6, 256])}, "ARGUMENT", "out: found size 256 in dimension 1 (shape [6, 256]), wanted D = 512 as in x"),
    ("rows", {"out": tensor("bf16", [5, 512])}, "ARGUMENT", "out: found size 5 in dimension 0 (shape [5, 512]), wanted at least T = 6"),
    ("mismatch", {"bias": tensor("f32", [511])}, "ARGUMENT", "bias: found size 511 in dimension 0 (shape [511]), wanted D = 512 as in x"),
    ("negative size", {"x": tensor("bf16", [-1, 512])}, "ARGUMENT", "x: found a negative size in shape [-1, 512]"),
    ("cpu", {"x": tensor("bf16", [6, 512], device=(CPU, 0))}, "DEVICE", "x: found a tensor on the CPU, wanted one on a GPU"),
    ("cpu second", {"out": tensor("bf16", [6, 512], device=(CPU, 0))}, "DEVICE", "out: found a tensor on the CPU, wanted cuda:0"),
    ("two devices", {"out": tensor("bf16", [6, 512], device=(CUDA, 1))}, "DEVICE", "out: found a tensor on cuda:1, wanted cuda:0"),
    ("two vendors", {"out": tensor("bf16", [6, 512], device=(ROCM, 0))}, "DEVICE", "out: found a tensor on rocm:0, wanted cuda:0"),
    ("last stride", {"x": tensor("bf16", [6, 512], [1024, 2])}, "ARGUMENT", "x: found stride 2 in the last dimension"),
    ("negative stride", {"x": tensor("bf16", [6, 512], [-512, 1])}, "ARGUMENT", "x: found stride -512 in dimension 0"),
    ("row alignment", {"x": tensor("bf16", [6, 512], [513, 1])}, "ARGUMENT", "x: found a stride of 513 elements, 1026 bytes, in dim"),
    ("overlapping output", {"out": tensor("bf16", [6, 512], [0, 1])}, "ARGUMENT", "out: found stride 0 in dimension 0"),
    ("overlapping rows", {"out": tensor("bf16", [6, 512], [504, 1])}, "ARGUMENT", "out: found elements that overlap"),
    ("address", {"x": tensor("bf16", [6, 512], None, X + 8)}, "ARGUMENT", "x: found an address 8 bytes past a multiple of 16"),
    ("null", {"out": tensor("bf16", [6, 512], None, 0)}, "ARGUMENT", "out: found a null address, wanted device memory"),
    ("missing input", {"x": None}, "ARGUMENT", "x: found nothing, wanted a tensor of bf16 or f16; it is required, pass it"),
    ("missing output", {"out": None}, "ARGUMENT", "out: found nothing, wanted a tensor of bf16"),
    ("missing scalar", {"alpha": None}, "ARGUMENT", "alpha: found nothing, wanted a number; it has no default, pass it"),
    ("number for tensor", {"bias": 3}, "ARGUMENT", "bias: found an integer, wanted a tensor of f32"),
    ("tensor for number", {"alpha": tensor("f32", [1])}, "ARGUMENT", "alpha: found a tensor, wanted a number"),
    ("float for integer", {"n": 1.5}, "ARGUMENT", "n: found a float, wanted a 32-bit integer"),
    ("large integer", {"n": 2**31}, "ARGUMENT", "n: found 2147483648, wanted a 32-bit integer"),
    ("choice", {"mode": "quick"}, "ARGUMENT", "mode: found 'quick', wanted one of: exact, fast"),
    ("rule", {"n": 1001}, "ARGUMENT", "scale: found n = 1001, wanted n <= 1000; split the call"),
]  # fmt: skip


@pytest.mark.parametrize("changes, status, text", [b[1:] for b in BAD], ids=[b[0].replace(" ", "-") for b in BAD])
def test_bad_call(runtime: Runtime, cuda: Standin, changes: dict[str, Any], status: str, text: str) -> None:
    with refused(status, text):
        runtime.op("scale").launch(*call(**changes))
    assert not cuda.launches() and not cuda.calls("cuLibraryLoadData")
    runtime.op("scale").launch(*call())
    with refused(status, text):
        runtime.op("scale").launch(*call(**changes))
    assert len(cuda.launches()) == 1


@pytest.mark.parametrize(
    "shape, strides, accepted",
    [
        ([2, 3, 4], [12, 4, 1], True),
        ([2, 3, 4], [100, 9, 2], True),  # with gaps
        ([2, 3, 4], [1, 2, 6], True),  # transposed
        ([2, 1, 4], [4, 0, 1], True),  # a stride over one element says nothing
        ([2, 3, 4], [12, 3, 1], False),
        ([2, 3, 4], [11, 4, 1], False),
        ([2, 3, 4], [1, 1, 1], False),
        ([2, 3, 4], [12, 4, 0], False),
    ],
)
def test_outputs_do_not_overlap_themselves(tmp_path: Path, cuda: Standin, shape: list[int], strides: list[int], accepted: bool) -> None:
    for name, output in (("writes", True), ("reads", False)):
        params = [tensor_param(n, "f32", "A B C", layout="any", align=4) for n in ("x", "y")]
        params[1]["output"] = output
        o = cabi.op(name, params, [candidate("c", "1", launch("k", [ptr("y")]))])
        with Runtime([cabi.write_pack(tmp_path / name, "sm90", [o])], cuda=cuda.path) as runtime:
            args = [tensor("f32", shape), tensor("f32", shape, strides)]
            if output and not accepted:
                with refused("ARGUMENT", "y: found", "pass a tensor whose elements do not overlap"):
                    runtime.op(name).launch(*args)
            else:
                runtime.op(name).launch(*args)
    assert len(cuda.launches()) == 1 + accepted


def test_contiguous_layout(runtime: Runtime) -> None:
    with refused("ARGUMENT", "out: found stride 2 in dimension 0", "wanted 1 (contiguous)"):
        runtime.op("split").launch(tensor("bf16", [4, 64]), tensor("f32", [4], [2]), workspace=256)


def test_too_many_arguments(runtime: Runtime) -> None:
    with refused("ARGUMENT", "found 8 arguments, wanted at most 7"):
        runtime.op("scale").launch(*call(), None)


def test_no_arguments(runtime: Runtime) -> None:
    with refused("ARGUMENT", "x: found nothing"):
        runtime.op("scale").launch()


def test_no_candidate_carries_the_trace(runtime: Runtime) -> None:
    with refused(
        "NO_CANDIDATE",
        "found no candidate on sm90",
        "\n  wide: rejected: wants D % 64 == 0, found D = 264",
        "\n  narrow: rejected: wants D < 256, found D = 264",
    ):
        runtime.op("scale").launch(*call(d=264))
    with refused("NO_CANDIDATE", "narrow: rejected: wants x.dtype == 'bf16', found x.dtype = 'f16'"):
        runtime.op("scale").launch(*call(d=128, x=tensor("f16", [6, 128])))


def test_grid_and_integer_limits(tmp_path: Path, cuda: Standin) -> None:
    def limits(grid: list[str], value: str) -> Path:
        params = [tensor_param("x", "u8", "T", align=1)]
        launches = launch("k", [scalar("v", "i32", value)], grid)
        name = hashlib.sha256(repr((grid, value)).encode()).hexdigest()
        return cabi.write_pack(tmp_path / name, "sm90", [cabi.op("o", params, [candidate("c", "1", launches)])])

    table = [
        (["T", "1", "1"], "T", 2**31, "found 2147483648 blocks in dimension 0 (T), wanted 0 to 2147483647"),
        (["1", "T", "1"], "1", 65536, "found 65536 blocks in dimension 1 (T), wanted 0 to 65535"),
        (["1", "T - 2", "1"], "1", 1, "found -1 blocks"),
        (["1", "1", "1"], "2 * T", 2**30, "argument v of k: found 2147483648 (2 * T), wanted a 32-bit integer"),
        (["1", "1", "1"], "T * T * T", 2**30, "argument v: found no value of T * T * T (int64 overflow; T = 1073741824)"),
        (["1", "1", "1"], "7 // (T - 1)", 1, "division by zero"),
    ]  # fmt: skip
    for grid, value, t, text in table:
        with Runtime([limits(grid, value)], cuda=cuda.path) as runtime, refused("ARGUMENT", text):
            runtime.op("o").launch(tensor("u8", [t]))
    assert not cuda.launches()


def test_amd_counts_threads(gfx950: Path, hip: Standin) -> None:
    with Runtime([gfx950], hip=hip.path) as runtime, refused("ARGUMENT", "wanted 0 to 33554431"):
        runtime.op("scale").launch(*call(t=2**25, device=(ROCM, 0), n=1))


def test_any_dynamic_shared_memory_is_asked_for(tmp_path: Path, cuda: Standin) -> None:
    """Static and dynamic shared memory may pass 48 KiB together where neither does alone; the driver takes the dynamic part on request."""
    params = [tensor_param("x", "u8", "T", align=1)]
    made = [candidate(n, f"T == {t}", launch(n, [], ["1", "1", "1"], shared=s)) for n, t, s in (("small", 1, 1024), ("none", 2, 0))]
    with Runtime([cabi.write_pack(tmp_path / "sm90", "sm90", [cabi.op("o", params, made)])], cuda=cuda.path) as runtime:
        for t in (1, 2):
            runtime.op("o").launch(tensor("u8", [t]))
    assert cuda.calls("cuFuncSetAttribute") == ["cuFuncSetAttribute small 8 1024"]
