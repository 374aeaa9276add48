"""HIP C++ becomes an AMD code object without ROCm, and what Clang says reaches whoever must read it."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from aot import check
from aot.compilers import hip
from aot.compilers.base import CompileError, Unit
from aot.registry import KERNELS
from aot.spec import Kernel, f32, i32, i64, ptr
from aot.targets import TARGETS

GFX950 = TARGETS["gfx950"]
TOY = """
#include <hip/hip_bf16.h>
extern "C" __global__ void __launch_bounds__(256) toy(float* out, const hip_bfloat16* in, int n, long stride, float scale) {
  __shared__ float sums[4];
  int i = blockIdx.x * WIDTH + threadIdx.x;
  float v = i < n ? static_cast<float>(in[i * stride]) * scale : 0.f;
  for (int d = 32; d; d >>= 1) v = max(v, __shfl_xor(v, d));
  if (threadIdx.x % 64 == 0) sums[threadIdx.x / 64] = exp2f(v);
  __syncthreads();
  if (threadIdx.x == 0) *reinterpret_cast<float4*>(out + 4 * blockIdx.x) = make_float4(sums[0], sums[1], sums[2], sums[3]);
}
"""
ARGS = (ptr("out"), ptr("in"), i32("n"), i64("stride"), f32("scale"))


def unit(folder: Path, text: str = TOY, args=ARGS, entry: str = "toy", options=None, target=GFX950) -> Unit:
    (folder / "toy.hip").write_text(text)
    kernel = Kernel("hip", "toy.hip", entry, args, {"WIDTH": 256}, options or {"threads": 256}, (r"ds_bpermute|v_\w+_dpp", "v_exp_f32"))
    return Unit("op", kernel, target, folder, KERNELS / "include", {"out": "f32", "in": "bf16"})


@pytest.mark.parametrize("name", ["gfx942", "gfx950"])
def test_a_toy_kernel_passes_the_lint(tmp_path, name):
    u = unit(tmp_path, target=TARGETS[name])
    built = hip.build(u)
    assert built.params == ("ptr", "ptr", "i32", "i64", "f32")
    assert (built.symbol, built.block, built.shared) == ("toy", (256, 1, 1), 0)
    found = check.inspect(u.target, built, u.kernel)
    assert found["spill_bytes"] == found["stack_bytes"] == 0
    assert found["static_shared"] == 16


def test_bytes_do_not_depend_on_the_place(tmp_path):
    """Another process, working folder and home give the same object, and it names no path of this machine."""
    built = hip.build(unit(tmp_path))
    code = (
        "import sys; from pathlib import Path; sys.path[:0] = [sys.argv[1], sys.argv[2]]\n"
        "import test_hip; from aot.compilers import hip\n"
        "folder = Path(sys.argv[3]); sys.stdout.buffer.write(hip.build(test_hip.unit(folder)).image)"
    )
    other = tmp_path / "other"
    other.mkdir()
    root = Path(__file__).parents[1]
    env = {k: v for k, v in os.environ.items() if k != "HOME"}
    done = subprocess.run([sys.executable, "-c", code, str(root), str(root / "tests"), str(other)], cwd=other, env=env, capture_output=True)
    assert done.stdout == built.image, done.stderr.decode()
    for path in (tmp_path, root, Path(sys.prefix)):
        assert str(path).encode() not in built.image


def test_clangs_own_message_is_in_the_error(tmp_path):
    with pytest.raises(CompileError) as e:
        hip.build(unit(tmp_path, TOY.replace("sums[0]", "sum[0]")))
    assert "toy.hip:10" in e.value.log and "use of undeclared identifier 'sum'" in str(e.value)
    assert "--offload-arch=gfx950" in e.value.command
    assert e.value.intermediates["toy.hip"].count("sum[0]") == 1


def test_a_missing_function_is_an_error_of_the_linker(tmp_path):
    text = TOY.replace("exp2f(v)", "tanh_of(v)").replace("extern", 'extern "C" __device__ float tanh_of(float);\nextern', 1)
    with pytest.raises(CompileError) as e:
        hip.build(unit(tmp_path, text))
    assert "undefined symbol: tanh_of" in str(e.value) or "undefined hidden symbol: tanh_of" in str(e.value)
    assert "kernel.s" in e.value.intermediates


def test_parameters_that_differ_are_reported_as_they_are(tmp_path):
    wrong = (ptr("out"), ptr("in"), i64("n"), i64("stride"))
    assert hip.build(unit(tmp_path, args=wrong)).params == ("ptr", "ptr", "by_value[4]", "i64", "by_value[4]")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"entry": "other"}, "found the kernels ['toy']; wanted one, extern \"C\" other"),
        ({"options": {"threads": 256, "warps": 4}}, "found the options ['warps']; wanted some of"),
        ({"target": TARGETS["sm90"]}, "found the target sm90 (nvidia); wanted an AMD one"),
    ],
)
def test_refusals_say_found_and_wanted(tmp_path, change, message):
    with pytest.raises(CompileError) as e:
        hip.build(unit(tmp_path, **change))
    assert message in str(e.value)


def test_a_source_name_with_folders_is_refused():
    with pytest.raises(ValueError, match="wanted a plain file name"):
        hip.compile_source(TOY, "/tmp/toy.hip", GFX950)


def test_hipcc_takes_over_when_named(tmp_path, monkeypatch):
    """A script in hipcc's place sees the flags and none of our headers; what it fails with is reported."""
    script = tmp_path / "hipcc"
    script.write_text('#!/bin/sh\necho "$@" >> "$(dirname "$0")/calls"\ntouch kernel.s kernel.hsaco\n')
    script.chmod(script.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv(hip.ENVIRONMENT, str(script))
    done = hip.compile_source(TOY, "toy.hip", GFX950, headers=KERNELS / "include/hip", defines={"WIDTH": 256, "CHECK": True})
    assert done.image == b""
    listing, linking = (tmp_path / "calls").read_text().splitlines()
    assert "--offload-arch=gfx950" in linking and "-DWIDTH=256" in linking and "-DCHECK=1" in linking
    assert " -S " in listing and " -S " not in linking
    assert "include/hip" not in linking and "-nogpuinc" not in linking
    monkeypatch.setenv(hip.ENVIRONMENT, str(tmp_path / "absent"))
    with pytest.raises(CompileError, match="does not start"):
        hip.compile_source(TOY, "toy.hip", GFX950)
