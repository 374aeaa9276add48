"""The C ABI against stand-in drivers: what is found, described, loaded and launched."""

from __future__ import annotations

import ctypes as c
import hashlib
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests import cabi
from tests.cabi import CPU, CUDA, ROCM, Runtime, Standin, candidate, launch, ptr, scalar, tensor, tensor_param
from tests.cabi_ops import BIAS, OUT, X, call, f32, refused, words

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
