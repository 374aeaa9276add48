"""TileLang functions to code objects: TileLang lowers to CUDA or HIP source, our own compilers make the object.

No GPU is needed for the lowering. TileLang's own compile step embeds a temporary path and line information; its source does
not, so that source is compiled here under a fixed relative name, by NVRTC and ptxas 12.9 or by Clang.

``entry`` names a factory in the kernel's source: called with the constants it returns a ``prim_func``. Its attribute
``pass_configs`` (a dictionary, optional) holds TileLang pass settings. TileLang puts the parameters of the lowered kernel in its
own order, pointers by name and then scalars by name; the declared arguments must stand in that order, and say so when they do not.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aot.compilers import cuda, hip, ptxas
from aot.compilers.base import CodeObject, CompileError, Unit
from aot.registry import load
from aot.targets import Target

DTYPES = {
    "bf16": "bfloat16",
    "f16": "float16",
    "f32": "float32",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
    "e4m3fn": "float8_e4m3fn",
    "e4m3fnuz": "float8_e4m3fnuz",
}
"""TileLang's names of our element types."""
SCALARS = {"int32": "i32", "int64": "i64", "float32": "f32", "handle": "ptr"}
OPTIONS = {"fast_math", "waves_per_eu"}
"""Kernel options that this compiler knows."""
CUDA_OPTIONS = ("-diag-suppress=20012",)
"""TileLang's headers annotate defaulted functions; NVRTC remarks on each."""
HIP_OPTIONS = ("-fno-strict-aliasing",)
"""TileLang's source reads arrays through wider types than it wrote them through."""
CUDA_PRELUDE = "#include <tl_templates/cuda/nvrtc_std.h>\n"
"""What TileLang's headers need when NVRTC reads them."""


@dataclass(frozen=True)
class Lowered:
    """A kernel as TileLang left it."""

    source: str
    symbol: str
    block: tuple[int, int, int]
    shared: int
    params: tuple[tuple[str, str], ...]
    log: str


@functools.cache
def package() -> Any:
    """The ``tilelang`` package, imported with its settings at their defaults and its cache in a folder that goes away."""
    kept = {k: os.environ.pop(k) for k in list(os.environ) if k.startswith(("TILELANG_", "TVM_"))}
    try:
        with tempfile.TemporaryDirectory() as cache:
            os.environ["TILELANG_CACHE_DIR"] = cache
            import tilelang

            return tilelang
    finally:
        del os.environ["TILELANG_CACHE_DIR"]
        os.environ.update(kept)


def headers() -> tuple[Path, Path]:
    """TileLang's templates and the CUTLASS that the wheel carries."""
    root = Path(package().__file__).parent
    return root / "src", root / "3rdparty/cutlass/include"


@contextlib.contextmanager
def captured(log: list[str]) -> Iterator[None]:
    """Gather what TileLang's C++ half prints on standard error."""
    sys.stderr.flush()
    before = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(before, 2)
            os.close(before)
            file.seek(0)
            log.append(file.read().decode(errors="replace"))


def tvm_target(target: Target) -> dict[str, object]:
    """``target`` in TileLang's words."""
    if target.vendor == "nvidia":
        return {"kind": "cuda", "arch": target.arch}
    return {"kind": "hip", "mcpu": target.arch, "mtriple": "amdgcn-amd-amdhsa-hcc", "max_num_threads": 256}


def check_dtypes(unit: Unit, function: Any) -> None:
    """Refuse a tensor of another element type than declared, and an FP8 flavour that the target does not have.

    TileLang picks the FP8 flavour on AMD from the architecture and ignores the name: a kernel written for the other one would
    compile and compute with wrong values.
    """
    tirx = package().tvm.tirx

    def refuse(what: str) -> CompileError:
        return CompileError(f"{unit.kernel.entry}({dict(unit.kernel.constants)})", what)

    buffers = {b.name: str(b.dtype) for b in function.buffer_map.values()}
    scratch = {a.name for a in unit.kernel.args if a.value == "workspace"}  # bytes that a kernel divides as it likes
    for name, found in buffers.items():
        if name in unit.dtypes.keys() - scratch and found != (wanted := DTYPES[unit.dtypes[name]]):
            raise refuse(f"found {name} of {found}; wanted {wanted}, the declared element type on {unit.target.name}")

    def visit(node: Any) -> None:
        if isinstance(node, tirx.SBlock):
            buffers.update({b.name: str(b.dtype) for b in node.alloc_buffers})

    tirx.stmt_functor.post_order_visit(function.body, visit)
    other = {"e4m3fn": "e4m3fnuz", "e4m3fnuz": "e4m3fn"}[unit.target.fp8]
    if wrong := sorted(n for n, d in buffers.items() if d == DTYPES[other]):
        raise refuse(f"found {', '.join(wrong)} of {DTYPES[other]}; wanted {DTYPES[unit.target.fp8]}, the flavour of {unit.target.name}")


def lower(unit: Unit) -> Lowered:
    """Lower one kernel to source for its target. Raises ``CompileError`` with TileLang's own message."""
    kernel, log = unit.kernel, list[str]()
    command = f"tilelang.lower({kernel.name}, {unit.target.arch})"
    tilelang = package()
    factory = getattr(load(unit.folder / kernel.source), kernel.entry, None)
    if not callable(factory):
        raise CompileError(f"import {kernel.source}", f"found no factory {kernel.entry!r} in {kernel.source}")
    try:
        with captured(log):
            target = tilelang.tvm.target.Target(tvm_target(unit.target))
            function = factory(**kernel.constants)
            check_dtypes(unit, function)
            with target, tilelang.transform.PassContext(config=dict(getattr(factory, "pass_configs", {}))):
                done = tilelang.lower(function, target=target)
    except CompileError:
        raise
    except Exception as e:  # TVM raises many kinds; the last line is the cause
        raise CompileError(command, f"{''.join(log)}{type(e).__name__}: {e}") from e
    functions = list(done.device_mod.functions.values())
    if len(functions) != 1:
        raise CompileError(command, f"found {len(functions)} kernels; wanted one", {"kernel.txt": done.kernel_source})
    attrs = functions[0].attrs
    extent = {str(k): v for k, v in attrs["thread_extent"].items()}
    return Lowered(
        source=done.kernel_source,
        symbol=str(attrs["global_symbol"]),
        block=(int(extent["threadIdx.x"]), int(extent["threadIdx.y"]), int(extent["threadIdx.z"])),
        shared=int(attrs["dyn_shared_memory_buf"]) if "dyn_shared_memory_buf" in attrs else 0,
        params=tuple((str(p.name), SCALARS.get(str(p.dtype), str(p.dtype))) for p in functions[0].params),
        log="".join(log),
    )


def check_lowered(unit: Unit, lowered: Lowered, kept: dict[str, str]) -> None:
    """The declared arguments must be the lowered kernel's parameters, in order and all of them plain, and the source must be one
    that every run gives: TileLang sorts shared buffers by name, and the scratch buffers of reductions across waves share theirs.
    """
    command = f"tilelang.lower({unit.kernel.name}, {unit.target.arch})"
    reductions = re.findall(r"AllReduce<[\w:]+, (\d+),.*?(workspace\w*)\)", lowered.source)
    if len(scratch := {name for threads, name in reductions if int(threads) > unit.target.wave}) > 1:
        raise CompileError(
            command, f"found {len(scratch)} scratch buffers of reductions; wanted at most one: their order changes from run to run", kept
        )
    if "CUtensorMap" in lowered.source:
        raise CompileError(command, "found a tensor map among the parameters; wanted plain pointers (avoid TMA copies)", kept)
    declared = tuple((a.name, "ptr" if a.type == "null" else a.type) for a in unit.kernel.args)
    if declared != lowered.params:

        def show(params: tuple[tuple[str, str], ...]) -> str:
            return ", ".join(f"{kind} {name}" for name, kind in params)

        raise CompileError(command, f"found the arguments ({show(declared)}); wanted, in TileLang's order, ({show(lowered.params)})", kept)


def build(unit: Unit) -> CodeObject:
    """Compile one TileLang function. Raises ``CompileError`` with TileLang's or the later compiler's own message."""
    kernel, target = unit.kernel, unit.target
    if unknown := set(kernel.options) - OPTIONS:
        raise CompileError("tilelang", f"found the options {sorted(unknown)}; wanted some of {sorted(OPTIONS)}")
    fast = bool(kernel.options.get("fast_math"))
    lowered = lower(unit)
    name = Path(kernel.source).stem
    if target.vendor == "nvidia":
        name, text = f"{name}.cu", CUDA_PRELUDE + lowered.source
        kept = {name: text, "tilelang.log": lowered.log}
        check_lowered(unit, lowered, kept)
        done = cuda.compile_source(
            text,
            name,
            target.arch,
            include=headers(),
            defines={"ENABLE_BF16": True},
            options=(*CUDA_OPTIONS, *(("--use_fast_math",) if fast else ())),
        )
        kept |= {"kernel.ptx": done.ptx, "kernel.log": done.log}
        image = done.cubin
        params = ptxas.params(done.ptx, lowered.symbol, kernel.args)
        tools = {"nvrtc": cuda.nvrtc_version(), "ptxas": ptxas.tool()[1]}
    else:
        name, text = f"{name}.hip", lowered.source
        kept = {name: text, "tilelang.log": lowered.log}
        check_lowered(unit, lowered, kept)
        made = hip.compile_source(
            text,
            name,
            target,
            include=headers()[:1],
            headers=unit.include / "hip",
            defines={"DSAK_WAVES_PER_EU": waves} if (waves := int(kernel.options.get("waves_per_eu", 0))) else {},
            options=(*HIP_OPTIONS, *(hip.FAST_MATH if fast else ())),
        )
        kept["kernel.s"] = made.assembly
        image = made.image
        params = hip.params(hip.entries(image)[lowered.symbol], kernel.args)
        tools = hip.tools()
    return CodeObject(
        image=image,
        symbol=lowered.symbol,
        block=lowered.block,
        shared=lowered.shared,
        params=params,
        intermediates=kept,
        tools={"tilelang": package().__version__, **tools},
    )
