"""docs/selection.md shows what its commands print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

dsa = pytest.importorskip("dsa_kernels", reason="the runtime is not installed: pip install -e .")
from dsa_kernels import __main__, _packs  # noqa: E402

ROOT = Path(__file__).parents[1]
SHOWN = re.findall(r"```console\n\$ python -m dsa_kernels (.*)\n((?s:.*?))```", (ROOT / "docs/selection.md").read_text())


def test_five_cases_are_shown() -> None:
    assert len(SHOWN) == 5


@pytest.mark.parametrize(("command", "output"), SHOWN)
def test_a_command_prints_what_is_shown(
    command: str, output: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = command.split("--target ")[1].split()[0]
    if not (ROOT / "packs" / target / "manifest.json").exists():
        pytest.skip(f"found no pack for {target}; python -m aot.build --arch {target}")
    with dsa.open_packs([ROOT / "packs"]) as opened:
        monkeypatch.setattr(_packs, "_default", opened)
        __main__.main(shlex.split(command))
    said = capsys.readouterr()
    assert (said.out + said.err).rstrip() == output.rstrip()
