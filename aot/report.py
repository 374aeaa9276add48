"""Resources: what the build found, and the accepted tables (``kernels/<op>/resources.json``) that it is held against."""

from __future__ import annotations

import json
from typing import Any

from aot.check import Resources, gate
from aot.graph import Graph
from aot.recipe import Recipe
from aot.registry import KERNELS


def _records(graph: Graph, recipe: Recipe) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = json.loads(graph.result(recipe).read_text())
    return records


def found_resources(graph: Graph, found: list[Recipe]) -> dict[tuple[str, str, str], Resources]:
    """Resources by (target, op, kernel) of every kernel of ``found``, from the finished build."""
    return {(r.target, r.op, k["kernel"]): k["resources"] for r in found for k in _records(graph, r)}


def found_objects(graph: Graph, found: list[Recipe]) -> dict[str, dict[str, int]]:
    """Different code objects by target and language, from the finished build."""
    objects: dict[str, dict[str, set[str]]] = {}
    for r in found:
        objects.setdefault(r.target, {}).setdefault(r.language, set()).update(k["sha256"] for k in _records(graph, r))
    return {target: {language: len(digests) for language, digests in made.items()} for target, made in objects.items()}


def read_accepted(op: str) -> dict[str, dict[str, Resources]]:
    """The accepted table of ``op``: target, then kernel name, then resources. Empty when there is none."""
    file = KERNELS / op / "resources.json"
    table: dict[str, dict[str, Resources]] = json.loads(file.read_text()) if file.exists() else {}
    return table


def write_accepted(graph: Graph, found: list[Recipe]) -> None:
    """Make what was found the accepted table, for the targets that were built; other targets keep their rows."""
    tables: dict[str, dict[str, dict[str, Resources]]] = {}
    for (target, op, kernel), used in found_resources(graph, found).items():
        tables.setdefault(op, {}).setdefault(target, {})[kernel] = used
    for op, table in tables.items():
        text = json.dumps(read_accepted(op) | table, indent=1, sort_keys=True) + "\n"
        (KERNELS / op / "resources.json").write_text(text)


def refused_resources(graph: Graph, found: list[Recipe]) -> list[str]:
    """What the build uses beyond the accepted tables, in words."""
    wrong = []
    for target, op in dict.fromkeys((r.target, r.op) for r in found):
        mine = [r for r in found if (r.target, r.op) == (target, op)]
        used = {kernel: resources for (_, _, kernel), resources in found_resources(graph, mine).items()}
        wrong += [f"{target} {op}: {w}" for w in gate(read_accepted(op).get(target, {}), used)]
    return wrong
