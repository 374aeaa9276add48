"""Host time of one launch, per layer: ``python benchmarks/launch.py [--calls 100000] [--json FILE]``.

Every row launches the same kernel (``concat_cast_q``, one token, 16 heads) asynchronously, 100,000 times in batches with a
synchronisation between them, and reports the median batch. The rows take turns, a batch each, so that a slow moment of the
host falls on all of them:

* ``cuLaunchKernel``: the driver alone, a C loop over the same object and the same arguments;
* ``C ABI``: ``dsak_launch`` in a C loop, one call bound before;
* ``Python, out=``: ``dsa_kernels.concat_cast_q(q_nope, q_rope, out=out)``;
* ``torch.ops``: the registered op, ``_out`` and functional;
* ``torch.add(out=)``: what torch pays for a kernel of its own.

Without torch the tensors are ``dsa_kernels.View``. ``DSA_KERNELS_CUDA_LIBRARY`` names another driver library, as for the runtime.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import dsa_kernels
from dsa_kernels import _core, _packs

OP, HEADS, TOKENS = "concat_cast_q", 16, 1
BATCHES = 20


class Driver:
    """The few driver calls that a raw launch needs."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(os.environ.get("DSA_KERNELS_CUDA_LIBRARY", "libcuda.so.1"))
        context = ctypes.c_void_p()
        self("cuInit", 0)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self("cuCtxSetCurrent", context)

    def __call__(self, name: str, *args: Any) -> None:
        status = getattr(self.library, name)(*args)
        if status != 0:
            raise SystemExit(f"{name} failed with {status}; wanted 0; is the driver usable?")

    def allocate(self, size: int) -> int:
        address = ctypes.c_uint64()
        self("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def function(self, image: bytes, symbol: str) -> ctypes.c_void_p:
        module, kernel, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self("cuLibraryLoadData", ctypes.byref(module), image, None, None, 0, None, None, 0)
        self("cuLibraryGetKernel", ctypes.byref(kernel), module, symbol.encode())
        self("cuKernelGetFunction", ctypes.byref(function), kernel)
        return function

    def synchronize(self) -> None:
        self("cuCtxSynchronize")


class Fields:
    """``q.s0``, ``q.d0`` and ``q.dtype`` of a View, as the manifest's expressions read them."""

    def __init__(self, view: _core.View) -> None:
        self.view = view

    def __getattr__(self, name: str) -> int | str:
        if name == "dtype":
            return self.view.dtype
        sizes = self.view.shape
        i = int(name[1:])
        return sizes[i] if name[0] == "d" else self.view.strides[i] if sizes[i] > 1 else 0


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def raw_loop(driver: Driver, views: dict[str, _core.View]) -> Callable[[int], float]:
    """A loop over cuLaunchKernel with the kernel, grid and arguments that the runtime takes; nanoseconds per call."""
    pack = next(p for p in _packs.find_packs()[0] if os.path.basename(p).startswith("sm"))
    with open(os.path.join(pack, "manifest.json"), encoding="utf-8") as file:
        manifest = json.load(file)
    op = next(o for o in manifest["ops"] if o["name"] == OP)
    env = {"T": TOKENS, "H": HEADS, "R": 64, "has": lambda _: 1, "cdiv": cdiv, "min": min, "max": max}
    env |= {name: Fields(view) for name, view in views.items()}
    launch = next(c for c in op["candidates"] if eval(c["when"], env))["launches"][0]
    kernel = op["kernels"][launch["kernel"]]
    with open(os.path.join(pack, manifest["objects"][kernel["object"]]["file"]), "rb") as file:
        function = driver.function(file.read(), kernel["symbol"])

    def value(a: dict[str, str]) -> Any:
        if a["type"] == "ptr":
            return ctypes.c_uint64(views[a["value"]].address)
        if a["type"] == "null":
            return ctypes.c_uint64(0)
        kind = {"i32": ctypes.c_int32, "i64": ctypes.c_int64, "f32": ctypes.c_float}[a["type"]]
        return kind(eval(a["value"], env))

    values = [value(a) for a in op["args"][kernel["args"]]]  # params holds addresses only: run keeps the values alive
    params = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
    grid = [eval(g, env) for g in launch["grid"]]
    address = ctypes.cast(driver.library.cuLaunchKernel, ctypes.c_void_p).value or 0

    def run(count: int) -> float:
        assert len(values) == len(params)
        ns = _core.time_raw_launch(
            address, function.value or 0, grid, kernel["block"], kernel["shared"], 0, ctypes.addressof(params), count
        )
        if ns < 0:
            raise SystemExit(f"cuLaunchKernel failed with {-ns:.0f}; wanted 0")
        return ns

    return run


def batches(calls: int, synchronize: Callable[[], None], rows: dict[str, Callable[[int], float]]) -> dict[str, float]:
    """Median over batches of each row's microseconds per call; a row's ``run(n)`` gives nanoseconds per call."""
    for run in rows.values():
        run(max(1, calls // 100))
    found: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(BATCHES):
        for name, run in rows.items():
            synchronize()
            found[name].append(run(calls // BATCHES) / 1000)
    synchronize()
    return {name: statistics.median(us) for name, us in found.items()}


def loop(call: Callable[[], object]) -> Callable[[int], float]:
    def run(count: int) -> float:
        steps = range(count)
        start = time.perf_counter_ns()
        for _ in steps:
            call()
        return (time.perf_counter_ns() - start) / count

    return run


def torch_tensors() -> tuple[Any, dict[str, Any]] | None:
    """torch and the call's tensors, or None where torch or its device is missing."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    q_nope = torch.randn(TOKENS, HEADS, 512, device="cuda", dtype=torch.bfloat16)
    q_rope = torch.randn(TOKENS, HEADS, 64, device="cuda", dtype=torch.bfloat16)
    out = torch.empty(TOKENS, HEADS, 576, device="cuda", dtype=torch.float8_e4m3fn)
    return torch, {"q_nope": q_nope, "q_rope": q_rope, "out": out}


def measure(calls: int) -> dict[str, float]:
    on_torch = torch_tensors()
    driver = Driver()
    dtypes = {"q_nope": ("bf16", 512), "q_rope": ("bf16", 64), "out": ("e4m3fn", 576)}
    views = {
        name: _core.View(driver.allocate(TOKENS * HEADS * width * 2), (TOKENS, HEADS, width), dtype)
        for name, (dtype, width) in dtypes.items()
    }
    op = getattr(dsa_kernels, OP)
    q_nope, q_rope, out = views["q_nope"], views["q_rope"], views["out"]
    dsa_kernels.preload(OP)

    rows: dict[str, Callable[[int], float]] = {
        "cuLaunchKernel": raw_loop(driver, views),
        "C ABI": lambda n: _core.time_launch(op, n, q_nope, q_rope, out=out),
        "Python, out=, View": loop(lambda: op(q_nope, q_rope, out=out)),
    }
    if on_torch is None:
        return batches(calls, driver.synchronize, rows)
    torch, tensors = on_torch
    import_module("dsa_kernels.torch")

    x, y, z = tensors["q_nope"], tensors["q_rope"], tensors["out"]
    ops = torch.ops.dsa_kernels
    a = torch.zeros(HEADS, device="cuda")
    rows |= {
        "Python, out=, torch": loop(lambda: op(x, y, out=z)),
        "Python, allocating, torch": loop(lambda: op(x, y)),
        "torch.ops, _out": loop(lambda: ops.concat_cast_q_out(x, y, out=z)),
        "torch.ops, functional": loop(lambda: ops.concat_cast_q(x, y)),
        "torch.add(out=)": loop(lambda: torch.add(a, a, out=a)),
        "torch.empty": loop(lambda: torch.empty((TOKENS, HEADS, 576), device="cuda", dtype=torch.uint8)),
    }
    with torch.inference_mode():
        return batches(calls, driver.synchronize, rows)


def host() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), platform.machine())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--json", metavar="FILE", help="also write the numbers there")
    arguments = parser.parse_args()
    rows = measure(arguments.calls)
    raw = rows["cuLaunchKernel"]
    print(f"{host()}, Python {platform.python_version()}, {arguments.calls} calls, microseconds per call (and above raw)")
    for name, us in rows.items():
        print(f"{name:28} {us:8.3f}  {us - raw:+8.3f}")
    result = {"host": host(), "python": platform.python_version(), "calls": arguments.calls, "us": rows}
    print(json.dumps(result))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
