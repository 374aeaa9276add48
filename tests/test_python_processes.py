"""The installed package in processes of its own: where packs are found, the command line, first-call races, fork."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import cabi, toy

dsa = pytest.importorskip("dsa_kernels", reason="the runtime is not installed: pip install -e .")
T, H = 2, 16


def run(code: str, tmp_path: Path, **environment: str) -> str:
    base = {k: v for k, v in os.environ.items() if not k.startswith("DSA_KERNELS")}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=base | environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_installed_packs_are_found_on_sys_path(tmp_path: Path) -> None:
    toy.write_packs(tmp_path / "site" / "dsa_kernels_packs", "sm90", "gfx950")
    code = "import dsa_kernels as d; print(d.concat, hasattr(d, 'nope'), 'pad' in dir(d), [p['target'] for p in d.info()['packs']])"
    assert run(code, tmp_path, PYTHONPATH=str(tmp_path / "site")) == "<op concat> False True ['gfx950', 'sm90']"


def test_variable_comes_first(tmp_path: Path) -> None:
    mine = toy.write_packs(tmp_path / "mine")
    toy.write_packs(tmp_path / "site" / "dsa_kernels_packs")
    code = "import dsa_kernels as d; i = d.info(); print(*[p['directory'] for p in i['packs']], *i['shadowed'], sep='\\n')"
    found = run(code, tmp_path, PYTHONPATH=str(tmp_path / "site"), DSA_KERNELS_PACKS=str(mine)).splitlines()
    assert found == [str(mine / "sm90"), str(tmp_path / "site" / "dsa_kernels_packs" / "sm90")]


def test_variable_that_names_nothing(tmp_path: Path) -> None:
    code = "import dsa_kernels as d\ntry: d.info()\nexcept d.PackMissing as e: print(e)"
    assert "DSA_KERNELS_PACKS" in run(code, tmp_path, DSA_KERNELS_PACKS=str(tmp_path / "nowhere"))


def test_threads_that_come_first_share_one_runtime(tmp_path: Path) -> None:
    folder = toy.write_packs(tmp_path)
    code = """
import sys, threading, time
import dsa_kernels as d
from dsa_kernels import _packs
sys.setswitchinterval(1e-6)
find, opened, ops, barrier = _packs.find_packs, [], [], threading.Barrier(8)
def slow():
    opened.append(1)
    time.sleep(0.05)
    return find()
_packs.find_packs = slow
def run():
    barrier.wait()
    ops.append(d.concat)
threads = [threading.Thread(target=run) for _ in range(8)]
for t in threads: t.start()
for t in threads: t.join()
print(len(opened), len(ops), len({id(op) for op in ops}), ops[0] is _packs.default_packs().concat is d.concat)
"""
    assert run(code, tmp_path, DSA_KERNELS_PACKS=str(folder)) == "1 8 1 True"


def test_without_any_pack(tmp_path: Path) -> None:
    code = "import dsa_kernels as d\ntry: d.concat\nexcept d.NoPack as e: print(e)\nprint(hasattr(d, 'concat'), d.info()['packs'])"
    text = run(code, tmp_path)
    assert "found no pack" in text and "pip install dsa-kernels-" in text and text.endswith("False []")


def test_command_line(tmp_path: Path) -> None:
    folder = str(toy.write_packs(tmp_path))

    def cli(*words: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "dsa_kernels", *words],
            env=os.environ | {"DSA_KERNELS_PACKS": folder, "DSA_KERNELS_CUDA_LIBRARY": str(cabi.standin_path("cuda"))},
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    assert "sm90" in cli("info") and '"packs"' in cli("info", "--json")
    assert "concat(q_nope" in cli("ops") and "what concat does" in cli("ops", "concat")
    assert "5 objects" in cli("verify")
    assert "verified and loaded" in cli("preload", "concat")
    assert "UnknownOp" in cli("ops", "nope", code=1)
    next((tmp_path / "sm90" / "objects").iterdir()).unlink()
    assert "PackMissing" in cli("verify", code=1)


def test_fork_after_import_and_open(tmp_path: Path) -> None:
    folder = toy.write_packs(tmp_path)
    code = """
import os, dsa_kernels as d
v = [d.View(1 << 20, s, t) for s, t in (((2, 16, 512), 'bf16'), ((2, 16, 64), 'bf16'), ((2, 16, 576), 'e4m3fn'))]
op = d.concat
pid = os.fork()
op(v[0], v[1], out=v[2])
if pid == 0: os._exit(0)
print(os.waitpid(pid, 0)[1])
"""
    driver = str(cabi.standin_path("cuda"))
    assert run(code, tmp_path, DSA_KERNELS_PACKS=str(folder), DSA_KERNELS_CUDA_LIBRARY=driver) == "0"
