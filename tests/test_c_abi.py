"""The C ABI against stand-in drivers: what is launched, and what every bad call says."""

from __future__ import annotations

import ctypes as c
import hashlib
import json
import os
import re
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import cabi
from tests.cabi import CPU, CUDA, ROCM, DsakError, Runtime, Standin, candidate, launch, ptr, scalar, scalar_param, tensor, tensor_param

NULL = {"name": "scratch", "type": "null"}


def scale_op() -> dict[str, Any]:
    """Rows of ``x`` scaled into ``out``; every kind of argument."""
    args = [
        ptr("x"), ptr("bias"), ptr("out", offset="16"), scalar("T", "i32"), scalar("x_s0", "i64", "x.s0"), scalar("alpha", "f32"),
        scalar("beta", "f32"), scalar("fast", "i32", "mode == 'fast'"), NULL,
    ]  # fmt: skip
    return cabi.op(
        "scale",
        [
            tensor_param("x", "bf16|f16", "T D"),
            tensor_param("bias", "f32", "D", optional=True),
            tensor_param("out", "bf16", ">=T D", output=True),
            scalar_param("alpha", "f32"),
            scalar_param("beta", "f32", "2.0 * alpha"),
            scalar_param("n", "i32", "T + 1"),
            scalar_param("mode", "choice", "'exact'", ("exact", "fast")),
        ],
        [
            candidate("wide", "D >= 256 and D % 64 == 0", launch("scale_wide", args, ["T", "cdiv(D, 64)", "1"], shared=100000)),
            candidate("narrow", "D < 256 and x.dtype == 'bf16'", launch("scale_narrow", args, ["cdiv(T, 4)", "1", "1"])),
        ],
        [{"check": "n <= 1000", "wanted": "n <= 1000", "fix": "split the call"}],
    )


def split_op() -> dict[str, Any]:
    """Two launches that share a workspace, the first one a cluster launch on NVIDIA."""
    partial = [ptr("x"), ptr("workspace"), ptr("lse", "workspace", "4 * T")]
    return cabi.op(
        "split",
        [tensor_param("x", "bf16", "T D"), tensor_param("out", "f32", "T", output=True, layout="contiguous", align=4)],
        [
            candidate(
                "split",
                "T % 2 == 0 and sm_count > 1",
                launch("partial", partial, ["2 * T", "1", "1"], cluster=[2, 1, 1]),
                launch("combine", [ptr("out"), ptr("workspace")], ["T", "1", "1"]),
                workspace="8 * T",
            )
        ],
    )


@pytest.fixture
def sm90(tmp_path: Path) -> Path:
    return cabi.write_pack(tmp_path / "sm90", "sm90", [scale_op(), split_op()])


@pytest.fixture
def gfx950(tmp_path: Path) -> Path:
    return cabi.write_pack(tmp_path / "gfx950", "gfx950", [scale_op()])


@pytest.fixture
def cuda() -> Standin:
    return Standin("cuda", "9.0 9.0")


@pytest.fixture
def hip() -> Standin:
    return Standin("hip", "gfx950:sramecc+:xnack- gfx942", version=70051831, sm_count=256)


@pytest.fixture
def runtime(sm90: Path, cuda: Standin) -> Iterator[Runtime]:
    with Runtime([sm90], cuda=cuda.path) as r:
        yield r


X, BIAS, OUT = 0x100000, 0x200000, 0x300000


def call(t: int = 6, d: int = 512, device: tuple[int, int] = (CUDA, 0), **changes: Any) -> list[Any]:
    """Arguments of ``scale``; changes by name."""
    values: dict[str, Any] = {
        "x": tensor("bf16", [t, d], [d + 8, 1], X, device),
        "bias": None,
        "out": tensor("bf16", [t, d], None, OUT, device),
        "alpha": 0.5,
        "beta": None,
        "n": None,
        "mode": None,
    }
    return list((values | changes).values())


def refused(status: str, *words: str) -> Any:
    class Check:
        def __enter__(self) -> None:
            pass

        def __exit__(self, kind: object, error: BaseException | None, _: object) -> bool:
            assert isinstance(error, DsakError), f"wanted {status}, found {error!r}"
            assert error.status == status, error
            for w in words:
                assert w in error.message, error
            return True

    return Check()


def f32(v: float) -> int:
    return int.from_bytes(struct.pack("<f", v), "little")


def words(text: str) -> list[int]:
    return [int(w, 16) for w in text.split(",")]


# Finding and describing.


def test_version_and_abi() -> None:
    assert cabi.library().dsak_version() == b"0.1.0"
    assert cabi.library().dsak_abi_version() == 1


def test_find_and_signature(runtime: Runtime) -> None:
    signature = runtime.op("scale").signature()
    assert [p["name"] for p in signature] == ["x", "bias", "out", "alpha", "beta", "n", "mode"]
    assert signature[1]["optional"] and signature[2]["output"] and signature[0]["doc"] == "x"


def test_unknown_op(runtime: Runtime) -> None:
    with refused("NO_OP", "found no op scael", "scale, split"):
        runtime.op("scael")


def test_info(runtime: Runtime, sm90: Path) -> None:
    info = runtime.info()
    assert [p["target"] for p in info["packs"]] == ["sm90"]
    assert info["packs"][0]["manifest_sha256"] == hashlib.sha256((sm90 / "manifest.json").read_bytes()).hexdigest()
    assert [o["name"] for o in info["ops"]] == ["scale", "split"]
    assert info["ops"][0]["targets"] == ["sm90"] and isinstance(info["devices"], list)


def test_devices_without_a_driver(tmp_path: Path) -> None:
    gpu = tmp_path / "proc/driver/nvidia/gpus/0000:1b:00.0"
    gpu.mkdir(parents=True)
    (gpu / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   \t\t 123\n")
    for node, version in (("0", 0), ("1", 90500), ("2", 90402), ("10", 90010)):
        folder = tmp_path / "sys/class/kfd/kfd/topology/nodes" / node
        folder.mkdir(parents=True)
        (folder / "properties").write_text(f"cpu_cores_count 0\ngfx_target_version {version}\n")
        (folder / "name").write_text("aqua\n")
    out = c.create_string_buffer(4096)
    cabi.inner().inner_discover(str(tmp_path).encode(), out, c.c_size_t(4096))
    assert out.value.decode().splitlines() == ["nvidia|NVIDIA H200|", "amd|aqua|gfx950", "amd|aqua|gfx942", "amd|aqua|gfx90a"]


@pytest.mark.parametrize("size", [0, 1, 3, 55, 56, 63, 64, 65, 119, 120, 1000, 100001])
def test_sha256(size: int) -> None:
    data = bytes(i * 7 % 251 for i in range(size))
    out = c.create_string_buffer(65)
    cabi.inner().inner_sha256(data, c.c_size_t(size), out)
    assert out.value.decode() == hashlib.sha256(data).hexdigest()


# Launching.


def test_launch_arguments(runtime: Runtime, cuda: Standin) -> None:
    bias = tensor("f32", [512], None, BIAS)
    runtime.op("scale").launch(*call(bias=bias, mode="fast", beta=3, n=7), stream=0x77)
    (found,) = cuda.launches()
    assert found["kernel"] == "scale_wide" and found["grid"] == "6,8,1" and found["block"] == "128,1,1"
    assert found["shared"] == "100000" and found["stream"] == "0x77"
    assert words(found["args"]) == [X, BIAS, OUT + 16, 6, 520, f32(0.5), f32(3.0), 1, 0]
    assert cuda.calls("cuFuncSetAttribute") == ["cuFuncSetAttribute scale_wide 8 100000"]


def test_defaults_and_absent_optionals(runtime: Runtime, cuda: Standin) -> None:
    op = runtime.op("scale")
    op.launch(*call()[:4])
    op.launch(*call(d=128))
    wide, narrow = cuda.launches()
    assert words(wide["args"]) == [X, 0, OUT + 16, 6, 520, f32(0.5), f32(1.0), 0, 0]
    assert narrow["kernel"] == "scale_narrow" and narrow["grid"] == "2,1,1" and narrow["shared"] == "0"


def test_launch_on_amd(gfx950: Path, hip: Standin) -> None:
    with Runtime([gfx950], hip=hip.path) as runtime:
        runtime.op("scale").launch(*call(device=(ROCM, 0)), stream=0x42)
        (found,) = hip.launches()
        assert words(found["args"]) == [X, 0, OUT + 16, 6, 520, f32(0.5), f32(1.0), 0, 0]
        assert found["grid"] == "6,8,1" and found["shared"] == "100000" and found["stream"] == "0x42"


def test_mixed_host(sm90: Path, gfx950: Path, cuda: Standin, hip: Standin) -> None:
    with Runtime([sm90, gfx950], cuda=cuda.path, hip=hip.path) as runtime:
        op = runtime.op("scale")
        op.launch(*call(device=(ROCM, 0)))
        assert not cuda.log()
        op.launch(*call(device=(CUDA, 1)))
        assert cuda.launches()[0]["device"] == "1" and len(hip.launches()) == 1
        with refused("NO_PACK", "rocm:1, a gfx942 (AMD)", "sm90, gfx950"):
            op.launch(*call(device=(ROCM, 1)))


def test_capability_nine_of_another_vendor_is_not_sm90(sm90: Path, hip: Standin, cuda: Standin) -> None:
    with Runtime([sm90], cuda=cuda.path, hip=hip.path) as runtime, refused("NO_PACK", "gfx950", "sm90"):
        runtime.op("scale").launch(*call(device=(ROCM, 0)))


@pytest.mark.parametrize("capability", ["8.9", "9.1", "10.0"])
def test_other_capabilities_are_not_sm90(sm90: Path, capability: str) -> None:
    cuda = Standin("cuda", capability)
    with Runtime([sm90], cuda=cuda.path) as runtime, refused("NO_PACK", "sm_" + capability.replace(".", ""), "wanted one of: sm90"):
        runtime.op("scale").launch(*call())
    assert not cuda.calls("cuDevicePrimaryCtxRetain", "cuLibraryLoadData")


def test_byte_offset_and_contiguous_strides(runtime: Runtime, cuda: Standin) -> None:
    runtime.op("scale").launch(*call(x=tensor("bf16", [6, 512], None, X, offset=1040)))
    assert words(cuda.launches()[0]["args"])[:5] == [X + 1040, 0, OUT + 16, 6, 512]


def test_stride_of_one_row_reads_as_zero(runtime: Runtime, cuda: Standin) -> None:
    runtime.op("scale").launch(*call(t=1, x=tensor("bf16", [1, 512], [99991, 1], X)))
    assert words(cuda.launches()[0]["args"])[4] == 0


def test_output_may_be_larger(runtime: Runtime, cuda: Standin) -> None:
    runtime.op("scale").launch(*call(out=tensor("bf16", [9, 512], None, OUT)))
    assert words(cuda.launches()[0]["args"])[3] == 6


def test_cluster_workspace_and_two_launches(runtime: Runtime, cuda: Standin) -> None:
    op = runtime.op("split")
    args = [tensor("bf16", [4, 64], None, X), tensor("f32", [4], None, OUT)]
    assert op.workspace(*args) == 32
    op.launch(*args, workspace=0x4000)
    partial, combine = cuda.launches()
    assert partial["attribute4"] == "2,1,1" and partial["grid"] == "8,1,1"
    assert words(partial["args"]) == [X, 0x4000, 0x4010]
    assert "attribute4" not in combine and words(combine["args"]) == [OUT, 0x4000]
    with refused("ARGUMENT", "workspace: found null, wanted 32 bytes"):
        op.launch(*args)
    with refused("ARGUMENT", "workspace: found an address 8 bytes past a multiple of 256"):
        op.launch(*args, workspace=0x4008)
    assert len(cuda.launches()) == 2


def test_empty_grid(runtime: Runtime, cuda: Standin) -> None:
    runtime.op("scale").launch(*call(x=tensor("bf16", [0, 512], None, 0), out=tensor("bf16", [0, 512], None, 0)))
    assert not cuda.launches()


def test_same_shapes_with_other_addresses(runtime: Runtime, cuda: Standin) -> None:
    op = runtime.op("scale")
    for k in range(3):
        op.launch(*call(x=tensor("bf16", [6, 512], [520, 1], X + 4096 * k)))
    assert [words(x["args"])[0] for x in cuda.launches()] == [X, X + 4096, X + 8192]
    with refused("ARGUMENT", "x: found an address 2 bytes past a multiple of 16"):
        op.launch(*call(x=tensor("bf16", [6, 512], [520, 1], X + 2)))
    with refused("ARGUMENT", "x: found a null address"):
        op.launch(*call(x=tensor("bf16", [6, 512], [520, 1], 0)))
    op.launch(*call(alpha=0.25))
    assert words(cuda.launches()[-1]["args"])[5] == f32(0.25)


def test_a_refused_call_does_not_linger(runtime: Runtime, cuda: Standin) -> None:
    op = runtime.op("scale")
    op.launch(*call())
    for _ in range(2):
        with refused("NO_CANDIDATE"):
            op.launch(*call(d=264))
    op.launch(*call())
    assert len(cuda.launches()) == 2


def test_infer(runtime: Runtime, cuda: Standin) -> None:
    assert runtime.op("scale").infer(*call(out=None)) == [(2, [6, 512], (4, 16))]
    assert runtime.op("scale").infer(*call(out=tensor("f64", [1], None, 0, (CPU, 0)))) == [(2, [6, 512], (4, 16))]
    with refused("ARGUMENT", "found room for 0 outputs, wanted 1"):
        runtime.op("scale").infer(*call(), room=0)
    assert not cuda.log()


def test_no_negative_size_is_inferred(tmp_path: Path) -> None:
    params = [tensor_param("x", "u8", "T"), tensor_param("out", "u8", "T-2", output=True)]
    pack = cabi.write_pack(tmp_path / "pack", "sm90", [cabi.op("cut", params, [candidate("c", "1", launch("k", [ptr("out")]))])])
    with Runtime([pack]) as runtime:
        assert runtime.op("cut").infer(tensor("u8", [2]), None)[0][1] == [0]
        with refused("ARGUMENT", "shape of out: found -1 in dimension 0, wanted 0 or more"):
            runtime.op("cut").infer(tensor("u8", [1]), None)


def test_explain(runtime: Runtime, cuda: Standin) -> None:
    text = runtime.op("scale").explain(*call(), target="sm90")
    assert not cuda.log()
    assert "wide: chosen" in text and "narrow: rejected: wants D < 256, found D = 512" in text
    assert "grid (6, 8, 1)" in text and "dynamic shared memory 100000 bytes" in text and '"registers":40' in text
    assert "sm_count = 132" in runtime.op("scale").explain(*call())
    assert "no candidate serves" in runtime.op("scale").explain(*call(d=264), target="sm90")
    with refused("NO_PACK", "target sm91", "sm90"):
        runtime.op("scale").explain(*call(), target="sm91")


@pytest.mark.parametrize("target, units", [("sm90", 132), ("gfx950", 256), ("gfx942", 304)])
def test_explain_without_a_device_counts_the_units_of_the_target(tmp_path: Path, target: str, units: int) -> None:
    persistent = launch("k", [ptr("x"), scalar("bytes", "i32", "4 * T")], ["min(T, sm_count)", "1", "1"])
    ops = [cabi.op("o", [tensor_param("x", "u8", "T")], [candidate("c", "1", persistent)])]
    with Runtime([cabi.write_pack(tmp_path / target, target, ops)]) as runtime:
        text = runtime.op("o").explain(tensor("u8", [5000]), target=target)
        assert f"sm_count = {units}" in text and f"grid ({units}, 1, 1)" in text and "empty grid" not in text
        with refused("ARGUMENT", "argument bytes of k: found 4294967296 (4 * T), wanted a 32-bit integer"):
            runtime.op("o").explain(tensor("u8", [2**30]), target=target)


# Contexts, capture, loading.


def test_context_is_set_and_restored(runtime: Runtime, cuda: Standin) -> None:
    op = runtime.op("scale")
    op.launch(*call())
    assert cuda.current() == -1
    cuda.set_current(1)
    op.launch(*call())
    assert cuda.current() == 1
    cuda.set_current(0)
    cuda.clear()
    op.launch(*call())
    assert [x.split()[0] for x in cuda.log()] == ["cuCtxGetCurrent", "cuLaunchKernel"]


def test_device_is_set_and_restored_on_amd(gfx950: Path) -> None:
    hip = Standin("hip", "gfx950 gfx950", sm_count=256)
    with Runtime([gfx950], hip=hip.path) as runtime:
        runtime.op("scale").launch(*call(device=(ROCM, 1)))
        assert hip.current() == 0 and hip.launches()[0]["device"] == "1"


def test_preload(runtime: Runtime, cuda: Standin) -> None:
    runtime.preload()
    assert len(cuda.calls("cuLibraryLoadData")) == 4
    assert len(cuda.calls("cuFuncLoad")) == 4
    cuda.clear()
    runtime.preload()
    cuda.set_current(0)
    cuda.clear()
    runtime.op("scale").launch(*call())
    assert [x.split()[0] for x in cuda.log()] == ["cuCtxGetCurrent", "cuLaunchKernel"]


def test_preload_one_op(runtime: Runtime, cuda: Standin) -> None:
    runtime.preload(runtime.op("scale"), (CUDA, 1))
    assert cuda.calls("cuLibraryLoadData") == ["cuLibraryLoadData 1"] * 2


def test_preload_refused(runtime: Runtime) -> None:
    with refused("DEVICE", "cuda:5", "2 NVIDIA devices"):
        runtime.preload(None, (CUDA, 5))
    with refused("DEVICE", "device type 1"):
        runtime.preload(None, (CPU, 0))
    with refused("DEVICE", "cuda:-1"):
        runtime.preload(None, (CUDA, -1))


def test_no_driver_before_the_first_launch(sm90: Path, cuda: Standin) -> None:
    with Runtime([sm90], cuda=cuda.path) as runtime:
        op = runtime.op("scale")
        op.infer(*call())
        op.explain(*call(), target="sm90")
        runtime.info()
        assert not cuda.log()


def test_fork_after_open(sm90: Path, cuda: Standin) -> None:
    with Runtime([sm90], cuda=cuda.path) as runtime:
        op = runtime.op("scale")
        child = os.fork()
        if child == 0:
            try:
                op.launch(*call())
                os._exit(0 if len(cuda.launches()) == 1 else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert not cuda.log()
        op.launch(*call())
        assert len(cuda.launches()) == 1


def test_many_threads_load_once_per_device(sm90: Path, cuda: Standin) -> None:
    with Runtime([sm90], cuda=cuda.path) as runtime:
        op = runtime.op("scale")
        barrier = threading.Barrier(16)
        errors: list[BaseException] = []

        def work(k: int) -> None:
            args = call(d=512 if k & 2 else 128, device=(CUDA, k & 1))
            barrier.wait()
            try:
                for _ in range(20):
                    op.launch(*args)
            except BaseException as e:
                errors.append(e)

        threads = [threading.Thread(target=work, args=(k,)) for k in range(16)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not errors
        assert sorted(cuda.calls("cuLibraryLoadData")) == ["cuLibraryLoadData 0"] * 2 + ["cuLibraryLoadData 1"] * 2
        assert len(cuda.calls("cuInit")) == 1 and len(cuda.calls("cuDevicePrimaryCtxRetain")) == 2
        assert len(cuda.launches()) == 320


def test_close_unloads(sm90: Path, cuda: Standin) -> None:
    with Runtime([sm90], cuda=cuda.path) as runtime:
        runtime.op("scale").launch(*call())
    wanted = ["cuLibraryUnload", "cuCtxSetCurrent -1", "cuDevicePrimaryCtxRelease 0"]
    assert cuda.calls("cuLibraryUnload", "cuCtxSetCurrent", "cuDevicePrimaryCtxRelease")[-3:] == wanted
    cabi.library().dsak_close(None)


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


# Packs that are not as they should be.


def objects(pack: Path) -> list[Path]:
    return sorted((pack / "objects").iterdir())


def replace_object(pack: Path, content: Callable[[bytes], bytes]) -> None:
    """Change every object and its manifest entry, digest included."""

    def edit(m: dict[str, Any]) -> None:
        for path in objects(pack):
            image = content(path.read_bytes())
            digest = hashlib.sha256(image).hexdigest()
            entry = m["objects"].pop(path.stem) | {"file": f"objects/{digest}.cubin", "size": len(image)}
            m["objects"][digest] = entry
            (pack / entry["file"]).write_bytes(image)
            for x in (x for o in m["ops"] for k in o["candidates"] for x in k["launches"]):
                x["object"] = digest if x["object"] == path.stem else x["object"]

    cabi.edit_manifest(pack, edit)


def patched(at: int, value: int) -> Callable[[bytes], bytes]:
    return lambda image: image[:at] + bytes([value]) + image[at + 1 :]


DAMAGE: list[tuple[str, Callable[[Path], Any], str, str]] = [
    ("missing", lambda p: [f.unlink() for f in objects(p)], "PACK_MISSING", "found no readable file"),
    ("cut", lambda p: [f.write_bytes(f.read_bytes()[:-3]) for f in objects(p)], "PACK_TRUNCATED", "wanted"),
    ("longer", lambda p: [f.write_bytes(f.read_bytes() + b"x") for f in objects(p)], "PACK_TRUNCATED", "found more than"),
    ("altered", lambda p: [f.write_bytes(f.read_bytes()[:-1] + b"x") for f in objects(p)], "PACK_DIGEST", "found sha256"),
    ("other machine", lambda p: replace_object(p, patched(18, 224)), "PACK_ARCH", "found an object with ELF machine 224"),
    ("other flags", lambda p: replace_object(p, patched(48, 0x64)), "PACK_ARCH", "found an object with ELF machine 190"),
    ("other abi", lambda p: replace_object(p, patched(8, 8)), "PACK_ARCH", "ABI 8"),
    ("not elf", lambda p: replace_object(p, patched(0, 0)), "PACK_ARCH", "found no 64-bit ELF object"),
    ("pipe", lambda p: [(f.unlink(), os.mkfifo(f)) for f in objects(p)], "PACK_MISSING", "found no regular file"),
    ("folder", lambda p: [(f.unlink(), f.mkdir()) for f in objects(p)], "PACK_MISSING", "found no regular file"),
    ("short", lambda p: replace_object(p, lambda b: b[:20]), "PACK_ARCH", "found no 64-bit ELF object"),
]


@pytest.mark.timeout(30)  # opening a pipe waits for a writer
@pytest.mark.parametrize("damage, status, text", [d[1:] for d in DAMAGE], ids=[d[0].replace(" ", "-") for d in DAMAGE])
def test_damaged_object(sm90: Path, cuda: Standin, damage: Callable[[Path], Any], status: str, text: str) -> None:
    cabi.verify(sm90)
    damage(sm90)
    with refused(status, text, str(sm90), "install the pack again"):
        cabi.verify(sm90)
    with Runtime([sm90], cuda=cuda.path) as runtime:
        for _ in range(2):
            with refused(status, text):
                runtime.op("scale").launch(*call())
    assert not cuda.calls("cuLibraryLoadData")


def _drop(*path: Any) -> Callable[[dict[str, Any]], None]:
    def edit(m: Any) -> None:
        for key in path[:-1]:
            m = m[key]
        del m[path[-1]]

    return edit


def _set(value: Any, *path: Any) -> Callable[[dict[str, Any]], None]:
    def edit(m: Any) -> None:
        for key in path[:-1]:
            m = m[key]
        m[path[-1]] = value

    return edit


ARGS = ("ops", 0, "candidates", 0, "launches", 0, "args")
SCHEMA = [
    (_set("2.0", "schema_version"), "found schema_version 2.0, wanted 1.x"),
    (_set("0.9", "schema_version"), "found schema_version 0.9"),
    (_set("one", "schema_version"), '$.schema_version: found "one", wanted major.minor'),
    (_set(1, "schema_version"), "$.schema_version: found number, wanted a string"),
    (_drop("target", "arch"), "$.target: found no key arch"),
    (_drop("target", "units"), "$.target: found no key units"),
    (_set(0, "target", "units"), "$.target.units: found 0"),
    (_set("intel", "target", "vendor"), "$.target.vendor: found intel, wanted nvidia, amd"),
    (_set("190", "target", "elf_machine"), "$.target.elf_machine: found string, wanted an integer"),
    (_set(-1, "target", "elf_flags"), "$.target.elf_flags: found -1"),
    (_set(2**64 - 1, "target", "elf_flags"), "$.target.elf_flags: found 18446744073709551615"),
    (_set([], "objects"), "$.objects: found array, wanted an object"),
    (_set({}, "objects", "abc"), "found abc, wanted a sha256"),
    (_set({}, "ops"), "$.ops: found object, wanted an array"),
    (_set("f8", "ops", 0, "params", 0, "dtypes", 1), "$.ops[0].params[0].dtypes[1]: found f8"),
    (_set([], "ops", 0, "params", 0, "dtypes"), "$.ops[0].params[0].dtypes: found no element type"),
    (_set([True], "ops", 0, "params", 0, "at_least"), "$.ops[0].params[0].at_least: found 1 elements"),
    (_set(3, "ops", 0, "params", 0, "align"), "$.ops[0].params[0].align: found 3, wanted a power of two"),
    (_set("no", "ops", 0, "params", 0, "optional"), "$.ops[0].params[0].optional: found string, wanted true or false"),
    (_set("tensors", "ops", 0, "params", 0, "kind"), "$.ops[0].params[0].kind: found tensors"),
    (_set("0" * 64, "ops", 0, "candidates", 0, "launches", 0, "object"), "wanted a key of $.objects"),
    (_set(["1"], "ops", 0, "candidates", 0, "launches", 0, "grid"), "grid: found 1 elements, wanted 3"),
    (_set([0, 1, 1], "ops", 0, "candidates", 0, "launches", 0, "block"), "block[0]: found 0"),
    (_set("T +", "ops", 0, "candidates", 0, "workspace"), 'op scale: found the end at column 4 of "T +"'),
    (_set("Q", "ops", 0, "candidates", 0, "when"), "op scale: found unknown name Q"),
    (_set("y", *ARGS, 0, "value"), "op scale: found a pointer to y"),
    (_set(["T", "D", "alpha"], "ops", 0, "symbols"), "found the name alpha twice"),
    (_set(["T", "D", "W"], "ops", 0, "symbols"), "found symbol W"),
    (lambda m: m["ops"].append(m["ops"][0]), "$.ops[2].name: found a second scale"),
]  # fmt: skip


@pytest.mark.parametrize("edit, text", SCHEMA, ids=[str(k) for k in range(len(SCHEMA))])
def test_bad_manifest(sm90: Path, edit: Callable[[dict[str, Any]], Any], text: str) -> None:
    cabi.edit_manifest(sm90, edit)
    with refused("PACK_SCHEMA", text, str(sm90)):
        Runtime([sm90])
    with refused("PACK_SCHEMA", text):
        cabi.verify(sm90)


def _deep(text: str, depth: int) -> str:
    return text.replace('"toolchain": {', '"toolchain": {"x": ' + "[" * depth + "]" * depth + ", ", 1)


def _when(text: str, depth: int) -> str:
    manifest = json.loads(text)
    manifest["ops"][0]["candidates"][0]["when"] = "(" * depth + "D > 1" + ")" * depth
    return json.dumps(manifest)


HOSTILE: dict[str, tuple[Callable[[str], str], str]] = {
    "deep arrays": (lambda s: _deep(s, 100_000), "found nesting deeper than 64"),
    "deep objects": (lambda s: '{"x":' * 100_000 + s + "}" * 100_000, "found nesting deeper than 64"),
    "unclosed": (lambda s: "[" * 100_000, "found nesting deeper than 64"),
    "just too deep": (lambda s: _deep(s, 63), "found nesting deeper than 64"),
    "parentheses": (lambda s: _when(s, 50_000), "op scale: found"),
    "NUL and garbage": (lambda s: s + "\0garbage", "found a NUL byte"),
    "NUL within": (lambda s: s.replace('"scale"', '"sc\0ale"', 1), "found a NUL byte"),
    "garbage": (lambda s: s + "{}", "not JSON"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_manifest(sm90: Path, what: str) -> None:
    change, text = HOSTILE[what]
    manifest = sm90 / "manifest.json"
    manifest.write_text(change(manifest.read_text()))
    start = time.perf_counter()
    for opening in (lambda: Runtime([sm90]), lambda: cabi.verify(sm90)):
        with refused("PACK_SCHEMA", text, str(sm90)):
            opening()
    assert time.perf_counter() - start < 5


def test_moderate_nesting_and_brackets_in_strings_are_read(sm90: Path) -> None:
    manifest = sm90 / "manifest.json"
    text = _when(manifest.read_text(), 40)
    manifest.write_text(_deep(text, 62).replace('"what scale does"', json.dumps('\\"' + "[{" * 100), 1))
    cabi.verify(sm90)
    Runtime([sm90]).close()


def test_objects_stay_inside_the_pack(sm90: Path) -> None:
    def edit(m: dict[str, Any]) -> None:
        next(iter(m["objects"].values()))["file"] = "objects/../../x"

    cabi.edit_manifest(sm90, edit)
    with refused("PACK_SCHEMA", "wanted a path inside the pack"):
        Runtime([sm90])


def test_newer_minor_version_is_read(sm90: Path) -> None:
    cabi.edit_manifest(sm90, _set("1.7", "schema_version"))
    Runtime([sm90]).close()


def test_no_manifest(tmp_path: Path) -> None:
    with refused("PACK_MISSING", str(tmp_path), "manifest.json"):
        Runtime([tmp_path])
    (tmp_path / "manifest.json").write_text('{"schema_version": "1.0"')
    with refused("PACK_SCHEMA", "not JSON"):
        Runtime([tmp_path])
    (tmp_path / "manifest.json").unlink()
    os.mkfifo(tmp_path / "manifest.json")
    with refused("PACK_MISSING", "found no regular file"):
        Runtime([tmp_path])


def test_same_op_in_two_packs(sm90: Path, tmp_path: Path) -> None:
    other = cabi.write_pack(tmp_path / "other", "sm90", [scale_op()])
    with refused("ARGUMENT", "op scale for sm90 in two packs", str(other)):
        Runtime([sm90, other])


PARAMS = ("ops", 0, "params")
SIGNATURES: dict[str, tuple[Callable[[dict[str, Any]], Any], bool]] = {
    "order": (lambda m: m["ops"][0]["params"].reverse(), False),
    "count": (lambda m: m["ops"][0]["params"].append(scalar_param("more", "i32", "0")), False),
    "name": (_set("k", *PARAMS, 5, "name"), False),
    "scalar type": (_set("i64", *PARAMS, 5, "dtype"), False),
    "output": (_set(True, *PARAMS, 1, "output"), False),
    "element types": (_set(["bf16"], *PARAMS, 0, "dtypes"), True),  # FP8 is another one on gfx942
    "words": (_set("in other words", *PARAMS, 0, "doc"), True),
}


@pytest.mark.parametrize("what", SIGNATURES)
def test_packs_agree_on_signatures(sm90: Path, gfx950: Path, what: str) -> None:
    edit, agree = SIGNATURES[what]
    cabi.edit_manifest(gfx950, _set([], "ops", 0, "rules"))
    cabi.edit_manifest(gfx950, edit)
    Runtime([gfx950]).close()
    if agree:
        Runtime([sm90, gfx950]).close()
        return
    with refused("ARGUMENT", "found op scale with other parameters", str(sm90), str(gfx950), "wanted packs of one release"):
        Runtime([sm90, gfx950])


# Drivers.


def test_no_driver_library(sm90: Path) -> None:
    with Runtime([sm90]) as runtime:
        for _ in range(2):
            with refused("DRIVER", "found no CUDA driver library /nowhere/libdriver.so", "install the NVIDIA driver"):
                runtime.op("scale").launch(*call())


def test_no_hip_library(gfx950: Path) -> None:
    with Runtime([gfx950]) as runtime, refused("DRIVER", "found no HIP library /nowhere/libdriver.so"):
        runtime.op("scale").launch(*call(device=(ROCM, 0)))


def test_driver_too_old(sm90: Path) -> None:
    cuda = Standin("cuda", "9.0", version=11080)
    with Runtime([sm90], cuda=cuda.path) as runtime, refused("DRIVER_OLD", "found a driver for CUDA 11.8, wanted CUDA 12.0 or newer"):
        runtime.op("scale").launch(*call())
    assert not cuda.calls("cuLibraryLoadData")


def test_device_that_is_not_there(runtime: Runtime) -> None:
    with refused("DEVICE", "found device cuda:2, wanted one of the 2 NVIDIA devices"):
        runtime.op("scale").launch(*call(device=(CUDA, 2)))
    with refused("DEVICE", "found device cuda:64"):
        runtime.op("scale").launch(*call(device=(CUDA, 64)))


CUDA_CALLS = [
    "cuInit", "cuDeviceGetCount", "cuDeviceGetAttribute", "cuDriverGetVersion", "cuDevicePrimaryCtxRetain", "cuLibraryLoadData",
    "cuLibraryGetKernel", "cuKernelGetFunction", "cuFuncSetAttribute", "cuFuncLoad", "cuLaunchKernel", "cuCtxSetCurrent",
]  # fmt: skip


@pytest.mark.parametrize("name", CUDA_CALLS)
def test_cuda_failures_are_named_and_retried(sm90: Path, cuda: Standin, name: str) -> None:
    with Runtime([sm90], cuda=cuda.path) as runtime:
        op = runtime.op("scale")
        cuda.fail(name, 2)
        for _ in range(2):
            with refused("DRIVER", name, "CUDA_ERROR_OUT_OF_MEMORY (2: an error of the stand-in driver)"):
                op.launch(*call())
        cuda.fail(name, 0)
        cuda.clear()
        op.launch(*call())
        assert len(cuda.launches()) == 1
        assert len(cuda.calls("cuLibraryLoadData")) <= 1


@pytest.mark.parametrize(
    "name", ["hipInit", "hipGetDeviceCount", "hipGetDeviceProperties", "hipModuleLoadData", "hipModuleGetFunction", "hipModuleLaunchKernel"]
)
def test_hip_failures_are_named_and_retried(gfx950: Path, hip: Standin, name: str) -> None:
    with Runtime([gfx950], hip=hip.path) as runtime:
        op = runtime.op("scale")
        hip.fail(name, 2)
        with refused("DRIVER", name, "hipErrorStandin (2: an error of the stand-in driver)"):
            op.launch(*call(device=(ROCM, 0)))
        hip.fail(name, 0)
        op.launch(*call(device=(ROCM, 0)))
        assert hip.launches()


def test_second_launch_fails(runtime: Runtime, cuda: Standin) -> None:
    args = [tensor("bf16", [4, 64], None, X), tensor("f32", [4], None, OUT)]
    cuda.fail("cuLaunchKernel", 2)
    with refused("DRIVER", "cuLaunchKernel of split (combine)"):
        runtime.op("split").launch(*args, workspace=256)


def test_symbol_that_is_not_in_the_object(sm90: Path, cuda: Standin) -> None:
    cabi.edit_manifest(sm90, _set("other", "ops", 0, "candidates", 0, "launches", 0, "symbol"))
    with Runtime([sm90], cuda=cuda.path) as runtime, refused("DRIVER", "cuLibraryGetKernel of other", "CUDA_ERROR_NOT_FOUND"):
        runtime.op("scale").launch(*call())


# The boundary itself.


def test_null_pointers() -> None:
    lib = cabi.library()
    for function, args in (
        (lib.dsak_open, (None, None)),
        (lib.dsak_find, (None, None, None)),
        (lib.dsak_launch, (None, None, c.c_size_t(0), None, None)),
        (lib.dsak_verify, (None,)),
    ):
        with refused("ARGUMENT", "found a null"):
            cabi.check(function, *args)
        assert function(*args, None) == 1


def test_null_arguments(runtime: Runtime) -> None:
    lib, op = cabi.library(), runtime.op("scale").handle
    n, size, text, outputs = c.c_size_t(7), c.c_size_t(), c.c_void_p(), (cabi.Output * 1)()
    for function, args in (
        (lib.dsak_launch, (op, None, n, None, None)),
        (lib.dsak_workspace, (op, None, n, c.byref(size))),
        (lib.dsak_infer, (op, None, n, outputs, c.byref(size))),
        (lib.dsak_explain, (op, b"sm90", None, n, c.byref(text))),
        (lib.dsak_explain, (op, None, None, n, c.byref(text))),
    ):
        with refused("ARGUMENT", "found a null args, wanted a valid one"):
            cabi.check(function, *args)
    with refused("ARGUMENT", "x: found nothing"):
        cabi.check(lib.dsak_launch, op, None, c.c_size_t(0), None, None)


@pytest.mark.parametrize("entries, word", [(None, "packs"), ([None], "pack"), ([b"/nowhere", None], "pack")])
def test_null_packs(entries: list[bytes | None] | None, word: str) -> None:
    packs = None if entries is None else (c.c_char_p * len(entries))(*entries)
    options, handle = cabi.Options(c.sizeof(cabi.Options), packs, len(entries or "1"), None, None), c.c_void_p()
    with refused("ARGUMENT", f"found a null {word}, wanted a valid one"):
        cabi.check(cabi.library().dsak_open, c.byref(options), c.byref(handle))
    assert not handle


def test_error_struct_of_an_older_caller(sm90: Path) -> None:
    error = cabi.Error(32, 0, b"")
    c.memset(c.byref(error, cabi.Error.message.offset), 0x7A, 4096)
    assert cabi.library().dsak_verify(b"/nowhere", c.byref(error)) == 6
    raw = bytes(error)[cabi.Error.message.offset :]
    assert raw[: 32 - cabi.Error.message.offset].endswith(b"\0") and raw[32 - cabi.Error.message.offset] == 0x7A


def test_library_needs_no_driver_and_keeps_to_itself() -> None:
    """Exported symbols are the ABI; nothing of a vendor is linked."""
    path = cabi.build() / "libdsa_kernels.so"
    exported = subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=True).stdout
    names = {line.split()[-1].split("@")[0] for line in exported.splitlines()}
    declared = set(re.findall(r"^DSAK_API .*?\b(dsak_\w+)\(", (cabi.ROOT / "runtime/include/dsa_kernels.h").read_text(), re.M))
    assert names - {"DSA_KERNELS_1"} == declared
    needed = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
    assert "cuda" not in needed and "hip" not in needed


def test_environment_names_the_library(sm90: Path, cuda: Standin) -> None:
    code = f"""
import ctypes as c
from tests import cabi
cabi.library()
packs = (c.c_char_p * 1)({str(sm90).encode()!r})
options, handle, op = cabi.Options(c.sizeof(cabi.Options), packs, 1, None, None), c.c_void_p(), c.c_void_p()
cabi.check(cabi.library().dsak_open, c.byref(options), c.byref(handle))
cabi.check(cabi.library().dsak_preload, handle, None, 2, 0)
print(len(cabi.Standin("cuda", "9.0").log()))
"""
    env = os.environ | {"DSA_KERNELS_CUDA_LIBRARY": str(cuda.path), "PYTHONPATH": str(cabi.ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr


CONSUMER = """
cmake_minimum_required(VERSION 3.20)
project(consumer CXX)
find_package(dsa_kernels 0.1 REQUIRED)
foreach(kind dsa_kernels static)
  add_executable(consumer_${kind} main.cpp)
  target_link_libraries(consumer_${kind} PRIVATE dsa_kernels::${kind})
endforeach()
"""


@pytest.mark.skipif("DSAK_TEST_BUILD" in os.environ, reason="a given build may need flags that the consumer does not know")
def test_find_package(tmp_path: Path) -> None:
    """An installed tree serves another project, shared and static."""
    prefix, source, build = tmp_path / "prefix", tmp_path / "source", tmp_path / "build"
    source.mkdir()
    (source / "CMakeLists.txt").write_text(CONSUMER)
    (source / "main.cpp").write_text(
        "#include <dsa_kernels.h>\n#include <cstdio>\n"
        'int main() { return std::puts(dsak_version()) < 0 || dsak_verify("/nowhere", nullptr) != 6; }\n'
    )
    for command in (
        ["cmake", "--install", str(cabi.build()), "--prefix", str(prefix)],
        ["cmake", "-S", str(source), "-B", str(build), "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}"],
        ["cmake", "--build", str(build), "-j", "2"],
        [str(build / "consumer_dsa_kernels")],
        [str(build / "consumer_static")],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
