"""Packs made on the spot: kernels compiled one by one, outside a build and its checks of resources, to be run and never shipped."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from aot import edge, pack
from aot.check import CheckError
from aot.compilers.base import CompileError, Unit
from aot.evidence import Configuration, configurations
from aot.recipe import toolchain
from aot.registry import KERNELS, load
from aot.spec import Candidate, Kernel, Op
from aot.targets import TARGETS, Target

Say = Callable[[str], object]


def alone(op: Op, target: Target, candidates: Iterable[Candidate]) -> Op:
    """``op`` with ``candidates`` of ``target`` as its only ones."""
    holes = dict.fromkeys(set(TARGETS) - {target.name}, f"a trial on {target.name}")
    return replace(op, candidates=tuple(candidates), holes=holes, tuned=())


def compile_kernel(op: Op, kernel: Kernel, target: Target, folder: Path) -> dict[str, Any]:
    """The record of ``kernel``, whose object goes into ``folder``."""
    dtypes = {a.name: op.pointer_dtype(a, target) for a in kernel.args if a.type == "ptr"}
    unit = Unit(op.name, kernel, target, KERNELS / op.name, KERNELS / "include", dtypes)
    return edge.entry(unit, import_module(f"aot.compilers.{kernel.language}").build(unit), folder)


def compile_pack(ops: Iterable[Op], target: Target, out: Path, scratch: Path, say: Say) -> None:
    """Compile every kernel of ``ops`` for ``target`` and write the pack ``out``; ``say`` hears what each kernel uses."""
    named = {op.name: op for op in ops}
    results = []
    for op in named.values():
        folder = scratch / op.name
        folder.mkdir(parents=True)
        records = []
        for k in op.kernels_for(target):
            records.append(compile_kernel(op, k, target, folder))
            used = {n: records[-1]["resources"][n] for n in ("registers", "spill_bytes", "shared")}
            say(f"{op.name} {k.name} {used}")
        results.append(scratch / f"{op.name}.json")
        results[-1].write_text(json.dumps(records))
    out.parent.mkdir(parents=True, exist_ok=True)
    pack.write(out, *pack.manifest(target, named, results))


def configured(op: Op, target: Target, dtype: str, configuration: Configuration) -> list[Candidate]:
    """The candidates that ``configuration`` makes and ``op`` does not ship. Their names say so; promises go, since any code will do."""
    made: Iterable[Candidate] = load(KERNELS / op.name / "op.py").configured(target.name, dtype, configuration)
    shipped = {k.name for k in op.kernels_for(target)}
    words = ",".join(f"{k}={v}" for k, v in configuration.items())

    def candidate(c: Candidate) -> Candidate:
        launches = tuple(replace(x, kernel=replace(x.kernel, promises=())) for x in c.launches)
        return replace(c, name=f"{c.name}[{words}]", launches=launches)

    return [candidate(c) for c in made if not {x.kernel.name for x in c.launches} <= shipped]


def compile_configurations(op: Op, target: Target, dtype: str, folder: Path, say: Say) -> Iterator[Path]:
    """A pack for each listed configuration that is not shipped. Raises ``LookupError`` where none is or a compiler is missing."""
    listed = configurations(op.name, target.name, dtype)
    if not listed:
        raise LookupError(
            f"found no configurations of {op.name} for {target.name} and {dtype}; wanted some to compile; "
            f"list them in kernels/{op.name}/configurations.json, or leave --configurations out"
        )
    for number, configuration in enumerate(listed):
        made = configured(op, target, dtype, configuration)
        if not made:
            continue
        for language in dict.fromkeys(x.kernel.language for c in made for x in c.launches):
            toolchain(language, target)
        out = folder / str(number)
        try:
            compile_pack([alone(op, target, made)], target, out / target.name, out / "made", say)
        except (CompileError, CheckError, ValueError) as e:
            say(f"{configuration} was refused: {' '.join(str(e).split())[:200]}")
        else:
            yield out / target.name
