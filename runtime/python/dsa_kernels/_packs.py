"""Finding packs, opening them, and what the package offers besides its ops."""

from __future__ import annotations

import os
import sys
from _thread import allocate_lock  # importing threading would cost more

from . import _core
from .errors import ArgumentError, Error, NoPack, NoPackInstalled, PackMissing

TYPE_CHECKING = False  # importing typing or collections.abc would cost more than opening the packs
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

NAMESPACE = "dsa_kernels_packs"
VARIABLE = "DSA_KERNELS_PACKS"
DEVICE_TYPES = {"nvidia": 2, "amd": 10}  # DLPack's numbers for CUDA and ROCm


def _packs_in(directory: str) -> Iterator[str]:
    """``directory`` itself when it is a pack, else the packs directly under it, by name."""
    if os.path.isfile(os.path.join(directory, "manifest.json")):
        yield directory
        return
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return
    for name in names:
        path = os.path.join(directory, name)
        if os.path.isfile(os.path.join(path, "manifest.json")):
            yield path


def _expand(paths: Iterable[str | os.PathLike[str]]) -> list[str]:
    """The packs at ``paths``; a path that holds none stands for itself, so that opening it says what is missing."""
    return [found for path in paths for found in (list(_packs_in(os.fspath(path))) or [os.fspath(path)])]


def _variable_packs() -> Iterator[str]:
    for entry in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        found = list(_packs_in(entry))
        if not found:
            raise PackMissing(
                f"found no pack in {entry!r}, an entry of {VARIABLE}; wanted a directory with manifest.json, or a directory of "
                f"such directories; correct or unset {VARIABLE}"
            )
        yield from found


def find_packs() -> tuple[list[str], list[str]]:
    """Pack directories to open, and those that another pack of the same name shadows.

    Entries of ``DSA_KERNELS_PACKS`` come first, then ``dsa_kernels_packs/<arch>`` under each entry of ``sys.path``.
    """
    chosen: dict[str, str] = {}
    shadowed: list[str] = []
    candidates = [*_variable_packs()]
    for entry in sys.path:
        candidates += _packs_in(os.path.join(entry or os.curdir, NAMESPACE))
    for path in dict.fromkeys(os.path.realpath(p) for p in candidates):
        if chosen.setdefault(os.path.basename(path), path) != path:
            shadowed.append(path)
    return list(chosen.values()), shadowed


class Packs:
    """Opened packs. Ops are attributes, as on the package; the packs stay open until ``close()``.

    Close only when no launch is in flight: closing unloads the kernels. As a context manager it closes at the end. It is never closed
    implicitly.
    """

    def __init__(self, paths: Iterable[str | os.PathLike[str]]) -> None:
        self._paths = _expand(paths)
        self._shadowed: list[str] = []
        self._runtime = _core.Runtime(self._paths)

    def __getattr__(self, name: str) -> _core.Op:
        if name.startswith("_"):
            raise AttributeError(name)
        op: _core.Op = self.__dict__.setdefault(name, self._runtime.find(name))
        return op

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.ops()})

    def __enter__(self) -> Packs:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Packs({self._paths!r})"

    def close(self) -> None:
        """Unload every kernel. The ops of these packs raise from now on."""
        self._runtime.close()

    def ops(self) -> list[str]:
        """Names of the ops, sorted."""
        return sorted(self._runtime.ops())

    def info(self) -> dict[str, Any]:
        """Packs with targets, toolchains and digests; ops with their parameters; devices seen without starting a driver."""
        import json

        found: dict[str, Any] = json.loads(self._runtime.info())
        found["shadowed"] = self._shadowed
        return found

    def op(self, op: str | _core.Op) -> _core.Op:
        """``op`` itself, or the op of that name."""
        return getattr(self, op) if isinstance(op, str) else op

    def explain(self, op: str | _core.Op, *args: object, target: str | None = None, **kwargs: object) -> str:
        """As ``dsa_kernels.explain``."""
        return _core.explain(self.op(op), target, args, kwargs)

    def preload(self, ops: Iterable[str | _core.Op] | str | _core.Op | None = None, device: int = 0, vendor: str | None = None) -> None:
        """As ``dsa_kernels.preload``."""
        if isinstance(device, bool) or not isinstance(device, int):
            raise ArgumentError(f"found device {device!r}; wanted the index of a device, an int; pass device=0")
        kind = DEVICE_TYPES.get(vendor or self._vendor())
        if kind is None:
            raise ArgumentError(f"found vendor {vendor!r}; wanted one of {sorted(DEVICE_TYPES)}; correct it")
        if ops is None:
            self._runtime.preload(None, kind, device)
            return
        for op in [ops] if isinstance(ops, (str, _core.Op)) else ops:
            self._runtime.preload(self.op(op), kind, device)

    def _vendor(self) -> str:
        """The vendor of the packs, or of the devices where packs of both are open."""
        vendors = set(self._runtime.vendors())
        if not vendors:
            raise NoPack(_no_pack_message())
        if len(vendors) > 1:
            vendors = {device["vendor"] for device in self.info()["devices"]} or vendors
        if len(vendors) != 1:
            raise ArgumentError(f"found packs or devices of {sorted(vendors)}; wanted to know which; pass vendor='nvidia' or 'amd'")
        return vendors.pop()


def open_packs(paths: Iterable[str | os.PathLike[str]]) -> Packs:
    """Open packs by path (pack directories, or directories of packs), apart from the installed ones.

    The result has the ops as attributes, and ``info``, ``explain``, ``preload`` and ``close``.
    """
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    return Packs(paths)


_default: Packs | None = None
_opening = allocate_lock()


def default_packs() -> Packs:
    """The installed packs, opened at first use and kept for the life of the process."""
    global _default
    if _default is None:
        with _opening:  # a second runtime would load every object again, and preload() would not reach its ops
            if _default is None:
                paths, shadowed = find_packs()
                if not paths:
                    raise NoPack(_no_pack_message())
                packs = Packs(paths)
                packs._shadowed = shadowed
                _default = packs
    return _default


def _no_pack_message() -> str:
    devices = ", ".join(sorted(_device_names())) or "none that shows itself without a driver"
    arch = next(iter(sorted(_device_names())), "sm90")
    return (
        f"found no pack of kernels under {NAMESPACE}/ on sys.path or in {VARIABLE} (devices here: {devices}); "
        f"wanted one for this device; pip install dsa-kernels-{arch}"
    )


def _device_names() -> set[str]:
    """Architectures of the devices in this machine, as far as they can be told without a driver."""
    import json

    try:
        devices = json.loads(_core.Runtime([]).info())["devices"]
    except Error:
        return set()
    return {d["arch"].replace("_", "") for d in devices if d["arch"]}


def default_op(name: str) -> _core.Op:
    """What ``dsa_kernels.<name>`` is."""
    try:
        return default_packs().op(name)
    except NoPack as error:
        raise NoPackInstalled(f"dsa_kernels.{name}: {error}") from None


def default_ops() -> list[str]:
    """Names of the installed ops; empty where nothing usable is installed."""
    try:
        return default_packs().ops()
    except Error:
        return []


def info() -> dict[str, Any]:
    """What is installed and what is here: packs with targets, toolchains and digests; ops; devices seen without starting a driver."""
    try:
        return default_packs().info()
    except NoPack:
        import json

        found: dict[str, Any] = json.loads(_core.Runtime([]).info())
        found["shadowed"] = []
        return found


def explain(op: str | _core.Op, *args: object, target: str | None = None, **kwargs: object) -> str:
    """Say what ``op(*args, **kwargs)`` would do: every candidate accepted or rejected with the reason, the kernel, grid and resources.

    ``target`` (an architecture name such as ``"sm90"``) answers for that architecture, without a driver.
    """
    return _core.explain(op if isinstance(op, _core.Op) else default_packs().op(op), target, args, kwargs)


def preload(ops: Iterable[str | _core.Op] | str | _core.Op | None = None, device: int = 0, vendor: str | None = None) -> None:
    """Verify and load the objects of ``ops`` (default: all) for a device, so that the first launch only launches.

    Needed before a CUDA graph captures an op for the first time. ``vendor`` matters only where both kinds of device are present.
    """
    default_packs().preload(ops, device, vendor)


def verify(paths: Iterable[str | os.PathLike[str]] | None = None) -> list[dict[str, object]]:
    """Check packs (default: every installed one) offline: presence, size, sha256 and architecture of every object.

    Returns one entry per pack with its ``path``, ``target``, number of ``objects`` and ``bytes``. Raises the typed error of the first
    pack that fails: ``PackMissing``, ``PackTruncated``, ``PackDigest``, ``PackSchema`` or ``PackArch``.
    """
    import json

    if paths is None:
        chosen, shadowed = find_packs()
        packs = [*chosen, *shadowed]
        if not packs:
            raise NoPack(_no_pack_message())
    else:
        packs = _expand(paths)
    report: list[dict[str, object]] = []
    for path in packs:
        _core.verify(path)
        with open(os.path.join(path, "manifest.json"), encoding="utf-8") as file:
            manifest = json.load(file)
        sizes = [entry["size"] for entry in manifest["objects"].values()]
        report.append({"path": path, "target": manifest["target"]["name"], "objects": len(sizes), "bytes": sum(sizes)})
    return report
