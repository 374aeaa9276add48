"""A `map` argument reaches the driver as a tensor map of the tensor's rows, and the kernel by value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aot.spec import Arg, Candidate, Launch, Op, SpecError, Tensor, boxes, i32, rows
from aot.spec import Kernel as Source
from aot.targets import TARGETS
from tests import cabi
from tests.cabi import Runtime, Standin, candidate, launch, scalar, tensor, tensor_param
from tests.cabi_ops import refused, words

KV, ELSEWHERE = 0x400000, 0x800000
BYTES, SWIZZLE_128 = 0, 3


def take_op() -> dict[str, Any]:
    args = [{"name": "kv", "type": "map", "value": "kv", "lines": 0, "rows": 1}, scalar("N", "i32")]
    params = [tensor_param("x", "f32", "T"), tensor_param("kv", "e4m3fn|bf16", "N D")]
    made = [candidate("small", "T < 9", launch("take", args, ["T", "1", "1"])), candidate("large", "T >= 9", launch("more", args[::-1]))]
    return cabi.op("take", params, made)


@pytest.fixture
def runtime(tmp_path: Path, cuda: Standin) -> Any:
    with Runtime([cabi.write_pack(tmp_path / "sm90", "sm90", [take_op()])], cuda=cuda.path) as r:
        yield r


def encoded(address: int, n: int, lines: int, stride: int) -> str:
    """What the driver must be asked for: [n][lines][128 bytes], a box of one row."""
    return f"cuTensorMapEncodeTiled {BYTES} {address} 0 {SWIZZLE_128} 0 128,128,1,128 {lines},{lines},1,{stride} {n},1,1,"


def take(runtime: Runtime, kv: Any, t: int = 4) -> None:
    runtime.op("take").launch(tensor("f32", [t], None, 0x1000), kv)


def test_rows_of_any_stride_and_dtype(runtime: Runtime, cuda: Standin) -> None:
    take(runtime, tensor("e4m3fn", [70, 512], [656, 1], KV))
    take(runtime, tensor("bf16", [2**31 - 1, 256], None, KV))
    take(runtime, tensor("e4m3fn", [1, 512], [7, 1], KV))
    assert cuda.calls("cuTensorMapEncodeTiled") == [
        encoded(KV, 70, 4, 656),
        encoded(KV, 2**31 - 1, 4, 512),
        encoded(KV, 1, 4, 512),
    ]
    assert [words(x["args"])[0] for x in cuda.launches()] == [KV] * 3


def test_a_map_is_encoded_when_the_tensor_moves(runtime: Runtime, cuda: Standin) -> None:
    for address in (KV, KV, ELSEWHERE, ELSEWHERE, KV):
        take(runtime, tensor("e4m3fn", [70, 512], None, address))
    assert cuda.calls("cuTensorMapEncodeTiled") == [encoded(a, 70, 4, 512) for a in (KV, ELSEWHERE, KV)]
    assert [words(x["args"]) for x in cuda.launches()] == [[a, 70] for a in (KV, KV, ELSEWHERE, ELSEWHERE, KV)]


def test_boxes_of_lines_of_several_rows(tmp_path: Path, cuda: Standin) -> None:
    args = [{"name": "q", "type": "map", "value": "q", "lines": 1, "rows": 64}]
    op = cabi.op("heads", [tensor_param("q", "bf16", "T H D")], [candidate("all", "1", launch("heads", args, ["T", "1", "1"]))])
    with Runtime([cabi.write_pack(tmp_path / "sm90", "sm90", [op])], cuda=cuda.path) as runtime:
        for shape, strides in (([5, 64, 288], [64 * 320 + 8, 320, 1]), ([1, 64, 288], None), ([0, 64, 288], None)):
            runtime.op("heads").launch(tensor("bf16", shape, strides, KV))
        runtime.op("heads").launch(tensor("bf16", [1, 1, 261], None, KV))
    line = f"cuTensorMapEncodeTiled {BYTES} {KV} 0 {SWIZZLE_128} 0 128,128,1,128 4,1,1,"
    assert cuda.calls("cuTensorMapEncodeTiled") == [
        line + "640 64,64,1,40976 5,1,1,",
        line + "576 64,64,1,576 1,1,1,",
        line + "528 1,64,1,528 1,1,1,",  # a stride that nobody takes is one that the driver takes
    ]


def test_other_arguments_keep_their_places(runtime: Runtime, cuda: Standin) -> None:
    for t in (4, 9, 4, 9):
        take(runtime, tensor("e4m3fn", [70, 512], None, KV), t)
    assert [words(x["args"]) for x in cuda.launches()] == [[KV, 70], [70, KV]] * 2


@pytest.mark.parametrize("address", [0, KV + 3])
def test_a_tensor_without_rows(runtime: Runtime, cuda: Standin, address: int) -> None:
    take(runtime, tensor("e4m3fn", [0, 512], None, address))
    assert cuda.calls("cuTensorMapEncodeTiled") == [encoded(16, 1, 4, 512)]


def test_a_refusal_of_the_driver_stops_the_launch(runtime: Runtime, cuda: Standin) -> None:
    take(runtime, tensor("e4m3fn", [70, 512], None, KV))
    cuda.fail("cuTensorMapEncodeTiled", 1)
    with refused("DRIVER", "take: kv: cuTensorMapEncodeTiled", "70 rows of 512 bytes, 512 apart"):
        take(runtime, tensor("e4m3fn", [70, 512], None, ELSEWHERE))
    cuda.fail("cuTensorMapEncodeTiled", 0)
    take(runtime, tensor("e4m3fn", [70, 512], None, ELSEWHERE))
    assert [words(x["args"])[0] for x in cuda.launches()] == [KV, ELSEWHERE]
    assert cuda.calls("cuTensorMapEncodeTiled")[-1] == encoded(ELSEWHERE, 70, 4, 512)


def test_amd_has_no_tensor_maps(tmp_path: Path) -> None:
    with refused("PACK_SCHEMA", "a tensor map of kv", "an NVIDIA target"):
        Runtime([cabi.write_pack(tmp_path / "gfx950", "gfx950", [take_op()])])


def test_rows_are_of_a_tensor_that_is_there(tmp_path: Path) -> None:
    op = take_op()
    op["params"][1]["optional"] = True
    with refused("PACK_SCHEMA", "a tensor map of kv", "a required tensor"):
        Runtime([cabi.write_pack(tmp_path / "sm90", "sm90", [op])])


def declared(kv: Tensor, target: str, arg: Arg | None = None) -> Op:
    kernel = Source("cuda", "take.cu", "take", (arg or rows("kv"), i32("N")), options={"threads": 32, "shared": 0})
    made = Candidate("take", (target,), "1", (Launch(kernel, ("N", 1, 1)),))
    return Op("take", "Takes.", (kv,), (made,), holes={t: "not served" for t in TARGETS if t != target})


def test_whole_lines_are_a_guard() -> None:
    op = declared(Tensor("kv", "bf16", "N D", "Rows."), "sm90")
    assert op.candidates_for(TARGETS["sm90"])[0].when == "(1) and kv.d1 * 2 % 128 == 0"
    heads = declared(Tensor("kv", "bf16", "N H D", "Rows."), "sm90", boxes("kv", 64))
    assert heads.candidates_for(TARGETS["sm90"])[0].when == "(1) and kv.d2 * 2 >= 128"


def test_boxes_are_of_256_rows_at_most() -> None:
    with pytest.raises(SpecError, match="at most 256 lines"):
        declared(Tensor("kv", "bf16", "N D", "Rows."), "sm90", boxes("kv", 257))


@pytest.mark.parametrize(
    ("changes", "target", "text"),
    [
        ({"shape": "N"}, "sm90", "two or three dimensions"),
        ({"optional": True}, "sm90", "required"),
        ({"align": 8}, "sm90", "16 bytes"),
        ({"layout": "contiguous"}, "sm90", "layout rows"),
        ({"dtype": "bf16|f32"}, "sm90", "needs dtype"),
        ({}, "gfx950", "only CUDA"),
    ],
)
def test_declarations_that_cannot_be(changes: dict[str, Any], target: str, text: str) -> None:
    with pytest.raises(SpecError, match=text):
        declared(Tensor("kv", **({"dtype": "bf16", "shape": "N D", "doc": "Rows."} | changes)), target)
