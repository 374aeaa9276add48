"""The C ABI: packs and drivers that are not as they should be give typed errors, and nothing reaches the device."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import cabi
from tests.cabi import CUDA, ROCM, Runtime, Standin, scalar_param, tensor
from tests.cabi_ops import OUT, X, call, refused, scale_op

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
            for x in (x for o in m["ops"] for x in o["kernels"]):
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


ARGS = ("ops", 0, "args", 0)
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
    (_set("0" * 64, "ops", 0, "kernels", 0, "object"), "wanted a key of $.objects"),
    (_set([], "ops", 0, "candidates", 0, "launches"), "launches: found no launch, wanted at least one"),
    (_set(99, "ops", 0, "kernels", 0, "args"), "args: found 99, wanted an integer from 0 to"),
    (_set(99, "ops", 0, "candidates", 0, "launches", 0, "kernel"), "kernel: found 99, wanted an integer from 0 to"),
    (_set(-1, "ops", 0, "candidates", 0, "launches", 0, "kernel"), "kernel: found -1, wanted an integer from 0 to"),
    (_set(["1"], "ops", 0, "candidates", 0, "launches", 0, "grid"), "grid: found 1 elements, wanted 3"),
    (_set([0, 1, 1], "ops", 0, "kernels", 0, "block"), "block[0]: found 0"),
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
    cabi.edit_manifest(sm90, _set("other", "ops", 0, "kernels", 0, "symbol"))
    with Runtime([sm90], cuda=cuda.path) as runtime, refused("DRIVER", "cuLibraryGetKernel of other", "CUDA_ERROR_NOT_FOUND"):
        runtime.op("scale").launch(*call())
