"""``python -m aot.evidence --arch gfx950``: what each configuration of the attention kernels compiles to, without the hardware.

``kernels/<op>/configurations.json`` lists configurations of an op's Triton kernels (target, element type of the rows, constants and
options), ``kernels/include/tile_configurations.json`` those of the TileLang kernel that the ops share. Each is compiled; registers,
spills, LDS and the hot loop's instructions are read from the object and its assembler text, and set against published rates. The table
goes into ``docs/tuning/<target>_evidence.md``; what is shipped is marked. A configuration is shipped by writing it into the candidates.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

import click
from rich.console import Console

from aot import check
from aot.assembly import RATES, Loop, Rates, hot_loop
from aot.compilers.base import CompileError, Unit
from aot.registry import KERNELS, ROOT, discover
from aot.spec import Kernel, Op
from aot.targets import TARGETS, Target

Configuration = Mapping[str, int]
HEAD = """# What the {target} configurations compile to

Written by `python -m aot.evidence --arch {target}`; no {target} GPU took part. Registers, spills and LDS are those of the objects,
instructions those of one trip of the hot loop for one wave.

- **waves**: waves that a SIMD holds at once, from registers and LDS. **loads**, **LDS r/w**: instructions by bytes a lane.
- **VALU/MFMA**: vector instructions per 16x16x32 worth of matrix work.
- **matrix, vector, LDS**: cycles for which a unit's SIMDs or its LDS are busy with one key and 16 heads.
- **gather**: cycles in which memory at its full rate delivers that key ({hbm:.1f} bytes a cycle and unit; the L2 gives {l2:.0f}).
- **alone**: the loop's busy cycles one after the other and one trip to memory ({latency} cycles), over the programs of a unit: what is
  left if waves overlap with one another only.
- **bound**: the largest of these. It ranks configurations; it is not a prediction of time.

Published rates: {units} units at {clock:.1f} GHz, {bandwidth:.1f} TB/s, four cycles a pass of a matrix instruction.
"""
NAMES = {
    "triton": {"keys": "BLOCK_N", "heads": "BLOCK_H", "assembly": ".amdgcn"},
    "tilelang": {"keys": "KEYS", "heads": "HEADS", "assembly": ".s"},
}
"""What a language's kernels call their keys and heads, and the assembler text that their compiler keeps."""
COLUMNS = """configuration, PV, VGPR, AGPR, spills, LDS, waves, MFMA in the loop, loads, LDS r/w, VALU/MFMA, matrix, vector, LDS, gather,
alone, bound""".replace("\n", " ").split(", ")


@dataclass(frozen=True)
class Evidence:
    """One compiled configuration: what the object uses, its hot loop, and the bounds that follow."""

    kernel: Kernel
    resources: check.Resources
    loop: Loop
    target: Target
    rates: Rates
    row_bytes: int
    warps: int

    @property
    def keys(self) -> int:
        return int(self.kernel.constants[NAMES[self.kernel.language]["keys"]])

    @property
    def work(self) -> float:
        """Keys times tiles of 16 heads in one trip."""
        return self.keys * int(self.kernel.constants[NAMES[self.kernel.language]["heads"]]) / 16

    def cycles(self) -> dict[str, float]:
        """Busy cycles of a compute unit per key and 16 heads, by what is busy."""
        matrix, vector, lds = self.loop.matrix_cycles(), self.loop.vector_cycles(), self.loop.lds_cycles(self.rates)
        waves = self.warps / self.rates.simds
        programs = max(1, self.resources["blocks_per_unit"])
        found = {
            "matrix": matrix * waves / self.work,
            "vector": vector * waves / self.work,
            "LDS": lds * self.warps / self.work,
            "gather": self.row_bytes * self.keys / self.rates.hbm / self.work,
            "alone": (matrix + vector + lds * self.warps + self.rates.latency) / programs / self.work,
        }
        return found | {"bound": max(found.values())}

    @property
    def waves(self) -> float:
        return self.resources["blocks_per_unit"] * self.warps / self.rates.simds

    def cells(self, name: str) -> list[str]:
        r, loop = self.resources, self.loop
        widths = [", ".join(f"{n} x {w}" for w, n in loop.memory(kind).items()) for kind in ("global_load", "ds_read", "ds_write")]
        return [
            name,
            terms(self.kernel),
            *(str(r[k]) for k in ("registers", "accumulators", "spill_bytes", "shared")),
            f"{self.waves:g}",
            ", ".join(f"{n} x {kind}" for kind, n in loop.mfma.items()),
            widths[0],
            f"{widths[1]} / {widths[2]}",
            f"{loop.valu / loop.tiles:.1f}",
            *(f"{v:.1f}" for v in self.cycles().values()),
        ]


def _listed(file: Path, target: str, dtype: str) -> list[Configuration]:
    listed: dict[str, dict[str, list[Configuration]]] = json.loads(file.read_text()) if file.exists() else {}
    return listed.get(target, {}).get(dtype, [])


def configurations(op: str, target: str, dtype: str) -> list[Configuration]:
    """The configurations of the op's Triton kernels to look at for rows of ``dtype``."""
    return _listed(KERNELS / op / "configurations.json", target, dtype)


def tile_configurations(kernel: Kernel, target: str, dtype: str) -> list[Configuration]:
    """Those of the TileLang kernel for the same heads as ``kernel``."""
    listed = _listed(KERNELS / "include/tile_configurations.json", target, dtype)
    return [c for c in listed if c["HEADS"] == kernel.constants["HEADS"]]


def terms(kernel: Kernel) -> str:
    """In how many terms P is carried, in words."""
    return str(kernel.constants.get("PV", "")) or {1: "one", 2: "two"}.get(int(kernel.constants.get("TERMS", 0)), "")


def configured(kernel: Kernel, configuration: Configuration) -> Kernel:
    """``kernel`` with another configuration; its promises go, since the instructions are what is looked at."""
    constants = {k: v for k, v in configuration.items() if k.isupper()}
    options = {k: v for k, v in configuration.items() if not k.isupper()}
    return replace(kernel, constants={**kernel.constants, **constants}, options={**kernel.options, **options}, promises=())


def shipped(kernel: Kernel, configuration: Configuration) -> bool:
    return configured(kernel, configuration).name == kernel.name


def look(op: Op, kernel: Kernel, target: Target) -> Evidence:
    """Compile ``kernel`` and read it. Raises ``CompileError`` or ``CheckError`` when it does not fit the target."""
    dtypes = {a.name: op.pointer_dtype(a, target) for a in kernel.args if a.type == "ptr"}
    unit = Unit(op.name, kernel, target, KERNELS / op.name, KERNELS / "include", dtypes)
    built = import_module(f"aot.compilers.{kernel.language}").build(unit)
    text = next(t for name, t in built.intermediates.items() if name.endswith(NAMES[kernel.language]["assembly"]))
    size = 1 if dtypes["kv"].startswith("e4m3") else 2
    row_bytes = int(kernel.constants.get("D", 512 + int(kernel.constants.get("ROPE", 0)))) * size
    warps = built.block[0] // target.wave
    return Evidence(kernel, check.inspect(target, built, kernel), hot_loop(text), target, RATES[target.name], row_bytes, warps)


def kernels(op: Op, target: Target, language: str = "triton") -> Iterator[Kernel]:
    """Its attention kernels of ``language`` on ``target``, those for the wider rows."""
    for kernel in op.kernels_for(target):
        wide = kernel.constants.get("ROPE") == 64 or kernel.constants.get("D") == 576
        if kernel.language == language and NAMES[language]["keys"] in kernel.constants and wide:
            yield kernel


def looked_at(op: Op, target: Target) -> Iterator[tuple[str, Kernel, Configuration]]:
    """Every configuration of the table: what to call it, the kernel that is shipped, the configuration."""
    for kernel in (*kernels(op, target), *kernels(op, target, "tilelang")):
        dtype = next(a.dtype for a in kernel.args if a.name == "kv")
        triton = kernel.language == "triton"
        for c in configurations(op.name, target.name, dtype) if triton else tile_configurations(kernel, target.name, dtype):
            words = " ".join(f"{k}={v}" for k, v in c.items())
            yield f"{'' if triton else 'TileLang '}{dtype} {words}", kernel, c


def table(op: Op, target: Target, console: Console) -> list[str]:
    """Markdown rows for ``op``: FP8 and BF16 kernels, every configuration, the shipped one marked."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    for words, kernel, c in looked_at(op, target):
        name = f"**{words}**, shipped" if shipped(kernel, c) else words
        console.print(f"{op.name} {name}", highlight=False, markup=False)
        try:
            cells = look(op, configured(kernel, c), target).cells(name)
        except (CompileError, check.CheckError, ValueError) as e:
            why = re.sub(r"\s+", " ", str(e)).replace("|", "/")[:120]
            cells = [name, terms(kernel), f"refused: {why}", *[""] * (len(COLUMNS) - 3)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


@click.command(context_settings={"show_default": True})
@click.option("--arch", required=True, type=click.Choice(list(RATES)), help="The target to look at.")
@click.option("--op", "only", multiple=True, help="Look at this op alone (may be repeated); the others keep their part of the file.")
@click.option("--out", type=click.Path(path_type=Path), help="The file to write: docs/tuning/<arch>_evidence.md.")
def main(arch: str, only: tuple[str, ...], out: Path | None) -> None:
    """Compile every listed configuration for ARCH and write the table of what became of it."""
    target, rates = TARGETS[arch], RATES[arch]
    ops = {name: op for name, op in discover().items() if any(configurations(name, arch, dtype) for dtype in ("fp8", "bf16"))}
    if unknown := sorted(set(only) - set(ops)):
        raise click.ClickException(f"found no configurations of {', '.join(unknown)} for {arch}; wanted some of: {', '.join(ops)}")
    out = out or ROOT / f"docs/tuning/{arch}_evidence.md"
    old = dict(re.findall(r"^## (\w+)\n\n(.*?)\n*(?=^## |\Z)", out.read_text(), re.S | re.M)) if out.exists() else {}
    text = HEAD.format(
        target=arch, hbm=rates.hbm, l2=rates.l2, latency=rates.latency, units=rates.units, clock=rates.clock / 1e9,
        bandwidth=rates.hbm * rates.units * rates.clock / 1e12,
    )  # fmt: skip
    console = Console(stderr=True)
    for name, op in ops.items():
        part = old[name] if only and name not in only and name in old else "\n".join(table(op, target, console))
        text += f"\n## {name}\n\n{part}\n"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text)
    console.print(f"wrote {out}", highlight=False)


if __name__ == "__main__":
    main()
