"""The C ABI through ctypes, the stand-in drivers, and packs with made-up objects: what the tests of the core share."""

from __future__ import annotations

import ctypes as c
import dataclasses
import functools
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from aot.targets import TARGETS

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "tests"

STATUS = [
    "OK", "ARGUMENT", "NO_OP", "NO_PACK", "NO_CANDIDATE", "DEVICE", "PACK_MISSING", "PACK_TRUNCATED", "PACK_DIGEST",
    "PACK_SCHEMA", "PACK_ARCH", "DRIVER_OLD", "DRIVER", "INTERNAL",
]  # fmt: skip
DTYPES = {
    "bf16": (4, 16), "f16": (2, 16), "f32": (2, 32), "f64": (2, 64), "i32": (0, 32), "i64": (0, 64), "u8": (1, 8),
    "e4m3fn": (10, 8), "e4m3fnuz": (11, 8),
}  # fmt: skip
CPU, CUDA, ROCM = 1, 2, 10


class Error(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("code", c.c_int), ("message", c.c_char * 4096)]


class Tensor(c.Structure):
    """A ``dsak_tensor``; sizes and strides are kept alive beside it."""

    _fields_ = [
        ("data", c.c_uint64), ("device_type", c.c_int32), ("device_id", c.c_int32), ("ndim", c.c_int32),
        ("code", c.c_uint8), ("bits", c.c_uint8), ("lanes", c.c_uint16), ("shape", c.POINTER(c.c_int64)),
        ("strides", c.POINTER(c.c_int64)), ("byte_offset", c.c_uint64),
    ]  # fmt: skip


class _Value(c.Union):
    _fields_ = [("tensor", c.POINTER(Tensor)), ("i", c.c_int64), ("f", c.c_double), ("choice", c.c_char_p)]


class Arg(c.Structure):
    _fields_ = [("kind", c.c_int32), ("value", _Value)]


class Options(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t), ("packs", c.POINTER(c.c_char_p)), ("num_packs", c.c_size_t),
        ("cuda_library", c.c_char_p), ("hip_library", c.c_char_p),
    ]  # fmt: skip


class Output(c.Structure):
    _fields_ = [
        ("struct_size", c.c_size_t), ("param", c.c_int32), ("ndim", c.c_int32), ("shape", c.c_int64 * 8),
        ("code", c.c_uint8), ("bits", c.c_uint8),
    ]  # fmt: skip


class DsakError(Exception):
    """A status other than OK: ``status`` is its name, the text is the message."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status, self.message = status, message


@functools.cache
def build() -> Path:
    """Build core and stand-ins once per session; ``DSAK_TEST_BUILD`` names a build folder to use as it is."""
    if given := os.environ.get("DSAK_TEST_BUILD"):
        return Path(given)
    BUILD.mkdir(parents=True, exist_ok=True)
    # Workers of one test run share the folder.
    import fcntl

    with open(BUILD / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        configure = ["cmake", "-S", str(ROOT), "-B", str(BUILD), "-G", "Ninja", "-DDSAK_TESTS=ON", f"-DPython3_EXECUTABLE={sys.executable}"]
        for command in (configure, ["cmake", "--build", str(BUILD), "-j", "2"]):
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
    return BUILD


def standin_path(vendor: str) -> Path:
    return build() / "tests" / "standin" / f"libstandin_{vendor}.so"


@functools.cache
def library() -> c.CDLL:
    lib = c.CDLL(str(build() / "libdsa_kernels.so"))
    lib.dsak_version.restype = c.c_char_p
    lib.dsak_info.restype = c.c_void_p
    lib.dsak_signature.restype = c.c_char_p
    return lib


@functools.cache
def inner() -> c.CDLL:
    return c.CDLL(str(build() / "tests" / "standin" / "libdsak_inner.so"))


class Standin:
    """One stand-in driver library, reset to ``archs``."""

    def __init__(self, vendor: str, archs: str, version: int = 12090, sm_count: int = 132) -> None:
        self.path = standin_path(vendor)
        self.lib = c.CDLL(str(self.path))
        self.lib.standin_log.restype = c.c_void_p
        self.lib.standin_reset(archs.encode(), version, sm_count)
        self.lib.standin_set_current(-1 if vendor == "cuda" else 0)

    def log(self) -> list[str]:
        text = self.lib.standin_log()
        lines = c.cast(text, c.c_char_p).value.decode().splitlines()  # type: ignore[union-attr]
        self.lib.standin_free(c.c_void_p(text))
        return lines

    def clear(self) -> None:
        self.lib.standin_clear()

    def calls(self, *names: str) -> list[str]:
        return [line for line in self.log() if line.split()[0] in names]

    def launches(self) -> list[dict[str, str]]:
        """The launches so far: ``kernel`` and the fields of the log line."""
        lines = self.calls("cuLaunchKernel", "cuLaunchKernelEx", "hipModuleLaunchKernel")
        return [{"kernel": x.split()[1], **dict(f.split("=", 1) for f in x.split()[2:])} for x in lines]

    def fail(self, call: str, code: int, after: int = 0) -> None:
        self.lib.standin_fail(call.encode(), code, after)

    def current(self) -> int:
        return int(self.lib.standin_current())

    def set_current(self, device: int) -> None:
        self.lib.standin_set_current(device)


def tensor(
    dtype: str,
    shape: Sequence[int],
    strides: Sequence[int] | None = None,
    data: int = 1 << 20,
    device: tuple[int, int] = (CUDA, 0),
    offset: int = 0,
    lanes: int = 1,
) -> Tensor:
    sizes = (c.c_int64 * len(shape))(*shape)
    steps = None if strides is None else (c.c_int64 * len(shape))(*strides)
    code, bits = DTYPES[dtype]
    t = Tensor(data, *device, len(shape), code, bits, lanes, sizes, steps, offset)
    t.keep = (sizes, steps)  # type: ignore[attr-defined]
    return t


def arguments(values: Iterable[Any]) -> tuple[Any, int]:
    """``dsak_arg[]`` from tensors, numbers, words and None."""
    values = list(values)
    args = (Arg * max(1, len(values)))()
    for a, v in zip(args, values, strict=False):
        if isinstance(v, Tensor):
            a.kind, a.value.tensor = 1, c.pointer(v)
        elif isinstance(v, int):
            a.kind, a.value.i = 2, v
        elif isinstance(v, float):
            a.kind, a.value.f = 3, v
        elif isinstance(v, str):
            a.kind, a.value.choice = 4, v.encode()
    args.keep = values  # type: ignore[attr-defined]
    return args, len(values)


def check(call: Any, *args: Any) -> None:
    """Call with an error struct at the end; raise ``DsakError`` on failure."""
    error = Error(c.sizeof(Error), 0, b"")
    status = call(*args, c.byref(error))
    if status:
        assert status == error.code
        raise DsakError(STATUS[status], error.message.decode())


class Runtime:
    def __init__(self, packs: Iterable[Path], cuda: Path | None = None, hip: Path | None = None) -> None:
        names = [str(p).encode() for p in packs]
        missing = "/nowhere/libdriver.so"
        options = Options(
            c.sizeof(Options), (c.c_char_p * max(1, len(names)))(*names), len(names),
            str(cuda or missing).encode(), str(hip or missing).encode(),
        )  # fmt: skip
        self.handle = c.c_void_p()
        check(library().dsak_open, c.byref(options), c.byref(self.handle))

    def close(self) -> None:
        library().dsak_close(self.handle)
        self.handle = c.c_void_p()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def op(self, name: str) -> Op:
        op = c.c_void_p()
        check(library().dsak_find, self.handle, name.encode(), c.byref(op))
        return Op(op)

    def preload(self, op: Op | None = None, device: tuple[int, int] = (CUDA, 0)) -> None:
        check(library().dsak_preload, self.handle, op.handle if op else None, *device)

    def info(self) -> dict[str, Any]:
        text = library().dsak_info(self.handle)
        value = json.loads(c.cast(text, c.c_char_p).value.decode())  # type: ignore[union-attr]
        library().dsak_free(c.c_void_p(text))
        return value  # type: ignore[no-any-return]


class Op:
    def __init__(self, handle: c.c_void_p) -> None:
        self.handle = handle

    def launch(self, *values: Any, workspace: int = 0, stream: int = 0) -> None:
        args, n = arguments(values)
        check(library().dsak_launch, self.handle, args, c.c_size_t(n), c.c_void_p(workspace), c.c_void_p(stream))

    def workspace(self, *values: Any) -> int:
        args, n = arguments(values)
        size = c.c_size_t()
        check(library().dsak_workspace, self.handle, args, c.c_size_t(n), c.byref(size))
        return size.value

    def infer(self, *values: Any, room: int = 4) -> list[tuple[int, list[int], tuple[int, int]]]:
        args, n = arguments(values)
        outputs = (Output * max(1, room))()
        for o in outputs:
            o.struct_size = c.sizeof(Output)
        count = c.c_size_t(room)
        check(library().dsak_infer, self.handle, args, c.c_size_t(n), outputs, c.byref(count))
        return [(o.param, list(o.shape[: o.ndim]), (o.code, o.bits)) for o in outputs[: count.value]]

    def explain(self, *values: Any, target: str | None = None) -> str:
        args, n = arguments(values)
        text = c.c_void_p()
        check(library().dsak_explain, self.handle, target.encode() if target else None, args, c.c_size_t(n), c.byref(text))
        value = c.cast(text, c.c_char_p).value.decode()  # type: ignore[union-attr]
        library().dsak_free(text)
        return value  # type: ignore[no-any-return]

    def signature(self) -> list[dict[str, Any]]:
        return json.loads(library().dsak_signature(self.handle))  # type: ignore[no-any-return]


def verify(pack: Path) -> None:
    check(library().dsak_verify, str(pack).encode())


# Packs.


def elf(target: str, kernels: Mapping[str, int]) -> bytes:
    """An ELF header for ``target``, then the text by which the stand-ins know each kernel's number of arguments."""
    t = TARGETS[target]
    header = bytearray(64)
    header[:9] = b"\x7fELF\x02\x01\x01\x00" + bytes([t.elf_abi])
    header[18:20] = t.elf_machine.to_bytes(2, "little")
    header[48:52] = t.elf_flags.to_bytes(4, "little")
    return bytes(header) + "".join(f"{k} {n}\n" for k, n in kernels.items()).encode() + b"\0"


def tensor_param(name: str, dtypes: str, shape: str, **more: Any) -> dict[str, Any]:
    dims = shape.split()
    return {
        "kind": "tensor", "name": name, "dtypes": dtypes.split("|"), "shape": [d.removeprefix(">=") for d in dims],
        "at_least": [d.startswith(">=") for d in dims], "optional": False, "output": False, "layout": "rows", "align": 16,
        "doc": name, **more,
    }  # fmt: skip


def scalar_param(name: str, dtype: str, default: str | None = None, choices: Sequence[str] = ()) -> dict[str, Any]:
    return {"kind": "scalar", "name": name, "dtype": dtype, "default": default, "choices": list(choices), "doc": name}


def ptr(name: str, value: str | None = None, offset: str = "0") -> dict[str, str]:
    return {"name": name, "type": "ptr", "value": value or name, "offset": offset}


def scalar(name: str, type: str, value: str | None = None) -> dict[str, str]:
    return {"name": name, "type": type, "value": value or name}


def launch(symbol: str, args: Sequence[dict[str, str]], grid: Sequence[str] = ("1", "1", "1"), **more: Any) -> dict[str, Any]:
    """A launch and its kernel, which ``op`` puts into a list of its own."""
    usual = {"block": [128, 1, 1], "shared": 0, "dependent": False, "cluster": [1, 1, 1]}
    return {"symbol": symbol, "grid": list(grid), "args": list(args)} | usual | more


def op(
    name: str, params: Sequence[dict[str, Any]], candidates: Sequence[dict[str, Any]], rules: Sequence[dict[str, str]] = ()
) -> dict[str, Any]:
    words = [d for p in params if p["kind"] == "tensor" and not p["output"] for d in p["shape"] if d.isidentifier()]
    args: list[Any] = []
    kernels: list[Any] = []

    def number(entry: Any, entries: list[Any]) -> int:
        if entry not in entries:
            entries.append(entry)
        return entries.index(entry)

    def numbered(x: dict[str, Any]) -> dict[str, Any]:
        kernel = {**{key: x[key] for key in ("symbol", "block", "shared", "dependent")}, "args": number(x["args"], args)}
        return {"kernel": number(kernel, kernels), "grid": x["grid"], "cluster": x["cluster"]}

    return {
        "name": name, "doc": f"what {name} does", "params": list(params), "symbols": list(dict.fromkeys(words)),
        "rules": list(rules), "candidates": [c | {"launches": [numbered(x) for x in c["launches"]]} for c in candidates],
        "args": args, "kernels": kernels,
    }  # fmt: skip


def candidate(name: str, when: str, *launches: dict[str, Any], workspace: str = "0") -> dict[str, Any]:
    return {"name": name, "when": when, "workspace": workspace, "launches": list(launches)}


def write_pack(folder: Path, target: str, ops: Sequence[dict[str, Any]]) -> Path:
    """A pack of ``ops`` at ``folder``, with a made-up object for each kernel."""
    t = TARGETS[target]
    ops = json.loads(json.dumps(ops))
    objects: dict[str, dict[str, Any]] = {}
    (folder / "objects").mkdir(parents=True)
    for o in ops:
        for k in o["kernels"]:
            image = elf(target, {k["symbol"]: len(o["args"][k["args"]])})
            digest = hashlib.sha256(image).hexdigest()
            file = f"objects/{digest}.{t.suffix}"
            (folder / file).write_bytes(image)
            k["object"] = digest
            objects[digest] = {
                "file": file, "size": len(image), "kernel": f"{o['name']}/{k['symbol']}", "tools": {},
                "resources": {k["symbol"]: {"registers": 40, "spill_bytes": 0, "stack_bytes": 0, "static_shared": 0}},
            }  # fmt: skip
    keys = [f.name for f in dataclasses.fields(t) if f.name not in ("fp8_max", "suffix")]
    manifest = {
        "schema_version": "1.0",
        "package": {"name": "dsa-kernels", "version": "0.1.0", "licence": "Apache-2.0", "source_sha256": "0" * 64},
        "target": {k: getattr(t, k) for k in keys},
        "toolchain": {"triton": "3.9.0"},
        "objects": objects,
        "ops": ops,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1))
    return folder


def edit_manifest(pack: Path, edit: Any) -> None:
    """Change a pack's manifest in place by ``edit(manifest)``."""
    path = pack / "manifest.json"
    manifest = json.loads(path.read_text())
    edit(manifest)
    path.write_text(json.dumps(manifest))
