"""The ninja graph: recipes in, packs out."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from aot.pack import sources
from aot.recipe import Recipe
from aot.registry import ROOT
from aot.targets import Target

RULES = """\
ninja_required_version = 1.10

rule compile
  command = {python} -m aot.edge $in $out
  description = compile $what
  depfile = $stem.d
  deps = gcc
  restat = 1

rule pack
  command = {python} -m aot.pack $target $folder $in
  description = pack $target
"""


@dataclass(frozen=True)
class Graph:
    """Where things go: ``build`` holds recipes, results and ninja's own files, ``packs`` one folder a target."""

    build: Path
    packs: Path

    @property
    def file(self) -> Path:
        return self.build / "build.ninja"

    def result(self, recipe: Recipe) -> Path:
        return self.build / recipe.target / f"{recipe.name}.json"

    def pack(self, target: Target) -> Path:
        return self.packs / target.name

    def write(self, recipes: list[Recipe], targets: list[Target]) -> None:
        """Write recipes and graph, touching only what changed, so that a no-op build stays one."""
        text = [RULES.format(python=_quote(sys.executable)), f"builddir = {_escape(_relative(self.build))}\n"]
        packed: dict[str, list[Path]] = {t.name: [] for t in targets}
        wanted = set()
        for r in recipes:
            result = self.result(r)
            recipe_file = result.with_suffix(".recipe")
            wanted |= {recipe_file}
            _write_if_changed(recipe_file, r.dumps())
            packed[r.target].append(result)
            compiler = f"aot/compilers/{r.language}.py"
            text.append(
                f"build {_path(result)}: compile {_path(recipe_file)} | {compiler} aot/compilers/base.py aot/edge.py aot/check.py\n"
                f"  what = {r.op}/{r.source} for {r.target} ({len(r.kernels)})\n"
                f"  stem = {_path(result.with_suffix(''))}\n"
            )
        for t in targets:
            pack = self.pack(t)
            ops = sorted({r.op for r in recipes if r.target == t.name})
            stamp = self.build / t.name / "ops"
            files = [_path(p) for p in sources(ops)]
            _write_if_changed(stamp, "\n".join([*ops, *files]) + "\n")  # ninja sees a file change, but not one go
            implicit = " ".join([_path(stamp), "aot/pack.py", "aot/spec.py", "aot/targets.py", "aot/tuning.py", *files])
            text.append(
                f"build {_path(pack / 'manifest.json')}: pack {' '.join(_path(p) for p in sorted(packed[t.name]))} | {implicit}\n"
                f"  target = {t.name}\n  folder = {_quote(_relative(pack))}\n"
            )
        results = " ".join(_path(p) for p in sorted(r for part in packed.values() for r in part))
        text.append(f"build objects: phony {results}\n")
        text.append(f"build packs: phony {' '.join(_path(self.pack(t) / 'manifest.json') for t in targets)}\ndefault packs\n")
        _write_if_changed(self.file, "\n".join(text))


def _relative(path: Path) -> str:
    return os.path.relpath(path, ROOT)


def _escape(text: str) -> str:
    return text.replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


def _path(path: Path) -> str:
    return _escape(_relative(path))


def _quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''").replace("$", "$$") + "'"


def _write_if_changed(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
