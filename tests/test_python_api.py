"""The Python package against the stand-in driver: what reaches the driver, and what a bad call says."""

from __future__ import annotations

import inspect
import pydoc
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import cabi, toy

dsa = pytest.importorskip("dsa_kernels", reason="the runtime is not installed: pip install -e .")
T, H = 2, 16


@pytest.fixture
def driver() -> cabi.Standin:
    return cabi.Standin("cuda", "9.0 9.0")


@pytest.fixture
def packs(driver: cabi.Standin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("DSA_KERNELS_CUDA_LIBRARY", str(driver.path))
    toy.Array.allocated, toy.Array.out_of_memory = [], False
    with dsa.open_packs([toy.write_packs(tmp_path)]) as opened:
        yield opened


def view(dtype: str, *shape: int, data: int = toy.BASE, **more: Any) -> Any:
    return dsa.View(data, shape, dtype, **more)


def concat_views() -> dict[str, Any]:
    q = view("bf16", T, H, 512, data=1 << 20), view("bf16", T, H, 64, data=2 << 20), view("e4m3fn", T, H, 576, data=3 << 20)
    return dict(zip(("q_nope", "q_rope", "out"), q, strict=True))


# ---- calls that work ------------------------------------------------------------------------------------------------------


def test_launch_with_out(packs: Any, driver: cabi.Standin) -> None:
    v = concat_views()
    assert packs.concat(v["q_nope"], v["q_rope"], out=v["out"]) is v["out"]
    assert toy.last_launch(driver) == {
        "kernel": "concat_both", "grid": (T, 1, 1), "stream": 0, "args": [1 << 20, H * 512, 2 << 20, 3 << 20, H],
    }  # fmt: skip


def test_keywords_in_any_order_and_not_interned(packs: Any, driver: cabi.Standin) -> None:
    v = concat_views()
    packs.concat(**{"".join(list(name)): v[name] for name in ("out", "q_rope", "q_nope")})
    assert toy.last_launch(driver)["args"][0] == 1 << 20


def test_absent_optional_is_a_null_pointer(packs: Any, driver: cabi.Standin) -> None:
    q, out = view("bf16", T, H, 512), view("e4m3fn", T, H, 512)
    for call in (lambda: packs.concat(q, out=out), lambda: packs.concat(q, None, out)):
        call()
        assert toy.last_launch(driver)["kernel"] == "concat_nope"
        assert toy.last_launch(driver)["args"][2] == 0


@pytest.mark.parametrize("kind", [toy.NewCapsule, toy.OldCapsule, toy.CudaArray, toy.Array])
def test_every_protocol_reads_the_same(packs: Any, driver: cabi.Standin, kind: type[toy.Described]) -> None:
    q = kind("bf16", (T, H, 512), 5 << 20, strides=(H * 1024, 1024, 1))
    packs.concat(q, kind("bf16", (T, H, 64), 6 << 20), out=kind("e4m3fn", (T, H, 576), 7 << 20), stream=3)
    assert toy.last_launch(driver)["args"] == [5 << 20, H * 1024, 6 << 20, 7 << 20, H]
    assert toy.last_launch(driver)["stream"] == 3


def test_current_stream_of_the_library(packs: Any, driver: cabi.Standin) -> None:
    packs.concat(toy.Array("bf16", (T, H, 512)), out=view("e4m3fn", T, H, 512))
    assert toy.last_launch(driver)["stream"] == toy.Array.current


def test_stream_of_a_cuda_array(packs: Any, driver: cabi.Standin) -> None:
    q = toy.CudaArray("bf16", (T, H, 512))
    q.stream = 9
    packs.concat(q, out=view("e4m3fn", T, H, 512))
    assert toy.last_launch(driver)["stream"] == 9


def test_streams_that_disagree(packs: Any, driver: cabi.Standin) -> None:
    a, b = toy.CudaArray("bf16", (T, H, 512)), toy.CudaArray("bf16", (T, H, 64))
    a.stream, b.stream = 9, 8
    with pytest.raises(dsa.ArgumentError, match="another stream"):
        packs.concat(a, b, out=view("e4m3fn", T, H, 576))
    with pytest.raises(dsa.ArgumentError, match="two streams"):
        packs.concat(a, toy.Array("bf16", (T, H, 64)))
    b.stream = 9
    packs.concat(a, b, out=view("e4m3fn", T, H, 576))
    assert toy.last_launch(driver)["stream"] == 9


@pytest.mark.parametrize(
    "stream",
    [5, SimpleNamespace(cuda_stream=5), SimpleNamespace(__cuda_stream__=lambda: (0, 5)), SimpleNamespace(__cuda_stream__=(0, 5))],
    ids=["int", "cuda_stream", "__cuda_stream__()", "__cuda_stream__"],
)
def test_stream_argument(packs: Any, driver: cabi.Standin, stream: Any) -> None:
    packs.concat(**concat_views(), stream=stream)
    assert toy.last_launch(driver)["stream"] == 5


def test_outputs_are_allocated_by_the_library(packs: Any, driver: cabi.Standin) -> None:
    out = packs.concat(toy.Array("bf16", (T, H, 512)), toy.Array("bf16", (T, H, 64)))
    assert isinstance(out, toy.Array) and (out.dtype, out.shape) == ("e4m3fn", (T, H, 576))
    assert toy.last_launch(driver)["args"][3] == out.data


def test_allocated_shapes_follow_every_call(packs: Any, driver: cabi.Standin) -> None:
    for tokens, heads, width in ((2, 16, 512), (2, 16, 512), (3, 16, 512), (3, 8, 512), (2, 16, 512)):
        assert packs.concat(toy.Array("bf16", (tokens, heads, width))).shape == (tokens, heads, 512)
        assert packs.concat(toy.Array("bf16", (tokens, heads, width)), toy.Array("bf16", (tokens, heads, 64))).shape[2] == 576
    for rows, more in ((1, {}), (1, {"pad_rows": 2}), (1, {"pad_rows": 3}), (4, {"pad_rows": 0}), (1, {})):
        assert packs.pad(toy.Array("u8", (rows, 16)), **more).shape == (rows + more.get("pad_rows", 0), 16)
    with pytest.raises(dsa.ArgumentError, match="1 <= H"):
        packs.concat(toy.Array("bf16", (2, 129, 512)))
    assert packs.concat(toy.Array("bf16", (2, 16, 512))).shape == (2, 16, 512)


def attend(packs: Any, **more: Any) -> Any:
    return packs.attend(toy.Array("bf16", (T, H, 576)), toy.Array("bf16", (7, 576)), 0.5, **more)


@pytest.mark.parametrize("absent", [None, False])
def test_optional_outputs(packs: Any, driver: cabi.Standin, absent: Any) -> None:
    assert attend(packs, lse=absent).shape == (T, H, 512)
    out, lse = attend(packs, lse=True, max_logits=absent)
    assert (out.shape, lse.shape, lse.dtype) == ((T, H, 512), (T, H), "f32")
    assert toy.last_launch(driver)["args"][2:4] == [0, lse.data]
    mine = toy.Array("f32", (T, H), 9 << 20)
    assert attend(packs, max_logits=mine, lse=True)[1] is mine
    assert len(attend(packs, max_logits=True, lse=True)) == 3


def test_workspace_is_allocated_and_given(packs: Any, driver: cabi.Standin) -> None:
    attend(packs, n=32)
    scratch = toy.Array.allocated[-1]
    assert (scratch.dtype, scratch.shape) == ("u8", (4 * T * H * 32,))
    assert toy.last_launch(driver)["args"][-1] == scratch.data
    attend(packs, n=32, workspace=view("u8", 1 << 20, data=11 << 20))
    assert toy.last_launch(driver)["args"][-1] == 11 << 20


def test_scalars(packs: Any, driver: cabi.Standin) -> None:
    for value in (2, 2.0, __import__("fractions").Fraction(2)):
        packs.attend(toy.Array("bf16", (T, H, 576)), toy.Array("bf16", (7, 576)), value, n=3, precision="exact")
        assert toy.last_launch(driver)["args"][5:7] == [0x40000000, 3]


def test_references_are_balanced(packs: Any) -> None:
    v = concat_views()
    objects = [*v.values(), toy.NewCapsule("bf16", (T, H, 512))]
    before = [sys.getrefcount(o) for o in objects]
    for _ in range(50):
        packs.concat(v["q_nope"], v["q_rope"], out=v["out"])
        packs.concat(objects[3], out=view("e4m3fn", T, H, 512))
        with pytest.raises(dsa.ArgumentError):
            packs.concat(v["q_nope"], v["q_rope"], out=v["q_nope"])
    assert [sys.getrefcount(o) for o in objects] == before


def test_an_op_on_a_class_does_not_bind(packs: Any) -> None:
    holder = type("Holder", (), {"op": packs.concat})
    assert holder().op is packs.concat


def test_threads_launch_together(packs: Any, driver: cabi.Standin) -> None:
    v = concat_views()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            for _ in range(100):
                packs.concat(**v)
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=run) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    assert len(driver.launches()) == 800
    assert len(driver.calls("cuLibraryGetKernel")) == 1


# ---- calls that do not ----------------------------------------------------------------------------------------------------

Call = Callable[[Any], Any]
Q, KV = toy.Array("bf16", (T, H, 576)), toy.Array("bf16", (7, 576))
OUT = toy.Array("bf16", (T, H, 512))
WRONG: dict[str, tuple[Call, str, str]] = {
    "unknown keyword": (lambda p: p.attend(Q, KV, 0.5, top_k=3), "ArgumentError", r"'top_k'.*q, kv, sm_scale.*stream, workspace"),
    "missing": (lambda p: p.attend(Q, sm_scale=0.5), "ArgumentError", r"found no kv; wanted a bf16\|e4m3fn tensor \[N, D\].*pass kv="),
    "missing scalar": (lambda p: p.attend(Q, KV), "ArgumentError", r"found no sm_scale; wanted a float"),
    "twice": (lambda p: p.attend(Q, KV, 0.5, q=Q), "ArgumentError", r"two values for q"),
    "too many": (lambda p: p.pad(1, 2, 3, 4), "ArgumentError", r"found 4 positional arguments; wanted at most 3"),
    "list": (lambda p: p.attend([1.0], KV, 0.5), "ArgumentError", r"found q of type list; wanted a bf16\|e4m3fn tensor \[T, H, D\]"),
    "None": (lambda p: p.attend(None, KV, 0.5), "ArgumentError", r"found q of type NoneType.*not optional"),
    "float for int": (lambda p: p.attend(Q, KV, 0.5, n=2.0), "ArgumentError", r"found n of type float; wanted an int"),
    "bool for int": (lambda p: p.attend(Q, KV, 0.5, n=True), "ArgumentError", r"found n of type bool; wanted an int"),
    "too large": (lambda p: p.attend(Q, KV, 0.5, n=2**70), "ArgumentError", r"fits 64 bits"),
    "beyond i32": (lambda p: p.attend(Q, KV, 0.5, n=2**40, out=OUT), "ArgumentError", r"n: found 1099511627776"),
    "str for float": (lambda p: p.attend(Q, KV, "0.5"), "ArgumentError", r"found sm_scale of type str; wanted a float"),
    "tensor for float": (lambda p: p.attend(Q, KV, KV), "ArgumentError", r"found sm_scale of type Array; wanted a float"),
    "int for choice": (lambda p: p.attend(Q, KV, 0.5, precision=3), "ArgumentError", r"wanted one of 'exact', 'high'"),
    "unknown choice": (lambda p: p.attend(Q, KV, 0.5, precision="fast"), "ArgumentError", r"'fast'.*exact, high"),
    "output left out": (lambda p: p.attend(Q, KV, 0.5, out=False), "ArgumentError", r"a required output cannot be left out"),
    "wrong dtype": (lambda p: p.attend(toy.Array("i32", (T, H, 576)), KV, 0.5), "ArgumentError", r"q: found dtype i32"),
    "wrong rank": (lambda p: p.attend(KV, KV, 0.5), "ArgumentError", r"q: found .*7, 576"),
    "mismatch": (lambda p: p.attend(Q, toy.Array("bf16", (7, 512)), 0.5), "ArgumentError", r"512"),
    "stride": (lambda p: p.attend(toy.Array("bf16", (T, H, 576), strides=(1, T, T * H)), KV, 0.5), "ArgumentError", r"q: .*stride"),
    "alignment": (lambda p: p.attend(toy.Array("bf16", (T, H, 576), toy.BASE + 2), KV, 0.5), "ArgumentError", r"q: .*16"),
    "rule": (lambda p: p.concat(toy.Array("bf16", (T, 200, 512))), "ArgumentError", r"1 <= H <= 128.*split the heads"),
    "two devices": (lambda p: p.attend(Q, toy.Array("bf16", (7, 576), device=1), 0.5), "DeviceError", r"kv"),
    "no candidate": (lambda p: p.attend(Q, KV, 0.5, n=5000), "NoCandidate", r"(?s)few: rejected.*split: rejected"),
    "stream": (lambda p: p.attend(Q, KV, 0.5, stream="s"), "ArgumentError", r"found stream of type str"),
    "workspace on another device": (
        lambda p: p.attend(Q, KV, 0.5, n=32, workspace=view("u8", 1 << 20, device=1)),
        "DeviceError",
        r"attend: found a workspace on another device \(DLPack type 2, number 1\); wanted it where the tensors are \(2, 0\)",
    ),
    "workspace of another vendor": (
        lambda p: p.attend(Q, KV, 0.5, n=32, workspace=view("u8", 1 << 20, vendor="amd")),
        "DeviceError",
        r"workspace on another device \(DLPack type 10",
    ),
    "strided workspace": (
        lambda p: p.attend(Q, KV, 0.5, n=32, workspace=view("f32", 1 << 18, strides=[0])),
        "ArgumentError",
        r"found a strided workspace; wanted a contiguous one",
    ),
    "small workspace": (lambda p: p.attend(Q, KV, 0.5, n=32, workspace=view("u8", 5)), "ArgumentError", r"5 bytes; wanted at least 4096"),
    "read-only out": (lambda p: p.attend(Q, KV, 0.5, out=toy.ReadOnly("bf16", (T, H, 512))), "ArgumentError", r"out.*read-only"),
    "cannot allocate": (lambda p: p.pad(view("u8", 3, 16)), "ArgumentError", r"out: found none.*pass out="),
    "foreign stream": (lambda p: p.attend(Q, KV, 0.5, stream=1), "ArgumentError", r"other than the current stream.*pass out="),
    "unknown op": (lambda p: p.atend, "UnknownOp", r"atend.*concat, attend, pad"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_wrong_calls_say_so_and_launch_nothing(packs: Any, driver: cabi.Standin, what: str) -> None:
    call, name, text = WRONG[what]
    expected = getattr(dsa, name)
    with pytest.raises(expected, match=text) as caught:
        call(packs)
    assert type(caught.value) is expected and caught.value.code == expected.code
    assert isinstance(caught.value, dsa.Error)
    assert not driver.launches()


def test_cpu_tensors_are_refused(packs: Any, driver: cabi.Standin) -> None:
    numpy = pytest.importorskip("numpy")
    with pytest.raises(dsa.DeviceError, match="CPU"):
        packs.pad(numpy.zeros((3, 4), numpy.uint8))
    assert not driver.log()


def test_allocation_failure(packs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy.Array, "out_of_memory", True)
    with pytest.raises(dsa.DeviceError, match="out of memory"):
        attend(packs)


def test_driver_errors(packs: Any, driver: cabi.Standin) -> None:
    driver.fail("cuLaunchKernel", 2)
    with pytest.raises(dsa.DriverError, match="cuLaunchKernel"):
        packs.concat(**concat_views())


def test_driver_too_old(packs: Any, driver: cabi.Standin) -> None:
    driver.lib.standin_reset(b"9.0", 11080, 132)
    with pytest.raises(dsa.DriverTooOld):
        packs.preload()


def test_no_pack_for_the_device(packs: Any, driver: cabi.Standin) -> None:
    driver.lib.standin_reset(b"10.0", 12090, 132)
    with pytest.raises(dsa.NoPack, match="sm_100"):
        packs.concat(**concat_views())


def test_closed(packs: Any) -> None:
    op = packs.concat
    packs.close()
    for call in (lambda: op(**concat_views()), packs.info, packs.preload, packs.close):
        if call == packs.close:
            call()
            continue
        with pytest.raises(dsa.Error, match="closed"):
            call()


class Closing(toy.NewCapsule):
    """A tensor that closes the packs while a call reads it."""

    packs: Any
    caught: BaseException | None = None

    def __dlpack__(self, **more: Any) -> object:
        try:
            self.packs.close()
        except dsa.Error as e:
            self.caught = e
        return super().__dlpack__(**more)


@pytest.mark.parametrize(
    "call",
    [
        lambda p, q: p.concat(q, out=view("e4m3fn", T, H, 512)),
        lambda p, q: p.explain("concat", q, out=view("e4m3fn", T, H, 512), target="sm90"),
    ],
    ids=["launch", "explain"],
)
def test_closing_inside_a_call_is_refused(packs: Any, driver: cabi.Standin, call: Callable[[Any, Any], Any]) -> None:
    q = Closing("bf16", (T, H, 512))
    q.packs = packs
    call(packs, q)
    assert "found calls in flight; wanted none; join the threads that launch, then close" in str(q.caught)
    assert not driver.calls("cuLibraryUnload")
    packs.concat(**concat_views())
    packs.close()  # a call that has ended is not in flight
    with pytest.raises(dsa.Error, match="closed"):
        packs.concat(**concat_views())


def test_closing_while_threads_launch(packs: Any) -> None:
    op, v = packs.concat, concat_views()
    ends: list[BaseException] = []
    refusals: list[str] = []
    stop = threading.Event()

    def run() -> None:
        try:
            while not stop.is_set():
                op(**v)
        except BaseException as e:
            ends.append(e)

    op(**v)
    threads = [threading.Thread(target=run) for _ in range(8)]
    for t in threads:
        t.start()
    for _ in range(50):
        try:
            packs.close()
        except dsa.Error as e:
            refusals.append(str(e))
    stop.set()
    for t in threads:
        t.join()
    packs.close()
    assert all("calls in flight" in r for r in refusals)
    assert all(isinstance(e, dsa.Error) and "closed" in str(e) for e in ends)


def test_error_classes() -> None:
    assert issubclass(dsa.ArgumentError, ValueError) and issubclass(dsa.Error, RuntimeError)
    assert issubclass(dsa.DriverTooOld, dsa.DriverError)
    for name in ("Missing", "Truncated", "Digest", "Schema", "Arch"):
        assert issubclass(getattr(dsa, "Pack" + name), dsa.PackError)


# ---- control plane --------------------------------------------------------------------------------------------------------


def test_preload_loads_and_launch_only_launches(packs: Any, driver: cabi.Standin) -> None:
    packs.preload("concat", device=1)
    assert driver.calls("cuLibraryLoadData")
    packs.preload()
    driver.clear()
    packs.concat(**concat_views())
    assert not driver.calls("cuLibraryLoadData", "cuLibraryGetKernel", "cuInit")
    with pytest.raises(dsa.ArgumentError, match="device"):
        packs.preload(device="cuda:0")


def test_explain(packs: Any, driver: cabi.Standin) -> None:
    q, kv = view("bf16", T, H, 576, data=0), view("bf16", 7, 576, data=0)
    text = packs.explain("attend", q, kv, 0.5, n=20, target="sm90")
    assert "few: rejected" in text and "split: chosen" in text
    assert not driver.log()
    assert "(T, H" not in packs.explain(packs.attend, Q, KV, 0.5)


def test_info(packs: Any) -> None:
    info = packs.info()
    assert [p["target"] for p in info["packs"]] == ["sm90"]
    assert [o["name"] for o in info["ops"]] == ["concat", "attend", "pad"] and packs.ops() == ["attend", "concat", "pad"]
    assert {"concat", "info", "close"} <= set(dir(packs))


def test_help_and_signature(packs: Any) -> None:
    assert str(inspect.signature(packs.attend)).startswith("(q, kv, sm_scale, bias=None, n=None, precision=None, out=None")
    assert packs.attend.__text_signature__ == str(inspect.signature(packs.attend))
    text = pydoc.plain(pydoc.render_doc(packs.attend))
    for words in ("what attend does", "bfloat16 | float8_e4m3fn [T, H, D]", "'exact' | 'high'", "default 4", "Outputs", "DeviceError"):
        assert words in text


def test_broken_packs(tmp_path: Path) -> None:
    pack = toy.write_packs(tmp_path) / "sm90"
    assert dsa.verify([tmp_path]) == [
        {"path": str(pack), "target": "sm90", "objects": 5, "bytes": sum(f.stat().st_size for f in (pack / "objects").iterdir())}
    ]
    file = next((pack / "objects").iterdir())
    image = file.read_bytes()
    for error, change in (
        (dsa.PackDigest, lambda: file.write_bytes(image[:-1] + b"\1")),
        (dsa.PackTruncated, lambda: file.write_bytes(image[:-1])),
        (dsa.PackMissing, file.unlink),
        (dsa.PackSchema, lambda: (pack / "manifest.json").write_text("{")),
    ):
        change()
        with pytest.raises(error):
            dsa.verify([pack])
