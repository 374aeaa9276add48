"""The manifest's schema is a valid one, and the packs that were built follow it."""

import json
from pathlib import Path

import jsonschema
import pytest

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = json.loads((ROOT / "aot/manifest.schema.json").read_text())
PACKS = sorted((ROOT / "packs").glob("*/manifest.json"))


def test_the_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("path", PACKS, ids=lambda p: p.parent.name)
def test_packs_follow_it(path):
    manifest = json.loads(path.read_text())
    jsonschema.validate(manifest, SCHEMA)
    assert {k["object"] for op in manifest["ops"] for k in op["kernels"]} == set(manifest["objects"])
    for op in manifest["ops"]:
        assert {x["kernel"] for c in op["candidates"] for x in c["launches"]} == set(range(len(op["kernels"])))


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.update(schema_version="2.0"),
        lambda m: m.pop("target"),
        lambda m: m["target"].update(vendor="intel"),
        lambda m: m["ops"][0].update(name="no name"),
        lambda m: m["ops"][0]["candidates"].clear(),
        lambda m: next(iter(m["objects"].values())).update(file="../elsewhere"),
        lambda m: m["ops"][0]["args"][0][0].update(type="u7"),
    ],
)
def test_what_breaks_it_is_seen(change):
    if not PACKS:
        pytest.skip("found no pack to break; run python -m aot.build --arch sm90")
    manifest = json.loads(PACKS[0].read_text())
    change(manifest)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(manifest, SCHEMA)
