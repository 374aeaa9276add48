"""The tuning file, ``kernels/<op>/tuning.json``: which candidate goes first for which calls, measured on the hardware.

    {"sm90": [{"when": "T >= 8 and T <= 32 and H == 16 and D == 576",   guard, in the grammar of aot/expr.py
               "first": "low_d576_h16_c4",                              a candidate of the op on that target
               "us": {"T=8 H=16 D=576": [7.1, 8.0]},                    measured of it and of what it goes before, by shape
               "measured": {"device": "NVIDIA H200", "command": "python -m aot.tune --op ..."}}]}

The entries of a target are taken in order, before the op's own order of preference: a candidate stands first, under a name of its
own, where both its guard and the entry's hold, and keeps its place for other calls. Without a file nothing changes. ``python -m
aot.tune --write`` writes it.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from aot.expr import ExprError, parse
from aot.spec import Candidate, Op, SpecError, variables
from aot.targets import TARGETS

FILE = "tuning.json"
AGAIN = "tune again (docs/tuning.md) or take the entry out"
NAME = re.compile(r"tuned\d+_")


@dataclass(frozen=True)
class Entry:
    """Calls for which ``when`` holds try the candidate ``first`` before all others."""

    when: str
    first: str
    us: Mapping[str, tuple[float, float]]
    measured: Mapping[str, str]

    def candidate(self, op: Op, target: str, index: int) -> Candidate:
        """``first``, narrowed, under a name that ``is_tuned`` knows."""
        (declared,) = (c for c in op.candidates if c.name == self.first and target in c.targets)
        return replace(declared, name=f"tuned{index}_{self.first}", targets=(target,), when=f"({declared.when}) and ({self.when})")


Table = dict[str, list[Entry]]


def is_tuned(name: str) -> bool:
    """Whether a manifest's candidate of this name comes from a tuning file."""
    return bool(NAME.match(name))


def apply(op: Op, file: Path) -> Op:
    """``op`` with what ``file``, where there is one, puts first. Raises ``SpecError`` naming file and entry."""
    if not file.exists():
        return op
    return replace(op, tuned=tuple(e.candidate(op, t, i) for t, entries in read(op, file).items() for i, e in enumerate(entries, 1)))


def read(op: Op, file: Path) -> Table:
    """The entries of ``file`` by target, checked against ``op``; empty where there is no file."""
    if not file.exists():
        return {}
    where = f"{file.parent.parent.name}/{file.parent.name}/{file.name}"
    try:
        raw = json.loads(file.read_text())
    except ValueError as e:
        raise SpecError(f"{where}: found {e}; wanted JSON; {AGAIN}") from None
    if not isinstance(raw, dict) or any(not isinstance(entries, list) for entries in raw.values()):
        raise SpecError(f"{where}: found {_short(raw)}; wanted lists of entries by target; {AGAIN}")
    if unknown := sorted(set(raw) - set(TARGETS)):
        raise SpecError(f"{where}: found the targets {unknown}; wanted some of {list(TARGETS)}; {AGAIN}")
    return {t: [_entry(op, t, e, f"{where}: {t}, entry {i}") for i, e in enumerate(entries, 1)] for t, entries in raw.items()}


def _entry(op: Op, target: str, raw: Any, where: str) -> Entry:
    def refuse(what: str, wanted: str) -> SpecError:
        return SpecError(f"{where}: found {what}; wanted {wanted}; {AGAIN}")

    keys = list(Entry.__dataclass_fields__)
    if not isinstance(raw, dict) or sorted(raw) != sorted(keys):
        raise refuse(_short(raw), f"an object of {', '.join(keys)}")
    when, first, us, measured = (raw[k] for k in keys)
    known = [c.name for c in op.candidates if target in c.targets]
    if first not in known:
        near = difflib.get_close_matches(str(first), known, 3, 0) or ["none, since it has none there"]
        raise refuse(f"first {first!r}", f"a candidate of {op.name} on {target}, such as {', '.join(near)}")
    if not isinstance(when, str):
        raise refuse(f"when {_short(when)}", "a guard, which is text")
    try:
        unknown = sorted(parse(when).names - variables(op))
    except ExprError as e:
        raise SpecError(f"{where}: when: {e}; {AGAIN}") from None
    if unknown:
        raise refuse(f"when {when!r}, which reads {unknown}", f"names that {op.name} has: {sorted(variables(op))}")
    if not isinstance(us, dict) or not us or not all(_faster(pair) for pair in us.values()):
        raise refuse(f"us {_short(us)}", "by shape two times in microseconds, that of first the shorter one")
    if not isinstance(measured, dict) or sorted(measured) != ["command", "device"]:
        raise refuse(f"measured {_short(measured)}", "an object of device and command")
    return Entry(when, first, {shape: (a, b) for shape, (a, b) in us.items()}, measured)


def _faster(pair: Any) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and all(type(x) in (int, float) for x in pair) and 0 < pair[0] < pair[1]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def merge(old: list[Entry], new: list[Entry], shapes: set[str]) -> list[Entry]:
    """``new``, then those of ``old`` none of whose shapes is among ``shapes``, which were measured again."""
    return new + [e for e in old if not shapes & set(e.us)]


def write(file: Path, table: Table) -> None:
    """Write ``table``; without an entry there is no file."""
    filled = {target: [asdict(e) for e in entries] for target, entries in sorted(table.items()) if entries}
    if filled:
        file.write_text(json.dumps(filled, indent=1) + "\n")
    else:
        file.unlink(missing_ok=True)
