"""Finds declarations: every ``kernels/<op>/op.py``, loaded by path, with the tuning file beside it where there is one.

``kernels`` is a folder of sources, never a package: another distribution owns that import name.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from aot import tuning
from aot.spec import Op, SpecError

ROOT = Path(__file__).resolve().parents[1]
KERNELS = ROOT / "kernels"


def load(path: Path) -> ModuleType:
    """The module at ``path``, loaded once per process under a name that no import statement reaches."""
    name = f"dsak:{path.resolve().relative_to(KERNELS) if path.resolve().is_relative_to(KERNELS) else path.resolve()}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def sibling(file: str, name: str) -> ModuleType:
    """Module ``name`` beside ``file``: how a declaration that is long is split over several files."""
    return load(Path(file).parent / f"{name}.py")


def discover(kernels: Path = KERNELS) -> dict[str, Op]:
    """Every op under ``kernels``, by name, sorted. Raises ``SpecError`` naming the file of a broken declaration or tuning."""
    ops: dict[str, Op] = {}
    for path in sorted(kernels.glob("*/op.py")):
        where = path.relative_to(kernels.parent)
        try:
            op = getattr(load(path), "OP", None)
        except SpecError as e:
            raise SpecError(f"{where}: {e}") from None
        except Exception as e:
            raise SpecError(f"{where}: found {type(e).__name__}: {e}; wanted a declaration that loads; see CONTRIBUTING.md") from e
        if not isinstance(op, Op):
            raise SpecError(f"{where}: found no OP; wanted OP = aot.spec.Op(...)")
        if op.name != path.parent.name:
            raise SpecError(f"{where}: found op {op.name!r}; wanted the folder's name, {path.parent.name!r}")
        ops[op.name] = tuning.apply(op, path.with_name(tuning.FILE))
    return ops
