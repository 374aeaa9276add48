"""Makes a pack for sm90 out of the forms that the Triton kernels of some ops have for AMD, so that their logic can run on an NVIDIA GPU.

    python -m tests.amd_forms OUT       then, with the wheels installed:
    DSA_KERNELS_PACKS=OUT python -m pytest -m gpu tests/test_gpu_{decode,kpool,ops}.py -k "decode or kpool or prefill"

Same sources, constants, guards, splits and program order as for gfx950 (its XCDs included), with other warps and the code of another
compiler back end: it shows that the algorithm is right, and nothing about the code generated for AMD. The pack is never shipped.
"""

import sys
from dataclasses import replace

from aot.registry import discover
from aot.spec import Candidate, Kernel, Launch, Op
from tests.unshipped import ELSEWHERE, write

OPS = ("kpool_topk", "sparse_mla_decode", "sparse_mla_prefill")


def form(op: Op) -> Op:
    """``op`` with the Triton candidates of gfx950 as its only ones, for sm90."""

    def kernel(k: Kernel) -> Kernel:
        return replace(k, options={"num_warps": 4, "num_stages": 1}, promises=())

    def candidate(c: Candidate) -> Candidate:
        launches = tuple(Launch(kernel(x.kernel), x.grid) for x in c.launches)
        return replace(c, targets=("sm90",), launches=launches)

    mine = [c for c in op.candidates if "gfx950" in c.targets and all(x.kernel.language == "triton" for x in c.launches)]
    return replace(op, candidates=tuple(map(candidate, mine)), holes=ELSEWHERE, tuned=())


if __name__ == "__main__":
    write(sys.argv[1], [form(op) for op in discover().values() if op.name in OPS])
