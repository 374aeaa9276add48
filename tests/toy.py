"""Made-up ops and made-up device tensors, for tests of the Python side against the stand-in driver."""

from __future__ import annotations

import ctypes as c
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from tests import cabi

BASE = 1 << 20  # an address that is aligned and not null


def ops(fp8: str = "e4m3fn") -> list[dict[str, Any]]:
    tensor, scalar = cabi.tensor_param, cabi.scalar_param
    concat_args = [cabi.ptr("q_nope"), cabi.scalar("s0", "i64", "q_nope.s0"), cabi.ptr("q_rope"), cabi.ptr("out"), cabi.scalar("H", "i32")]
    attend_args = [cabi.ptr(n) for n in ("q", "kv", "max_logits", "lse", "out")]
    attend_args += [cabi.scalar("sm_scale", "f32"), cabi.scalar("n", "i32")]
    concat = cabi.op(
        "concat",
        [
            tensor("q_nope", "bf16", "T H 512"),
            tensor("q_rope", "bf16", "T H R", optional=True),
            tensor("out", fp8, ">=T >=H 512+64*has(q_rope)", output=True),
        ],
        [
            cabi.candidate("both", "has(q_rope)", cabi.launch("concat_both", concat_args, ("T", "cdiv(H, 16)", "1"))),
            cabi.candidate("nope", "not has(q_rope)", cabi.launch("concat_nope", concat_args, ("T", "cdiv(H, 16)", "1"))),
        ],
        [{"check": "H >= 1 and H <= 128", "wanted": "1 <= H <= 128", "fix": "split the heads over ranks"}],
    )
    few = cabi.launch("attend_few", attend_args, ("T", "H", "1"))
    split = cabi.launch("attend_split", [*attend_args, cabi.ptr("workspace")], ("T", "H", "n"))
    attend = cabi.op(
        "attend",
        [
            tensor("q", f"bf16|{fp8}", "T H D"),
            tensor("kv", f"bf16|{fp8}", "N D"),
            scalar("sm_scale", "f32"),
            tensor("bias", "f32", "H", optional=True, layout="contiguous", align=4),
            scalar("n", "i32", "4"),
            scalar("precision", "choice", "'high' if H < 64 else 'exact'", ("exact", "high")),
            tensor("out", "bf16", "T H 512", output=True),
            tensor("max_logits", "f32", "T H", optional=True, output=True, layout="contiguous", align=4),
            tensor("lse", "f32", "T H", optional=True, output=True, layout="contiguous", align=4),
        ],
        [cabi.candidate("few", "n < 16", few), cabi.candidate("split", "n >= 16 and n < 1024", split, workspace="4 * T * H * n")],
    )
    pad = cabi.op(
        "pad",
        [tensor("x", "u8", "N D"), scalar("pad_rows", "i32", "0"), tensor("out", "u8", "N+pad_rows D", output=True)],
        [cabi.candidate("copy", "1", cabi.launch("pad", [cabi.ptr("x"), cabi.ptr("out")], ("N", "1", "1")))],
    )
    return [concat, attend, pad]


def write_packs(folder: Path, *targets: str) -> Path:
    """Packs of the toy ops for ``targets`` under ``folder``; returns ``folder``."""
    for target in targets or ("sm90",):
        cabi.write_pack(folder / target, target, ops("e4m3fnuz" if target == "gfx942" else "e4m3fn"))
    return folder


def last_launch(driver: cabi.Standin) -> dict[str, Any]:
    """Kernel, grid, stream and argument words of the last launch."""
    found = driver.launches()[-1]
    return {
        "kernel": found["kernel"],
        "grid": tuple(int(n) for n in found["grid"].split(",")),
        "stream": int(found["stream"], 0),
        "args": [int(a, 0) for a in found["args"].split(",")],
    }


# ---- tensors of other libraries -------------------------------------------------------------------------------------------


class Managed(c.Structure):
    """DLPack's DLManagedTensorVersioned."""


DELETER = c.CFUNCTYPE(None, c.POINTER(Managed))
Managed._fields_ = [
    ("major", c.c_uint32), ("minor", c.c_uint32), ("context", c.c_void_p), ("deleter", DELETER), ("flags", c.c_uint64),
    ("tensor", cabi.Tensor),
]  # fmt: skip


class OldManaged(c.Structure):
    """DLPack's DLManagedTensor, from before version 1."""

    _fields_ = [("tensor", cabi.Tensor), ("context", c.c_void_p), ("deleter", c.c_void_p)]


new_capsule = c.pythonapi.PyCapsule_New
new_capsule.restype = c.py_object
new_capsule.argtypes = [c.c_void_p, c.c_char_p, c.c_void_p]
increment = c.pythonapi.Py_IncRef
increment.argtypes = [c.py_object]


class Described:
    """Something with an address, a shape and a dtype; subclasses expose it through one protocol each."""

    def __init__(self, dtype: str, shape: Sequence[int], data: int = BASE, strides: Sequence[int] | None = None, device: int = 0) -> None:
        self.dtype, self.shape, self.data = dtype, tuple(shape), data
        packed, step = [], 1
        for size in reversed(self.shape):
            packed.insert(0, step)
            step *= max(size, 1)
        self.strides = tuple(strides or packed)
        self.tensor = cabi.tensor(dtype, self.shape, self.strides, data, (cabi.CUDA, device))


class NewCapsule(Described):
    """``__dlpack__`` of version 1."""

    flags = 0

    def __dlpack_device__(self) -> tuple[int, int]:
        return (cabi.CUDA, 0)

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None) -> object:
        assert stream == -1 and max_version is not None and max_version[0] == 1
        self.managed = Managed(1, 0, None, DELETER(), self.flags, self.tensor)
        return new_capsule(c.addressof(self.managed), b"dltensor_versioned", None)


class ReadOnly(NewCapsule):
    flags = 1


class OldCapsule(Described):
    """``__dlpack__`` from before version 1: no ``max_version``."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return (cabi.CUDA, 0)

    def __dlpack__(self, stream: int | None = None) -> object:
        self.managed = OldManaged(self.tensor, None, None)
        return new_capsule(c.addressof(self.managed), b"dltensor", None)


class CudaArray(Described):
    """``__cuda_array_interface__``, version 3."""

    typestrs: ClassVar = {"bf16": "<V2", "f16": "<f2", "f32": "<f4", "i32": "<i4", "i64": "<i8", "u8": "|u1", "e4m3fn": "|V1"}
    stream: int | None = None
    read_only = False

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        size = cabi.DTYPES[self.dtype][1] // 8
        return {
            "shape": self.shape,
            "typestr": self.typestrs[self.dtype],
            "data": (self.data, self.read_only),
            "strides": tuple(s * size for s in self.strides),
            "stream": self.stream,
            "version": 3,
        }


# ---- a library with the C exchange table ----------------------------------------------------------------------------------

SET_ERROR = c.CFUNCTYPE(None, c.c_void_p, c.c_char_p, c.c_char_p)
ALLOCATE = c.PYFUNCTYPE(c.c_int, c.POINTER(cabi.Tensor), c.POINTER(c.POINTER(Managed)), c.c_void_p, SET_ERROR)
FROM_OBJECT = c.PYFUNCTYPE(c.c_int, c.py_object, c.POINTER(c.POINTER(Managed)))
TO_OBJECT = c.PYFUNCTYPE(c.c_int, c.POINTER(Managed), c.POINTER(c.c_void_p))
TENSOR = c.PYFUNCTYPE(c.c_int, c.c_void_p, c.POINTER(cabi.Tensor))
STREAM = c.PYFUNCTYPE(c.c_int, c.c_int32, c.c_int32, c.POINTER(c.c_void_p))


class Table(c.Structure):
    """DLPackExchangeAPI."""

    _fields_ = [
        ("major", c.c_uint32), ("minor", c.c_uint32), ("previous", c.c_void_p), ("allocate", ALLOCATE), ("from_object", FROM_OBJECT),
        ("to_object", TO_OBJECT), ("tensor", TENSOR), ("stream", STREAM),
    ]  # fmt: skip


class Array(Described):
    """A tensor of a library with the table. ``Array.current`` is its current stream, ``Array.allocated`` what it allocated."""

    current = 0x77
    allocated: ClassVar[list[Array]] = []
    out_of_memory = False
    __dlpack_c_exchange_api__: object


NAMES = {codes: name for name, codes in cabi.DTYPES.items()}


@ALLOCATE
def _allocate(prototype: Any, out: Any, context: Any, set_error: Any) -> int:
    if Array.out_of_memory:
        set_error(context, b"MemoryError", b"the toy is out of memory")
        return -1
    t = prototype[0]
    made = Array(NAMES[t.code, t.bits], [t.shape[i] for i in range(t.ndim)], (len(Array.allocated) + 64) << 20, device=t.device_id)
    made.managed = Managed(1, 3, None, DELETER(), 0, made.tensor)
    Array.allocated.append(made)
    out[0] = c.pointer(made.managed)
    return 0


@TO_OBJECT
def _to_object(managed: Any, out: Any) -> int:
    address = c.addressof(managed[0])
    made = next(a for a in Array.allocated if c.addressof(a.managed) == address)
    increment(made)
    out[0] = id(made)
    return 0


@TENSOR
def _tensor(address: int, out: Any) -> int:
    c.memmove(out, c.byref(c.cast(address, c.py_object).value.tensor), c.sizeof(cabi.Tensor))
    return 0


@STREAM
def _stream(kind: int, device: int, out: Any) -> int:
    out[0] = Array.current
    return 0


_NAME = b"dlpack_exchange_api"  # a capsule keeps the pointer to its name
_TABLE = Table(1, 3, None, _allocate, FROM_OBJECT(), _to_object, _tensor, _stream)
Array.__dlpack_c_exchange_api__ = new_capsule(c.addressof(_TABLE), _NAME, None)
