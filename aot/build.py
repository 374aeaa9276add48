"""``python -m aot.build --arch sm90,gfx950``: compile every kernel ahead of time and put the packs together.

No GPU, no driver, no ROCm and no system CUDA are needed: the compilers come from PyPI (``pip install -e '.[build]'``).
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from aot import check
from aot.graph import Graph
from aot.recipe import Recipe, recipes
from aot.registry import ROOT, discover
from aot.report import found_objects, found_resources, refused_resources, write_accepted
from aot.spec import Op
from aot.targets import Target, parse_targets

STATUS = re.compile(r"^@(\d+)/(\d+)@ (.*)$")


def ninja() -> str:
    """The ninja executable: the wheel's, beside this Python, or the system's."""
    beside = Path(sys.executable).parent / "ninja"
    tool = str(beside) if beside.exists() else shutil.which("ninja")
    if not tool:
        raise click.ClickException("found no ninja; wanted the one of the ninja wheel; run pip install -e '.[build]'")
    return tool


def lock_build(folder: Path) -> int:
    """A lock on the build folder. Ninja inherits it, so that one that outlives this process still holds it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
    except OSError as e:
        raise click.ClickException(
            f"found {folder}, which is no folder to write to ({e.strerror}); wanted one; give another --build-dir"
        ) from e
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise click.ClickException(
            f"found another build in {folder}; wanted it alone; wait for it, or give --build-dir and --out"
        ) from None
    return lock


def run_ninja(graph: Graph, goal: str, jobs: int, console: Console, lock: int) -> int:
    """Bring ``goal`` (objects or packs) up to date, drawing progress; what compilers say of failures is shown as it is.

    Returns ninja's status.
    """
    command = [ninja(), "-C", str(ROOT), "-f", os.path.relpath(graph.file, ROOT), "-j", str(jobs), "-k", "0", goal]
    environment = os.environ | {"NINJA_STATUS": "@%f/%t@ ", "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with (
        Progress(*columns, console=console, transient=True) as progress,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, pass_fds=(lock,)
        ) as process,
    ):
        task = progress.add_task("up to date?", total=None)
        assert process.stdout
        for line in process.stdout:
            line = line.rstrip("\n")
            if step := STATUS.match(line):
                done, total, what = int(step[1]), int(step[2]), step[3]
                progress.update(task, completed=done, total=total, description=what)
                if not console.is_terminal:
                    console.print(f"[{done}/{total}] {what}", highlight=False, markup=False)
            elif line and not line.startswith(("ninja: Entering", "ninja: no work")):
                console.print(line, highlight=False, markup=False, soft_wrap=True)
    return process.returncode


def print_coverage(ops: dict[str, Op], targets: list[Target], console: Console) -> None:
    table = Table("op", *(t.name for t in targets), title="coverage: candidates per target")
    for name, cells in check.coverage(ops.values(), targets):
        words = (c if isinstance(c, str) else f"{len(c)} ({_languages(ops[name], t)})" for t, c in zip(targets, cells, strict=True))
        table.add_row(name, *words)
    console.print(table)


def _languages(op: Op, target: Target) -> str:
    return ", ".join(dict.fromkeys(k.language for k in op.kernels_for(target)))


def print_resources(graph: Graph, found: list[Recipe], console: Console) -> None:
    keys = ["registers", "spill_bytes", "stack_bytes", "shared", "blocks_per_unit"]
    table = Table("target", "op", "kernel", *(k.replace("_", " ") for k in keys), title="resources: a thread's registers, bytes")
    for (target, op, kernel), used in found_resources(graph, found).items():
        table.add_row(target, op, kernel, *(str(used.get(k, "")) for k in keys))
    console.print(table)


@click.command(context_settings={"show_default": True})
@click.option("--arch", required=True, help="Comma-separated targets, such as sm90,gfx950.")
@click.option("--op", "only", multiple=True, help="Build this op alone (may be repeated).")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the packs: packs/, or build/packs/ with --op.")
@click.option("--build-dir", type=click.Path(path_type=Path), default=Path("build/aot"), help="Folder for intermediates.")
@click.option("-j", "--jobs", type=click.IntRange(1), default=os.cpu_count() or 1, help="Compile so many families at once.")
@click.option("--wheels", is_flag=True, help="Also build one wheel per target, into dist/.")
@click.option("--resources/--no-resources", default=True, help="Print registers, spills and shared memory of every kernel.")
@click.option("--accept-resources", is_flag=True, help="Write what was found to kernels/<op>/resources.json.")
def main(
    arch: str, only: tuple[str, ...], out: Path, build_dir: Path, jobs: int, wheels: bool, resources: bool, accept_resources: bool
) -> None:
    """Compile every declared kernel for every target and write packs/<target>/."""
    console = Console(width=None if sys.stdout.isatty() else 140)
    start = time.perf_counter()
    try:
        targets = parse_targets(arch)
        ops = discover()
        if unknown := sorted(set(only) - set(ops)):
            raise ValueError(f"found unknown op {', '.join(unknown)}; wanted some of: {', '.join(ops)}; see kernels/")
        if only and wheels:
            raise ValueError("found --op with --wheels; wanted complete packs in wheels; leave --op out")
        ops = {name: op for name, op in ops.items() if not only or name in only}
        found = recipes(ops.values(), targets)
    except (ValueError, LookupError) as e:
        raise click.ClickException(str(e)) from None
    for target in targets:
        if not any(r.target == target.name for r in found):
            raise click.ClickException(f"found nothing to build for {target.name}: {', '.join(ops)} declare holes there")
    graph = Graph(build_dir.resolve(), (out or Path("build/packs" if only else "packs")).resolve())
    lock = lock_build(graph.build)
    graph.write(found, targets)
    failed = "the build failed (above); packs of an earlier build, if any, are as they were"
    if run_ninja(graph, "objects", jobs, console, lock):
        raise click.ClickException(failed)
    if accept_resources:
        write_accepted(graph, found)
    wrong = refused_resources(graph, found)
    if resources:
        print_resources(graph, found, console)
    if wrong:
        raise click.ClickException(
            "resources grew past the accepted tables:\n  "
            + "\n  ".join(wrong)
            + "\nif that is meant, run again with --accept-resources and commit kernels/*/resources.json"
        )
    print_coverage(ops, targets, console)
    if run_ninja(graph, "packs", jobs, console, lock):
        raise click.ClickException(failed)
    if wheels:
        from wheels.build import build_arch_wheel

        for target in targets:
            wheel = build_arch_wheel(graph.pack(target), ROOT / "dist")
            console.print(f"wheel: {os.path.relpath(wheel)} ({wheel.stat().st_size / 1e6:.2f} MB)", highlight=False)
    for target_name, made in found_objects(graph, found).items():
        console.print(f"{target_name} objects: {', '.join(f'{n} {language}' for language, n in made.items())}", highlight=False)
    objects = sum(len(r.kernels) for r in found)
    packs = ", ".join(os.path.relpath(graph.pack(t)) for t in targets)
    console.print(f"{objects} kernels in {packs}; {time.perf_counter() - start:.1f} s", highlight=False)


if __name__ == "__main__":
    main()
