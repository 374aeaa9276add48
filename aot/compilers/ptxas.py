"""PTX to cubin with the CUDA 12.9 assembler from PyPI, and what PTX says of an entry's parameters.

Assembled in a temporary folder under fixed relative names, so nothing of the machine gets into the object.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from aot.compilers.base import CompileError
from aot.spec import Arg

SERIALIZED = re.compile(r".*\(C75\d\d\).*")
"""ptxas' remark that it could not overlap wgmma instructions: a kernel that was written for them is then several times slower."""

_WORD = ("u64", "b64", "s64")
CLASSES: dict[str, tuple[str, ...]] = {
    "ptr": _WORD,
    "map": ("b8[128]",),
    "null": _WORD,
    "i64": _WORD,
    "i32": ("u32", "b32", "s32"),
    "f32": ("f32", "b32"),
}
"""PTX types under which each argument type may appear."""


def nvidia_wheel(part: str) -> Path:
    """Folder ``nvidia/<part>`` of site-packages. Raises ``LookupError`` when that wheel is not installed."""
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        if (folder := Path(root) / part).is_dir():
            return folder
    raise LookupError(f"found no nvidia/{part} in site-packages; run pip install -e '.[build]'")


@functools.cache
def tool() -> tuple[Path, str]:
    """The assembler and its version, such as 12.9.86."""
    path = nvidia_wheel("cuda_nvcc") / "bin/ptxas"
    text = subprocess.run([str(path), "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"V(\d+\.\d+\.\d+)", text)
    if not found or not found[1].startswith("12.9."):
        raise LookupError(f"found ptxas {found[1] if found else text!r} at {path}; wanted 12.9; run pip install -e '.[build]'")
    return path, found[1]


def assemble(ptx: str, arch: str, options: Iterable[str] = ()) -> tuple[bytes, str]:
    """The cubin of ``ptx`` for ``arch`` (sm_90a) and what ptxas said (registers, spills, warnings).

    Raises ``CompileError`` on an error and when wgmma instructions were serialised.
    """
    command = [str(tool()[0]), "-v", f"--gpu-name={arch}", *options, "kernel.ptx", "-o", "kernel.cubin"]
    shown = " ".join(["ptxas", *command[1:]])
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "kernel.ptx").write_text(ptx)
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env={"TMPDIR": folder, "PATH": "/usr/bin:/bin"})
        log = done.stdout + done.stderr
        if done.returncode:
            raise CompileError(shown, log, {"kernel.ptx": ptx})
        if remark := SERIALIZED.search(log):
            raise CompileError(shown, f"{remark[0]}\n{log}", {"kernel.ptx": ptx})
        return (Path(folder) / "kernel.cubin").read_bytes(), log


def entries(ptx: str) -> dict[str, list[str]]:
    """Each entry of ``ptx`` with its parameter types in order, such as ``u64``, ``f32``, ``b8[128]`` (a structure)."""
    found = {}
    for name, body in re.findall(r"\.entry\s+([\w$]+)\s*\(([^)]*)\)", ptx):
        params = re.findall(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)[^,]*?(\[\d+\])?\s*(?:,|$)", body.strip(), re.M)
        found[name] = [f"{kind}{size}" for kind, size in params]
    return found


def params(ptx: str, symbol: str, args: Sequence[Arg], trailing: int = 0) -> tuple[str, ...]:
    """The ABI of ``symbol`` in the words of the declaration: a type of ``args`` where the entry agrees with it, else what is
    there; ``trailing`` pointers at the end that the compiler added are ``null``.
    """
    found = entries(ptx)[symbol]
    declared = [a.type for a in args]
    words = [d if f in CLASSES[d] else f for d, f in zip(declared, found, strict=False)]
    rest = found[len(declared) :]
    return (*words, *("null" if i < trailing and f in CLASSES["null"] else f for i, f in enumerate(rest)))
