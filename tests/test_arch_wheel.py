"""Arch wheels: pure data, the same bytes every time, and what pip makes of them."""

from __future__ import annotations

import csv
import email
import hashlib
import io
import os
import subprocess
import sys
import time
import venv
import zipfile
from base64 import urlsafe_b64encode
from pathlib import Path

import pytest

from tests import toy

pytest.importorskip("wheel.wheelfile")
from wheels.build import build_arch_wheel

ROOT = Path(__file__).resolve().parent.parent
NAME = "dsa_kernels_sm90-0.1.0"


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    return toy.write_packs(tmp_path / "packs") / "sm90"


def test_contents(pack: Path, tmp_path: Path) -> None:
    (pack / "notes.txt").write_text("not of the pack")
    wheel = build_arch_wheel(pack, tmp_path / "dist")
    assert wheel == tmp_path / "dist" / f"{NAME}-py3-none-any.whl"
    assert list(wheel.parent.iterdir()) == [wheel]
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
        metadata = email.message_from_bytes(file.read(f"{NAME}.dist-info/METADATA"))
        assert file.read("dsa_kernels_packs/sm90/manifest.json") == (pack / "manifest.json").read_bytes()
    objects = sorted(f"dsa_kernels_packs/sm90/objects/{f.name}" for f in (pack / "objects").iterdir())
    infos = [f"{NAME}.dist-info/{n}" for n in ("METADATA", "WHEEL", "licenses/LICENSE", "RECORD")]
    assert names == ["dsa_kernels_packs/sm90/manifest.json", *objects, *infos]
    assert (metadata["Name"], metadata["Version"], metadata["License-Expression"]) == ("dsa-kernels-sm90", "0.1.0", "Apache-2.0")
    assert "`attend`: what attend does" in str(metadata.get_payload()) and metadata["Requires-Dist"] is None


def test_same_bytes_elsewhere_and_later(pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build_arch_wheel(pack, tmp_path / "a").read_bytes()
    monkeypatch.setattr(time, "time", lambda: 2_000_000_000.0)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    for f in pack.rglob("*"):
        os.utime(f, (1e9, 1e9))
        f.chmod(0o755)
    assert build_arch_wheel(pack, tmp_path / "b").read_bytes() == first


def test_record(pack: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(build_arch_wheel(pack, tmp_path)) as file:
        rows = list(csv.reader(io.StringIO(file.read(f"{NAME}.dist-info/RECORD").decode())))
        assert [r[0] for r in rows] == file.namelist() and rows[-1][1:] == ["", ""]
        for name, digest, size in rows[:-1]:
            data = file.read(name)
            assert digest == "sha256=" + urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            assert int(size) == len(data)


def test_incomplete_pack_makes_no_wheel(pack: Path, tmp_path: Path) -> None:
    next((pack / "objects").iterdir()).unlink()
    with pytest.raises(FileNotFoundError, match="wanted every object of the manifest"):
        build_arch_wheel(pack, tmp_path / "dist")
    assert not list((tmp_path / "dist").glob("*.whl"))


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH" and not k.startswith("DSA_KERNELS")}
    done = subprocess.run([str(c) for c in command], cwd=cwd, env=clean | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def runtime_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for module in ("scikit_build_core", "pybind11", "nlohmann_json"):
        pytest.importorskip(module)
    dist = tmp_path_factory.mktemp("dist")
    build = ROOT / "build" / "test-wheel"
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-C",
        f"build-dir={build}",
        "-w",
        dist,
        ROOT,
        cwd=dist,
    )
    return next(dist.glob("dsa_kernels-*.whl"))


def test_runtime_wheel_is_small_and_holds_what_it_should(runtime_wheel: Path) -> None:
    assert runtime_wheel.stat().st_size < 1_000_000
    with zipfile.ZipFile(runtime_wheel) as file:
        names = file.namelist()
        metadata = email.message_from_bytes(file.read(next(n for n in names if n.endswith("METADATA"))))
    assert {n.split("/")[0] for n in names} == {"dsa_kernels", next(n for n in names if n.endswith("METADATA")).split("/")[0]}
    for wanted in (
        "errors.py",
        "py.typed",
        "_core.pyi",
        "include/dsa_kernels.h",
        "lib/libdsa_kernels.so",
        "lib/cmake/dsa_kernels/dsa_kernels-config.cmake",
        "lib/cmake/dsa_kernels/dsa_kernels_embed.cmake",
    ):
        assert f"dsa_kernels/{wanted}" in names
    assert not [r for r in metadata.get_all("Requires-Dist") or () if "extra" not in r]
    assert 'dsa-kernels-sm90==0.1.*; extra == "sm90"' in metadata.get_all("Requires-Dist", [])


def test_extra_resolves_from_a_folder_of_wheels(runtime_wheel: Path, pack: Path, tmp_path: Path) -> None:
    build_arch_wheel(pack, runtime_wheel.parent)
    place = tmp_path / "venv"
    venv.create(place, with_pip=False, symlinks=True)
    pip = (sys.executable, "-m", "pip", "--python", place / "bin" / "python")
    run(*pip, "install", "-q", "--no-index", "--find-links", runtime_wheel.parent, "dsa-kernels[sm90]", cwd=tmp_path)
    python = place / "bin" / "python"
    assert "sm90: 5 objects" in run(python, "-m", "dsa_kernels", "verify", cwd=tmp_path)
    assert run(python, "-c", "import dsa_kernels as d; print(d.concat)", cwd=tmp_path).strip() == "<op concat>"
    config = Path(run(python, "-m", "dsa_kernels", "cmake-dir", cwd=tmp_path).strip())
    assert (config / "dsa_kernels-config.cmake").is_file()
    source = tmp_path / "host"
    source.mkdir()
    (source / "main.cpp").write_text("#include <dsa_kernels.h>\n#include <cstdio>\nint main() { std::puts(dsak_version()); }\n")
    (source / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.20)\nproject(host LANGUAGES CXX)\nfind_package(dsa_kernels 0.1 REQUIRED)\n"
        "add_executable(host main.cpp)\ntarget_link_libraries(host PRIVATE dsa_kernels::dsa_kernels)\n"
    )
    run("cmake", "-S", source, "-B", source / "build", f"-DCMAKE_PREFIX_PATH={config}", cwd=tmp_path)
    run("cmake", "--build", source / "build", cwd=tmp_path)
    assert run(source / "build" / "host", cwd=tmp_path).strip() == "0.1.0"
