"""Makes a pack for sm90 out of the forms that the Triton kernels of some ops have for AMD, so that their logic can run on an NVIDIA GPU.

    python -m tests.amd_forms OUT       then, with the wheels installed:
    DSA_KERNELS_PACKS=OUT python -m pytest -m gpu tests/test_gpu_{decode,kpool,ops}.py -k "decode or kpool or prefill"

Same sources, constants, guards, splits and program order as for gfx950 (its XCDs included), with other warps and the code of another
compiler back end: it shows that the algorithm is right, and nothing about the code generated for AMD. The pack is never shipped.
"""

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from aot import edge, pack
from aot.compilers import triton
from aot.compilers.base import Unit
from aot.registry import KERNELS, discover
from aot.spec import Candidate, Kernel, Launch, Op
from aot.targets import TARGETS

SM90 = TARGETS["sm90"]
OPS = ("kpool_topk", "sparse_mla_decode", "sparse_mla_prefill")


def form(op: Op) -> Op:
    """``op`` with the Triton candidates of gfx950 as its only ones, for sm90."""

    def kernel(k: Kernel) -> Kernel:
        return replace(k, options={"num_warps": 4, "num_stages": 1}, promises=())

    def candidate(c: Candidate) -> Candidate:
        launches = tuple(Launch(kernel(x.kernel), x.grid) for x in c.launches)
        return replace(c, targets=("sm90",), launches=launches)

    mine = [c for c in op.candidates if "gfx950" in c.targets and all(x.kernel.language == "triton" for x in c.launches)]
    return replace(op, candidates=tuple(map(candidate, mine)), holes=dict.fromkeys(set(TARGETS) - {"sm90"}, "a test of sm90"))


def main(out: str) -> None:
    ops = {name: form(op) for name, op in discover().items() if name in OPS}
    with tempfile.TemporaryDirectory() as scratch:
        results = []
        for op in ops.values():
            folder = Path(scratch) / f"{op.name}.amd_forms"
            folder.mkdir()
            records = []
            for k in op.kernels_for(SM90):
                dtypes = {a.name: op.pointer_dtype(a, SM90) for a in k.args if a.type == "ptr"}
                unit = Unit(op.name, k, SM90, KERNELS / op.name, KERNELS / "include", dtypes)
                records.append(edge.entry(unit, triton.build(unit), folder))
                print(op.name, k.name, {n: records[-1]["resources"][n] for n in ("registers", "spill_bytes", "shared")})
            results.append(Path(scratch) / f"{op.name}.amd_forms.json")
            results[-1].write_text(json.dumps(records))
        Path(out).mkdir(parents=True, exist_ok=True)
        pack.write(Path(out) / "sm90", *pack.manifest(SM90, ops, results))


if __name__ == "__main__":
    main(*sys.argv[1:])
