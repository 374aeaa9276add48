"""The sglang plugin: puts the functions of ``dsa_kernels.integrations.sglang`` in the place of sglang's own.

sglang finds it through its entry point group ``sglang.srt.plugins`` and calls ``plugin`` in every process of a server, unless
``SGLANG_PLUGINS`` names other plugins. Replacements go through sglang's hook registry. docs/sglang.md is the manual.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import Any

import dsa_kernels

from .. import _packs
from ..errors import ArgumentError, IntegrationError, NoPack
from . import sglang as ours

VARIABLE = "DSA_KERNELS_SGLANG"
REPORTED = "DSA_KERNELS_SGLANG_REPORTED"
"""Set once a report is printed: the processes of a server inherit it, so that a server of many says it once."""


@dataclass(frozen=True)
class Target:
    """A function of sglang, ``module.name``, by what replaces it; ``since`` is the first release that has it there as it is here."""

    module: str
    function: Callable[..., Any]
    since: str

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def path(self) -> str:
        return f"{self.module}.{self.name}"


OPS = "sglang.kernels.ops.attention"
TARGETS = (
    Target(f"{OPS}.flash_mla_interface", ours.flash_mla_sparse_fwd, "0.5.23"),
    Target(f"{OPS}.sparse_mla_q8kv8_prefill_sm90", ours.sparse_mla_q8kv8_prefill_fwd, "0.5.17"),
    Target(f"{OPS}.dsa.tilelang_kernel", ours.tilelang_sparse_fwd, "0.5.16"),
    Target(f"{OPS}.dsa.triton_sparse_mla", ours.triton_sparse_mla_fwd, "0.5.21"),
    Target(f"{OPS}.mla_qk_prep", ours.concat_and_cast_q_fp8_pad, "0.5.23"),
    Target(f"{OPS}.dsa.dequant_k_cache", ours.gather_cast_kv_fp8_pad_paged, "0.5.22"),
    Target(f"{OPS}.dsa.dequant_k_cache", ours.concat_cast_kv_fp8_pad, "0.5.17"),
    Target(f"{OPS}.dsa.dequant_k_cache", ours.gather_dequant_requant_fp8_paged_dsa, "0.5.23"),
    Target(f"{OPS}.metadata", ours.q8kv8_topk_length_from_indices, "0.5.23"),
    Target(f"{OPS}.dsa.transform_index", ours.transform_index_page_table_decode, "0.5.23"),
    Target(f"{OPS}.dsa.transform_index", ours.transform_index_page_table_prefill, "0.5.23"),
)
"""Everything that is replaced. What a signature must be is that of the function here: there is no second list of them."""


@dataclass(frozen=True)
class Finding:
    """What the installed sglang has for a target: ``state`` is ``present``, ``absent`` or ``mismatch``, with its ``reason``."""

    target: Target
    state: str
    reason: str = ""


def find(target: Target) -> Finding:
    """Look the target up by importing its module, as sglang's registry will."""
    try:
        theirs = getattr(import_module(target.module), target.name)
    except Exception as error:  # whatever stops this import stops sglang's own use of the function too
        return Finding(target, "absent", f"{type(error).__name__}: {error}")
    if _parameters(theirs) == _parameters(target.function):
        return Finding(target, "present")
    return Finding(target, "mismatch", f"found {target.path}{_text(theirs)}; wanted {target.name}{_text(target.function)}")


def _parameters(function: Callable[..., Any]) -> list[tuple[str, object, object]]:
    """Names, kinds and defaults; annotations are comments here."""
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


def _text(function: Callable[..., Any]) -> str:
    signature = inspect.signature(function)
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=signature.empty))


def version() -> str | None:
    """The release of sglang that is installed; None where there is none."""
    try:
        return metadata.version("sglang")
    except metadata.PackageNotFoundError:
        return None


def findings(names: Collection[str] = ()) -> list[Finding]:
    """What the installed sglang has for the targets of these names, by default all. Raises ``ArgumentError`` for other names."""
    known = [target.name for target in TARGETS]
    if unknown := sorted(set(names) - set(known)):
        raise ArgumentError(f"found {', '.join(unknown)} in {VARIABLE}; wanted names among {', '.join(known)}; correct {VARIABLE}")
    return [find(target) for target in TARGETS if not names or target.name in names]


def refuse_mismatches(found: Collection[Finding]) -> None:
    """Raise ``IntegrationError`` where a signature differs, with both."""
    wrong = [f"  {f.reason}" for f in found if f.state == "mismatch"]
    if wrong:
        raise IntegrationError(
            f"found functions of sglang {version()} with other signatures than dsa-kernels {dsa_kernels.__version__} was written for:\n"
            + "\n".join(wrong)
            + f"\nnothing is replaced; install releases that go together, or name in {VARIABLE} the functions to replace"
        )


def absences(found: Collection[Finding]) -> list[str]:
    """A line for each reason, with the functions that are absent for it."""
    names: dict[str, list[str]] = {}
    for finding in found:
        if finding.state == "absent":
            names.setdefault(finding.reason, []).append(f"{finding.target.name} (since {finding.target.since})")
    return [f"absent: {', '.join(those)}: {reason}" for reason, those in names.items()]


def refuse_absences(found: Collection[Finding]) -> None:
    """Raise ``IntegrationError`` where a function is absent, with the reason."""
    if lines := absences(found):
        raise IntegrationError(
            f"found not every function in sglang {version()}; wanted those of {VARIABLE}, or one at least:\n"
            + "\n".join(f"  {line}" for line in lines)
            + f"\nnothing is replaced; install a release that has them, or leave them out of {VARIABLE}"
        )


def _check_packs() -> None:
    """Raise ``NoPack`` where no kernels are installed for any device here, as far as devices show themselves without a driver."""
    devices, packs = _packs._device_names(), {p["target"] for p in dsa_kernels.info()["packs"]}
    if not packs or (devices and not devices & packs):
        raise NoPack(_packs._no_pack_message())


def register(names: Collection[str] = ()) -> list[Finding]:
    """Register the replacements of these names, by default all that sglang has, and say what was found. All or none."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    _check_packs()
    found = findings(names)
    refuse_mismatches(found)
    present = [finding.target for finding in found if finding.state == "present"]
    if names or not present:
        refuse_absences(found)
    for target in present:
        HookRegistry.register(target.path, target.function, HookType.REPLACE)
    return found


def plugin() -> None:
    """The entry point. ``DSA_KERNELS_SGLANG`` may name functions, with commas between them: those are replaced, and no other.

    What is refused raises, and sglang, which logs the errors of plugins, goes on with its own kernels. Where functions were named the
    process ends instead: an error that is only logged would leave the wish unheard.
    """
    names = [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]
    try:
        found = register(names)
    except dsa_kernels.Error as error:
        if not names:
            raise
        raise SystemExit(f"dsa_kernels: {error}") from error
    if REPORTED not in os.environ:
        os.environ[REPORTED] = "1"
        print(report(found), file=sys.stderr, flush=True)


def report(found: Collection[Finding]) -> str:
    """What is replaced, and what is absent and why."""
    replaced = [f.target.path for f in found if f.state == "present"]
    title = f"dsa_kernels {dsa_kernels.__version__} replaces in sglang {version()}:"
    return "\n  ".join([title, *replaced, *absences(found)])
