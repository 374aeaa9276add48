"""Host time that a launch spends in the core: ``python -m tests.standin.bench_launch``.

One op of the size of a prefill (eight arguments, fourteen words for the kernel) against the silent stand-in driver.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from tests import cabi
from tests.cabi import candidate, launch, ptr, scalar, scalar_param, tensor_param


def prefill() -> dict[str, object]:
    strides = [scalar(f"{t}_s{k}", "i64", f"{t}.s{k}") for t, k in (("q_nope", 0), ("q_nope", 1), ("q_rope", 0), ("kv", 0), ("out", 0))]
    args = [
        *(ptr(t) for t in ("q_nope", "q_rope", "kv", "indices", "length", "out", "lse")), *strides,
        scalar("H", "i32"), scalar("sm_scale", "f32"),
    ]  # fmt: skip
    return cabi.op(
        "prefill",
        [
            tensor_param("q_nope", "bf16", "T H 512"),
            tensor_param("q_rope", "bf16", "T H R", optional=True),
            tensor_param("kv", "e4m3fn|bf16", "N 512+R"),
            tensor_param("indices", "i32", "T topk"),
            tensor_param("length", "i32", "T", optional=True, align=4),
            scalar_param("sm_scale", "f32"),
            tensor_param("out", "bf16", ">=T >=H 512", output=True),
            tensor_param("lse", "f32", "T H", output=True, optional=True),
        ],
        [
            candidate("small", "H <= 64 and not has(q_rope) and topk % 64 == 0", launch("small", args, ["T", "1", "1"])),
            candidate("fp8", "has(q_rope) and topk % 64 == 0 and q_nope.s0 % 8 == 0 and kv.dtype == 'e4m3fn'",
                      launch("fp8", args, ["T", "cdiv(H, 64)", "1"], shared=200000)),
        ],
        [{"check": "H >= 1 and H <= 128", "wanted": "1 <= H <= 128", "fix": "split the heads"}],
    )  # fmt: skip


def main() -> None:
    build = cabi.build()
    with tempfile.TemporaryDirectory() as folder:
        pack = cabi.write_pack(Path(folder) / "sm90", "sm90", [prefill()])
        subprocess.run([build / "tests/standin/bench_launch", pack, cabi.standin_path("cuda")], check=True)


if __name__ == "__main__":
    main()
