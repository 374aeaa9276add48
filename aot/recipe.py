"""A recipe: everything that decides the bytes of one family of code objects, as a file.

A family is a few kernels of one source of one op on one target; one ninja edge compiles it, because starting a compiler costs
more than most kernels. A source of many variants is dealt over several families, so that an edit of it uses every core. The
recipe holds the kernels (constants, options, argument types) and the toolchain, so a changed declaration or compiler rebuilds
exactly what it changes, and an edited docstring rebuilds nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from aot.spec import Arg, Kernel, Op
from aot.targets import Target

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
    """One family, number ``part`` of its source: ``kernels`` of ``op``, for one target."""

    op: str
    target: str
    language: str
    source: str
    part: int
    kernels: tuple[Kernel, ...]
    dtypes: tuple[dict[str, str], ...]
    toolchain: dict[str, str]

    @property
    def name(self) -> str:
        return f"{self.op}.{Path(self.source).stem}.{self.part}"

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


def parts(kernels: list[Kernel]) -> list[list[Kernel]]:
    """The kernels of a source dealt over families: singly up to two, then two to a family."""
    count = min(len(kernels), max(2, -(-len(kernels) // 2)))
    return [kernels[i::count] for i in range(count)]


def recipes(ops: Iterable[Op], targets: Iterable[Target]) -> list[Recipe]:
    """Every family of ``ops`` on ``targets``."""
    found = []
    for target in targets:
        for op in ops:
            sources: dict[tuple[str, str], list[Kernel]] = {}
            for k in op.kernels_for(target):
                sources.setdefault((k.language, k.source), []).append(k)
            for (language, source), all_kernels in sources.items():
                tools = toolchain(language, target)
                for part, kernels in enumerate(parts(all_kernels)):
                    dtypes = tuple(_pointer_dtypes(op, k, target) for k in kernels)
                    found.append(Recipe(op.name, target.name, language, source, part, tuple(kernels), dtypes, tools))
    return found


def _pointer_dtypes(op: Op, kernel: Kernel, target: Target) -> dict[str, str]:
    return {a.name: op.pointer_dtype(a, target) for a in kernel.args if a.type == "ptr"}
