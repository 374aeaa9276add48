"""Runs the TileLang kernel of AMD's matrix cores on the CPU: the HIP source that TileLang makes for a target, the model of the
instructions that a wave executes at once, and the threads of a block in turns.
"""

import ctypes
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from aot.compilers import tilelang
from aot.compilers.base import Unit
from aot.registry import KERNELS
from aot.spec import Kernel
from aot.targets import Target

TYPES = {"i32": ("int", ctypes.c_int), "i64": ("int64_t", ctypes.c_int64), "f32": ("float", ctypes.c_float)}


def compile_kernel(kernel: Kernel, target: Target, op: str, dtypes: dict[str, str], folder: Path) -> Any:
    """A function (blocks, backwards, arguments by name) that runs ``kernel`` with numpy arrays and numbers."""
    made = Kernel(**{**vars(kernel), "constants": {**kernel.constants, "MODEL": True}})
    lowered = tilelang.lower(Unit(op, made, target, KERNELS / op, KERNELS / "include", dtypes))
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

    def run(blocks: int, backwards: bool, values: dict[str, Any]) -> None:
        given: list[Any] = []
        for name, kind in lowered.params:
            value = values[name]
            if kind == "ptr":
                given.append(ctypes.c_void_p(value.ctypes.data if isinstance(value, np.ndarray) else None))
            else:
                given.append(TYPES[kind][1](value))
        assert launch(blocks, int(backwards), *given) == 0, "the threads of a block met at different barriers"

    return run
