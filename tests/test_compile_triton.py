"""Triton cross-compiles every declared kernel: the object's ABI is the declared one, its bytes do not depend on where it is made."""

import re
import shutil
from dataclasses import replace

import pytest

pytest.importorskip("triton")

from aot import registry
from aot.compilers import triton as compiler
from aot.compilers.base import CompileError, Unit
from aot.expr import parse
from aot.spec import DTYPES, Kernel, i32, ptr
from aot.targets import TARGETS

OPS = tuple(
    (name, t.name)
    for name, op in registry.discover().items()
    for t in TARGETS.values()
    if any(k.language == "triton" for k in op.kernels_for(t))
)


def op(name):
    return registry.load(registry.KERNELS / name / "op.py").OP


def units(name, target):
    declared, t = op(name), TARGETS[target]
    for k in declared.kernels_for(t):
        if k.language == "triton":
            dtypes = {a.name: declared.pointer_dtype(a, t) for a in k.args if a.type == "ptr"}
            yield Unit(name, k, t, registry.KERNELS / name, registry.KERNELS / "include", dtypes)


def warps(intermediates, unit):
    """The warps of a program: the declared ones, and those that a Gluon kernel adds for another part of its work."""
    workers = re.search(r"partition0\(.*?num_warps\((\d+)\)", intermediates[f"{unit.kernel.entry}.ttgir"], re.S)
    return unit.kernel.options["num_warps"] + (int(workers[1]) if workers else 0)


@pytest.mark.parametrize(("name", "target"), OPS)
def test_every_kernel_compiles_with_the_declared_abi(name, target):
    found = list(units(name, target))
    assert len({u.kernel.name for u in found}) == len(found)
    for unit in found:
        built = compiler.build(unit)
        declared = tuple(a.type for a in unit.kernel.args)
        assert built.params == (*declared, "null", "null")  # Triton's scratch pointers, unused
        assert built.symbol == unit.kernel.entry
        assert built.block == (warps(built.intermediates, unit) * unit.target.wave, 1, 1)
        assert built.shared <= unit.target.shared_memory
        assert str(registry.ROOT).encode() not in built.image
        if unit.target.vendor == "nvidia":
            assert " 0 bytes spill stores" in built.intermediates["ptxas.log"]
        else:
            assert ".vgpr_spill_count: 0\n" in built.intermediates[f"{built.symbol}.amdgcn"]


@pytest.mark.parametrize(
    ("name", "target"),
    [("concat_cast_q", "sm90"), ("sparse_mla_decode", "sm90"), ("gather_cast_kv", "gfx950"), ("sparse_mla_prefill", "gfx942")],
)
def test_bytes_do_not_depend_on_the_place(name, target, tmp_path, monkeypatch):
    """Another directory, another home, other settings in the environment: the same object, and nothing written."""
    unit = next(units(name, target))
    first = compiler.build(unit)
    home, folder = tmp_path / "home", tmp_path / "a longer path" / name
    home.mkdir()
    shutil.copytree(unit.folder, folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(unit.include, tmp_path / "include", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setenv("HOME", str(home))
    for name_, value in {"TRITON_DEFAULT_FP_FUSION": "0", "TRITON_CACHE_DIR": str(home / "cache"), "PTXAS_OPTIONS": "-O1"}.items():
        monkeypatch.setenv(name_, value)
    before = set(tmp_path.rglob("*"))
    second = compiler.build(replace(unit, folder=folder, include=tmp_path / "include"))
    assert second.image == first.image
    assert set(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", dict(OPS))
def test_promised_alignments_are_declared(name):
    """The compiler is promised 16-byte pointers to narrow elements; the declaration makes the runtime check them.

    A workspace is aligned to 256 bytes, and offsets into it count whole heads. Outputs begin at a token; their strides are multiples of 16
    bytes.
    """
    declared = op(name)
    for t in TARGETS.values():
        for c in declared.candidates_for(t):
            for a in (a for x in c.launches if x.kernel.language == "triton" for a in x.kernel.args if a.type == "ptr"):
                size = DTYPES[declared.pointer_dtype(a, t)]
                wanted = 16 if size <= 2 else size
                align = 256 if a.value == "workspace" else declared.tensors[a.value].align
                env = {"T": 1, "H": 1, "topk": 1, "sm_count": 1, "out.s0": 8}
                assert align % wanted == 0 and parse(a.offset)(env) % wanted == 0, (c.name, a.name)


SOURCE = """
import triton
import triton.language as tl


@triton.jit
def k(x, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x + i, {value}, mask=i < n)
"""
KERNEL = Kernel("triton", "k.py", "k", (ptr("x"), i32("n")), {"BLOCK": 64}, {"num_warps": 1})


def build(tmp_path, kernel=KERNEL, target="sm90", value="n"):
    (tmp_path / "k.py").write_text(SOURCE.format(value=value))
    return compiler.build(Unit("k", kernel, TARGETS[target], tmp_path, tmp_path, {"x": "i32"}))


def test_integers_are_specialised_only_as_declared(tmp_path):
    assert build(tmp_path).params == ("ptr", "i32", "null", "null")
    plain = build(tmp_path).intermediates["k.ttir"]
    promised = build(tmp_path, replace(KERNEL, args=(ptr("x"), i32("n", multiple=8)))).intermediates["k.ttir"]
    assert "tt.divisibility = 8" in promised and "tt.divisibility = 8" not in plain


@pytest.mark.parametrize(
    ("change", "value", "message"),
    [
        ({}, "undefined", "undefined"),
        ({"entry": "other"}, "n", "found no @triton.jit function 'other'"),
        ({"args": (i32("n"), ptr("x"))}, "n", "wanted the declared arguments"),
        ({"constants": {}}, "n", "wanted the declared arguments"),
        ({"options": {"num_warps": 1, "waves_per_eu": 2}}, "n", "waves_per_eu"),
        ({"constants": {"BLOCK": 65}}, "n", "power of 2"),
    ],
)
def test_a_bad_kernel_is_refused_with_the_reason(tmp_path, change, value, message):
    with pytest.raises(CompileError, match=message) as e:
        build(tmp_path, replace(KERNEL, **change), value=value)
    assert e.value.command
