"""``python -m aot.build``: complete packs or none, the same bytes anywhere, rebuilds of what changed alone, errors that say what."""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest

ROOT = Path(__file__).resolve().parents[1]
OP = "concat_cast_q"


def tree(folder: Path) -> Path:
    """A copy of the builder with one op, in which a test may break things."""
    shutil.copytree(ROOT / "aot", folder / "aot", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "kernels" / OP, folder / "kernels" / OP, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "kernels" / "include", folder / "kernels" / "include")
    return folder


def build(folder: Path, *arguments: str, home: str | None = None) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": str(folder)} | ({"HOME": home} if home else {})
    command = [sys.executable, "-m", "aot.build", *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=600)


def digests(folder: Path) -> dict[str, str]:
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tree(tmp_path_factory.mktemp("first"))
    done = build(folder, "--arch", "sm90,gfx950", "-j", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done


@pytest.fixture
def again(built, tmp_path):
    """A copy of the built tree, packs and intermediates included, to build in once more."""
    return shutil.copytree(built[0], tmp_path / "again")


def test_packs_are_complete_and_follow_the_schema(built):
    folder, _ = built
    schema = json.loads((ROOT / "aot/manifest.schema.json").read_text())
    for target in ("sm90", "gfx950"):
        pack = folder / "packs" / target
        manifest = json.loads((pack / "manifest.json").read_text())
        jsonschema.validate(manifest, schema)
        launched = {k["object"] for op in manifest["ops"] for k in op["kernels"]}
        assert launched == set(manifest["objects"])
        assert {p.name for p in (pack / "objects").iterdir()} == {Path(o["file"]).name for o in manifest["objects"].values()}
        for digest, o in manifest["objects"].items():
            data = (pack / o["file"]).read_bytes()
            assert (hashlib.sha256(data).hexdigest(), len(data)) == (digest, o["size"])


def test_nothing_in_a_pack_says_where_or_when_it_was_built(built):
    folder, _ = built
    for path in (folder / "packs").rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            for word in (str(folder).encode(), str(ROOT).encode(), b"/tmp/", os.fsencode(Path.home()) + b"/"):
                assert word not in data, (path.name, word)


def test_the_matrix_shows_every_op_and_target(built):
    _, done = built
    assert "coverage" in done.stdout and OP in done.stdout and "sm90" in done.stdout and "gfx950" in done.stdout


def test_another_directory_and_user_give_the_same_bytes(built, tmp_path):
    folder, _ = built
    second = tree(tmp_path / "a folder with another name")
    done = build(second, "--arch", "sm90,gfx950", "-j", "1", home=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert digests(second / "packs") == digests(folder / "packs")


def test_building_again_does_nothing(built):
    folder, _ = built
    before = {p: p.stat().st_mtime_ns for p in (folder / "packs").rglob("*")}
    start = time.perf_counter()
    done = build(folder, "--arch", "sm90,gfx950")
    took = time.perf_counter() - start
    assert done.returncode == 0 and "compile" not in done.stdout
    assert {p: p.stat().st_mtime_ns for p in (folder / "packs").rglob("*")} == before
    assert took < 3, took  # under 1 s on an idle machine; tests may run beside compilers


def test_touching_a_kernel_rebuilds_it_alone(built):
    folder, _ = built
    source = folder / "kernels" / OP / f"{OP}.py"
    source.write_text(source.read_text() + "\n# touched\n")
    done = build(folder, "--arch", "sm90,gfx950")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("compile ") == 2, done.stdout  # one family on two targets


def test_a_broken_kernel_names_itself_and_leaves_no_pack(tmp_path):
    folder = tree(tmp_path)
    source = folder / "kernels" / OP / f"{OP}.py"
    source.write_text(source.read_text().replace("tl.store(", "tl.stroe("))
    done = build(folder, "--arch", "sm90")
    said = done.stdout + done.stderr
    assert done.returncode != 0
    assert f"{OP} / {OP}[" in said and "/ sm90" in said and "stroe" in said, said
    assert not (folder / "packs" / "sm90").exists()
    assert not list((folder / "packs").glob(".*")) if (folder / "packs").exists() else True


def test_growth_past_the_accepted_resources_fails(again):
    before = digests(again / "packs")
    table = again / "kernels" / OP / "resources.json"
    accepted = json.loads(table.read_text())
    for used in accepted["sm90"].values():
        used["registers"] = 1
    table.write_text(json.dumps(accepted))
    source = again / "kernels" / OP / f"{OP}.py"
    source.write_text(source.read_text() + "\n# another pack\n")
    done = build(again, "--arch", "sm90")
    assert done.returncode != 0 and "> 1" in done.stderr and "--accept-resources" in done.stderr
    assert digests(again / "packs") == before
    done = build(again, "--arch", "sm90", "--accept-resources")
    assert done.returncode == 0, done.stdout + done.stderr
    assert digests(again / "packs") != before


def test_a_pack_that_the_runtime_refuses_is_not_written(again):
    before = digests(again / "packs")
    declaration = again / "kernels" / OP / "op.py"
    declaration.write_text(declaration.read_text().replace('"T H R"', '"T H R 1 1 1 1 1 1"'))
    for out in ("packs", "fresh"):
        done = build(again, "--arch", "sm90", "--out", out)
        said = done.stdout + done.stderr
        assert done.returncode != 0 and "PackSchema" in said and "found 9 dimensions, wanted at most 8" in said, said
    assert digests(again / "packs") == before
    assert not list((again / "fresh").rglob("*"))


@pytest.mark.parametrize("out", ["packs of mine", "{}/it's $HOME: absolute"])
def test_packs_go_where_out_says(again, tmp_path, out):
    out = out.format(tmp_path)
    done = build(again, "--arch", "sm90", "--out", out)
    assert done.returncode == 0, done.stdout + done.stderr
    assert digests(again / out / "sm90") == digests(again / "packs" / "sm90")
    assert {p.name for p in (again / out).iterdir()} == {"sm90"}


def test_one_op_alone_leaves_the_complete_packs_as_they_are(again):
    before = digests(again / "packs")
    source = again / "kernels" / OP / f"{OP}.py"
    source.write_text(source.read_text() + "\n# another pack\n")
    done = build(again, "--arch", "sm90", "--op", OP)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (again / "build" / "packs" / "sm90" / "manifest.json").is_file()
    assert digests(again / "packs") == before


def test_a_build_folder_takes_one_build_at_a_time(again):
    folder = again / "build" / "aot"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = digests(again)
        done = build(again, "--arch", "sm90", "--op", OP)
        assert done.returncode != 0
        said = " ".join(done.stderr.split())
        assert f"found another build in {folder}; wanted it alone; wait for it, or give --build-dir and --out" in said
        assert digests(again) == before
        done = build(again, "--arch", "sm90", "--build-dir", "build/other", "--out", "build/mine")
        assert done.returncode == 0, done.stdout + done.stderr
    assert build(again, "--arch", "sm90").returncode == 0


def test_a_declaration_that_does_not_load_names_its_file(tmp_path):
    folder = tree(tmp_path)
    (folder / "kernels" / OP / "op.py").write_text("OP = (\n")
    done = build(folder, "--arch", "sm90")
    assert done.returncode != 0 and "Traceback" not in done.stderr
    assert f"Error: kernels/{OP}/op.py: found SyntaxError" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--arch", "sm91"], "found unknown architecture 'sm91'; wanted one or more of: sm90, gfx942, gfx950"),
        (["--arch", ""], "found no architecture"),
        (["--arch", "sm90", "--op", "nothing"], "found unknown op nothing; wanted some of: concat_cast_q"),
        (["--arch", "sm90", "--op", OP, "--wheels"], "found --op with --wheels"),
    ],
)
def test_bad_arguments_say_what_is_wanted(built, arguments, message):
    folder, _ = built
    done = build(folder, *arguments)
    assert done.returncode != 0 and message in " ".join(done.stderr.split())


def test_a_tuning_file_rebuilds_the_packs_alone_and_leaves_with_its_file(again):
    manifest = again / "packs" / "sm90" / "manifest.json"
    before, file = manifest.read_bytes(), again / "kernels" / OP / "tuning.json"
    name = json.loads(before)["ops"][0]["candidates"][-1]["name"]
    entry = {"when": "H == 8", "first": name, "us": {"H=8": [1.0, 2.0]}, "measured": {"device": "a GPU", "command": "a command"}}
    file.write_text(json.dumps({"sm90": [entry]}))
    done = build(again, "--arch", "sm90")
    assert done.returncode == 0 and "pack sm90" in done.stdout and "compile " not in done.stdout, done.stdout + done.stderr
    first = json.loads(manifest.read_text())["ops"][0]["candidates"][0]
    assert first["name"] == f"tuned1_{name}" and "H == 8" in first["when"]

    file.write_text(json.dumps({"sm90": [entry | {"first": "nothing"}]}))
    done = build(again, "--arch", "sm90")
    assert done.returncode != 0 and f"Error: kernels/{OP}/tuning.json: sm90, entry 1: found first 'nothing'" in done.stderr, done.stderr

    file.unlink()
    done = build(again, "--arch", "sm90")
    assert done.returncode == 0 and "compile " not in done.stdout, done.stdout + done.stderr
    assert manifest.read_bytes() == before
