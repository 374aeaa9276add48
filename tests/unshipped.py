"""Packs for sm90 that are never shipped: other forms of the same kernels, made to be run and to say something about the shipped ones."""

import tempfile
from collections.abc import Iterable
from pathlib import Path

from aot.configured import compile_pack
from aot.spec import Op
from aot.targets import TARGETS

SM90 = TARGETS["sm90"]
ELSEWHERE = dict.fromkeys(set(TARGETS) - {SM90.name}, "a test of sm90")
"""Holes of an op that has candidates for sm90 only."""


def write(out: str, ops: Iterable[Op]) -> None:
    """Compile the kernels of ``ops`` for sm90 and write the pack ``OUT/sm90``; prints what each kernel uses."""
    with tempfile.TemporaryDirectory() as scratch:
        compile_pack(ops, SM90, Path(out) / "sm90", Path(scratch), print)
