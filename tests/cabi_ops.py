"""Two made-up ops that take every kind of argument, calls of them, and what a refusal must say."""

from __future__ import annotations

import struct
from typing import Any

from tests import cabi
from tests.cabi import CUDA, DsakError, candidate, launch, ptr, scalar, scalar_param, tensor, tensor_param

NULL = {"name": "scratch", "type": "null"}


def scale_op() -> dict[str, Any]:
    """Rows of ``x`` scaled into ``out``; every kind of argument."""
    args = [
        ptr("x"), ptr("bias"), ptr("out", offset="16"), scalar("T", "i32"), scalar("x_s0", "i64", "x.s0"), scalar("alpha", "f32"),
        scalar("beta", "f32"), scalar("fast", "i32", "mode == 'fast'"), NULL,
    ]  # fmt: skip
    return cabi.op(
        "scale",
        [
            tensor_param("x", "bf16|f16", "T D"),
            tensor_param("bias", "f32", "D", optional=True),
            tensor_param("out", "bf16", ">=T D", output=True),
            scalar_param("alpha", "f32"),
            scalar_param("beta", "f32", "2.0 * alpha"),
            scalar_param("n", "i32", "T + 1"),
            scalar_param("mode", "choice", "'exact'", ("exact", "fast")),
        ],
        [
            candidate("wide", "D >= 256 and D % 64 == 0", launch("scale_wide", args, ["T", "cdiv(D, 64)", "1"], shared=100000)),
            candidate("narrow", "D < 256 and x.dtype == 'bf16'", launch("scale_narrow", args, ["cdiv(T, 4)", "1", "1"])),
        ],
        [{"check": "n <= 1000", "wanted": "n <= 1000", "fix": "split the call"}],
    )


def split_op() -> dict[str, Any]:
    """Two launches that share a workspace, the first one a cluster launch on NVIDIA."""
    partial = [ptr("x"), ptr("workspace"), ptr("lse", "workspace", "4 * T")]
    return cabi.op(
        "split",
        [tensor_param("x", "bf16", "T D"), tensor_param("out", "f32", "T", output=True, layout="contiguous", align=4)],
        [
            candidate(
                "split",
                "T % 2 == 0 and sm_count > 1",
                launch("partial", partial, ["2 * T", "1", "1"], cluster=[2, 1, 1]),
                launch("combine", [ptr("out"), ptr("workspace")], ["T", "1", "1"]),
                workspace="8 * T",
            )
        ],
    )


X, BIAS, OUT = 0x100000, 0x200000, 0x300000


def call(t: int = 6, d: int = 512, device: tuple[int, int] = (CUDA, 0), **changes: Any) -> list[Any]:
    """Arguments of ``scale``; changes by name."""
    values: dict[str, Any] = {
        "x": tensor("bf16", [t, d], [d + 8, 1], X, device),
        "bias": None,
        "out": tensor("bf16", [t, d], None, OUT, device),
        "alpha": 0.5,
        "beta": None,
        "n": None,
        "mode": None,
    }
    return list((values | changes).values())


def refused(status: str, *words: str) -> Any:
    class Check:
        def __enter__(self) -> None:
            pass

        def __exit__(self, kind: object, error: BaseException | None, _: object) -> bool:
            assert isinstance(error, DsakError), f"wanted {status}, found {error!r}"
            assert error.status == status, error
            for w in words:
                assert w in error.message, error
            return True

    return Check()


def f32(v: float) -> int:
    return int.from_bytes(struct.pack("<f", v), "little")


def words(text: str) -> list[int]:
    return [int(w, 16) for w in text.split(",")]
