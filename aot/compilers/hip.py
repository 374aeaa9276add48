"""HIP C++ to AMD code objects with Clang and LLD from the ``ziglang`` wheel: no ROCm, no driver, no device libraries.

Device code is compiled against ``kernels/include/hip``, a small set of headers on compiler builtins, to assembler text (which the
lints read), then assembled and linked into a shared object of code object version 5. Everything happens in a temporary folder
under fixed relative names, so nothing of the machine gets into the object. ``compile_source`` serves every front end that ends
in HIP (TileLang does).

Set ``DSA_KERNELS_HIPCC`` to the path of ``hipcc`` to compile with ROCm's own compiler, headers and device libraries instead.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from aot.compilers.base import CodeObject, CompileError, Unit
from aot.spec import Arg
from aot.targets import Target

LANGUAGE = ("-std=c++17", "-O3", "-mcode-object-version=5")
BARE = ("-nogpuinc", "-nogpulib", "-nostdinc", "-ffreestanding", "-fuse-cuid=none")
"""Without these Clang looks for ROCm, and puts a hash of its working folder into the object."""
FAST_MATH = ("-fapprox-func", "-freciprocal-math", "-fgpu-flush-denormals-to-zero")
"""Not -ffast-math: kernels count on infinities."""
OPTIONS = {"threads", "shared", "fast_math"}
"""Kernel options that this compiler knows."""
ENVIRONMENT = "DSA_KERNELS_HIPCC"


class Compiled(NamedTuple):
    """What a HIP source became."""

    image: bytes
    assembly: str
    command: str


@functools.cache
def zig() -> Path:
    """The binary of the ``ziglang`` wheel, which is Clang and LLD. Raises ``LookupError`` when the wheel is not installed."""
    spec = importlib.util.find_spec("ziglang")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (path := Path(folder) / "zig").is_file():
            return path
    raise LookupError("found no ziglang, whose Clang compiles HIP; run pip install -e '.[build]'")


@functools.cache
def clang_version() -> str:
    """Version of the Clang in use, such as 22.1.0."""
    text = subprocess.run([str(zig()), "clang", "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"clang version (\S+)", text)
    return found[1] if found else "unknown"


def tools() -> dict[str, str]:
    """Name and version of the compiler in use."""
    if hipcc := os.environ.get(ENVIRONMENT):
        text = subprocess.run([hipcc, "--version"], capture_output=True, text=True, check=False).stdout
        found = re.search(r"HIP version: (\S+)", text)
        return {"hipcc": found[1] if found else "unknown"}
    return {"clang": clang_version()}


def _run(command: Sequence[str], folder: str, kept: dict[str, str]) -> str:
    """Run a tool in ``folder``; its message becomes a ``CompileError`` when it fails. Returns what it said."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env={**os.environ, "ZIG_GLOBAL_CACHE_DIR": folder})
    except OSError as e:
        raise CompileError(" ".join(command), f"{command[0]} does not start: {e}", kept) from None
    if done.returncode:
        raise CompileError(" ".join(command), done.stdout + done.stderr, kept)
    return done.stdout + done.stderr


def compile_source(
    text: str,
    name: str,
    target: Target,
    *,
    include: Iterable[Path] = (),
    headers: Path | None = None,
    defines: Mapping[str, object] | None = None,
    options: Iterable[str] = (),
    hipcc: str | None = None,
) -> Compiled:
    """Compile HIP C++ for ``target``.

    ``name`` must be a plain file name: it is what ``__FILE__`` and messages say. ``headers`` is the folder of our own HIP headers
    (``kernels/include/hip``), searched before ``include``; ``hipcc`` (default: the environment) brings its own and needs none.
    ``defines`` become macros (booleans as 0 and 1). Raises ``CompileError`` with Clang's own message.
    """
    if target.vendor != "amd":
        raise CompileError("clang", f"found the target {target.name} ({target.vendor}); wanted an AMD one, such as gfx950", {name: text})
    if Path(name).name != name:
        raise ValueError(f"found the source name {name}; wanted a plain file name, it becomes part of the object")
    hipcc = hipcc or os.environ.get(ENVIRONMENT)
    macros = [f"-D{k}={int(v) if isinstance(v, bool) else v}" for k, v in sorted((defines or {}).items())]
    folders = [*([headers] if headers and not hipcc else []), *include]
    flags = [*LANGUAGE, *options, *macros, *(f"-I{p}" for p in folders)]
    source = ["-x", "hip", name]
    kept = {name: text}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / name).write_text(text)
        if hipcc:
            front = [hipcc, "--offload-device-only", "--no-gpu-bundle-output", f"--offload-arch={target.arch}", *flags]
            _run([*front, "-S", "-o", "kernel.s", *source], folder, kept)
            _run([*front, "-o", "kernel.hsaco", *source], folder, kept)
        else:
            clang = [str(zig()), "clang"]
            builtin = str(zig().parent / "lib/include")
            front = [*clang, "--cuda-device-only", f"--offload-arch={target.arch}", *BARE, *flags, "-isystem", builtin]
            _run([*front, "-S", "-o", "kernel.s", *source], folder, kept)
            kept["kernel.s"] = (Path(folder) / "kernel.s").read_text()
            assembler = ["--target=amdgcn-amd-amdhsa", f"-mcpu={target.arch}", "-x", "assembler", "kernel.s"]
            _run([*clang, *assembler, "-c", "-o", "kernel.o"], folder, kept)
            _run([str(zig()), "ld.lld", "-shared", "--no-undefined", "kernel.o", "-o", "kernel.hsaco"], folder, kept)
        return Compiled(
            (Path(folder) / "kernel.hsaco").read_bytes(), (Path(folder) / "kernel.s").read_text(), " ".join([*front, "-S", *source])
        )


def entries(image: bytes) -> dict[str, dict[str, Any]]:
    """Each kernel of an object with its metadata."""
    from aot.check import amd_metadata

    return {k[".name"]: k for k in amd_metadata(image)["amdhsa.kernels"]}


def params(entry: Mapping[str, Any], args: Sequence[Arg]) -> tuple[str, ...]:
    """The ABI of a kernel in the words of the declaration: a type of ``args`` where kind and size agree with it, else what is there.

    Hidden arguments do not count: the driver fills them in.
    """
    words = []
    visible = [a for a in entry.get(".args", ()) if not a[".value_kind"].startswith("hidden_")]
    for i, found in enumerate(visible):
        declared = args[i].type if i < len(args) else ""
        kind = "global_buffer" if declared in ("ptr", "null") else "by_value"
        size = 4 if declared in ("i32", "f32") else 8
        agrees = declared and (found[".value_kind"], found[".size"]) == (kind, size)
        words.append(declared if agrees else f"{found['.value_kind']}[{found['.size']}]")
    return tuple(words)


def build(unit: Unit) -> CodeObject:
    """Compile one HIP kernel; constants are macros. Raises ``CompileError``."""
    kernel = unit.kernel
    text = (unit.folder / kernel.source).read_text()
    if unknown := set(kernel.options) - OPTIONS:
        raise CompileError("clang", f"found the options {sorted(unknown)}; wanted some of {sorted(OPTIONS)}", {kernel.source: text})
    done = compile_source(
        text,
        kernel.source,
        unit.target,
        include=(unit.folder, unit.include),
        headers=unit.include / "hip",
        defines=kernel.constants,
        options=FAST_MATH if kernel.options.get("fast_math") else (),
    )
    kept = {kernel.source: text, "kernel.s": done.assembly}
    found = entries(done.image)
    if set(found) != {kernel.entry}:
        raise CompileError(done.command, f'found the kernels {sorted(found)}; wanted one, extern "C" {kernel.entry}', kept)
    return CodeObject(
        image=done.image,
        symbol=kernel.entry,
        block=(int(kernel.options["threads"]), 1, 1),
        shared=int(kernel.options.get("shared", 0)),
        params=params(found[kernel.entry], kernel.args),
        intermediates=kept,
        tools=tools(),
    )
