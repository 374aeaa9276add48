"""docs/selection.md shows what its commands print. ``python -m tests.test_docs_selection`` writes it anew from the packs of the tree."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

dsa = pytest.importorskip("dsa_kernels", reason="the runtime is not installed: pip install -e .")
from dsa_kernels import __main__, _packs  # noqa: E402

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/selection.md"
SHOWN = re.compile(r"(```console\n\$ python -m dsa_kernels (.*)\n)((?s:.*?))```")


def printed(command: str) -> str:
    """What ``python -m dsa_kernels COMMAND`` prints, with the packs of the tree."""
    said, packs = io.StringIO(), _packs._default
    with dsa.open_packs([ROOT / "packs"]) as opened, contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        _packs._default = opened
        try:
            __main__.main(shlex.split(command))
        finally:
            _packs._default = packs
    return said.getvalue()


def test_five_cases_are_shown() -> None:
    assert len(SHOWN.findall(PAGE.read_text())) == 5


@pytest.mark.parametrize(("command", "output"), [found[1:] for found in SHOWN.findall(PAGE.read_text())])
def test_a_command_prints_what_is_shown(command: str, output: str) -> None:
    target = command.split("--target ")[1].split()[0]
    if not (ROOT / "packs" / target / "manifest.json").exists():
        pytest.skip(f"found no pack for {target}; python -m aot.build --arch {target}")
    assert printed(command) == output, "to take the new output: python -m tests.test_docs_selection"


if __name__ == "__main__":
    PAGE.write_text(SHOWN.sub(lambda found: found[1] + printed(found[2]) + "```", PAGE.read_text()))
