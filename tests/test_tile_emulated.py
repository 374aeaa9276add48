"""The TileLang kernels of sm90 compute what the reference does, without a GPU, and nothing but their barriers orders what they share.

Threads are the host's (tests/cuda_on_cpu.h), so a barrier that is missing deadlocks or shows as a race under ThreadSanitizer.
"""

from __future__ import annotations

import math
import re
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tilelang", reason="the kernels are lowered by TileLang: pip install -e '.[build]'")
pytest.importorskip("dsa_kernels", reason="the runtime is not installed: pip install -e .")
if not shutil.which("g++") or "f16c" not in Path("/proc/cpuinfo").read_text():
    pytest.skip("found no g++ or no x86 with F16C; emulated kernels want both", allow_module_level=True)

from aot.compilers import tilelang  # noqa: E402
from aot.compilers.base import Unit  # noqa: E402
from aot.registry import KERNELS, discover  # noqa: E402
from aot.targets import TARGETS  # noqa: E402
from tests import tile_emulated as emulated  # noqa: E402
from tests.attention import FP8, Case  # noqa: E402

FORMS = ("bf16_d512_h16", "bf16_d576_h16", "bf16_d576_h64", "fp8_d512_h16", "fp8_d576_h64", "fp8_d576_rope_h32")


def candidate(op, form, suffix=""):
    return next(c for c in discover()[op].candidates if c.name == f"tile_{form}{suffix}")


@cache
def lowered(form):
    op, kernel = discover()["sparse_mla_prefill"], candidate("sparse_mla_prefill", form).launches[0].kernel
    dtypes = {a.name: op.pointer_dtype(a, TARGETS["sm90"]) for a in kernel.args if a.type == "ptr"}
    return tilelang.lower(Unit(op.name, kernel, TARGETS["sm90"], KERNELS / op.name, KERNELS / "include", dtypes))


def make(form, op="sparse_mla_prefill", **options):
    dtype, d, *_, heads = form.split("_")
    given = {"D": int(d[1:]), "H": int(heads[1:]), "rope": "rope" in form, "dtype": FP8 if dtype == "fp8" else torch.bfloat16}
    return Case(op=op, device="cpu", **{**given, "s_kv": 300, "std": 0.5, "pad": 1, "holes": 0.2, **options})


def attend(program, case, launch, workspace=None, units=132):
    """Run one launch on ``case``; returns what ThreadSanitizer says."""
    case.poison()
    inputs = case.inputs()
    tensors = {n: t for n, t in inputs.items() if isinstance(t, torch.Tensor)}
    tensors |= {"out": case.out, "max_logits": case.max_logits, "lse": case.lse, "workspace": workspace}
    call = {"T": len(case.q), "H": case.H, "topk": case.indices.shape[1], "s_kv": len(case.kv), "sm_scale": case.scale, "sm_count": units}
    for name in ("q", "kv", "indices", "q_rope", "topk_length", "attn_sink", "q_scale", "kv_scale", "out", "max_logits", "lse"):
        call[f"has({name})"] = int(tensors.get(name) is not None)
        if tensors.get(name) is not None:
            call |= {f"{name}.s{i}": stride for i, stride in enumerate(tensors[name].stride())}
    return emulated.launch(program, launch, call, tensors)


def combine(case, workspace, splits):
    """What combine.py does with partials, in float32."""
    T, H = case.max_logits.shape
    size = T * splits * H * 1024
    o = workspace[:size].view(torch.float16 if case.kv.dtype == FP8 else torch.bfloat16).view(T, splits, H, 512).float()
    tops, sums = workspace[size:].view(torch.float32).view(T, splits, H, 2).unbind(-1)
    top = tops.amax(1)
    frame = top.where(top > -math.inf, torch.zeros(()))
    weights = torch.exp2(sums - frame[:, None])
    total = weights.sum(1)
    sink = 0 if case.sink is None else torch.exp2(case.sink * math.log2(math.e) - frame)
    o = o.where(sums[..., None] > -math.inf, torch.zeros(()))  # of an empty split nothing is read
    factor = (1 if case.kv_scale is None else case.kv_scale) / (total + sink).where(total > 0, torch.ones(()))
    case.out[:] = (o * weights[..., None]).sum(1) * factor[..., None]
    case.max_logits[:] = top * math.log(2)
    case.lse[:] = ((total.log2() + frame) * math.log(2)).where(total > 0, torch.tensor(math.inf))


def edges(case):
    """Lengths, sinks and scales of every kind."""
    case.length = torch.tensor([147, 0, 65, 1][: len(case.q)], dtype=torch.int32)
    case.sink = torch.linspace(-3, 3, case.H)
    case.sink[:2] = torch.tensor([math.inf, -math.inf])
    if case.kv.dtype == FP8:
        case.q_scale, case.kv_scale = torch.tensor([0.5]), torch.tensor([1.7])
    return case


@pytest.fixture(scope="module", params=FORMS)
def form(request, tmp_path_factory):
    return request.param, emulated.compile(lowered(request.param), tmp_path_factory.mktemp("emulated"))


def test_prefill(form):
    """Where blocks serve token after token, one serves all."""
    name, program = form
    launch = candidate("sparse_mla_prefill", name).launches[0]
    for case in (make(name, T=1, topk=330), edges(make(name, T=4, topk=150, H=int(name[-2:]) - 3, scale=0.2))):
        assert not attend(program, case, launch, units=1)
        case.check(rel=5e-3, lse_tol=1e-3, elements=False)


def test_decode_in_splits(form):
    """Three splits of two blocks; the second token's list is empty, the third's ends in the first split."""
    name, program = form
    launch = candidate("sparse_mla_decode", name, "_split").launches[0]
    for case in (make(name, T=1, topk=330), edges(make(name, T=3, topk=330))):
        T, H = case.max_logits.shape
        workspace = torch.full((T * 3 * H * 1032,), 0xFF, dtype=torch.uint8)
        assert not attend(program, case, launch, workspace, units=3 * T)
        combine(case, workspace, 3)
        case.check(rel=5e-3, lse_tol=1e-3, elements=False)


def races(said):
    """Source lines of the kernel among those that ThreadSanitizer names."""
    return {int(line) for line in re.findall(r"kernel\.cpp:(\d+)", said)}


@pytest.mark.parametrize("name", ["bf16_d512_h16", "bf16_d576_h16", "bf16_d576_h64", "fp8_d512_h16", "fp8_d576_h64"])
def test_barriers_order_everything_shared(tmp_path, name):
    """But for the flags of narrow tiles: several threads may set one, to the same value, before the barrier after which it is read."""
    program = emulated.compile(lowered(name), tmp_path, emulated.TSAN)
    case = make(name, T=2 if name == "fp8_d512_h16" else 1, topk=330)
    said = attend(program, case, candidate("sparse_mla_prefill", name).launches[0], units=1)
    case.check(rel=5e-3, lse_tol=1e-3, elements=False)
    lines = (tmp_path / "kernel.cpp").read_text().splitlines()
    racing = {lines[n - 1].strip() for n in races(said) if "_kernel(" not in lines[n - 1]}
    assert all(re.match(r"\(\(int\*\)flags\)\[.*\] = k(_\d+)?;", line) for line in racing), racing


def test_a_missing_barrier_shows(tmp_path):
    """The check can fail: without the meeting of a warpgroup between its scores and P, which takes the place of their operand."""
    whole = lowered("bf16_d576_h64")
    without = re.sub(r"tl::__sync_thread_partial\([23], 128\);", "", whole.source)
    assert without != whole.source
    program = emulated.compile(replace(whole, source=without), tmp_path, emulated.TSAN)
    said = attend(program, make("bf16_d576_h64", T=1, topk=330), candidate("sparse_mla_prefill", "bf16_d576_h64").launches[0])
    assert "data race" in said
