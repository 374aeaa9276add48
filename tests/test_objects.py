"""The object lint refuses a code object that is not what its declaration says, and the gate one that has grown."""

import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from aot import check
from aot.compilers.base import CodeObject
from aot.spec import Kernel
from aot.targets import TARGETS

SM90 = TARGETS["sm90"]
PTX = """.version 8.6
.target {arch}
.address_size 64
.visible .entry {symbol}(.param .u64 out, .param .u32 n) .maxntid 128 {{
  .reg .u64 %a<3>; .reg .u32 %r<4>;
  ld.param.u64 %a1, [out]; ld.param.u32 %r1, [n]; cvta.to.global.u64 %a2, %a1;
  st.global.u32 [%a2], %r1; ret;
}}
"""


def ptxas() -> Path:
    spec = find_spec("nvidia.cuda_nvcc") or find_spec("nvidia")
    assert spec and spec.submodule_search_locations
    for root in map(Path, spec.submodule_search_locations):
        for tool in (root / "bin/ptxas", root / "cuda_nvcc/bin/ptxas"):
            if tool.exists():
                return tool
    raise AssertionError("no ptxas")


def assemble(tmp_path, arch="sm_90a", symbol="k"):
    source, out = tmp_path / "k.ptx", tmp_path / "k.cubin"
    source.write_text(PTX.format(arch=arch, symbol=symbol))
    subprocess.run([str(ptxas()), f"-arch={arch}", str(source), "-o", str(out)], check=True)
    return out.read_bytes()


def built(image, **changes):
    return CodeObject(**{"image": image, "symbol": "k", "block": (128, 1, 1), "shared": 0, "params": ("ptr", "i32"), **changes})


KERNEL = Kernel("cuda", "k.cu", "k", (), promises=(r"STG",))


def test_a_good_object_gives_its_resources(tmp_path):
    r = check.inspect(SM90, built(assemble(tmp_path)), KERNEL)
    assert 0 < r["registers"] <= 32 and r["spill_bytes"] == 0 and r["stack_bytes"] == 0
    assert r["blocks_per_unit"] == 16  # 2048 threads / 128


@pytest.mark.parametrize("arch", ["sm_90", "sm_80"])
def test_an_object_for_another_architecture_is_refused(tmp_path, arch):
    with pytest.raises(check.CheckError, match="wanted 190, 7, 0x5a085a"):
        check.inspect(SM90, built(assemble(tmp_path, arch)), KERNEL)


def test_an_nvidia_object_is_no_amd_one(tmp_path):
    with pytest.raises(check.CheckError, match="check the compiler's target"):
        check.inspect(TARGETS["gfx950"], built(assemble(tmp_path)), KERNEL)


def test_a_missing_instruction_is_a_broken_promise(tmp_path):
    promising = Kernel("cuda", "k.cu", "k", (), promises=("QGMMA",))
    with pytest.raises(check.CheckError, match=r"QGMMA.*the kernel promises it"):
        check.inspect(SM90, built(assemble(tmp_path)), promising)


def test_another_symbol_is_refused(tmp_path):
    with pytest.raises(check.CheckError, match=r"found functions \['other'\]; wanted k alone"):
        check.inspect(SM90, built(assemble(tmp_path, symbol="other")), KERNEL)


def test_too_much_shared_memory_is_refused(tmp_path):
    with pytest.raises(check.CheckError, match="wanted at most 232448"):
        check.inspect(SM90, built(assemble(tmp_path), shared=232449), KERNEL)


@pytest.mark.parametrize("image", [b"", b"\x7fELF", b"no object at all" * 8])
def test_what_is_no_object_is_refused(image):
    with pytest.raises(check.CheckError, match="found no ELF object"):
        check.header(SM90, image)


def test_the_gate_names_what_grew():
    accepted = {"k": {"registers": 40, "shared": 1024}}
    assert check.gate(accepted, {"k": {"registers": 40, "shared": 512}}) == []
    assert check.gate(accepted, {"k": {"registers": 41, "spill_bytes": 8}}) == ["k: registers 41 > 40", "k: spill_bytes 8 > 0"]
    assert check.gate({}, {"k": {}}) == ["k: found no accepted resources"]
