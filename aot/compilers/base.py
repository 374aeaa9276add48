"""What every compiler takes and gives."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from aot.spec import Kernel
from aot.targets import Target


@dataclass(frozen=True)
class Unit:
    """One code object to make: ``kernel`` for ``target``, its source under ``folder`` (``kernels/<op>``).

    ``include`` is ``kernels/include``, the shared device headers. ``dtypes`` maps each pointer argument to the element type
    behind it on this target.
    """

    op: str
    kernel: Kernel
    target: Target
    folder: Path
    include: Path
    dtypes: dict[str, str]


@dataclass(frozen=True)
class CodeObject:
    """A finished code object and what a launch must know of it.

    ``params`` is the ABI of the entry in order: the types of ``kernel.args`` and, after them, what the compiler added
    (``null`` for scratch pointers that the kernel does not use). ``shared`` is the dynamic shared memory to ask for at launch,
    in bytes, and ``dependent`` whether it waits for the kernels before by itself (griddepcontrol.wait), so that its blocks may be
    launched while those run. ``intermediates`` (file name to text) are kept when a check fails. ``tools`` names the versions that made it.
    """

    image: bytes
    symbol: str
    block: tuple[int, int, int]
    shared: int
    params: tuple[str, ...]
    dependent: bool = False
    intermediates: dict[str, str] = field(default_factory=dict)
    tools: dict[str, str] = field(default_factory=dict)


class CompileError(Exception):
    """A source that does not compile: the tool's command and its own message; ``intermediates`` are written to disk."""

    def __init__(self, command: str, log: str, intermediates: dict[str, str] | None = None) -> None:
        super().__init__(log.strip() or "the compiler said nothing")
        self.command = command
        self.log = log
        self.intermediates = intermediates or {}
