"""``python -m aot.tune --op sparse_mla_decode --device 0``: on a machine with the GPU, time every candidate that accepts a call.

It needs torch, the runtime and the pack, and no compiler. For each shape the candidates that ``explain`` accepts take turns; the table
says what the declaration takes first, what is fastest, and the others. ``--write`` puts the winners into ``kernels/<op>/tuning.json``,
which the next build reads: see docs/tuning.md.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import click

import dsa_kernels
from aot import tuning
from aot.device import Device, Shape
from aot.registry import KERNELS, discover
from aot.spec import Op
from aot.targets import Target
from aot.trial import Call, Trials, Verdict
from aot.tuning import Entry

GAIN = 1.03
"""How many times as fast a candidate must be to go first: below that it is noise."""

Axes = Mapping[str, tuple[int | str, ...]]
ATTENTION: Axes = {
    "dtype": ("fp8",),
    "precision": ("default",),
    "s_kv": (65536,),
    "topk": (2048,),
    "D": (512, 576),
    "H": (8, 16, 32, 64, 128),
}
SHAPES: Mapping[str, Axes] = {
    "sparse_mla_decode": {**ATTENTION, "T": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)},
    "sparse_mla_prefill": {**ATTENTION, "T": (256, 4096)},
}
"""What is timed: every combination of the axes, the last one running fastest."""
WORDS = {"dtype": ("fp8", "bf16"), "precision": ("default", "fast", "exact", "high")}
"""The axes whose values are words; those of the others are positive numbers."""


class Timer(Protocol):
    """What the loop needs of ``Device``."""

    def inputs(self, shape: Shape) -> Sequence[Mapping[str, object]]: ...
    def medians_us(self, calls: Mapping[str, Sequence[Call]]) -> Mapping[str, float]: ...


@dataclass(frozen=True)
class Row:
    """One shape: what explain said and the time of each accepted candidate."""

    shape: Shape
    verdict: Verdict
    us: Mapping[str, float]

    @property
    def name(self) -> str:
        return " ".join(f"{axis}={value}" for axis, value in self.shape.items())

    @property
    def default(self) -> str:
        return self.verdict.accepted[0]

    @property
    def first(self) -> str | None:
        """The candidate that should go first instead of the default. A configuration that is in no pack cannot."""
        best = min((name for name in self.us if "[" not in name), key=lambda name: self.us[name], default=None)
        return best if best and self.us[self.default] > GAIN * self.us[best] else None

    def text(self) -> str:
        if not self.us:
            return f"{self.name:70s} {'':9s}   no candidate serves it"
        ranked = sorted(self.us.items(), key=lambda item: item[1])
        words = [f"{name}{' (default)' if name == self.default else ''} {us:.2f}" for name, us in ranked]
        return f"{self.name:70s} {self.us[self.default]:9.2f}   {', '.join(words)}"


def shapes(axes: Axes) -> Iterator[Shape]:
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def chosen_axes(op: str, given: Iterable[str]) -> Axes:
    """The axes of ``op``, those in ``given`` (``T=1,8``) replaced."""
    axes = dict(SHAPES[op])
    for text in given:
        axis, _, values = text.partition("=")
        words = values.split(",")
        good = axis in axes and all(w in WORDS[axis] if axis in WORDS else w.isdecimal() and int(w) > 0 for w in words)
        if not good:
            raise ValueError(
                f"found --shapes {text}; wanted AXIS=VALUE,VALUE of {', '.join(axes)}, positive numbers, "
                f"dtype {'|'.join(WORDS['dtype'])}, precision {'|'.join(WORDS['precision'])}; such as --shapes T=1,8"
            )
        axes[axis] = tuple(words) if axis in WORDS else tuple(sorted(map(int, words)))
    return axes


def sweep(trials: Trials, every: Iterable[Shape], timer: Timer) -> Iterator[Row]:
    """A row for every shape, without times where no candidate serves it."""
    for shape in every:
        sets = timer.inputs(shape)
        verdict = trials.explain(sets[0])
        calls = {name: [trials.call(name, s) for s in sets] for name in verdict.accepted}
        yield Row(shape, verdict, timer.medians_us(calls) if calls else {})


def guard(run: Sequence[Row]) -> str:
    """The calls that a run of rows, which differ in T, speaks for: their shapes, lists of half to twice the width, their device."""
    shape, last = run[0].shape, run[-1].shape["T"]
    topk = int(shape["topk"])
    words = [f"T == {last}"] if shape["T"] == last else [f"T >= {shape['T']}", f"T <= {last}"]
    words += [f"{axis} == {shape[axis]}" for axis in "HD"] + [f"topk >= {topk // 2}", f"topk <= {topk * 2}"]
    return " and ".join([*words, f"precision == {run[0].verdict.scalars['precision']}", f"sm_count == {run[0].verdict.units}"])


def proposals(rows: Iterable[Row], measured: Mapping[str, str]) -> list[Entry]:
    """An entry for each longest run of T in which one candidate beats the default."""
    found = []
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(v for axis, v in row.shape.items() if axis != "T"), []).append(row)
    for group in groups.values():
        group.sort(key=lambda row: int(row.shape["T"]))
        for first, same in itertools.groupby(group, key=lambda row: row.first):
            if first is not None:
                run = list(same)
                us = {row.name: (round(row.us[first], 2), round(row.us[row.default], 2)) for row in run}
                found.append(Entry(guard(run), first, us, measured))
    return found


def pack_of(target: Target, packs: Sequence[Path]) -> Path:
    """The pack for ``target`` among ``packs``, or among the installed ones."""
    found = dsa_kernels.verify(packs or None)
    for pack in found:
        if pack["target"] == target.name:
            return Path(str(pack["path"]))
    raise LookupError(
        f"found packs of {', '.join(str(p['target']) for p in found)}; wanted one of {target.name}, which the device is; "
        f"python -m aot.build --arch {target.name}, then --packs packs, or install its wheel"
    )


def write(op: Op, target: Target, rows: Sequence[Row], entries: list[Entry], file: Path) -> None:
    """Put ``entries`` into the tuning file, in the place of those that stand on shapes of ``rows``."""
    declared = {c.name for c in op.candidates if target.name in c.targets}
    if unknown := sorted({e.first for e in entries} - declared):
        raise LookupError(f"found {unknown} in the pack; wanted candidates that {op.name} declares here; build the pack from this tree")
    table = tuning.read(op, file)
    table[target.name] = tuning.merge(table.get(target.name, []), entries, {row.name for row in rows})
    tuning.write(file, table)


@click.command(context_settings={"show_default": True})
@click.option("--op", "name", required=True, type=click.Choice(list(SHAPES)), help="The op to tune.")
@click.option("--device", "index", type=click.IntRange(0), default=0, help="The GPU, as torch numbers them.")
@click.option("--packs", multiple=True, type=click.Path(path_type=Path), help="A pack or a folder of packs; else the installed ones.")
@click.option("--shapes", "given", multiple=True, metavar="AXIS=V,V", help="Other values for an axis of the table (may be repeated).")
@click.option("--configurations", is_flag=True, help="Also compile and time what kernels/<op>/configurations.json lists.")
@click.option("--write", "writes", is_flag=True, help="Write kernels/<op>/tuning.json.")
def main(name: str, index: int, packs: tuple[Path, ...], given: tuple[str, ...], configurations: bool, writes: bool) -> None:
    """Time every candidate of an op on this GPU and say which should go first."""
    try:
        _tune(name, index, packs, given, configurations, writes)
    except (ValueError, LookupError, dsa_kernels.Error) as e:
        raise click.ClickException(str(e)) from None


def _tune(name: str, index: int, packs: Sequence[Path], given: Sequence[str], configurations: bool, writes: bool) -> None:
    axes = chosen_axes(name, given)
    op = discover()[name]
    device = Device(index)
    pack = pack_of(device.target, packs)
    with tempfile.TemporaryDirectory() as scratch:
        others: list[Path] = []
        if configurations:
            from aot.configured import compile_configurations

            for dtype in axes["dtype"]:
                others += compile_configurations(op, device.target, str(dtype), Path(scratch) / str(dtype), click.echo)
        click.echo(f"{device.name}: {name}, median us of a launch\n{'shape':70s} {'default':>9s}   candidates, the fastest first")
        rows = []
        with closing(Trials(name, [pack, *others], Path(scratch))) as trials:
            for row in sweep(trials, shapes(axes), device):
                click.echo(row.text())
                rows.append(row)
    words = ["python -m aot.tune", f"--op {name}", *(f"--shapes {g}" for g in given), *(["--configurations"] if configurations else [])]
    entries = proposals(rows, {"device": device.name, "command": " ".join(words)})
    click.echo(f"{len(entries)} entries, where another candidate is more than {GAIN - 1:.0%} faster than the default:")
    for e in entries:
        click.echo(f"  {e.first} first when {e.when}")
    if writes:
        file = KERNELS / name / tuning.FILE
        write(op, device.target, rows, entries, file)
        click.echo(f"kernels/{name}/{tuning.FILE} is up to date; build and run the tests of the op")


if __name__ == "__main__":
    main()
