"""One ninja edge: ``python -m aot.edge RECIPE RESULT`` compiles a family and writes what the pack needs.

Beside RESULT (JSON: one entry a kernel) lies a folder of the same stem with the objects, named by their sha256, and a
dependency file that lists every source that was read. A failure prints kernel, target, command and the compiler's own words,
keeps the intermediate sources under ``failed/`` and writes no RESULT.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from aot import check, recipe
from aot.compilers.base import CodeObject, CompileError, Unit
from aot.registry import KERNELS, ROOT
from aot.targets import TARGETS

INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)


def includes(path: Path, roots: tuple[Path, ...], seen: set[Path] | None = None) -> set[Path]:
    """``path`` and the files that it includes with quotes, found beside the includer or under ``roots``."""
    seen = set() if seen is None else seen
    if path in seen:
        return seen
    seen.add(path)
    for name in INCLUDE.findall(path.read_text()):
        for folder in (path.parent, *roots):
            if (folder / name).is_file():
                includes((folder / name).resolve(), roots, seen)
                break
    return seen


def dependencies(unit: Unit) -> set[Path]:
    """Files whose change must recompile the family: the source, what it includes or imports, and the compiler module."""
    source = (unit.folder / unit.kernel.source).resolve()
    files = includes(source, (unit.include,)) if source.suffix != ".py" else {source}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and Path(file).is_relative_to(ROOT) and Path(file).suffix == ".py":
            files.add(Path(file))
    if unit.kernel.language in ("tilelang", "hip") and unit.target.vendor == "amd":
        files |= {p for p in (unit.include / "hip").rglob("*") if p.is_file()}
    return files


def fail(unit: Unit, folder: Path, command: str, log: str, intermediates: dict[str, str]) -> SystemExit:
    kept = folder / "failed" / re.sub(r"[^\w.=-]+", "_", unit.kernel.name)
    kept.mkdir(parents=True, exist_ok=True)
    for name, text in intermediates.items():
        (kept / name).write_text(text)
    where = f"{unit.op} / {unit.kernel.name} / {unit.target.name}"
    print(f"error: {where}: {unit.kernel.source} was refused\n  command: {command}\n  kept: {kept}\n{log}", file=sys.stderr)
    return SystemExit(1)


def entry(unit: Unit, built: CodeObject, folder: Path) -> dict[str, Any]:
    """Lint one object, store it, and return its record."""
    declared = tuple(a.type for a in unit.kernel.args)
    added = built.params[len(declared) :]
    if built.params[: len(declared)] != declared or any(p != "null" for p in added):
        raise check.CheckError(f"found parameters {built.params}; wanted {declared}, then null ones only")
    resources = check.inspect(unit.target, built, unit.kernel)
    digest = hashlib.sha256(built.image).hexdigest()
    name = f"{digest}.{unit.target.suffix}"
    (folder / name).write_bytes(built.image)
    return {
        "kernel": unit.kernel.name,
        "sha256": digest,
        "size": len(built.image),
        "file": name,
        "symbol": built.symbol,
        "block": list(built.block),
        "shared": built.shared,
        "dependent": built.dependent,
        "params": list(built.params),
        "resources": resources,
        "tools": built.tools,
    }


def main(recipe_file: str, result_file: str) -> None:
    r = recipe.loads(Path(recipe_file).read_text())
    result = Path(result_file)
    folder = result.with_suffix("")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    compiler = importlib.import_module(f"aot.compilers.{r.language}")
    records, files = [], set()
    for kernel, dtypes in zip(r.kernels, r.dtypes, strict=True):
        unit = Unit(r.op, kernel, TARGETS[r.target], KERNELS / r.op, KERNELS / "include", dtypes)
        try:
            built = compiler.build(unit)
        except CompileError as e:
            raise fail(unit, folder, e.command, e.log, e.intermediates) from None
        except Exception as e:  # a Python front end (Triton, TileLang) raises its own kinds
            command = f"aot.compilers.{r.language}.build({kernel.name})"
            raise fail(unit, folder, command, f"{type(e).__name__}: {e}", {}) from e
        try:
            records.append(entry(unit, built, folder))
        except check.CheckError as e:
            raise fail(unit, folder, "object lint", str(e), built.intermediates) from None
        files |= dependencies(unit)
    deps = " ".join(sorted(os.path.relpath(f, ROOT).replace(" ", "\\ ") for f in files))
    result.with_suffix(".d").write_text(f"{result_file}: {deps}\n")
    result.write_text(json.dumps(records, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
