"""TileLang kernels of sm90 on the CPU: the emitted CUDA source, compiled by the host's C++ compiler against cuda_on_cpu.h."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from aot.compilers.tilelang import Lowered
from aot.expr import parse
from aot.spec import Launch

HEADER = Path(__file__).with_name("cuda_on_cpu.h")
FLAGS = ("-std=c++17", "-O1", "-mf16c", "-fno-strict-aliasing", "-pthread", "-w")
TSAN = ("-fsanitize=thread", "-g")
C_TYPES = {"ptr": "void*", "i32": "int", "i64": "int64_t", "f32": "float"}


@dataclass(frozen=True)
class Program:
    """A kernel as a program of the host: ``PROGRAM FOLDER BLOCKS SCALAR...``, its arrays are the files of the folder."""

    path: Path
    lowered: Lowered


def compile(lowered: Lowered, folder: Path, flags: Sequence[str] = ()) -> Program:
    """Compile what TileLang emitted; ``flags`` come after the usual ones. Raises ``CalledProcessError``."""
    text = lowered.source
    definition = text[text.rindex('extern "C" __global__') :]
    definition = definition.replace("extern __shared__ __align__(1024) uchar buf_dyn_shmem[];", "uchar* buf_dyn_shmem = shared_memory;")
    setup, call, scalars = [], [], 3
    for name, kind in lowered.params:
        if kind == "ptr":
            setup.append(f'Array {name}(folder + "/{name}");')
            call.append(f"pointer({name})")
        else:
            call.append(f"({C_TYPES[kind]})strtod(argv[{scalars}], nullptr)")
            scalars += 1
    source = folder / "kernel.cpp"
    source.write_text(
        f'#define BLOCK_THREADS {lowered.block[0]}\n#include "{HEADER}"\n'
        f"{definition.removeprefix('extern ').removeprefix(chr(34) + 'C' + chr(34))}\n"
        "struct pointer { void* p; pointer(Array& a) : p(a.data.data()) {} template <class T> operator T*() const { return (T*)p; } };\n"
        f"int main(int, char** argv) {{\n  std::string folder = argv[1];\n  {' '.join(setup)}\n"
        f"  run(atoi(argv[2]), [&] {{ {lowered.symbol}({', '.join(call)}); }});\n"
        f"  {' '.join(f'{name}.save();' for name, kind in lowered.params if kind == 'ptr')}\n}}\n"
    )
    program = folder / "kernel"
    subprocess.run(["g++", *FLAGS, *flags, str(source), "-o", str(program)], check=True)
    return Program(program, lowered)


def _bytes(tensor: torch.Tensor, offset: int) -> torch.Tensor:
    """The storage of ``tensor`` from its first element and ``offset`` bytes on."""
    whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    return whole[tensor.storage_offset() * tensor.itemsize + offset :]


def launch(program: Program, launch: Launch, call: Mapping[str, object], tensors: Mapping[str, torch.Tensor | None]) -> str:
    """Run ``launch`` on tensors of the CPU; ``call`` is what its expressions read. Returns what ThreadSanitizer says, "" if nothing.

    Raises ``RuntimeError`` when the program fails otherwise, ``TimeoutExpired`` when its threads wait for each other.
    """
    folder = program.path.parent
    files, scalars = {}, []
    for arg in launch.kernel.args:
        tensor = tensors.get(arg.value)
        if arg.type in ("ptr", "null"):
            of = torch.zeros(64, dtype=torch.uint8) if tensor is None else _bytes(tensor, int(parse(arg.offset)(call)))
            (folder / arg.name).write_bytes(of.numpy().tobytes())
            files[arg.name] = of
        else:
            scalars.append(repr(float(parse(arg.value)(call))))
    blocks = str(int(parse(str(launch.grid[0]))(call)))
    done = subprocess.run([str(program.path), str(folder), blocks, *scalars], capture_output=True, text=True, timeout=300)
    if done.returncode and "ThreadSanitizer" not in done.stderr:
        raise RuntimeError(f"exit status {done.returncode}: {done.stderr}")
    for name, of in files.items():
        after = torch.frombuffer(bytearray((folder / name).read_bytes()), dtype=torch.uint8)
        changed = after != torch.frombuffer(bytearray(of.numpy().tobytes()), dtype=torch.uint8)
        of[changed] = after[changed]
    return done.stderr
