"""Which candidate serves a call, as data: the runtime's own ``explain``, read into verdicts, and calls described in words."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from . import _core, _packs
from .errors import ArgumentError, NoCandidate, NoPack

LANGUAGES = {"tilelang": "tilelang", "triton": "triton", "nvrtc": "cuda", "clang": "hip"}
"""Tools that made an object, and the language of its source; the first that is found counts."""


@dataclass(frozen=True)
class Verdict:
    """``verdict`` is ``chosen``, ``accepted`` (after the chosen one) or ``rejected``, with its ``reason``."""

    candidate: str
    language: str
    verdict: str
    reason: str


@dataclass(frozen=True)
class Selection:
    """What a call would do: the candidates in order of preference, ``call`` and ``launches``, the runtime's own words.

    As a string it is a table; neighbours that are rejected for the same reason share a row.
    """

    op: str
    target: str
    verdicts: tuple[Verdict, ...]
    call: str
    launches: str

    @property
    def chosen(self) -> Verdict | None:
        """The candidate that serves; None where none does."""
        return next((v for v in self.verdicts if v.verdict == "chosen"), None)

    def __str__(self) -> str:
        table = [("candidate", "language", "verdict", "reason"), *_rows(self.verdicts)]
        widths = [max(len(row[i]) for row in table) for i in range(4)]
        rows = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in table]
        launches = [line for line in self.launches.splitlines() if not line.startswith("    ")]  # without objects and resources
        return "\n".join([f"{self.op} on {self.target}", *rows, *launches])


def _rows(verdicts: Sequence[Verdict]) -> list[tuple[str, str, str, str]]:
    """One row for each run of neighbours that are alike in all but their names."""
    runs = [list(run) for _, run in groupby(verdicts, lambda v: (v.language, v.verdict, v.reason))]
    names = [run[0].candidate if len(run) == 1 else f"{run[0].candidate} to {run[-1].candidate} ({len(run)})" for run in runs]
    return [(name, run[0].language, run[0].verdict, run[0].reason) for name, run in zip(names, runs, strict=True)]


def select(
    op: str | _core.Op,
    *args: object,
    target: str | None = None,
    candidate: str | None = None,
    packs: _packs.Packs | None = None,
    **kwargs: object,
) -> Selection:
    """Which candidate serves ``op(*args, **kwargs)``, and why the others do not.

    ``target`` (``"sm90"``) answers for that architecture, without a driver; ``View`` objects stand for tensors. ``candidate`` is a
    wish, a candidate's name or a language (``triton``, ``tilelang``, ``cuda``, ``hip``). ``packs``: default, the installed ones.

    Raises ``NoCandidate`` with the trace when no candidate serves, or not the one wished for; ``ArgumentError`` for a call that
    breaks the op's contract and for a wish that names nothing.
    """
    opened = packs or _packs.default_packs()
    chosen_op = opened.op(op)
    found = _read(_core.explain(chosen_op, target, args, kwargs), chosen_op.__name__, _languages(opened, chosen_op.__name__))
    chosen = found.chosen
    if chosen is None:
        raise NoCandidate(f"found no candidate that serves this call; wanted one; change what the reasons name\n{found.call}\n{found}")
    if candidate is None or candidate in (chosen.candidate, chosen.language):
        return found
    known = {n for v in found.verdicts for n in (v.candidate, v.language)}
    if candidate not in known:
        raise ArgumentError(f"found candidate {candidate!r}; wanted one of {', '.join(sorted(known))}; correct it\n{found}")
    raise NoCandidate(
        f"found {chosen.candidate} ({chosen.language}) for this call; wanted {candidate}; change the call until the reasons below are "
        f"gone, or drop the wish\n{found}"
    )


def _languages(packs: _packs.Packs, op: str) -> dict[str, dict[str, str]]:
    """For every target, the language of each candidate of ``op``."""
    found: dict[str, dict[str, str]] = {}
    for pack in packs.info()["packs"]:
        manifest = _manifest(pack["directory"])
        for entry in (o for o in manifest["ops"] if o["name"] == op):
            first = {c["name"]: entry["kernels"][c["launches"][0]["kernel"]] for c in entry["candidates"]}
            tools = {name: manifest["objects"][kernel["object"]]["tools"] for name, kernel in first.items()}
            found[pack["target"]] = {name: next((LANGUAGES[t] for t in LANGUAGES if t in made), "?") for name, made in tools.items()}
    return found


def _manifest(directory: str) -> dict[str, Any]:
    with open(os.path.join(directory, "manifest.json"), encoding="utf-8") as file:
        found: dict[str, Any] = json.load(file)
    return found


def _read(text: str, op: str, languages: dict[str, dict[str, str]]) -> Selection:
    """``text`` is the runtime's explanation: the call, then a line for each candidate and, under the chosen one, its launches."""
    call, _, rest = text.partition("\ncandidates, in order of preference:\n")
    where = call.splitlines()[0].removeprefix(f"{op} on ")
    verdicts, launches = [], []
    for line in rest.splitlines():
        if line.startswith("    "):
            launches.append(line[2:])
        elif line.startswith("  "):
            name, _, said = line.strip().partition(": ")
            word, _, reason = said.partition(": ")
            verdict, _, after = word.partition(", ")
            verdicts.append(Verdict(name, languages.get(where.split()[0], {}).get(name, "?"), verdict, reason or after))
    return Selection(op, where, tuple(verdicts), call, "\n".join(launches))


# ---- calls in words -----------------------------------------------------------------------------------------------------------


def from_words(op: str, words: Iterable[str], target: str | None, packs: _packs.Packs | None = None) -> tuple[str, dict[str, Any]]:
    """The target, and the arguments of a call that ``words`` describe, each ``NAME=VALUE``.

    A dimension takes a number (``T=4096``), a scalar its value (``sm_scale=0.0625``), a tensor its element type (``q=fp8``), or
    ``yes`` where it has only one; tensors that are required need a word only where they may be of several types. A word without
    effect is an error. The target is the one given, else that of the first device.
    """
    opened = packs or _packs.default_packs()
    name = opened.op(op).__name__
    where: str = target or next((d["arch"].replace("_", "") for d in opened.info()["devices"] if d["arch"]), "none")
    entries = {p["target"]: _manifest(p["directory"]) for p in opened.info()["packs"]}
    if where not in entries:
        raise NoPack(f"found target {where!r}; wanted one of {', '.join(sorted(entries))}; pass --target")
    declared = next((o for o in entries[where]["ops"] if o["name"] == name), None)
    if declared is None:
        raise NoPack(f"found no op {name} for {where}; wanted a target that has it; see python -m dsa_kernels info")
    pairs = [_split(word) for word in words]
    given = dict(pairs)
    if repeated := sorted({name for name, _ in pairs if [n for n, _ in pairs].count(name) > 1}):
        raise ArgumentError(f"found {_list(repeated)} more than once; wanted each name once; leave the others out")
    params = {p["name"]: p for p in declared["params"]}
    if unknown := given.keys() - params.keys() - set(declared["symbols"]):
        raise ArgumentError(f"found {_list(unknown)}; wanted names among {_list([*params, *declared['symbols']])}; correct it")
    return where, _arguments(params, declared["symbols"], given, entries[where]["target"])


def _arguments(params: dict[str, Any], symbols: Sequence[str], given: dict[str, str], target: dict[str, Any]) -> dict[str, Any]:
    tensors = [p for p in params.values() if p["kind"] == "tensor" and (p["name"] in given or not p["optional"])]
    shapes = {p["name"]: [compile(word, word, "eval") for word in p["shape"]] for p in tensors}
    needed = {n for codes in shapes.values() for code in codes for n in code.co_names if n in symbols}
    sizes = {s: _number(s, given[s], int) for s in needed if s in given}
    if missing := needed - sizes.keys():
        raise ArgumentError(f"found no {_list(missing)}; wanted a size for each of {_list(needed)}; add {_list(f'{m}=1' for m in missing)}")
    if idle := [s for s in symbols if s in given and s not in needed]:
        raise ArgumentError(f"found {_list(idle)}, which no tensor of this call has; wanted no word without effect; leave it out")
    scalars = [p for p in params.values() if p["kind"] == "scalar"]
    kinds = {"f32": float, "i32": int, "i64": int, "choice": str}
    values = {p["name"]: _number(p["name"], given[p["name"]], kinds[p["dtype"]]) for p in scalars if p["name"] in given}
    env: dict[str, Any] = {"__builtins__": {}, "has": int, **dict.fromkeys(params, False), **{p["name"]: True for p in tensors}, **sizes}
    env |= {p["name"]: eval(p["default"], env) for p in scalars if p["default"] is not None and p["dtype"] != "choice"} | values
    views: dict[str, Any] = {}
    for p in tensors:
        shape = [int(eval(code, env)) for code in shapes[p["name"]]]
        views[p["name"]] = _core.View(0, shape, _dtype(p, given.get(p["name"]), target["fp8"]), vendor=target["vendor"])
    return views | values


def _split(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not (name and equals and value):
        raise ArgumentError(f"found the word {word!r}; wanted NAME=VALUE; write T=4096, q=fp8 or sm_scale=0.0625")
    return name, value


def _dtype(param: dict[str, Any], word: str | None, fp8: str) -> str:
    wanted: list[str] = param["dtypes"]
    if word in (None, "yes") and len(wanted) == 1:
        return wanted[0]
    dtype = fp8 if word == "fp8" else word
    if dtype is None or dtype not in wanted:
        raise ArgumentError(
            f"found {param['name']} {word or 'without a type'}; wanted one of {', '.join(wanted)}; add {param['name']}=TYPE"
        )
    return dtype


def _number(name: str, word: str, kind: type[Any]) -> Any:
    try:
        found = kind(word)
        if kind is int and not -(2**63) <= found < 2**63:
            raise ValueError
        return found
    except ValueError:
        raise ArgumentError(f"found {name}={word}; wanted {'a number' if kind is float else 'an int of 64 bits'}; correct it") from None


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
