"""CUDA C++ to cubins: NVRTC 12.9 for PTX, ptxas 12.9 for the object. Both come from PyPI; no toolkit, no driver, no host compiler.

Sources are given to NVRTC as text under their names relative to the op's folder, so that objects do not depend on where the
tree lies. ``compile_source`` serves every front end that ends in CUDA C++ (TileLang does).
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aot.compilers import ptxas
from aot.compilers.base import CodeObject, CompileError, Unit

STANDARD = ("-std=c++17", "-default-device")
HOST_HEADERS = {
    "stdlib.h": "",
    "stdint.h": "#pragma once\n#include <cuda/std/cstdint>\n"
    + "".join(f"using cuda::std::{s}int{n}_t;\n" for s in ("", "u") for n in (8, 16, 32, 64))
    + "using cuda::std::intptr_t;\nusing cuda::std::uintptr_t;\n",
}
"""Headers of the host's C library that CUDA's own headers (``cuda.h``) include; NVRTC has none."""
OPTIONS = {"threads", "shared", "fast_math", "maxrregcount"}
"""Kernel options that this compiler knows."""


@dataclass(frozen=True)
class Compiled:
    """What a CUDA source became. ``log`` holds NVRTC's warnings and ptxas' resource lines."""

    cubin: bytes
    ptx: str
    log: str
    command: str


@functools.cache
def _library() -> ctypes.CDLL:
    folder = ptxas.nvidia_wheel("cuda_nvrtc") / "lib"
    # NVRTC opens its builtins by bare name; loading them first makes that name resolve to the ones beside it
    ctypes.CDLL(str(folder / "libnvrtc-builtins.so.12.9"))
    library = ctypes.CDLL(str(folder / "libnvrtc.so.12"))
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return library


def _check(code: int) -> None:
    if code:
        raise CompileError("nvrtc", f"NVRTC failed: {_library().nvrtcGetErrorString(code).decode()}")


@functools.cache
def nvrtc_version() -> str:
    """Release of the NVRTC in use, such as 12.9."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(_library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return f"{major.value}.{minor.value}"


def headers() -> list[Path]:
    """Include folders of CUDA and of its C++ core libraries (``cuda/std``, CUB, Thrust)."""
    return [ptxas.nvidia_wheel(p) / "include" for p in ("cuda_runtime", "cuda_cccl", "cuda_nvcc")]


def _text(get_size: str, get: str, program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    _check(getattr(_library(), get_size)(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(getattr(_library(), get)(program, buffer))
    return buffer.value.decode()


def to_ptx(text: str, name: str, options: Sequence[str]) -> tuple[str, str]:
    """PTX of ``text`` and NVRTC's log. ``name`` is what messages call the source."""
    command = " ".join(("nvrtc", *options, name))
    program = ctypes.c_void_p()
    strings = ctypes.c_char_p * len(HOST_HEADERS)
    names, texts = (strings(*(s.encode() for s in part)) for part in (HOST_HEADERS, HOST_HEADERS.values()))
    _check(_library().nvrtcCreateProgram(ctypes.byref(program), text.encode(), name.encode(), len(HOST_HEADERS), texts, names))
    try:
        argv = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
        code = _library().nvrtcCompileProgram(program, len(options), argv)
        log = _text("nvrtcGetProgramLogSize", "nvrtcGetProgramLog", program)
        if code:
            raise CompileError(command, log or _library().nvrtcGetErrorString(code).decode(), {Path(name).name: text})
        return _text("nvrtcGetPTXSize", "nvrtcGetPTX", program), log
    finally:
        _library().nvrtcDestroyProgram(ctypes.byref(program))


def compile_source(
    text: str,
    name: str,
    arch: str,
    *,
    include: Iterable[Path] = (),
    defines: Mapping[str, object] | None = None,
    options: Iterable[str] = (),
    ptxas_options: Iterable[str] = (),
) -> Compiled:
    """Compile CUDA C++ for ``arch`` (``sm_90a``).

    ``name`` must be relative: it is what ``__FILE__`` and messages say. ``include`` comes before CUDA's own headers, ``defines``
    become macros (booleans as 0 and 1), ``options`` go to NVRTC and ``ptxas_options`` to ptxas as they are. Raises
    ``CompileError`` with the tool's own message, also when ptxas had to serialise wgmma instructions.
    """
    if Path(name).is_absolute():
        raise ValueError(f"found the absolute source name {name}; wanted a relative one, it becomes part of the object")
    macros = [f"-D{k}={int(v) if isinstance(v, bool) else v}" for k, v in sorted((defines or {}).items())]
    folders = [f"-I{p}" for p in (*include, *headers())]
    argv = [f"-arch={arch.replace('sm_', 'compute_')}", *STANDARD, *options, *macros, *folders]
    command = " ".join(("nvrtc", *argv, name))
    ptx, said = to_ptx(text, name, argv)
    try:
        cubin, log = ptxas.assemble(ptx, arch, ptxas_options)
    except CompileError as e:
        raise CompileError(f"{command} && {e.command}", e.log, {Path(name).name: text, **e.intermediates}) from None
    return Compiled(cubin, ptx, said + log, command)


def build(unit: Unit) -> CodeObject:
    """Compile one CUDA kernel; constants are macros, and so are DSAK_THREADS and DSAK_SHARED, what a launch will give it.

    A source asserts that they are what it was written for. Raises ``CompileError``.
    """
    kernel = unit.kernel
    text = (unit.folder / kernel.source).read_text()
    if unknown := set(kernel.options) - OPTIONS:
        raise CompileError("nvrtc", f"found the options {sorted(unknown)}; wanted some of {sorted(OPTIONS)}")
    options = ["--use_fast_math"] if kernel.options.get("fast_math") else []
    if registers := kernel.options.get("maxrregcount"):
        options.append(f"--maxrregcount={registers}")
    launch = {"DSAK_THREADS": kernel.options["threads"], "DSAK_SHARED": kernel.options.get("shared", 0)}
    done = compile_source(
        text,
        kernel.source,
        unit.target.arch,
        include=(unit.folder, unit.include),
        defines={**kernel.constants, **launch},
        options=options,
    )
    intermediates = {kernel.source: text, "kernel.ptx": done.ptx, "kernel.log": done.log}
    found = ptxas.entries(done.ptx)
    if set(found) != {kernel.entry}:
        raise CompileError(done.command, f'found the entries {sorted(found)}; wanted one, extern "C" {kernel.entry}', intermediates)
    return CodeObject(
        image=done.cubin,
        symbol=kernel.entry,
        block=(int(kernel.options["threads"]), 1, 1),
        shared=int(kernel.options.get("shared", 0)),
        params=ptxas.params(done.ptx, kernel.entry, kernel.args),
        dependent="griddepcontrol.wait" in done.ptx,
        intermediates=intermediates,
        tools={"nvrtc": nvrtc_version(), "ptxas": ptxas.tool()[1]},
    )
