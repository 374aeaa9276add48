"""Makes a pack for sm90 out of the CUDA kernels with DSAK_EVERY_LANE=1, whose barriers racecheck can follow.

    python -m tests.race_forms OUT [NAME]      then, with the wheels installed:
    DSA_KERNELS_PACKS=OUT compute-sanitizer --tool racecheck python benchmarks/sanitize.py --tokens 140

NAME keeps the candidates whose names begin so: ``low`` and ``--only low`` for the kernels of few heads, ``q8`` for those of 64.

A warp of the shipped kernels meets (__syncwarp) and one lane arrives for it at a barrier in shared memory; racecheck credits a barrier
only to the threads that arrive at it themselves, and reports every access that the barrier orders as a hazard. Here all lanes arrive:
the same sources, waits and accesses, ordered by nothing but the barriers. The pack is never shipped.
"""

import sys
from dataclasses import replace

from aot.registry import discover
from aot.spec import Candidate, Launch, Op
from tests.unshipped import ELSEWHERE, write


def form(op: Op, name: str = "") -> Op | None:
    """``op`` with its CUDA candidates of sm90 whose names begin with ``name`` as its only ones; None where it has none."""

    def candidate(c: Candidate) -> Candidate:
        every_lane = [replace(x.kernel, constants={**x.kernel.constants, "DSAK_EVERY_LANE": 1}) for x in c.launches]
        return replace(c, launches=tuple(Launch(k, x.grid, x.cluster) for k, x in zip(every_lane, c.launches, strict=True)))

    mine = [
        c for c in op.candidates if "sm90" in c.targets and all(x.kernel.language == "cuda" for x in c.launches) and c.name.startswith(name)
    ]
    if not mine:
        return None
    return replace(op, candidates=tuple(replace(candidate(c), targets=("sm90",)) for c in mine), holes=ELSEWHERE, tuned=())


if __name__ == "__main__":
    forms = [form(op, *sys.argv[2:3]) for op in discover().values()]
    write(sys.argv[1], [op for op in forms if op is not None])
