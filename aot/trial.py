"""Trials: what explain says of a call, and packs of a single candidate, so that any accepted candidate can be run and not only the first.

A trial pack is a finished pack cut down: the manifest rewritten, the objects linked. The runtime verifies it as any other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dsa_kernels
from aot.tuning import is_tuned

Call = Callable[[], object]
HEAD = re.compile(r"^\w+ on .*sm_count = (\d+)\)")


@dataclass(frozen=True)
class Verdict:
    """What ``explain`` says: units of the device, scalars as literals, the accepted candidates in order of preference."""

    units: int
    scalars: Mapping[str, str]
    accepted: tuple[str, ...]


def verdict(text: str) -> Verdict:
    """``text``, which ``explain`` gave, read."""
    head = HEAD.match(text)
    if not head:
        raise ValueError(f"found {text[:80]!r}; wanted what explain says of a call; use the runtime of this checkout")
    call, _, candidates = text.partition("\ncandidates, in order of preference:")
    scalars = dict(re.findall(r"^  (\w+): ([^\s,]+)(?: \(default\))?$", call, re.M))
    return Verdict(int(head[1]), scalars, tuple(re.findall(r"^  (\S+): (?:chosen|accepted)", candidates, re.M)))


def cut(pack: Path, out: Path, op: str, keep: Callable[[str], bool]) -> Path:
    """A pack at ``out``: that of ``pack`` with ``op`` alone, of it the candidates that ``keep`` takes by name, and their objects."""
    manifest: dict[str, Any] = json.loads((pack / "manifest.json").read_text())
    manifest["ops"] = [o for o in manifest["ops"] if o["name"] == op]
    for o in manifest["ops"]:
        o["candidates"] = [c for c in o["candidates"] if keep(c["name"])]
        launches = [x for c in o["candidates"] for x in c["launches"]]
        numbers = {old: new for new, old in enumerate(sorted({x["kernel"] for x in launches}))}
        o["kernels"] = [o["kernels"][old] for old in numbers]  # argument lists stay, used or not
        for x in launches:
            x["kernel"] = numbers[x["kernel"]]
    launched = {k["object"] for o in manifest["ops"] for k in o["kernels"]}
    manifest["objects"] = {digest: entry for digest, entry in manifest["objects"].items() if digest in launched}
    (out / "objects").mkdir(parents=True)
    for entry in manifest["objects"].values():
        (out / entry["file"]).symlink_to((pack / entry["file"]).resolve())
    (out / "manifest.json").write_text(json.dumps(manifest))
    dsa_kernels.verify([out])
    return out


def alone(op: str, folder: Path, prefix: str, target: str = "sm90") -> dsa_kernels.Packs:
    """``op`` of the installed pack of ``target`` with no other candidates than those named ``prefix``..., which others may stand before.

    ``folder`` must stay while they are in use. Raises ``LookupError`` where no such pack is installed.
    """
    found = next((Path(str(p["path"])) for p in dsa_kernels.verify() if p["target"] == target), None)
    if found is None:
        raise LookupError(f"found no pack of {target}; install its wheel, or set DSA_KERNELS_PACKS")
    return dsa_kernels.open_packs([cut(found, folder / op / target, op, lambda name: name.startswith(prefix))])


class Trials:
    """The candidates of ``op`` in ``packs``, each in a pack of its own under ``folder``, made when it is first called.

    What tuning put first is left out: it is one of the others, and the order of the declaration is what tuning starts from. The first
    pack is the one whose choice is the default; further ones hold other configurations, under other names.
    """

    def __init__(self, op: str, packs: Iterable[Path], folder: Path) -> None:
        self._op, self._folder = op, folder
        self._sources = [cut(p, folder / f"source{i}", op, lambda name: not is_tuned(name)) for i, p in enumerate(packs)]
        self._opened: list[dsa_kernels.Packs] = []
        self._whole = [self._open(p) for p in self._sources]
        self._single: dict[str, Any] = {}

    def _open(self, pack: Path) -> Any:
        self._opened.append(dsa_kernels.open_packs([pack]))
        return self._opened[-1].op(self._op)

    def explain(self, inputs: Mapping[str, Any]) -> Verdict:
        """The verdict on a call: the default first, then every other candidate that accepts it. Without a default there is none."""
        found = []
        for source, op in zip(self._sources, self._whole, strict=True):
            found.append(verdict(dsa_kernels.explain(op, **inputs)))
            for name in found[-1].accepted:
                if name not in self._single:
                    out = self._folder / f"candidate{len(self._single)}"
                    self._single[name] = self._open(cut(source, out, self._op, {name}.__contains__))
        accepted = tuple(name for v in found for name in v.accepted) if found[0].accepted else ()
        return Verdict(found[0].units, found[0].scalars, accepted)

    def call(self, candidate: str, inputs: Mapping[str, object]) -> Call:
        """A launch of ``candidate``, which ``explain`` named."""
        op = self._single[candidate]
        return lambda: op(**inputs)

    def close(self) -> None:
        """Unload the kernels; wanted before ``folder`` goes."""
        for packs in self._opened:
            packs.close()
