"""An arch wheel from a pack: ``dsa_kernels_sm90-0.1.0-py3-none-any.whl`` holds ``dsa_kernels_packs/sm90/`` and nothing to run.

``dsa_kernels_packs`` is a namespace: no wheel owns it, every arch wheel adds its folder. The same pack gives the same bytes: entries
are sorted, and carry one fixed time and mode.
"""

from __future__ import annotations

import json
import tempfile
import zipfile
from email.message import Message
from pathlib import Path

from wheel.wheelfile import WheelFile

ROOT = Path(__file__).resolve().parent.parent
NAMESPACE = "dsa_kernels_packs"
TIME = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip file can say
MODE = 0o100644 << 16

DESCRIPTION = """\
# dsa-kernels-{arch}

The kernels of dsa-kernels for {arch} ({vendor}, compiler name {exact}), compiled ahead of time: {objects} code objects and the manifest
that says how to launch them. Pure data: nothing here runs by itself, and no compiler is needed.

```bash
pip install dsa-kernels dsa-kernels-{arch}
python -m dsa_kernels verify
```

{ops}
"""


def _files(pack: Path) -> list[Path]:
    """The manifest and the objects that it names; anything else in the folder stays out."""
    manifest = json.loads((pack / "manifest.json").read_text(encoding="utf-8"))
    files = [pack / "manifest.json", *(pack / entry["file"] for entry in manifest["objects"].values())]
    if missing := [f for f in files if not f.is_file()]:
        raise FileNotFoundError(f"found no {missing[0]}; wanted every object of the manifest; build the pack again")
    return sorted(set(files))


def _metadata(manifest: dict[str, object], version: str) -> bytes:
    target = manifest["target"]
    ops = manifest["ops"]
    objects = manifest["objects"]
    assert isinstance(target, dict) and isinstance(ops, list) and isinstance(objects, dict)
    message = Message()
    message["Metadata-Version"] = "2.4"
    message["Name"] = f"dsa-kernels-{target['name']}"
    message["Version"] = version
    message["Summary"] = f"Sparse-MLA kernels compiled ahead of time for {target['name']}"
    message["License-Expression"] = "Apache-2.0"
    message["License-File"] = "LICENSE"
    message["Requires-Python"] = ">=3.10"
    message["Description-Content-Type"] = "text/markdown"
    listed = "\n".join(f"- `{op['name']}`: {op['doc'].strip().splitlines()[0]}" for op in ops)
    message.set_payload(
        DESCRIPTION.format(arch=target["name"], vendor=target["vendor"], exact=target["arch"], objects=len(objects), ops=listed)
    )
    return message.as_string().encode()


WHEEL = b"Wheel-Version: 1.0\nGenerator: dsa-kernels\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


class _FixedWheel(WheelFile):  # type: ignore[misc]
    """A wheel whose entries, RECORD included, do not say when or by whom they were written."""

    def writestr(self, name: str, data: bytes | str, compress_type: int | None = None) -> None:
        entry = zipfile.ZipInfo(name, TIME)
        entry.create_system = 3  # Unix, whatever system this is
        entry.external_attr = MODE
        entry.compress_type = zipfile.ZIP_DEFLATED
        super().writestr(entry, data, compress_type)


def build_arch_wheel(pack_dir: Path, out_dir: Path, version: str | None = None) -> Path:
    """Write the arch wheel of ``pack_dir`` into ``out_dir`` and return its path. ``version`` is the manifest's unless given.

    A wheel of the same name is replaced, whole or not at all.
    """
    manifest = json.loads((pack_dir / "manifest.json").read_text(encoding="utf-8"))
    arch = manifest["target"]["name"]
    version = version or manifest["package"]["version"]
    name = f"dsa_kernels_{arch}-{version}"
    entries = {f"{NAMESPACE}/{arch}/{f.relative_to(pack_dir).as_posix()}": f.read_bytes() for f in _files(pack_dir)}
    entries[f"{name}.dist-info/METADATA"] = _metadata(manifest, version)
    entries[f"{name}.dist-info/WHEEL"] = WHEEL
    entries[f"{name}.dist-info/licenses/LICENSE"] = (ROOT / "LICENSE").read_bytes()
    out_dir.mkdir(parents=True, exist_ok=True)
    wheel = out_dir / f"{name}-py3-none-any.whl"
    with tempfile.TemporaryDirectory(dir=out_dir) as folder:
        unfinished = Path(folder) / wheel.name
        with _FixedWheel(str(unfinished), "w") as file:
            for path, data in entries.items():
                file.writestr(path, data)
        unfinished.replace(wheel)
    return wheel
