"""The plugin and the functions against the sglang that is published, where pip can fetch it.

sglang alone is installed, without what it depends on (several GB of CUDA libraries, and a torch of its own): an extra could not say
that. What its kernel modules import besides torch and triton is one small package. Its ``__init__`` imports a server, so a bare module
stands in for it; the modules beneath are its own. Those that want a GPU or a CUDA library are skipped, with the reason.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

dsa = pytest.importorskip("dsa_kernels", reason="the runtime is not installed: pip install -e .")
pytest.importorskip("torch")

from dsa_kernels.integrations.sglang_plugin import TARGETS  # noqa: E402
from tests import sglang_fake  # noqa: E402
from tests.sglang_fake import LOAD, Server  # noqa: E402

RELEASE = "0.5.23"
PACKAGES = (f"sglang=={RELEASE}", "msgspec==0.23.*")
KERNELS = [
    target.name for target in TARGETS if target.module.split(".")[-1] in ("mla_qk_prep", "dequant_k_cache", "metadata", "transform_index")
]
"""Functions in modules that import without a GPU."""


@pytest.fixture(scope="session")
def wheel():
    """A folder with sglang in it, kept from one run to the next."""
    folder = Path(tempfile.gettempdir()) / f"dsa-kernels-{os.getuid()}" / f"sglang-{RELEASE}-{sys.implementation.cache_tag}"
    if not folder.exists():
        folder.parent.mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--only-binary", ":all:", "--target", f"{made}/site"]
            try:
                done = subprocess.run([*command, *PACKAGES], capture_output=True, text=True, timeout=50)
            except subprocess.TimeoutExpired:
                pytest.skip(f"found no {PACKAGES[0]} within 50 s")
            if done.returncode:
                pytest.skip(f"found no {PACKAGES[0]}: {(done.stderr.strip().splitlines() or ['pip gave no reason'])[-1]}")
            try:
                os.rename(f"{made}/site", folder)
            except OSError:  # another process was first
                assert folder.exists()
    return folder


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_signatures_in_the_source(wheel, target):
    """Also of modules that do not import here."""
    source = (wheel / (target.module.replace(".", "/") + ".py")).read_text()
    found = [n.args for n in ast.parse(source).body if isinstance(n, ast.FunctionDef) and n.name == target.name]
    assert len(found) == 1
    for arg in ast.walk(found[0]):
        if isinstance(arg, ast.arg):
            arg.annotation = None
    wanted = ast.parse(f"def f{sglang_fake.signature(target.function)}: ...").body[0].args
    assert ast.unparse(found[0]) == ast.unparse(wanted)


BARE = """
import sys, types
bare = types.ModuleType("sglang")
bare.__path__ = [sys.argv[1] + "/sglang"]
sys.modules["sglang"] = bare
"""
FIND = (
    BARE
    + """
import json
from dsa_kernels.integrations.sglang_plugin import findings
print(json.dumps({f.target.name: [f.state, f.reason] for f in findings()}))
"""
)


@pytest.fixture(scope="session")
def found(wheel):
    code = FIND.replace("sys.argv[1]", repr(str(wheel)))
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path(wheel)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def path(*folders):
    return os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_signatures_as_the_plugin_sees_them(found, target):
    state, reason = found[target.name]
    if state == "absent":
        assert target.name not in KERNELS or "triton" in reason, reason
        pytest.skip(f"sglang {RELEASE} does not import here: {reason}")
    assert state == "present", reason


def server(wheel, folder, code=LOAD, **variables):
    pytest.importorskip("triton")
    code = BARE.replace("sys.argv[1]", repr(str(wheel))) + code
    return Server(folder if list(folder.glob("*.dist-info")) else sglang_fake.install_plugin(folder), code, more=(wheel,), **variables)


REFUSES = """
from sglang.kernels.ops.attention.dsa.transform_index import transform_index_page_table_decode as before
from sglang.srt.plugins import load_plugins
load_plugins()
try:
    before(None, None, page_size=64)
except Exception as error:
    print(type(error).__name__, before.__wrapped__.__module__)
"""


def test_the_registry_replaces(wheel, tmp_path):
    """Also names that were imported before."""
    done = server(wheel, tmp_path)
    assert done.code == 0 and f"replaces in sglang {RELEASE}:" in done.said, done.said
    replaced = [target for target in TARGETS if f"  {target.path}\n" in done.said + "\n"]
    assert {target.name for target in replaced} >= set(KERNELS)
    done = server(wheel, tmp_path, REFUSES)
    assert done.replaced == ["ArgumentError", "sglang.kernels.ops.attention.dsa.transform_index"], done.said


def test_sglang_plugins_restricts_it(wheel, tmp_path):
    done = server(wheel, tmp_path, SGLANG_PLUGINS="other")
    assert done.code == 0 and not done.replaced and "replaces in sglang" not in done.said
    done = server(wheel, tmp_path, SGLANG_PLUGINS="other, dsa_kernels")
    assert done.code == 0 and "replaces in sglang" in done.said


CHANGED = """
import sglang.kernels.ops.attention.metadata as metadata
metadata.q8kv8_topk_length_from_indices = lambda indices, out=None: None
"""


def test_a_refusal_is_logged_or_ends_the_process(wheel, tmp_path):
    done = server(wheel, tmp_path, CHANGED + LOAD)
    assert done.code == 0 and "Failed to execute general plugin: dsa_kernels" in done.said and "replaces in sglang" not in done.said
    assert "q8kv8_topk_length_from_indices(indices, out=None); wanted q8kv8_topk_length_from_indices(indices)" in done.said
    done = server(wheel, tmp_path, CHANGED + LOAD, DSA_KERNELS_SGLANG="q8kv8_topk_length_from_indices")
    assert done.code == 1 and "dsa_kernels: found functions of sglang" in done.said


def test_the_functions_do_what_sglangs_own_do(wheel):
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-m", "tests.sglang_same", str(wheel)],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert len(report) > 25 and {case: said for case, said in report.items() if said != "same"} == {}
