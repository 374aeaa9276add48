"""Sparse-MLA kernels that were compiled ahead of time.

Ops are attributes: ``dsa_kernels.concat_cast_q(q_nope, q_rope)``; ``help(dsa_kernels.concat_cast_q)`` is their reference and
``dir(dsa_kernels)`` lists them. They come from packs, one per architecture, installed as ``dsa-kernels-<arch>``.

Importing this package reads nothing and starts nothing. Manifests are read when the first op is asked for; a driver is opened by
the first launch or by ``preload()``, never earlier, so a process may fork after import.
"""

from __future__ import annotations

from . import errors
from .errors import (
    ArgumentError,
    DeviceError,
    DriverError,
    DriverTooOld,
    Error,
    NoCandidate,
    NoPack,
    PackArch,
    PackDigest,
    PackError,
    PackMissing,
    PackSchema,
    PackTruncated,
    UnknownOp,
)

__version__ = "0.1.0"

# Looked up on first use, so that importing the package costs a millisecond and loads no shared library.
_CORE = ("Op", "View")
_CONTROL = ("Packs", "explain", "info", "open_packs", "preload", "verify")
_FROM = {
    "Config": "config",
    "check_config": "config",
    "kv_row_bytes": "config",
    "Selection": "_select",
    "select": "_select",
}
_MODULES = ("attention", "config", "layouts")

__all__ = [
    "errors",
    "ArgumentError",
    "DeviceError",
    "DriverError",
    "DriverTooOld",
    "Error",
    "NoCandidate",
    "NoPack",
    "PackArch",
    "PackDigest",
    "PackError",
    "PackMissing",
    "PackSchema",
    "PackTruncated",
    "UnknownOp",
    *_CORE,
    *_CONTROL,
    *_FROM,
    *_MODULES,
]


def __getattr__(name: str) -> object:
    if name.startswith("_"):
        raise AttributeError(f"module 'dsa_kernels' has no attribute {name!r}")
    if name in _MODULES or name in _FROM:
        from importlib import import_module

        found = import_module("." + _FROM.get(name, name), __name__)
        globals()[name] = getattr(found, name) if name in _FROM else found
        return globals()[name]
    from . import _core, _packs

    if name in _CORE:
        value = getattr(_core, name)
    elif name in _CONTROL:
        value = getattr(_packs, name)
    else:
        value = _packs.default_op(name)
    globals()[name] = value  # the next access is a plain dictionary lookup
    return value


def __dir__() -> list[str]:
    from ._packs import default_ops

    return sorted({*globals(), *__all__, *default_ops()})
