"""A recipe: everything that decides the bytes of one family of code objects, as a file.

A family is one source of one op on one target; one ninja edge compiles it, because starting a compiler costs more than most
kernels. The recipe holds the kernels (constants, options, argument types) and the toolchain, so a changed declaration or
compiler rebuilds exactly what it changes, and an edited docstring rebuilds nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from aot.spec import Arg, Kernel, Op
from aot.targets import TARGETS, Target

CUDA_TOOLS = ("nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvcc-cu12", "nvidia-cuda-runtime-cu12", "nvidia-cuda-cccl-cu12")
TOOLS: dict[tuple[str, str], tuple[str, ...]] = {
    ("triton", "nvidia"): ("triton", "nvidia-cuda-nvcc-cu12"),
    ("triton", "amd"): ("triton",),
    ("tilelang", "nvidia"): ("tilelang", *CUDA_TOOLS),
    ("tilelang", "amd"): ("tilelang", "ziglang"),
    ("cuda", "nvidia"): CUDA_TOOLS,
    ("hip", "amd"): ("ziglang",),
}
"""PyPI distributions that take part in compiling a language for a vendor."""


@dataclass(frozen=True)
class Recipe:
    """One family: ``kernels`` of ``op`` that share a source, for one target."""

    op: str
    target: str
    language: str
    source: str
    kernels: tuple[Kernel, ...]
    dtypes: tuple[dict[str, str], ...]
    toolchain: dict[str, str]

    @property
    def name(self) -> str:
        return f"{self.target}/{self.op}.{Path(self.source).stem}"

    def dumps(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"


def loads(text: str) -> Recipe:
    """The recipe that ``Recipe.dumps`` wrote."""
    raw: dict[str, Any] = json.loads(text)

    def kernel(k: dict[str, Any]) -> Kernel:
        return Kernel(**{**k, "args": tuple(Arg(**a) for a in k["args"]), "promises": tuple(k["promises"])})

    return Recipe(**{**raw, "kernels": tuple(map(kernel, raw["kernels"])), "dtypes": tuple(raw["dtypes"])})


def toolchain(language: str, target: Target) -> dict[str, str]:
    """Versions of the distributions that compile ``language`` for ``target``. Raises ``LookupError`` when one is missing."""
    found = {}
    for name in TOOLS[language, target.vendor]:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            raise LookupError(f"found no {name}, which compiles {language} for {target.name}; run pip install -e '.[build]'") from None
    return found


def recipes(ops: Iterable[Op], targets: Iterable[Target]) -> list[Recipe]:
    """Every family of ``ops`` on ``targets``."""
    found = []
    for target in targets:
        for op in ops:
            families: dict[tuple[str, str], list[Kernel]] = {}
            for k in op.kernels_for(target):
                families.setdefault((k.language, k.source), []).append(k)
            for (language, source), kernels in families.items():
                dtypes = tuple({a.name: op.pointer_dtype(a, target) for a in k.args if a.type == "ptr"} for k in kernels)
                tools = toolchain(language, target)
                found.append(Recipe(op.name, target.name, language, source, tuple(kernels), dtypes, tools))
    return found


def target_of(recipe: Recipe) -> Target:
    return TARGETS[recipe.target]
