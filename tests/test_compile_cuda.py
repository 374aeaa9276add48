"""CUDA C++ compiles with NVRTC and ptxas from PyPI: declared ABI, bytes independent of the place, the tools' own messages."""

from pathlib import Path

import pytest

from aot.compilers import cuda, ptxas
from aot.compilers.base import CompileError, Unit
from aot.spec import Kernel, f32, i32, i64, ptr
from aot.targets import TARGETS

SOURCE = r"""
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda/std/cstdint>
#include "factor.cuh"
extern "C" __global__ void __launch_bounds__(128)
scale(const __nv_bfloat16* x, __nv_fp8_e4m3* y, long long stride, int n, float f) {
  int i = threadIdx.x;
  if (i < n) y[i] = __nv_fp8_e4m3(__bfloat162float(x[i * stride]) * f * FACTOR);
}
"""
ARGS = (ptr("x"), ptr("y"), i64("stride"), i32("n"), f32("f"))


def unit(folder: Path, source: str = SOURCE, **changes):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "scale.cu").write_text(source)
    (folder / "factor.cuh").write_text("#pragma once\n#define FACTOR (K + TWICE)\n")
    fields = {"args": ARGS, "constants": {"K": 3, "TWICE": True}, "options": {"threads": 128, "shared": 1024}, **changes}
    return Unit("scale", Kernel("cuda", "scale.cu", "scale", **fields), TARGETS["sm90"], folder, folder, {"x": "bf16", "y": "e4m3fn"})


def test_an_object_has_the_declared_abi(tmp_path):
    built = cuda.build(unit(tmp_path))
    assert built.params == ("ptr", "ptr", "i64", "i32", "f32")
    assert (built.symbol, built.block, built.shared, built.dependent) == ("scale", (128, 1, 1), 1024, False)
    assert built.tools == {"nvrtc": "12.9", "ptxas": ptxas.tool()[1]}
    assert "0 bytes spill stores" in built.intermediates["kernel.log"]


def test_a_kernel_that_waits_by_itself_is_dependent(tmp_path):
    waits = SOURCE.replace("  int i = threadIdx.x;", '  asm volatile("griddepcontrol.wait;" ::: "memory");\n  int i = threadIdx.x;')
    assert cuda.build(unit(tmp_path, waits)).dependent


def test_bytes_do_not_depend_on_the_place(tmp_path):
    a, b = (cuda.build(unit(tmp_path / p)).image for p in ("a", "a longer/path"))
    assert a == b and str(tmp_path).encode() not in a


def test_another_abi_shows(tmp_path):
    built = cuda.build(unit(tmp_path, args=(*ARGS[:3], f32("n"), f32("f"))))
    assert built.params == ("ptr", "ptr", "i64", "u32", "f32")
    assert cuda.build(unit(tmp_path, args=ARGS[:4])).params[-1] == "f32"


@pytest.mark.parametrize(
    ("source", "changes", "message"),
    [
        (SOURCE.replace("int i", "in t i"), {}, 'identifier "in" is undefined'),
        (SOURCE.replace("factor.cuh", "none.cuh"), {}, "none.cuh"),
        (SOURCE.replace('extern "C"', ""), {}, "wanted one, extern"),
        (SOURCE, {"options": {"threads": 128, "warps": 4}}, r"found the options \['warps'\]"),
    ],
)
def test_a_bad_source_is_refused_with_the_reason(tmp_path, source, changes, message):
    with pytest.raises(CompileError, match=message):
        cuda.build(unit(tmp_path, source, **changes))


WGMMA = r"""
extern "C" __global__ void k(float* out, unsigned long long a, int n) {
  float d[4] = {0, 0, 0, 0};
  for (int i = 0; i < n; ++i) {
    asm volatile("wgmma.fence.sync.aligned;");
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%0,%1,%2,%3}, %4, %4, 1, 1, 1;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a));
    d[0] += 1.0f;  // touches the accumulator before the wait
    asm volatile("wgmma.commit_group.sync.aligned;");
  }
  asm volatile("wgmma.wait_group.sync.aligned 0;");
  out[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}
"""


def test_serialised_wgmma_is_an_error():
    with pytest.raises(CompileError, match=r"\(C75\d\d\)"):
        cuda.compile_source(WGMMA, "k.cu", "sm_90a")


def test_an_absolute_name_is_refused():
    with pytest.raises(ValueError, match="wanted a relative one"):
        cuda.compile_source("", "/k.cu", "sm_90a")


def test_entries_of_ptx():
    ptx = ".visible .entry k(\n\t.param .u64 .ptr .global .align 1 k_param_0,\n\t.param .f32 k_1,\n\t.param .align 64 .b8 k_2[128]\n)\n"
    assert ptxas.entries(ptx) == {"k": ["u64", "f32", "b8[128]"]}
    assert ptxas.entries(".entry none()\n{}") == {"none": []}
