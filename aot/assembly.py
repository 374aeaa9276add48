"""Reads AMD assembler text: which loop is the hot one, what it issues, and what that costs by published rates.

The compiler's own comments say which block belongs to which loop; the hot loop is the one with the most matrix instructions.
Cycles are those that a unit is busy for one wave and one trip: they bound a loop from below and rank configurations; they are no
simulation, and no substitute for a clock.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

BLOCK = re.compile(r"^(?:\.L(BB\d+_\d+):|; %bb\.\d+:)(.*)$")
HEADER = re.compile(r"Header[:=]\s*(BB\d+_\d+)")
OPCODE = re.compile(r"^\s+([a-z][a-z0-9_]+)\b(.*)$")
MFMA = re.compile(r"v_s?mfmac?_(?:scale_)?f32_(\d+)x(\d+)x(\d+)_?(\w+)")
TRANSCENDENTAL = re.compile(r"v_(exp|log|rcp|rsq|sqrt|sin|cos)_")
WIDTH = {"b8": 1, "u8": 1, "i8": 1, "b16": 2, "u16": 2, "i16": 2, "b32": 4, "b64": 8, "b96": 12, "b128": 16}
WORDS = {"ubyte": 1, "sbyte": 1, "ushort": 2, "short": 2, "dword": 4, "dwordx2": 8, "dwordx3": 12, "dwordx4": 16}


@dataclass(frozen=True)
class Rates:
    """Published rates of a part, per compute unit and clock.

    ``f8f6f4`` says that the 128-deep FP8 form takes 8 passes for four times the work of the 4-pass 32-deep one, which is the
    peak FP8 rate of CDNA4; the 32-deep forms run at the rate of CDNA3. ``hbm`` and ``l2`` are bytes, ``latency`` cycles of a trip
    to memory, ``clock`` in Hz.
    """

    units: int
    clock: float
    hbm: float
    l2: float
    lds: float = 128.0
    latency: int = 800
    simds: int = 4
    registers: int = 512


RATES = {
    "gfx950": Rates(256, 2.4e9, 8.0e12 / 256 / 2.4e9, 64.0),
    "gfx942": Rates(304, 2.1e9, 5.3e12 / 304 / 2.1e9, 2048 / 38),
}
"""MI355X and MI300X data sheets: 8.0 and 5.3 TB/s; an XCD's L2 gives 2 KiB a clock to its 32 or 38 units."""


@dataclass(frozen=True)
class Loop:
    """Opcodes of a loop's body, each with how often it stands there."""

    opcodes: Counter[str]

    def total(self, pattern: str) -> int:
        return sum(n for op, n in self.opcodes.items() if re.match(pattern, op))

    @property
    def mfma(self) -> dict[str, int]:
        """Matrix instructions by type, ``16x16x32_fp8_fp8``."""
        return {f"{m[1]}x{m[2]}x{m[3]}_{m[4]}": n for op, n in sorted(self.opcodes.items()) if (m := MFMA.match(op))}

    @property
    def tiles(self) -> float:
        """Work of the matrix instructions in units of one 16x16x32."""
        return sum(n * int(m[1]) * int(m[2]) * int(m[3]) / 8192 for op, n in self.opcodes.items() if (m := MFMA.match(op)))

    @property
    def valu(self) -> int:
        """Vector instructions, matrix ones left out."""
        return self.total("v_") - sum(self.mfma.values())

    def memory(self, kind: str) -> dict[int, int]:
        """Instructions by bytes a lane: ``kind`` is ``global_load``, ``ds_read`` or ``ds_write``."""
        found: Counter[int] = Counter()
        for op, n in self.opcodes.items():
            if not re.match(rf"(buffer_load|{kind})" if kind == "global_load" else kind, op):
                continue
            pairs = 2 if re.match(r"ds_(read|write)2", op) else 1
            words = op.split("_")
            bytes_ = next((t[w] for t in (WORDS, WIDTH) for w in words if w in t), 0)
            found[pairs * bytes_] += n
        return dict(sorted(found.items()))

    def matrix_cycles(self) -> float:
        """Four cycles a pass: 16x16 tiles take 4 passes, or 8 in the 128-deep FP8 form; 32x32 tiles 8, or 16 in the 64-deep one."""
        passes = 0
        for name, n in self.mfma.items():
            m, depth, kind = int(name.split("x")[0]), int(re.split(r"[x_]", name)[2]), name.split("_", 1)[1]
            passes += n * ((8 if "f8f6f4" in kind else 4) if m == 16 else (16 if "f8f6f4" in kind or depth < 8 else 8))
        return 4.0 * passes

    def vector_cycles(self) -> float:
        """Four cycles a vector instruction of 64 lanes, sixteen a transcendental one."""
        slow = sum(n for op, n in self.opcodes.items() if TRANSCENDENTAL.match(op))
        return 4.0 * (self.valu - slow) + 16.0 * slow

    def lds_cycles(self, rates: Rates) -> float:
        """Bytes of 64 lanes over the LDS rate of the whole unit, bank conflicts left out."""
        moved = sum(width * n for kind in ("ds_read", "ds_write") for width, n in self.memory(kind).items())
        return 64.0 * moved / rates.lds


def loops(text: str) -> dict[str, Loop]:
    """The innermost loops of a function in assembler text, by header block."""
    found: dict[str, Counter[str]] = {}
    header, label = "", ""
    for line in text.splitlines():
        if start := BLOCK.match(line):
            label, header = start[1] or "", ""
        if ";" in line and (start or not OPCODE.match(line)):
            note = line[line.index(";") :]
            if "Loop Header" in note and "Parent" not in note:
                header = label
            elif named := HEADER.search(note):
                header = named[1]
        if (op := OPCODE.match(line)) and header:
            found.setdefault(header, Counter())[op[1]] += 1
    return {name: Loop(ops) for name, ops in found.items()}


def hot_loop(text: str) -> Loop:
    """The loop with the most matrix work. Raises ``ValueError`` when no loop has any."""
    best = max(loops(text).values(), key=lambda loop: loop.tiles, default=Loop(Counter()))
    if not best.mfma:
        raise ValueError("found no loop with matrix instructions; wanted the assembler text of an attention kernel")
    return best
