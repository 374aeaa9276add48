"""What importing the package, and opening packs, costs and does not do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import cabi, toy

pytest.importorskip("dsa_kernels", reason="the runtime is not installed: pip install -e .")

# Times the import in a process that has loaded what any program has; the editable hook's own imports are not the package's. Processor
# time, since tests may run beside compilers; nothing here waits, so on an idle machine wall time is the same (benchmarks/coldstart.py).
MEASURE = """
import json, sys, time
{before}
known = set(sys.modules)
start = time.process_time()
import dsa_kernels
ms = (time.process_time() - start) * 1e3
print(json.dumps({{"ms": ms, "new": sorted(set(sys.modules) - known)}}))
"""

# Records what the process does through audit events, then opens packs and asks for everything that works without a device.
AUDIT = """
import sys, os, json
seen = []
def hook(event, args):
    writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if writes or event.startswith(("subprocess.", "socket.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.mkdir", "os.remove",
                                   "os.rename", "shutil.", "tempfile.")):
        seen.append([event, repr(args)])
sys.addaudithook(hook)
import dsa_kernels
dsa_kernels.info()
op = dsa_kernels.concat
q = dsa_kernels.View(1 << 20, (2, 16, 512), "bf16")
dsa_kernels.explain(op, q, target="sm90")
op.__doc__
dsa_kernels.verify()
dir(dsa_kernels)
maps = open("/proc/self/maps").read()
print(json.dumps({"seen": seen, "driver": "libcuda.so" in maps or "libamdhip64" in maps, "modules": sorted(sys.modules)}))
"""


def python(code: str, cwd: Path, *options: str, within: tuple[str, ...] = (), **environment: str) -> dict[str, Any]:
    """Run ``code`` (by the command ``within``) with no HOME and nothing of this package in the environment; the JSON that it prints."""
    base = {k: v for k, v in os.environ.items() if k not in ("HOME", "PYTHONPATH") and not k.startswith(("DSA_KERNELS", "XDG_"))}
    done = subprocess.run(
        [*within, sys.executable, *options, "-c", code], cwd=cwd, env=base | environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


LAUNCH = """
import json, os
import dsa_kernels as d
shapes = ((1 << 20, (2, 16, 512), "bf16"), (2 << 20, (2, 16, 64), "bf16"), (3 << 20, (2, 16, 576), "e4m3fn"))
views = [d.View(*v) for v in shapes]
d.preload()
d.concat(*views[:2], out=views[2])
d.verify()
try:
    open("written", "w")
    writable = True
except OSError:
    writable = False
print(json.dumps({"writable": writable, "home": "HOME" in os.environ}))
"""


def best(before: str, cwd: Path, limit_ms: float) -> dict[str, Any]:
    """The fastest of up to seven imports, the first one under the limit at once: other processes still cost caches."""
    found = python(MEASURE.format(before=before), cwd)
    for _ in range(6):
        if found["ms"] < limit_ms:
            break
        found = min(found, python(MEASURE.format(before=before), cwd), key=lambda f: float(f["ms"]))
    return found


def test_import_takes_under_20_ms(tmp_path: Path) -> None:
    found = best("", tmp_path, 20)
    assert found["ms"] < 20, found


def test_import_takes_under_5_ms_on_top_of_torch(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    found = best("import torch", tmp_path, 5)
    assert found["ms"] < 5, found


def test_import_loads_little(tmp_path: Path) -> None:
    new = set(python(MEASURE.format(before=""), tmp_path)["new"])
    assert {m for m in new if m.split(".")[0] == "dsa_kernels"} == {"dsa_kernels", "dsa_kernels.errors"}
    assert not new & {"torch", "numpy", "inspect", "json", "importlib.metadata", "subprocess", "socket", "typing", "dataclasses", "pathlib"}


def read_only(path: Path) -> None:
    for item in (*path.rglob("*"), path):
        item.chmod(0o555 if item.is_dir() else 0o444)


def test_nothing_is_written_started_or_opened(tmp_path: Path) -> None:
    packs = toy.write_packs(tmp_path / "packs")
    cwd = tmp_path / "cwd"
    cwd.mkdir()
    read_only(tmp_path)
    found = python(AUDIT, cwd, "-B", DSA_KERNELS_PACKS=str(packs))
    assert found["seen"] == []
    assert found["driver"] is False
    assert not {"torch", "numpy"} & set(found["modules"])
    assert list(cwd.iterdir()) == []
    tmp_path.chmod(0o755)


def test_works_on_a_read_only_file_system_without_a_home(tmp_path: Path) -> None:
    """The whole root is remounted read-only in a mount namespace of its own: what the C++ side opens counts too."""
    remount = "mount --make-rprivate / && mount -o remount,ro,bind / && "
    if subprocess.run(["unshare", "-m", "sh", "-c", remount + "true"], capture_output=True).returncode:
        pytest.skip("found no right to a mount namespace with a read-only root; wanted root or user namespaces")
    packs, driver = toy.write_packs(tmp_path), cabi.standin_path("cuda")
    variables = {"DSA_KERNELS_PACKS": str(packs), "DSA_KERNELS_CUDA_LIBRARY": str(driver)}
    found = python(LAUNCH, tmp_path, within=("unshare", "-m", "sh", "-c", remount + 'exec "$@"', "sh"), **variables)
    assert found == {"writable": False, "home": False}


def test_library_starts_no_process(tmp_path: Path) -> None:
    """The C++ side is out of sight of audit hooks, so ask the kernel for children and threads."""
    packs = toy.write_packs(tmp_path)
    code = """
import os, json, threading
import dsa_kernels
dsa_kernels.info(); dsa_kernels.concat
path = f"/proc/self/task/{os.getpid()}/children"
children = open(path).read().split() if os.path.exists(path) else []
print(json.dumps({"children": children, "threads": len(os.listdir("/proc/self/task"))}))
"""
    assert python(code, tmp_path, DSA_KERNELS_PACKS=str(packs)) == {"children": [], "threads": 1}


def test_checks_before_serving_need_no_torch(tmp_path: Path) -> None:
    """The configuration check and the layouts' sizes run where neither torch nor numpy is, and without a pack."""
    code = """
import json, sys
import dsa_kernels as d
common = dict(prefill="tilelang", decode="tilelang", device="gfx950", kv_dtype="fp8_e4m3", kv_lora_rank=512, rope_dim=64)
d.check_config(**common, heads=16, environment={})
print(json.dumps({"bytes": d.kv_row_bytes(**common), "modules": sorted(sys.modules)}))
"""
    found = python(code, tmp_path)
    assert found["bytes"] == 576 == __import__("dsa_kernels").layouts.LAYOUTS["raw8-576"].row_bytes
    assert not {"torch", "numpy", "dsa_kernels._core"} & set(found["modules"])
