"""Runs the TileLang kernel of AMD's matrix cores on the CPU: the HIP source that TileLang makes for a target, the model of the
instructions that a wave executes at once, and the threads of a block in turns.
"""

import ctypes
import os
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from aot.compilers import tilelang
from aot.compilers.base import Unit
from aot.expr import parse
from aot.registry import KERNELS
from aot.spec import Kernel, Op
from aot.targets import Target

DTYPES = {
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "e4m3fn",
    torch.float8_e4m3fnuz: "e4m3fnuz",
    torch.float32: "f32",
    torch.int32: "i32",
}

TYPES = {"i32": ("int", ctypes.c_int), "i64": ("int64_t", ctypes.c_int64), "f32": ("float", ctypes.c_float)}


def compile_kernel(kernel: Kernel, target: Target, op: Op, folder: Path) -> Any:
    """A function (blocks, backwards, arguments by name) that runs ``kernel``; pointers are addresses."""
    dtypes = {a.name: op.pointer_dtype(a, target) for a in kernel.args if a.type == "ptr"}
    made = Kernel(**{**vars(kernel), "constants": {**kernel.constants, "MODEL": True}})
    lowered = tilelang.lower(Unit(op.name, made, target, KERNELS / op.name, KERNELS / "include", dtypes))
    source = re.sub(r"^#include <.*$", "", lowered.source, flags=re.M)
    pointers = re.search(rf"{lowered.symbol}\((.*?)\) {{", source)
    assert pointers
    declared = [re.sub(r"__restrict__ ", "", word).rsplit(" ", 1) for word in pointers[1].split(", ")]
    text = f'#define DSAK_FNUZ {int(target.fp8 == "e4m3fnuz")}\n#include "wave_cpu.h"\n{source}\n'
    text += "".join(f"static {kind} {name}_;\n" for kind, name in declared)
    text += f"static void body() {{ {lowered.symbol}({', '.join(f'{name}_' for _, name in declared)}); }}\n"
    text += f'extern "C" int launch(int blocks, int backwards, {", ".join(f"{kind} {name}" for kind, name in declared)}) {{\n'
    text += "".join(f"  {name}_ = {name};\n" for _, name in declared)
    block = f"run_block(b, {lowered.block[0]}, backwards, body)"
    text += f"  int wrong = 0;\n  for (int b = 0; b < blocks; ++b) wrong |= {block};\n  return wrong;\n}}\n"
    (folder / "kernel.cpp").write_text(text)
    command = [
        os.environ.get("CXX", "c++"),
        "-std=c++17",
        "-O2",
        "-fno-strict-aliasing",
        "-w",
        "-shared",
        "-fPIC",
        f"-I{Path(__file__).parent}",
    ]
    subprocess.run([*command, "-o", "kernel.so", "kernel.cpp"], cwd=folder, check=True)
    launch = ctypes.CDLL(str(folder / "kernel.so")).launch

    def run(blocks: int, backwards: bool, values: Mapping[str, float]) -> None:
        given = [ctypes.c_void_p(int(values[n])) if kind == "ptr" else TYPES[kind][1](values[n]) for n, kind in lowered.params]
        assert launch(blocks, int(backwards), *given) == 0, "the threads of a block met at different barriers"

    return run


def address(x: torch.Tensor | None, offset: int) -> int:
    return 0 if x is None else x.data_ptr() + offset


def environment(op: Op, target: Target, given: Mapping[str, Any]) -> dict[str, Any]:
    """What the expressions of a call with the tensors and scalars ``given`` read, as the runtime works it out."""
    env: dict[str, Any] = {n: v for n, v in given.items() if not isinstance(v, torch.Tensor)} | {"shared_memory": target.shared_memory}
    for name, tensor in op.tensors.items():
        x = given.get(name)
        env[f"has({name})"] = int(x is not None)
        if x is None:
            continue
        env[f"{name}.dtype"] = DTYPES[x.dtype]
        env |= {f"{name}.s{axis}": stride for axis, stride in enumerate(x.stride())}
        env |= {f"{name}.d{axis}": size for axis, size in enumerate(x.shape)}
        if not tensor.output:
            env |= {word: size for word, size in zip(tensor.dims, x.shape, strict=True) if word.isidentifier()}
    return env


def call(op: Op, target: Target, given: Mapping[str, Any], compiled: Callable[[Kernel], Any], backwards: bool = False) -> tuple[str, Any]:
    """Run the first TileLang candidate that takes the call. Returns its name and, where it has a second launch, that one's arguments:
    numbers, and for a tensor (or "workspace") the tensor and an offset in bytes.
    """
    env = environment(op, target, given)
    for c in op.candidates_for(target):
        if c.launches[0].kernel.language == "tilelang" and parse(c.when)(env):
            break
    else:
        raise LookupError(f"no TileLang candidate of {op.name} on {target.name} takes the call")
    given = {**given, "workspace": torch.full((int(parse(c.workspace)(env)),), 0xFF, dtype=torch.uint8)}
    arguments = []
    for x in c.launches:
        pointers = {a.name: (given.get(a.value), int(parse(a.offset)(env))) for a in x.kernel.args if a.type == "ptr"}
        arguments.append(pointers | {a.name: parse(a.value)(env) for a in x.kernel.args if a.type != "ptr"})
    values = {n: address(*v) if isinstance(v, tuple) else v for n, v in arguments[0].items()}
    blocks = int(parse(c.launches[0].grid[0])(env))
    compiled(c.launches[0].kernel)(blocks, backwards, values)
    return c.name, arguments[1] if len(c.launches) > 1 else None
