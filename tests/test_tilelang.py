"""TileLang kernels become code objects on a machine without a GPU: the right instructions, the declared ABI, the same bytes."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from aot import check
from aot.assembly import hot_loop
from aot.compilers import tilelang
from aot.compilers.base import CodeObject, CompileError, Unit
from aot.registry import KERNELS, ROOT, discover, sibling
from aot.spec import Kernel, f32, i32, ptr
from aot.targets import TARGETS

FOLDER = KERNELS / "sparse_mla_prefill"
tile = sibling(str(FOLDER / "op.py"), "../include/tile")
tile_gfx = sibling(str(FOLDER / "op.py"), "../include/tile_gfx")

GATHERS = {"tile_bf16_d512_h64": (32, 32, 0), "tile_fp8_d512_h16": (0, 16, 12), "tile_fp8_d576_h64": (0, 36, 36)}
"""Forms on sm90: how many 16-byte instructions copy and load rows, queries among them, and how many of the loads are widened; where a
block of threads serves item after item, the first queries and the next ones are loaded in two places."""
AMD_FORMS = [
    ("gfx950", "bf16 h16 x1"),
    ("gfx950", "bf16 h64 x1"),
    ("gfx950", "fp8 h16 x2"),
    ("gfx950", "fp8 h64 x1"),
    ("gfx942", "bf16 h64 x1"),
    ("gfx942", "fp8 h16 x1"),
    ("gfx942", "fp8 h64 x2"),
]
"""The smallest of each form there: rows of 512. Dtype of the rows, heads of a block, terms of P."""
FORMS = [*(("sm90", form) for form in GATHERS), *AMD_FORMS]


def kernel_of(target: str, form: str) -> Kernel:
    if target == "sm90":
        return tile.kernel("tile_prefill.py", next(f for dtype in tile.GATHER for f in tile.forms(dtype) if f.name == form))
    dtype, heads, terms = re.fullmatch(r"(\w+) h(\d+) x(\d)", form).groups()
    return tile_gfx.kernel(target, dtype, int(heads), int(terms), False, "q")


def unit_of(kernel: Kernel, target: str) -> Unit:
    op = discover()["sparse_mla_prefill"]
    dtypes = {a.name: op.pointer_dtype(a, TARGETS[target]) for a in kernel.args if a.type == "ptr"}
    return Unit("sparse_mla_prefill", kernel, TARGETS[target], FOLDER, KERNELS / "include", dtypes)


@cache
def built(target: str, form: str) -> tuple[Unit, CodeObject]:
    unit = unit_of(kernel_of(target, form), target)
    return unit, tilelang.build(unit)


@pytest.mark.parametrize(("target", "form"), FORMS)
def test_object_keeps_its_promises(target, form):
    """Matrix instructions, asynchronous gathers, no spills, no stack, shared memory within the limit: the lint sees it all."""
    unit, done = built(target, form)
    found = check.inspect(unit.target, done, unit.kernel)
    assert found["spill_bytes"] == found["stack_bytes"] == 0
    assert done.params == tuple(a.type for a in unit.kernel.args)
    heads = unit.kernel.constants["HEADS"]
    assert done.block[0] == (4 * heads if target != "sm90" else 512 if heads == 16 else 384)
    assert done.tools["tilelang"] == "0.1.15"


@pytest.mark.parametrize(("target", "form"), AMD_FORMS)
def test_the_loop_on_amd_reads_wide_and_multiplies_deep(target, form):
    """Operands come from LDS 8 or 16 bytes at a time; single words are row numbers. Products are 32 deep or deeper where there are such."""
    unit, done = built(target, form)
    loop = hot_loop(done.intermediates["kernel.s"])
    narrow = {width: n for width, n in loop.memory("ds_read").items() if width < 8}
    assert set(narrow) <= {4} and sum(narrow.values()) <= 4
    assert sum(n for width, n in loop.memory("ds_read").items() if width >= 8) >= 32
    depths = {int(re.split(r"[x_]", name)[2]) for name in loop.mfma}
    assert min(depths) >= (16 if (target, unit.kernel.constants["DTYPE"]) == ("gfx942", "bfloat16") else 32)
    assert loop.valu / loop.tiles < 8
    assert set(loop.memory("ds_write")) <= {4, 16} and set(loop.memory("global_load")) <= {4, 16}


def test_no_target_has_more_than_forty():
    for target in TARGETS.values():
        kernels = {(op.name, k.name) for op in discover().values() for k in op.kernels_for(target) if k.language == "tilelang"}
        assert len(kernels) <= 40


@pytest.mark.parametrize("form", GATHERS)
def test_every_gather_on_sm90_is_wide(form):
    """BF16 rows by 16-byte cp.async, FP8 rows and all queries by 16-byte loads, widened two elements to an instruction; wgmma only."""
    _, done = built("sm90", form)
    copies, loads, widened = GATHERS[form]
    listing = check._run_cuobjdump(done.image, "--dump-sass")
    assert len(re.findall(r"LDGSTS\.E\S*\.128", listing)) == copies
    assert len(re.findall(r"LDG\.E\.128", listing)) == loads and "LDG.E.64" not in listing
    assert len(re.findall(r"F2FP\.F16\.E4M3\.UNPACK_B", listing)) == 8 * widened
    assert "HMMA" not in listing.replace("HGMMA", "")
    assert listing.count("R2UR") < listing.count("HGMMA")  # operands are described in uniform registers all the time
    assert "UBLKCP" not in listing and "UTMA" not in listing


@pytest.mark.parametrize("target", ["gfx950", "gfx942"])
def test_the_kernel_in_the_other_fp8_flavour_is_refused(target):
    """TileLang would compile e4m3fnuz rows on gfx950 as e4m3fn ones, and the other way round on gfx942."""
    kernel = kernel_of(target, "fp8 h16 x1")
    other = {"gfx950": "float8_e4m3fnuz", "gfx942": "float8_e4m3fn"}[target]
    unit = unit_of(replace(kernel, constants={**kernel.constants, "DTYPE": other}), target)
    with pytest.raises(CompileError, match=f"found q of {other}; wanted"):
        tilelang.build(unit)
    with pytest.raises(CompileError, match=f"of {other}; wanted .*, the flavour of {target}"):  # undeclared, in the kernel's own memory
        tilelang.build(replace(unit, dtypes={}))


def test_bytes_do_not_depend_on_the_place(tmp_path, target="gfx950", form="fp8 h16 x2"):
    """Another process, working folder and home: the same object, which names no path of this machine."""
    _, done = built(target, form)
    code = (
        "import sys; sys.path[:0] = sys.argv[1:3]\n"
        "import test_tilelang; sys.stdout.buffer.write(test_tilelang.built(*sys.argv[3:5])[1].image)"
    )
    env = {**os.environ, "HOME": str(tmp_path), "TILELANG_LAYOUT_COST_MODEL": "io-aware"}
    run = subprocess.run(
        [sys.executable, "-c", code, str(ROOT), str(ROOT / "tests"), target, form], cwd=tmp_path, env=env, capture_output=True
    )
    assert run.stdout == done.image, run.stderr.decode()
    assert not list(tmp_path.iterdir()), "the build wrote to the home folder"
    for path in (ROOT, Path(sys.prefix), tmp_path.parent):
        assert str(path).encode() not in done.image


TOY = """
import tilelang.language as T

def toy(N, dtype="float32"):
    n = T.dynamic("n")

    @T.prim_func
    def toy(x: T.Tensor((n, N), dtype), y: T.Tensor((n, N), "float32"), scale: T.float32):
        with T.Kernel(n, threads=64) as row:
            for i in T.Parallel(N):
                y[row, i] = T.cast(x[row, i], "float32") * scale

    return toy

def reductions(N):
    n = T.dynamic("n")

    @T.prim_func
    def reductions(x: T.Tensor((n, N), "float32"), y: T.Tensor((n, 2), "float32")):
        with T.Kernel(n, threads=256) as row:
            v = T.alloc_fragment((N * 4,), "float32")
            top = T.alloc_fragment((1,), "float32")
            sum = T.alloc_fragment((1,), "float32")
            for i in T.Parallel(N * 4):
                v[i] = x[row, i % N]
            T.reduce_max(v, top, dim=0)
            T.reduce_sum(v, sum, dim=0)
            y[row, 0] = top[0]
            y[row, 1] = sum[0]

    return reductions

def broken(N):
    raise ValueError("no tile of this size")
"""
ARGS = (ptr("x"), ptr("y"), i32("n"), f32("scale"))


def toy(folder: Path, target: str = "gfx950", dtype: str = "f32", **change) -> Unit:
    (folder / f"toy_{folder.name}.py").write_text(TOY)
    kernel = Kernel("tilelang", f"toy_{folder.name}.py", "toy", ARGS, {"N": 64})
    kernel = replace(kernel, **change)
    return Unit("op", kernel, TARGETS[target], folder, KERNELS / "include", {"x": dtype, "y": "f32"})


@pytest.mark.parametrize("target", ["sm90", "gfx950"])
def test_toy(tmp_path, target):
    done = tilelang.build(toy(tmp_path, target))
    assert done.params == ("ptr", "ptr", "i32", "f32")
    assert done.symbol == "toy_kernel" and done.block == (64, 1, 1) and done.shared == 0


def test_arguments_in_another_order_are_refused(tmp_path):
    with pytest.raises(CompileError) as e:
        tilelang.build(toy(tmp_path, args=(ptr("y"), ptr("x"), i32("n"), f32("scale"))))
    assert "found the arguments (ptr y, ptr x, i32 n, f32 scale); " in str(e.value)
    assert "wanted, in TileLang's order, (ptr x, ptr y, i32 n, f32 scale)" in str(e.value)


def test_another_element_type_is_refused(tmp_path):
    with pytest.raises(CompileError, match="found x of float32; wanted bfloat16, the declared element type on gfx950"):
        tilelang.build(toy(tmp_path, dtype="bf16"))


def test_the_other_fp8_flavour_is_refused(tmp_path):
    """TileLang itself would take it silently as the flavour of the architecture."""
    with pytest.raises(CompileError, match="wanted float8_e4m3fn, the flavour of gfx950"):
        tilelang.build(toy(tmp_path, dtype="e4m3fnuz", constants={"N": 64, "dtype": "float8_e4m3fnuz"}))


def test_two_reductions_across_waves_are_refused(tmp_path):
    """Their scratch buffers share a name, and TileLang orders those by address: the source would differ from run to run."""
    with pytest.raises(CompileError, match="found 2 scratch buffers of reductions; wanted at most one"):
        tilelang.build(toy(tmp_path, entry="reductions", args=(ptr("x"), ptr("y"), i32("n"))))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"entry": "absent"}, "found no factory 'absent' in toy_"),
        ({"entry": "broken"}, "ValueError: no tile of this size"),
        ({"options": {"num_warps": 4}}, r"found the options \['num_warps'\]; wanted some of"),
    ],
)
def test_refusals_say_what_was_found(tmp_path, change, message):
    with pytest.raises(CompileError, match=message):
        tilelang.build(toy(tmp_path, **change))
