"""Looks into finished objects: is it what the manifest will say, and what does it use.

Nothing here trusts the compiler: architecture, ABI, symbol, resources and matrix instructions are read from the object (for
AMD, instructions from the assembler text that the object was made of; no disassembler for it comes from PyPI).
"""

from __future__ import annotations

import functools
import importlib.util
import io
import re
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from aot.compilers.base import CodeObject
from aot.spec import Kernel, Op
from aot.targets import Target

Resources = dict[str, int]

RESERVED_SHARED = 1024
"""Bytes of shared memory that an SM90 block loses to the system."""


class CheckError(Exception):
    """An object or declaration that breaks a promise: found / wanted / what to do."""


@functools.cache
def cuobjdump() -> Path:
    """The disassembler that the Triton wheel carries (found without importing Triton)."""
    spec = importlib.util.find_spec("triton")
    if not spec or not spec.origin:
        raise LookupError("found no triton, which carries cuobjdump; run pip install -e '.[build]'")
    return Path(spec.origin).parent / "backends/nvidia/bin/cuobjdump"


def _run_cuobjdump(image: bytes, flag: str) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(image)
        file.flush()
        # cuobjdump runs nvdisasm, which lies beside it
        tool = cuobjdump()
        done = subprocess.run([str(tool), flag, file.name], capture_output=True, text=True, env={"PATH": f"{tool.parent}:/usr/bin:/bin"})
    if done.returncode:
        raise CheckError(f"cuobjdump {flag} failed: {done.stderr.strip()}")
    return done.stdout


def header(target: Target, image: bytes) -> None:
    """Raise ``CheckError`` unless the ELF header is one of ``target``."""
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    try:
        elf = ELFFile(io.BytesIO(image))
    except ELFError as e:
        raise CheckError(f"found no ELF object ({e}); wanted one for {target.name}") from None
    # e_machine is a name where pyelftools knows the number; the bytes 18..19 say it in any case
    found = (int.from_bytes(image[18:20], "little"), image[8], elf.header.e_flags & target.elf_flags_mask)
    wanted = (target.elf_machine, target.elf_abi, target.elf_flags)
    if found != wanted:
        raise CheckError(
            f"found ELF machine, ABI and flags {found[0]}, {found[1]}, {found[2]:#x}; "
            f"wanted {wanted[0]}, {wanted[1]}, {wanted[2]:#x} ({target.arch}); check the compiler's target option"
        )


def _nvidia(target: Target, built: CodeObject) -> tuple[Resources, str]:
    usage = _run_cuobjdump(built.image, "--dump-resource-usage")
    functions = dict(re.findall(r"Function (\S+):\s*\n\s*(REG:.*)", usage))
    if set(functions) != {built.symbol}:
        raise CheckError(f"found functions {sorted(functions)}; wanted {built.symbol} alone")
    field = dict(re.findall(r"(\w+):(\d+)", functions[built.symbol]))
    resources = {
        "registers": int(field["REG"]),
        "spill_bytes": int(field["LOCAL"]),
        "stack_bytes": int(field["STACK"]),
        # blocks that use shared memory carry the KiB that the SM90 system reserves; the limit of a block does not count it
        "static_shared": max(0, int(field["SHARED"]) - RESERVED_SHARED),
    }
    return resources, _run_cuobjdump(built.image, "--dump-sass")


def amd_metadata(image: bytes) -> dict[str, Any]:
    """The code-object metadata note (message pack) of an AMD object."""
    import msgpack
    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import NoteSection

    for section in ELFFile(io.BytesIO(image)).iter_sections():
        if isinstance(section, NoteSection):
            for note in section.iter_notes():
                if note["n_name"] == "AMDGPU" and note["n_type"] in (32, "NT_AMDGPU_METADATA"):
                    desc = note["n_descdata"] if isinstance(note["n_descdata"], bytes) else note["n_desc"]
                    if isinstance(desc, str):
                        desc = desc.encode("latin-1")
                    meta: dict[str, Any] = msgpack.unpackb(desc)
                    return meta
    raise CheckError("found no AMDGPU metadata note; wanted one (code object version 3 or later)")


def _amd(target: Target, built: CodeObject) -> tuple[Resources, str]:
    meta = amd_metadata(built.image)
    if not str(meta.get("amdhsa.target", "")).endswith(f"-{target.arch}"):
        raise CheckError(f"found metadata for {meta.get('amdhsa.target')}; wanted {target.arch}")
    kernels = {k[".name"]: k for k in meta["amdhsa.kernels"]}
    if set(kernels) != {built.symbol}:
        raise CheckError(f"found kernels {sorted(kernels)}; wanted {built.symbol} alone")
    k = kernels[built.symbol]
    if k[".wavefront_size"] != target.wave:
        raise CheckError(f"found wave size {k['.wavefront_size']}; wanted {target.wave}")
    threads = built.block[0] * built.block[1] * built.block[2]
    if k[".max_flat_workgroup_size"] < threads:
        raise CheckError(f"found room for {k['.max_flat_workgroup_size']} threads a block; wanted {threads}")
    resources = {
        "registers": k[".vgpr_count"],
        "accumulators": k.get(".agpr_count", 0),
        "scalar_registers": k[".sgpr_count"],
        "spill_bytes": 4 * (k.get(".vgpr_spill_count", 0) + k.get(".sgpr_spill_count", 0)),
        "stack_bytes": k[".private_segment_fixed_size"],
        "static_shared": k[".group_segment_fixed_size"],
    }
    text = "\n".join(t for name, t in built.intermediates.items() if name.endswith((".s", ".amdgcn")))
    return resources, text


def blocks_per_unit(target: Target, threads: int, shared: int, resources: Resources) -> int:
    """Upper bound of blocks that one SM or CU holds at once, from registers, shared memory and thread slots."""
    regs = max(8, -(-resources["registers"] // 8) * 8)
    if target.vendor == "nvidia":
        waves = -(-threads // 32)
        by_regs = 65536 // (regs * 32) // waves
        by_shared = 233472 // (shared + RESERVED_SHARED)
        return min(by_regs, by_shared, 2048 // (waves * 32), 32)
    waves = -(-threads // target.wave)
    # registers is .vgpr_count, which already includes the accumulators (512 a lane, unified)
    by_regs = 4 * min(8, 512 // regs) // waves
    by_shared = target.shared_memory // shared if shared else 32
    return min(by_regs, by_shared, 32)


WAIT = re.compile(r"^.*\bACQBULK\b", re.M)
GLOBAL = re.compile(r"\b(LDG\w*|STG|LD|ST|UBLK\w+|UTMA\w+|ATOMG?|REDG?|REDAS|STAS|CCTL\w*|TEX|TLD\w*|SULD|SUST|SURED|SUATOM)\b")
"""What reaches global memory, another block's shared memory, or fetches ahead."""


def check_wait(disassembly: str) -> None:
    """Raise ``CheckError`` where a kernel that is launched while those before it run reaches memory of theirs before it waits for them,
    in the order of the text, or waits under a condition.

    Compilers may move loads of what they take for constant over the wait.
    """
    wait, first = WAIT.search(disassembly), GLOBAL.search(disassembly)
    if wait is None or re.search(r"@!?U?P\d\s+ACQBULK", wait[0]):
        raise CheckError(f"found {wait[0].strip() if wait else 'no ACQBULK'}; wanted one wait that every thread comes to")
    if first is not None and first.start() < wait.start():
        raise CheckError(f"found {first[0]} before the kernel waits for those before it; wanted it after")


def inspect(target: Target, built: CodeObject, kernel: Kernel) -> Resources:
    """Resources of a built object; raises ``CheckError`` when it is not what its declaration promises."""
    header(target, built.image)
    resources, text = (_nvidia if target.vendor == "nvidia" else _amd)(target, built)
    resources["shared"] = built.shared + (resources["static_shared"] if target.vendor == "nvidia" else 0)
    if resources["shared"] > target.shared_memory:
        raise CheckError(f"found {resources['shared']} bytes of shared memory; wanted at most {target.shared_memory}")
    if built.dependent:
        check_wait(text)
    for promise in kernel.promises:
        if not re.search(promise, text):
            raise CheckError(f"found no instruction like {promise!r} in the disassembly; the kernel promises it")
    threads = built.block[0] * built.block[1] * built.block[2]
    resources["blocks_per_unit"] = blocks_per_unit(target, threads, max(resources["shared"], resources["static_shared"]), resources)
    if resources["blocks_per_unit"] < 1:
        raise CheckError(f"found a kernel that no {target.name} unit can hold: {resources}, {threads} threads")
    return resources


GATED = ("registers", "accumulators", "spill_bytes", "stack_bytes", "shared")
"""Resources that may not grow past the accepted table (``kernels/<op>/resources.json``)."""


def gate(accepted: dict[str, Resources], found: dict[str, Resources]) -> list[str]:
    """What ``found`` (kernel name to resources, one op on one target) uses beyond the accepted table, in words."""
    wrong = []
    for name, used in sorted(found.items()):
        if name not in accepted:
            wrong.append(f"{name}: found no accepted resources")
            continue
        wrong += [
            f"{name}: {key} {used[key]} > {accepted[name].get(key, 0)}" for key in GATED if used.get(key, 0) > accepted[name].get(key, 0)
        ]
    return wrong


def coverage(ops: Iterable[Op], targets: list[Target]) -> list[tuple[str, list[list[str] | str]]]:
    """Rows of the matrix op x target: the candidates' names, or the reason for a hole (a string)."""
    return [(op.name, [[c.name for c in op.candidates_for(t)] or op.holes[t.name] for t in targets]) for op in ops]
