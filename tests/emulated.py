"""The CUDA kernels of attention on the host: tests/emulator runs their sources, thread by thread, in an order drawn from a seed."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from aot.registry import KERNELS, load
from tests import oracle

reference = oracle.function("sparse_mla_prefill")
low_head: Any = load(KERNELS / "include/low_head.py")
FOLDER = Path(__file__).parent / "emulator"
DTYPES = {"fp8": torch.float8_e4m3fn, "bf16": torch.bfloat16}
COMPILER = next(filter(None, map(shutil.which, ("g++", "c++", "clang++"))), None)


@dataclass(frozen=True)
class Form:
    """A kernel by its compile-time constants."""

    dtype: str
    d: int
    heads: int
    split: bool = True
    stages: int = 0
    teams: int = 1

    def declared(self) -> Any:
        stages = self.stages or low_head.stages(self.d, self.heads, self.dtype, self.split)
        entry = ("low_decode.cu", "sparse_mla_decode_low", self.d, self.heads, False)
        return low_head.kernel(*entry, self.split, stages, self.dtype, self.teams)


def compiled(kernel: Any, main: str, out: Path) -> ctypes.CDLL:
    """The sources of a declared ``kernel`` on the machine, as ``main`` in its folder calls them, compiled for the host to ``out``."""
    defines = {**kernel.constants, "DSAK_THREADS": kernel.options["threads"], "DSAK_SHARED": kernel.options["shared"]}
    includes = [f"-I{x}" for x in (FOLDER, KERNELS / "include", KERNELS)]
    sources = [str(FOLDER / x) for x in (main, "machine.cpp")]
    options = ["-std=c++17", "-O2", "-shared", "-fPIC", "-include", str(FOLDER / "cuda.h"), *includes]
    subprocess.run([str(COMPILER), *options, *(f"-D{k}={v}" for k, v in defines.items()), *sources, "-o", str(out)], check=True)
    return ctypes.CDLL(str(out))


@functools.cache
def library(form: Form, folder: Path) -> ctypes.CDLL:
    """``form`` compiled for the host into ``folder``."""
    return compiled(form.declared(), "low.cpp", folder / f"{abs(hash(form))}.so")


class Call:
    """Inputs of a call; rows that no valid column selects are NaN, and so are the outputs before it."""

    def __init__(self, form: Form, tokens: int = 1, heads: int = 0, topk: int = 330, s_kv: int = 300, holes: float = 0.2, seed: int = 0):
        g = torch.Generator().manual_seed(seed)
        self.form, self.seed, self.heads = form, seed, heads or form.heads
        dtype = DTYPES[form.dtype]
        self.q = (torch.randn(tokens, self.heads, form.d, generator=g) * 0.25).to(dtype)
        self.kv = (torch.randn(s_kv, form.d, generator=g) * 0.25).to(dtype)
        self.indices = torch.randint(0, s_kv, (tokens, topk), generator=g, dtype=torch.int32)
        self.indices[torch.rand(tokens, topk, generator=g) < holes] = -1
        self.length: torch.Tensor | None = None
        self.sink: torch.Tensor | None = None
        self.out = torch.full((tokens, self.heads, 512), torch.nan, dtype=torch.bfloat16)
        self.max_logits, self.lse = (torch.full((tokens, self.heads), torch.nan) for _ in range(2))

    def poison(self) -> None:
        valid = self.indices >= 0
        if self.length is not None:
            valid &= torch.arange(self.indices.shape[1]) < self.length[:, None]
        free = torch.ones(len(self.kv), dtype=torch.bool)
        free[self.indices[valid].long()] = False
        if self.form.dtype == "fp8":
            self.kv.view(torch.uint8)[free] = 0x7F
        else:
            self.kv[free] = torch.nan

    def run(self, folder: Path, cluster: int = 1) -> Call:
        """Runs the kernel in clusters of ``cluster``. A deadlock, or a copy that nobody waits for, is an error."""
        self.poison()
        T, H, d = self.q.shape

        def at(x: torch.Tensor | None, offset: int = 0) -> ctypes.c_void_p:
            return ctypes.c_void_p(None if x is None else x.data_ptr() + offset)

        topk = self.indices.shape[1]
        strides = (ctypes.c_longlong * 8)(H * d, d, H * d, d, d, topk, H * 512, 512)
        inputs = (self.q, self.kv, self.indices, self.length, self.sink)
        code = library(self.form, folder).emulate(
            *(T * cluster, -(-H // self.form.heads), cluster, self.seed),
            *(at(self.q), at(self.q, 512 * self.q.element_size()), *map(at, inputs[1:]), None, None),
            *(at(self.out), at(self.max_logits), at(self.lse), strides, H, topk, len(self.kv), ctypes.c_float(0.0625)),
        )
        assert code == 0, {1: "deadlock", 2: "copies that nobody waited for"}[code]
        return self

    def check(self) -> None:
        out, max_logits, lse = reference(self.q, self.kv, self.indices, 0.0625, topk_length=self.length, attn_sink=self.sink)
        assert torch.isfinite(self.out).all()
        assert (self.out.float() - out).norm() <= 3e-3 * out.norm() + 1e-6
        torch.testing.assert_close(self.max_logits, max_logits, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(self.lse, lse, atol=1e-5, rtol=1e-5)
