"""``python -m dsa_kernels``: what is installed, whether it is intact, what an op does, and loading it ahead of time."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

import dsa_kernels


def _rows(table: list[list[str]]) -> str:
    """Columns of equal width."""
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in table)


def _info(arguments: argparse.Namespace) -> None:
    found: dict[str, Any] = dsa_kernels.info()
    if arguments.json:
        print(json.dumps(found, indent=1))
        return
    print(f"dsa-kernels {dsa_kernels.__version__}")
    devices = [[str(i), d["vendor"], d["arch"] or "?", d["name"]] for i, d in enumerate(found["devices"])]
    print("\ndevices\n" + (_rows(devices) if devices else "none that shows itself without a driver"))
    packs = [[p["target"], f"{p['objects']} objects", p["directory"]] for p in found["packs"]]
    print("\npacks\n" + (_rows(packs) if packs else "none; pip install dsa-kernels-sm90"))
    for path in found["shadowed"]:
        print(f"shadowed by the pack of the same name above: {path}")
    if found["ops"]:
        print("\nops\n" + _rows([[op["name"], ", ".join(op["targets"]), op["doc"].strip().splitlines()[0]] for op in found["ops"]]))


def _ops(arguments: argparse.Namespace) -> None:
    if arguments.name:
        import pydoc

        print(pydoc.plain(pydoc.render_doc(getattr(dsa_kernels, arguments.name), "%s")))
        return
    from dsa_kernels import _packs

    packs = _packs.default_packs()
    for name in packs.ops():
        print(f"{name}{packs.op(name).__text_signature__}")


def _explain(arguments: argparse.Namespace) -> None:
    from dsa_kernels import _select

    target, call = _select.from_words(arguments.op, arguments.words, arguments.target)
    print(dsa_kernels.select(arguments.op, target=target, candidate=arguments.candidate, **call))


def _verify(arguments: argparse.Namespace) -> None:
    for entry in dsa_kernels.verify(arguments.packs or None):
        print(f"{entry['target']}: {entry['objects']} objects, {entry['bytes']} bytes, intact: {entry['path']}")


def _preload(arguments: argparse.Namespace) -> None:
    dsa_kernels.preload(arguments.ops or None, arguments.device)
    print(f"device {arguments.device}: {', '.join(arguments.ops) or 'every op'} verified and loaded")


def _integrations(arguments: argparse.Namespace) -> None:
    from dsa_kernels.integrations import sglang_plugin

    found = sglang_plugin.findings()
    print(f"{arguments.engine} {sglang_plugin.version() or 'is not installed'}")
    table = [["target", "since", "state", "ours"]]
    table += [[f.target.path, f.target.since, f.state, f"{f.target.function.__module__}.{f.target.name}"] for f in found]
    print("\n".join([_rows(table), *sglang_plugin.absences(found)]))
    sglang_plugin.refuse_mismatches(found)


def _where(arguments: argparse.Namespace) -> None:
    print(os.path.join(os.path.dirname(os.path.abspath(__file__)), *arguments.path))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dsa_kernels", description=__doc__)
    parser.add_argument("--version", action="version", version=dsa_kernels.__version__)
    commands = parser.add_subparsers(dest="command", required=True)

    info = commands.add_parser("info", help="packs, devices, ops")
    info.add_argument("--json", action="store_true", help="everything, as JSON")
    info.set_defaults(run=_info)

    ops = commands.add_parser("ops", help="list the ops, or the reference of one")
    ops.add_argument("name", nargs="?", help="an op")
    ops.set_defaults(run=_ops)

    explain = commands.add_parser(
        "explain",
        help="which kernel would serve a call, and why not the others",
        description="For example: explain sparse_mla_prefill q=fp8 kv=fp8 T=4096 H=64 D=576 Dq=576 s_kv=32768 topk=2048 "
        "sm_scale=0.0625 --target sm90. Dimensions take numbers, scalars values, tensors their element type (yes where there is one only).",
    )
    explain.add_argument("op")
    explain.add_argument("words", nargs="*", metavar="NAME=VALUE", help="sizes, scalars, and the types of tensors")
    explain.add_argument("--target", help="an architecture such as sm90 (default: the first device's)")
    explain.add_argument("--candidate", help="a candidate's name or a language: fail, with the trace, unless it is chosen")
    explain.set_defaults(run=_explain)

    verify = commands.add_parser("verify", help="check presence, size, sha256 and architecture of every object")
    verify.add_argument("packs", nargs="*", help="pack directories (default: the installed ones)")
    verify.set_defaults(run=_verify)

    integrations = commands.add_parser("integrations", help="what a serving engine's plugin finds, and what it would replace")
    integrations.add_argument("engine", choices=["sglang"])
    integrations.set_defaults(run=_integrations)

    for name, path, text in (
        ("cmake-dir", ("lib", "cmake", "dsa_kernels"), "for find_package"),
        ("include-dir", ("include",), "of dsa_kernels.h"),
    ):
        where = commands.add_parser(name, help=f"print the directory {text}")
        where.set_defaults(run=_where, path=path)

    preload = commands.add_parser("preload", help="load objects onto a device and report; a check of driver and packs together")
    preload.add_argument("ops", nargs="*", help="ops (default: all)")
    preload.add_argument("--device", type=int, default=0)
    preload.set_defaults(run=_preload)
    return parser


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        arguments.run(arguments)
    except dsa_kernels.Error as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
