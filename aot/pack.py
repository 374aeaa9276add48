"""Puts a pack together: manifest plus content-addressed objects, complete or not at all.

``python -m aot.pack TARGET OUT RESULT...`` is the ninja edge. The pack is written under a temporary name and renamed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from aot.expr import parse
from aot.registry import KERNELS, discover
from aot.spec import Arg, Kernel, Op, Param, Tensor, symbols
from aot.targets import TARGETS, Target
from dsa_kernels import verify

SCHEMA_VERSION = "1.0"
VERSION = "0.1.0"
LICENCE = "Apache-2.0"
TARGET_KEYS = ["name", "vendor", "arch", "wave", "shared_memory", "units", "fp8"]
TARGET_KEYS += ["elf_machine", "elf_abi", "elf_flags", "elf_flags_mask", "min_driver"]


def canonical(text: str | int | float) -> str:
    """The one spelling of an expression that manifests carry."""
    return parse(text).text


def param(p: Param, target: Target) -> dict[str, Any]:
    if isinstance(p, Tensor):
        return {
            "kind": "tensor",
            "name": p.name,
            "dtypes": p.dtypes(target),
            "shape": [canonical(d.removeprefix(">=")) for d in p.dims],
            "at_least": [d.startswith(">=") for d in p.dims],
            "optional": p.optional,
            "output": p.output,
            "layout": p.layout,
            "align": p.align,
            "doc": p.doc,
        }
    default = None if p.default is None else canonical(f"'{p.default}'" if p.default in p.choices else p.default)
    return {"kind": "scalar", "name": p.name, "dtype": p.dtype, "default": default, "choices": list(p.choices), "doc": p.doc}


def arg(a: Arg) -> dict[str, Any]:
    if a.type == "null":
        return {"name": a.name, "type": "null"}
    if a.type == "map":
        return {"name": a.name, "type": a.type, "value": a.value, "lines": a.box[0], "rows": a.box[1]}
    if a.type == "ptr":
        return {"name": a.name, "type": a.type, "value": a.value, "offset": canonical(a.offset)}
    return {"name": a.name, "type": a.type, "value": canonical(a.value)}


def describe(op: Op, target: Target, made: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The manifest entry of ``op``; ``made`` maps kernel names to the records of ``aot.edge``."""
    args: list[Any] = []
    kernels: list[Any] = []

    def number(entry: Any, entries: list[Any]) -> int:
        """Of ``entry`` among ``entries``, which it joins if it is new."""
        if entry not in entries:
            entries.append(entry)
        return entries.index(entry)

    def kernel(k: Kernel) -> dict[str, Any]:
        record = made[k.name]
        added = len(record["params"]) - len(k.args)
        listed = [arg(a) for a in k.args] + [{"name": f"scratch{i}", "type": "null"} for i in range(added)]
        return {
            "object": record["sha256"],
            "symbol": record["symbol"],
            "block": record["block"],
            "shared": record["shared"],
            "dependent": record["dependent"],
            "args": number(listed, args),
        }

    return {
        "name": op.name,
        "doc": op.doc,
        "params": [param(p, target) for p in op.params],
        "symbols": symbols(op),
        "rules": [{"check": canonical(r.check), "wanted": r.wanted, "fix": r.fix} for r in op.rules],
        "candidates": [
            {
                "name": c.name,
                "when": canonical(c.when),
                "workspace": canonical(c.workspace),
                "launches": [
                    {"kernel": number(kernel(x.kernel), kernels), "grid": [canonical(g) for g in x.grid], "cluster": list(x.cluster)}
                    for x in c.launches
                ],
            }
            for c in op.candidates_for(target)
        ],
        "args": args,
        "kernels": kernels,
    }


def sources(op_names: Iterable[str]) -> list[Path]:
    """Every file under the ops' folders and the shared headers that the kernels are made of, sorted."""
    folders = [KERNELS / name for name in sorted({"include", *op_names})]
    files = (p for f in folders for p in sorted(f.rglob("*")) if p.is_file())
    return [p for p in files if "__pycache__" not in p.parts and p.name != "resources.json"]


def source_digest(op_names: Iterable[str]) -> str:
    """sha256 over the names and bytes of ``sources``."""
    h = hashlib.sha256()
    for path in sources(op_names):
        data = path.read_bytes()
        h.update(f"{path.relative_to(KERNELS).as_posix()} {len(data)}\n".encode() + data)
    return h.hexdigest()


def manifest(target: Target, ops: dict[str, Op], results: list[Path]) -> tuple[dict[str, Any], dict[str, Path]]:
    """The manifest of ``ops`` on ``target`` and, for each object's sha256, the file that holds it."""
    made: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in ops}
    objects: dict[str, dict[str, Any]] = {}
    files: dict[str, Path] = {}
    tools: dict[str, str] = {}
    for result in results:
        op_name = result.name.split(".")[0]
        for record in json.loads(result.read_text()):
            made[op_name][record["kernel"]] = record
            files[record["sha256"]] = result.with_suffix("") / record["file"]
            tools |= record["tools"]
            objects[record["sha256"]] = {
                "file": f"objects/{record['file']}",
                "size": record["size"],
                "kernel": f"{op_name}/{record['kernel']}",
                "tools": record["tools"],
                "resources": {record["symbol"]: record["resources"]},
            }
    return {
        "schema_version": SCHEMA_VERSION,
        "package": {"name": "dsa-kernels", "version": VERSION, "licence": LICENCE, "source_sha256": source_digest(ops)},
        "target": {key: getattr(target, key) for key in TARGET_KEYS},
        "toolchain": tools,
        "objects": objects,
        "ops": [describe(op, target, made[op.name]) for op in ops.values() if made[op.name]],
    }, files


def write(out: Path, content: dict[str, Any], files: dict[str, Path]) -> None:
    """Write the pack to ``out``, replacing what is there only once everything is in place."""
    temporary = out.with_name(f".{out.name}.writing")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        _fill(temporary, content, files)
        verify([temporary])  # what the runtime would refuse is refused here
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        with contextlib.suppress(OSError):
            out.rmdir()  # ninja makes the folder; a pack that is there stays
        raise
    old = out.with_name(f".{out.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        os.rename(out, old)
    os.rename(temporary, out)
    shutil.rmtree(old, ignore_errors=True)


def _fill(folder: Path, content: dict[str, Any], files: dict[str, Path]) -> None:
    (folder / "objects").mkdir(parents=True)
    for digest, file in files.items():
        data = file.read_bytes()
        if hashlib.sha256(data).hexdigest() != digest:
            raise ValueError(f"found {file} altered since it was built; remove the build folder and build again")
        (folder / "objects" / file.name).write_bytes(data)
    (folder / "manifest.json").write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


def main(target_name: str, out: str, *results: str) -> None:
    names = {Path(r).name.split(".")[0] for r in results}
    ops = {name: op for name, op in discover().items() if name in names}
    write(Path(out), *manifest(TARGETS[target_name], ops, [Path(r) for r in results]))


if __name__ == "__main__":
    main(*sys.argv[1:])
