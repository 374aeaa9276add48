"""Triton and Gluon functions to code objects, without a GPU or a driver.

``triton.compile`` takes a function, a signature and a target. What decides the result is pinned here: the signature comes from
the declaration alone (Triton's own launcher would specialise integers that happen to be 1 or a multiple of 16), the
environment's TRITON_* settings are hidden, line information (absolute paths) is off, FP fusion is on unless the declaration
says otherwise, and for NVIDIA the PTX goes to the CUDA 12.9 assembler instead of Triton's newer one, whose objects need
driver 580.

Alignment promised to the compiler: pointers to elements of one or two bytes are rows of at least 512 elements, aligned to 16 bytes;
pointers to wider elements (indices, lengths, statistics) are promised their element size only. Integers are promised their
``multiple``. Nothing is ever specialised on 1.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from types import ModuleType
from typing import Any

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.experimental.gluon._runtime import GluonASTSource

from aot.compilers import ptxas
from aot.compilers.base import CodeObject, CompileError, Unit
from aot.spec import DTYPES
from aot.targets import Target

POINTERS = {
    "bf16": "*bf16",
    "f16": "*fp16",
    "f32": "*fp32",
    "i32": "*i32",
    "i64": "*i64",
    "u8": "*u8",
    "e4m3fn": "*fp8e4nv",
    "e4m3fnuz": "*fp8e4b8",
}
SCALARS = {"i32": "i32", "i64": "i64", "f32": "fp32"}
PTX_VERSION = 88
"""The PTX version of CUDA 12.9."""
HIDDEN = re.compile(r"(TRITON|AMDGCN|MLIR|LLVM|NVPTX|PTXAS|LLIR|PROTON)_|DISABLE_(LLVM|PTXAS)_OPT|USE_IR_LOC|ALLOW_LHS_")
"""Environment variables that Triton reads."""


def gpu_target(target: Target) -> GPUTarget:
    """``target`` in Triton's words."""
    if target.vendor == "amd":
        return GPUTarget("hip", target.arch, target.wave)
    return GPUTarget("cuda", int(re.sub(r"\D", "", target.arch)), target.wave)


def load(path: Path, include: Path) -> ModuleType:
    """The module at ``path``, fresh; it may import modules beside it and in ``include``. No bytecode is written."""
    name = f"dsak:{path.parent.name}/{path.stem}"
    module = ModuleType(name)
    module.__file__ = str(path)
    before = set(sys.modules)
    folders = (path.parent, include)
    sys.path[:0] = map(str, folders)
    sys.modules[name] = module
    no_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    finally:
        sys.dont_write_bytecode = no_bytecode
        for folder in folders:
            sys.path.remove(str(folder))
        # helpers get names that no import statement reaches: another op may have one of the same file name
        for new in set(sys.modules) - before:
            file = Path(getattr(sys.modules[new], "__file__", None) or "-")
            if file.parent in folders and not new.startswith("dsak:"):
                sys.modules[f"dsak:{file.parent.name}/{new}"] = sys.modules.pop(new)
    return module


def source(unit: Unit) -> ASTSource:
    """The function of ``unit`` with its pinned signature."""
    kernel = unit.kernel
    module = load(unit.folder / kernel.source, unit.include)
    fn = getattr(module, kernel.entry, None)
    if not isinstance(fn, triton.JITFunction):
        raise CompileError(f"import {kernel.source}", f"found no @triton.jit function {kernel.entry!r} in {kernel.source}")
    args = {a.name: a for a in kernel.args}
    if list(args) != [n for n in fn.arg_names if n in args] or {*args, *kernel.constants} != {*fn.arg_names}:
        raise CompileError(
            f"import {kernel.source}",
            f"found {kernel.entry}({', '.join(fn.arg_names)}); wanted the declared arguments "
            f"({', '.join(args)}) in this order and the constants {sorted(kernel.constants)}",
        )
    signature: dict[str, str] = {}
    attrs: dict[tuple[int, ...], list[list[Any]]] = {}
    for i, name in enumerate(fn.arg_names):
        if name in kernel.constants:
            signature[name] = "constexpr"
            continue
        arg = args[name]
        dtype = unit.dtypes.get(name, "u8")
        signature[name] = SCALARS.get(arg.type) or POINTERS[dtype]
        multiple = arg.multiple if arg.type in SCALARS else 16 if DTYPES[dtype] <= 2 else DTYPES[dtype]
        if multiple > 1:
            attrs[(i,)] = [["tt.divisibility", multiple]]
    of = GluonASTSource if fn.is_gluon() else ASTSource
    return of(fn, signature, dict(kernel.constants), attrs)


@contextlib.contextmanager
def pinned(target: Target, options: MutableMapping[str, Any], log: list[str]) -> Iterator[None]:
    """Triton under our settings alone, with a cache that goes away; for NVIDIA, ptxas' words go to ``log``."""

    def stages(backend: Any = None, table: Any = None, chosen: Any = None, *_: Any) -> tuple[str, str] | None:
        if backend is None:
            return "dsak", "dsak"
        if target.vendor == "nvidia":

            def cubin(ptx: str, metadata: Mapping[str, Any]) -> bytes:
                image, said = ptxas.assemble(ptx, target.arch, () if chosen.enable_fp_fusion else ("--fmad=false",))
                log.append(said)
                return image

            table["cubin"] = cubin
        return None

    hidden = {k: os.environ.pop(k) for k in list(os.environ) if HIDDEN.match(k)}
    if target.vendor == "nvidia":
        options["ptx_version"] = PTX_VERSION
    try:
        with (
            tempfile.TemporaryDirectory() as cache,
            knobs.cache.scope(),
            knobs.compilation.scope(),
            knobs.runtime.scope(),
        ):
            knobs.cache.dir = cache
            knobs.compilation.disable_line_info = True
            knobs.runtime.add_stages_inspection_hook = stages
            yield
    finally:
        os.environ.update(hidden)


def amd_params(assembly: str, unit: Unit) -> tuple[str, ...]:
    """The ABI in the metadata of AMD assembler text, in the words of the declaration.

    Hidden arguments do not count: the driver fills them in.
    """
    words = []
    declared = [a.type for a in unit.kernel.args]
    block = re.search(r"\.args:\n(.*?)\n    \.[a-z]", assembly, re.S)
    fields = re.findall(r"- (.*?)(?=\n      - |\Z)", block[1], re.S) if block else []
    for i, text in enumerate(fields):
        kind, size = re.findall(r"\.value_kind:\s*(\w+)", text)[0], int(re.findall(r"\.size:\s*(\d+)", text)[0])
        if kind.startswith("hidden_"):
            continue
        d = declared[i] if i < len(declared) else "null"
        pointer = d in ("ptr", "null")
        agrees = kind == ("global_buffer" if pointer else "by_value") and size == (4 if d in ("i32", "f32") else 8)
        words.append(d if agrees else f"{kind}[{size}]")
    return tuple(words)


def build(unit: Unit) -> CodeObject:
    """Compile one Triton function. Raises ``CompileError`` with Triton's or ptxas' own message."""
    target, kernel = unit.target, unit.kernel
    options: dict[str, Any] = {"enable_fp_fusion": True, **kernel.options}
    log: list[str] = []
    command = f"triton.compile({kernel.name}, {target.arch})"
    with pinned(target, options, log):
        known = {*vars(make_backend(gpu_target(target)).parse_options(dict(options)))}
        if unknown := set(kernel.options) - known:
            raise CompileError(command, f"found the options {sorted(unknown)}; {target.vendor} has {sorted(known)}")
        try:
            done = triton.compile(source(unit), target=gpu_target(target), options=options)
        except CompileError:
            raise
        except Exception as e:  # the front end raises many kinds; its message names the source line
            raise CompileError(command, f"{type(e).__name__}: {e}") from e
        meta, asm = done.metadata, dict(done.asm)
    text = asm["ptx" if target.vendor == "nvidia" else "amdgcn"]
    intermediates = {f"{kernel.entry}.{k}": v for k, v in asm.items() if isinstance(v, str)} | {"ptxas.log": "".join(log)}
    scratch = {k: getattr(meta, k) or 0 for k in ("global_scratch_size", "profile_scratch_size")}
    if any(scratch.values()):
        raise CompileError(command, f"found {scratch}; wanted none: launches give kernels no scratch memory", intermediates)
    if getattr(meta, "tensordesc_meta", None):
        raise CompileError(command, f"found tensor descriptors {meta.tensordesc_meta}; wanted plain pointers", intermediates)
    trailing = 2  # global and profile scratch
    if target.vendor == "nvidia":
        params = ptxas.params(text, meta.name, kernel.args, trailing)
        tools = {"triton": triton.__version__, "ptxas": ptxas.tool()[1]}
    else:
        params = amd_params(text, unit)
        tools = {"triton": triton.__version__}
    return CodeObject(
        image=asm[target.suffix],
        symbol=meta.name,
        block=(target.wave * meta.num_warps, 1, 1),
        shared=meta.shared,
        params=params,
        intermediates=intermediates,
        tools=tools,
    )
