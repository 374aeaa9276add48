"""Makes packs for sm90 out of the TileLang kernel of AMD's matrix cores, so that its logic can run on an NVIDIA GPU.

    python -m tests.tile_forms OUT      then, with the wheels installed:
    DSA_KERNELS_PACKS=OUT/gfx950 python -m pytest -m gpu tests/test_gpu_tile_forms.py      (and OUT/gfx942)

The same function of the same source with the same constants, splits and program order, and the same guards but for the one that leaves
small calls to other kernels. The instructions that a wave executes at
once (matrix products, transposing reads, conversions, exchanges between lanes) are a model in plain CUDA C++, written from AMD's
documents: include/hip/dsak_wave_model.h. So the run shows that the kernel is right if they do what the model does; the instructions
themselves, and the code that Clang makes, are not executed. e4m3fnuz, which NVIDIA has not, becomes e4m3fn. The packs are never shipped.
"""

import sys
from dataclasses import replace

from aot.registry import KERNELS, discover, sibling
from aot.spec import Candidate, Kernel, Launch, Op
from tests.unshipped import ELSEWHERE, write

FILLED = sibling(str(KERNELS / "sparse_mla_decode/op.py"), "tile_gfx_candidates").FILLED[64]
OPS = ("sparse_mla_decode", "sparse_mla_prefill")


def kernel(k: Kernel) -> Kernel:
    if k.language == "triton":
        return replace(k, options={"num_warps": 4, "num_stages": 1}, promises=())
    dtype = str(k.constants["DTYPE"]).replace("e4m3fnuz", "e4m3fn")
    return replace(k, constants={**k.constants, "DTYPE": dtype, "MODEL": True}, options={}, promises=())


def form(op: Op, target: str) -> Op:
    """``op`` with the TileLang candidates of ``target`` as its only ones, for sm90."""

    def candidate(c: Candidate) -> Candidate:
        launches = tuple(Launch(kernel(x.kernel), x.grid) for x in c.launches)
        when = c.when.replace(FILLED, "")  # what that guard leaves to other kernels, this pack has to serve
        return replace(c, targets=("sm90",), when=when, launches=launches)

    mine = [c for c in op.candidates if target in c.targets and any(x.kernel.language == "tilelang" for x in c.launches)]
    return replace(op, candidates=tuple(map(candidate, mine)), holes=ELSEWHERE, tuned=())


if __name__ == "__main__":
    for name in ("gfx950", "gfx942"):
        write(f"{sys.argv[1]}/{name}", [form(op, name) for op in discover().values() if op.name in OPS])
