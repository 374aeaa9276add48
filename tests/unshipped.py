"""Packs for sm90 that are never shipped: other forms of the same kernels, made to be run and to say something about the shipped ones."""

import json
import tempfile
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

from aot import edge, pack
from aot.compilers.base import Unit
from aot.registry import KERNELS
from aot.spec import Op
from aot.targets import TARGETS

SM90 = TARGETS["sm90"]
ELSEWHERE = dict.fromkeys(set(TARGETS) - {SM90.name}, "a test of sm90")
"""Holes of an op that has candidates for sm90 only."""


def write(out: str, ops: Iterable[Op]) -> None:
    """Compile the kernels of ``ops`` for sm90 and write the pack ``OUT/sm90``; prints what each kernel uses."""
    named = {op.name: op for op in ops}
    with tempfile.TemporaryDirectory() as scratch:
        results = []
        for op in named.values():
            folder = Path(scratch) / op.name
            folder.mkdir()
            records = []
            for k in op.kernels_for(SM90):
                dtypes = {a.name: op.pointer_dtype(a, SM90) for a in k.args if a.type == "ptr"}
                unit = Unit(op.name, k, SM90, KERNELS / op.name, KERNELS / "include", dtypes)
                made = import_module(f"aot.compilers.{k.language}").build(unit)
                records.append(edge.entry(unit, made, folder))
                print(op.name, k.name, {n: records[-1]["resources"][n] for n in ("registers", "spill_bytes", "shared")}, flush=True)
            results.append(Path(scratch) / f"{op.name}.json")
            results[-1].write_text(json.dumps(records))
        Path(out).mkdir(parents=True, exist_ok=True)
        pack.write(Path(out) / "sm90", *pack.manifest(SM90, named, results))
