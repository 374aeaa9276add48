"""A package with sglang's shape where the plugin touches it: the plugin loader, the hook registry, and the modules of the targets.

Written from the documentation of their interface; tests/test_sglang_wheel.py meets the real ones. And processes that load plugins.
"""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dsa_kernels.integrations.sglang_plugin import TARGETS
from tests import toy

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"

LOADER = """
import os, traceback
from importlib.metadata import entry_points
from .hook_registry import HookRegistry

def load_plugins():
    allowed = os.environ.get("SGLANG_PLUGINS")
    for entry in entry_points(group="sglang.srt.plugins"):
        if not allowed or entry.name in allowed.split(","):
            try:
                entry.load()()
            except Exception:
                traceback.print_exc()
    HookRegistry.apply_hooks()
"""
REGISTRY = """
import enum, importlib

class HookType(enum.Enum):
    REPLACE = "replace"

class HookRegistry:
    hooks = []

    @classmethod
    def register(cls, target, hook, hook_type):
        assert hook_type is HookType.REPLACE
        cls.hooks.append((target, hook))

    @classmethod
    def apply_hooks(cls):
        for target, hook in cls.hooks:
            module, name = target.rsplit(".", 1)
            setattr(importlib.import_module(module), name, hook)
"""


def signature(function: Callable[..., Any]) -> str:
    """Without annotations, as source text."""
    found = inspect.signature(function)
    bare = [p.replace(annotation=p.empty) for p in found.parameters.values()]
    return str(found.replace(parameters=bare, return_annotation=found.empty))


def write(folder: Path, changed: Mapping[str, str] | None = None, without: tuple[str, ...] = ()) -> Path:
    """The package under ``folder``, and the plugin's entry point.

    ``changed`` gives functions other signatures; ``without`` are modules (last name) or functions that are left out.
    """
    files: dict[str, str] = {"srt/plugins/__init__.py": LOADER, "srt/plugins/hook_registry.py": REGISTRY}
    for target in TARGETS:
        path = target.module.removeprefix("sglang.").replace(".", "/") + ".py"
        text = files.get(path, "")
        if target.name not in without:
            text += f"def {target.name}{(changed or {}).get(target.name, signature(target.function))}:\n    return 'sglang'\n"
        files[path] = text
    for path, text in files.items():
        if Path(path).stem not in without:
            file = folder / "sglang" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    _distribution(folder, "sglang")
    return install_plugin(folder)


def install_plugin(folder: Path) -> Path:
    """The entry point of pyproject.toml as an installed distribution's in ``folder``."""
    found = re.search(r'^\[project\.entry-points\."sglang\.srt\.plugins"\]\n(.*)', PYPROJECT.read_text(), re.M)
    assert found
    entry_point = found.group(1).replace('"', "")
    (_distribution(folder, "dsa_kernels") / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{entry_point}\n")
    return folder


def _distribution(folder: Path, name: str) -> Path:
    info = folder / f"{name}-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.9\n")
    return info


LOAD = f"""
import importlib
from sglang.srt.plugins import load_plugins
load_plugins()
for target in {[(t.module, t.name) for t in TARGETS]}:
    try:
        f = getattr(importlib.import_module(target[0]), target[1])
    except (ImportError, AttributeError):
        continue
    if f.__module__ == "dsa_kernels.integrations.sglang":
        print(f.__name__)
"""
"""Loads plugins, then prints which targets are ours."""


class Server:
    """A process that loads plugins as a server does; ``replaced`` are the functions that are ours afterwards."""

    def __init__(self, folder: Path, code: str = LOAD, packs: bool = True, more: tuple[Path, ...] = (), **variables: str) -> None:
        if packs:
            made = folder / "packs"
            variables["DSA_KERNELS_PACKS"] = str(made if made.exists() else toy.write_packs(made))
        base = {k: v for k, v in os.environ.items() if not k.startswith(("SGLANG_", "DSA_KERNELS"))}
        path = os.pathsep.join(filter(None, [*map(str, [folder, *more]), os.environ.get("PYTHONPATH")]))
        done = subprocess.run(
            [sys.executable, "-c", code], env={**base, "PYTHONPATH": path, **variables}, capture_output=True, text=True, timeout=100
        )
        self.code, self.replaced, self.said = done.returncode, done.stdout.split(), done.stderr
