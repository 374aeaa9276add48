"""From nothing to the first finished call, in fresh processes: ``python benchmarks/coldstart.py [--runs 5] [--json FILE]``.

Prints the median milliseconds of each step, once without torch (device memory through ``dsa_kernels.View``) and once with it. The steps
of the driver itself (``cuInit``, the primary context) are made first by hand, so that the rest is what this package costs:
import, opening the packs, verifying and loading one op, its first launch, and waiting for it.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import time

OWN = ("import dsa_kernels", "open packs", "load", "first launch", "synchronize")
HEADS = 16


class Clock:
    """Milliseconds between one mark and the next, by name."""

    def __init__(self) -> None:
        self.steps: dict[str, float] = {}
        self._last = time.perf_counter()

    def mark(self, name: str) -> None:
        now = time.perf_counter()
        self.steps[name] = (now - self._last) * 1e3
        self._last = time.perf_counter()


def driver() -> ctypes.CDLL:
    return ctypes.CDLL(os.environ.get("DSA_KERNELS_CUDA_LIBRARY", "libcuda.so.1"))


def check(status: int, what: str) -> None:
    if status != 0:
        raise SystemExit(f"{what} failed with {status}; wanted 0; is the driver usable?")


def run_plain() -> dict[str, float]:
    clock = Clock()
    cuda = driver()
    check(cuda.cuInit(0), "cuInit")
    clock.mark("cuInit")
    context = ctypes.c_void_p()
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), "cuDevicePrimaryCtxRetain")
    check(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
    clock.mark("context")
    address = ctypes.c_uint64()
    check(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 20)), "cuMemAlloc")
    clock.mark("device memory")
    import dsa_kernels

    clock.mark("import dsa_kernels")
    op = dsa_kernels.concat_cast_q
    clock.mark("open packs")
    dsa_kernels.preload(op)
    clock.mark("load")
    base = address.value
    view = dsa_kernels.View
    q_nope, q_rope = view(base, (1, HEADS, 512), "bf16"), view(base + (1 << 18), (1, HEADS, 64), "bf16")
    op(q_nope, q_rope, out=view(base + (1 << 19), (1, HEADS, 576), "e4m3fn"))
    clock.mark("first launch")
    check(cuda.cuCtxSynchronize(), "cuCtxSynchronize")
    clock.mark("synchronize")
    return clock.steps


def run_torch() -> dict[str, float]:
    clock = Clock()
    import torch

    clock.mark("import torch")
    q_nope = torch.zeros(1, HEADS, 512, device="cuda", dtype=torch.bfloat16)
    q_rope = torch.zeros(1, HEADS, 64, device="cuda", dtype=torch.bfloat16)
    torch.cuda.synchronize()
    clock.mark("context")
    import dsa_kernels

    clock.mark("import dsa_kernels")
    op = dsa_kernels.concat_cast_q
    clock.mark("open packs")
    dsa_kernels.preload(op)
    clock.mark("load")
    op(q_nope, q_rope)
    clock.mark("first launch")
    torch.cuda.synchronize()
    clock.mark("synchronize")
    return clock.steps


CHILDREN = {"plain": run_plain, "torch": run_torch}


def child(name: str) -> tuple[dict[str, float] | None, float, str]:
    """Steps of one fresh process, its whole duration in milliseconds, and its error text."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, __file__, "--child", name], capture_output=True, text=True)
    whole = (time.perf_counter() - start) * 1e3
    if done.returncode != 0:
        return None, whole, (done.stderr.strip().splitlines() or ["no output"])[-1]
    return json.loads(done.stdout.splitlines()[-1]), whole, ""


def report(name: str, runs: int) -> dict[str, float] | None:
    found: list[dict[str, float]] = []
    for _ in range(runs + 1):  # the first one warms the page cache and is dropped
        steps, whole, error = child(name)
        if steps is None:
            print(f"{name}: not run ({error})")
            return None
        found.append({**steps, "own": sum(steps[s] for s in OWN), "process": whole})
    medians = {step: statistics.median(f[step] for f in found[1:]) for step in found[0]}
    print(f"\n{'without torch' if name == 'plain' else 'with torch'}: ms, median of {runs} fresh processes")
    for step, ms in medians.items():
        label = {"own": f"sum of ours ({', '.join(OWN)})", "process": "whole process"}.get(step, step)
        print(f"  {ms:10.3f}  {label}")
    return medians


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", metavar="FILE", help="also write the numbers there")
    parser.add_argument("--child", choices=CHILDREN, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(CHILDREN[arguments.child]()))
        return
    result = {name: report(name, arguments.runs) for name in CHILDREN}
    print("\n" + json.dumps(result))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
