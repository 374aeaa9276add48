"""The tuner without a GPU: trial packs, the loop, what it proposes and writes, against the stand-in driver and with made-up times."""

import json
import re
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from aot import configured, device, pack, recipe, registry, tune, tuning
from aot.evidence import configurations
from aot.targets import TARGETS
from aot.trial import Trials, Verdict, cut, verdict
from tests import cabi, toy

dsa = pytest.importorskip("dsa_kernels", reason="the runtime is not installed: pip install -e .")
SM90 = TARGETS["sm90"]
DECODE = registry.load(registry.KERNELS / "sparse_mla_decode/op.py").OP


@pytest.fixture
def driver(monkeypatch):
    driver = cabi.Standin("cuda", "9.0")
    monkeypatch.setenv("DSA_KERNELS_CUDA_LIBRARY", str(driver.path))
    toy.Array.allocated, toy.Array.out_of_memory = [], False
    return driver


def write_pack(folder, op, target="sm90"):
    """A pack of ``op`` whose objects are made up: what the builder writes, without a compiler."""
    t = TARGETS[target]
    made = {
        k.name: {
            "sha256": "",
            "symbol": re.sub(r"\W", "_", k.name),
            "block": [128, 1, 1],
            "shared": 0,
            "dependent": False,
            "params": k.args,
        }
        for k in op.kernels_for(t)
    }
    return cabi.write_pack(folder / target, target, [pack.describe(op, t, made)])


def inputs(shape):
    T, H, D = shape["T"], shape["H"], shape["D"]
    fp8 = {"q": toy.Array("e4m3fn", (T, H, D)), "kv": toy.Array("e4m3fn", (shape["s_kv"], D))}
    level = {} if shape["precision"] == "default" else {"precision": shape["precision"]}
    rest = {"indices": toy.Array("i32", (T, shape["topk"])), "out": toy.Array("bf16", (T, H, 512)), "sm_scale": 0.5}
    return {**fp8, **rest, **level}


SHAPE = {"precision": "default", "s_kv": 4096, "topk": 2048, "D": 576, "H": 16, "T": 8}


@pytest.mark.parametrize("target", TARGETS)
def test_every_candidate_has_a_pack_that_opens_and_verifies(tmp_path, target):
    whole = write_pack(tmp_path, DECODE, target)

    def kernels(op, c):
        """The candidate with its kernels in place of their numbers."""
        return c | {"launches": [{**x, "kernel": op["kernels"][x["kernel"]]} for x in c["launches"]]}

    (op,) = json.loads((whole / "manifest.json").read_text())["ops"]
    for i, c in enumerate(op["candidates"]):
        single = cut(whole, tmp_path / str(i), DECODE.name, {c["name"]}.__contains__)
        wanted = kernels(op, c)
        objects = {x["kernel"]["object"] for x in wanted["launches"]}
        (kept,) = json.loads((single / "manifest.json").read_text())["ops"]
        assert [kernels(kept, k) for k in kept["candidates"]] == [wanted]
        assert len(list((single / "objects").iterdir())) == len(objects) == dsa.verify([single])[0]["objects"]
        with dsa.open_packs([single]) as opened:
            assert opened.ops() == [DECODE.name]


def test_a_cut_pack_is_verified_like_any_other(tmp_path):
    whole = write_pack(tmp_path, DECODE)
    single = cut(whole, tmp_path / "one", DECODE.name, {"low_d576_h16"}.__contains__)
    (linked,) = (single / "objects").iterdir()
    linked.resolve().write_bytes(linked.read_bytes()[:-1] + b"\1")
    with pytest.raises(dsa.PackDigest):
        dsa.verify([single])
    with pytest.raises(dsa.PackDigest):
        cut(whole, tmp_path / "two", DECODE.name, {"low_d576_h16"}.__contains__)


def test_trials_are_what_explain_accepts_and_each_launches_its_own(tmp_path, driver):
    tuned = tuning.Entry("T >= 1", "low_d576_h16_c2", {"T=8": (1.0, 2.0)}, {"device": "d", "command": "c"}).candidate(DECODE, "sm90", 1)
    whole = write_pack(tmp_path, replace(DECODE, tuned=(tuned,)))
    given = inputs(SHAPE)
    with dsa.open_packs([whole]) as opened:
        assert "tuned1_low_d576_h16_c2: chosen" in opened.explain(DECODE.name, **given)
    trials = Trials(DECODE.name, [whole], tmp_path / "trials")
    found = trials.explain(given)
    sizes = ("_c6_t2", "_c4_t2", "_c3_t2", "_c2_t2", "_c2", "")
    low = (*(f"low_d576_h8{n}" for n in sizes), *(f"low_d576_h16{n}" for n in ("_c8_t2", *sizes)))
    assert found.accepted == (*low, "tile_fp8_d576_h16_split", "fp8_sm90_d576_split")
    assert (found.units, found.scalars["precision"]) == (132, "'high'")
    declared = {c.name: c for c in DECODE.candidates}
    for name in found.accepted:
        driver.clear()
        trials.call(name, given)()
        wanted = [re.sub(r"\W", "_", x.kernel.name) for x in declared[name].launches]
        assert [x["kernel"] for x in driver.launches()] == wanted
    trials.close()


def test_what_explain_says_is_read(tmp_path, driver):
    assert trials_of(tmp_path, {**SHAPE, "precision": "fast"}).scalars["precision"] == "'fast'"
    with pytest.raises(ValueError, match="found 'nonsense'; wanted what explain says"):
        verdict("nonsense")


def trials_of(tmp_path, shape):
    trials = Trials(DECODE.name, [write_pack(tmp_path, DECODE)], tmp_path / "trials")
    try:
        return trials.explain(inputs(shape))
    finally:
        trials.close()


# ---- the loop -------------------------------------------------------------------------------------------------------------

MEASURED = {"device": "a GPU", "command": "a command"}


class Timer:
    """Made-up times: what ``us`` says of a candidate and T. Every call is made once, and must launch what its name says."""

    def __init__(self, driver, us, index=0):
        self.driver, self.us, self.target, self.name = driver, us, SM90, "a GPU"
        self.seen = []

    def inputs(self, shape):
        self.shape = shape
        return [inputs(shape), inputs(shape)]

    def medians_us(self, calls):
        kernels = {c.name: [re.sub(r"\W", "_", x.kernel.name) for x in c.launches] for c in DECODE.candidates}
        for name, choices in calls.items():
            assert len(choices) == 2
            for call in choices:
                self.driver.clear()
                call()
                assert [x["kernel"] for x in self.driver.launches()] == kernels[name]
        self.seen.append((self.shape["T"], tuple(calls)))
        return {name: self.us(name, self.shape["T"]) for name in calls}


def second_is_faster(name, T):
    """Blocks alone are 10 % faster than the default for 8 to 32 tokens, and 2 % at 64: noise."""
    return {8: 9.0, 16: 9.0, 32: 9.0, 64: 9.8}.get(T, 11.0) if name == "low_d576_h16" else 10.0


def test_the_loop_times_what_is_accepted_and_proposes_runs_of_what_wins(tmp_path, driver):
    timer = Timer(driver, second_is_faster)
    trials = Trials(DECODE.name, [write_pack(tmp_path, DECODE)], tmp_path / "trials")
    rows = list(tune.sweep(trials, [SHAPE | {"T": T} for T in (1, 8, 16, 32, 64, 128)], timer))
    trials.close()
    assert [T for T, _ in timer.seen] == [1, 8, 16, 32, 64, 128]
    assert all({"low_d576_h16", row.default} <= set(names) for row, (_, names) in zip(rows, timer.seen, strict=True))
    assert [row.default for row in rows] == [
        "low_d576_h8_c16",
        "low_d576_h8_c6_t2",
        *(f"low_d576_h16_c{n}" for n in ("6_t2", "3_t2", "2_t2", "2")),
    ]
    assert [row.first for row in rows] == [None, *["low_d576_h16"] * 3, None, None]
    (entry,) = tune.proposals(rows, MEASURED)
    calls = "T >= 8 and T <= 32 and H == 16 and D == 576 and topk >= 1024 and topk <= 4096 and precision == 'high' and sm_count == 132"
    assert (entry.when, entry.first, entry.measured) == (calls, "low_d576_h16", MEASURED)
    assert list(entry.us.values()) == [(9.0, 10.0)] * 3 and set(entry.us) == {row.name for row in rows[1:4]}


def row(T, us, **more):
    return tune.Row(SHAPE | {"T": T} | more, Verdict(132, {"precision": "'high'"}, tuple(us)), us)


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        ([row(1, {"a": 10.0, "b": 9.8})], []),
        ([row(1, {"a": 10.0, "b": 9.6})], [("b", "T == 1")]),
        ([row(1, {"a": 1.0})], []),
        ([row(1, {})], []),
        ([row(1, {"a": 2.0, "b": 1.0}), row(2, {"a": 1.0, "b": 2.0}), row(4, {"a": 2.0, "b": 1.0})], [("b", "T == 1"), ("b", "T == 4")]),
        ([row(4, {"a": 2.0, "b": 1.0}), row(2, {"c": 2.0, "b": 1.0})], [("b", "T >= 2 and T <= 4")]),
        ([row(2, {"a": 2.0, "b": 1.0}), row(4, {"a": 2.0, "b": 1.5, "c": 1.0})], [("b", "T == 2"), ("c", "T == 4")]),
        (
            [row(1, {"a": 2.0, "b": 1.0}, H=8), row(2, {"a": 2.0, "b": 1.0}, H=16)],
            [("b", "T == 1 and H == 8"), ("b", "T == 2 and H == 16")],
        ),
        ([row(1, {"a": 2.0, "b": 1.5, "a[BLOCK_N=32]": 1.0})], [("b", "T == 1")]),
        ([row(1, {"a": 2.0, "a[BLOCK_N=32]": 1.0})], []),
    ],
)
def test_proposals(rows, wanted):
    found = tune.proposals(rows, MEASURED)
    assert [(e.first, e.when.startswith(f"{calls} and ")) for e, (_, calls) in zip(found, wanted, strict=True)] == [
        (n, True) for n, _ in wanted
    ]


def test_a_shape_that_nothing_serves_has_a_row_that_says_so(tmp_path, driver):
    whole = write_pack(tmp_path, DECODE)
    cabi.edit_manifest(whole, lambda m: m["ops"][0].update(candidates=[c for c in m["ops"][0]["candidates"] if "d512" in c["name"]]))
    trials = Trials(DECODE.name, [whole], tmp_path / "trials")
    (found,) = tune.sweep(trials, [SHAPE], Timer(driver, second_is_faster))
    trials.close()
    assert found.us == {} and found.text().endswith("no candidate serves it")


# ---- the command ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def command(tmp_path, driver, monkeypatch):
    """A function that runs the command on a stand-in device, over a tree whose tuning file may be written."""
    (tmp_path / DECODE.name).mkdir()
    packs = write_pack(tmp_path / "packs", DECODE).parent
    monkeypatch.setattr(tune, "KERNELS", tmp_path)
    monkeypatch.setattr(tune, "Device", lambda index: Timer(driver, second_is_faster, index))

    def run(*arguments):
        small = [f"--shapes={axis}={value}" for axis, value in (("s_kv", 4096), ("D", 576), ("H", 16))]
        return CliRunner().invoke(tune.main, ["--op", DECODE.name, "--packs", str(packs), *small, *arguments])

    return run


def test_what_is_written_is_what_the_next_build_takes_first(tmp_path, driver, command):
    file = tmp_path / DECODE.name / tuning.FILE
    done = command("--shapes", "T=8,16,64")
    assert done.exit_code == 0 and not file.exists(), done.output
    assert "low_d576_h16 9.00" in done.output and "low_d576_h8_c6_t2 (default) 10.00" in done.output
    assert (
        "1 entries, where another candidate is more than 3% faster than the default:\n  low_d576_h16 first when T >= 8 and T <= 16"
        in done.output
    )
    for _ in range(2):  # measuring again changes nothing
        assert command("--shapes", "T=8,16,64", "--write").exit_code == 0
        ((entry,),) = tuning.read(DECODE, file).values()
    assert str(tmp_path) not in file.read_text() and "--shapes T=8,16,64" in entry.measured["command"]

    tuned = write_pack(tmp_path / "tuned", tuning.apply(DECODE, file))
    with dsa.open_packs([tuned]) as opened:
        for T, chosen in (
            (1, "low_d576_h8_c16"),
            (8, "tuned1_low_d576_h16"),
            (12, "tuned1_low_d576_h16"),
            (64, "low_d576_h16_c2_t2"),
        ):
            assert f"{chosen}: chosen" in opened.explain(DECODE.name, **inputs(SHAPE | {"T": T}))
        assert "low_d512_h8_c6_t2" in re.search(r"(\S+): chosen", opened.explain(DECODE.name, **inputs(SHAPE | {"D": 512})))[1]


def test_candidates_of_another_tree_are_not_written(tmp_path, command, monkeypatch):
    less = replace(DECODE, candidates=tuple(c for c in DECODE.candidates if c.name != "low_d576_h16"))
    monkeypatch.setattr(tune, "discover", lambda: {DECODE.name: less})
    done = command("--shapes", "T=8", "--write")
    assert done.exit_code == 1 and "found ['low_d576_h16'] in the pack; wanted candidates that sparse_mla_decode declares" in done.output
    assert not (tmp_path / DECODE.name / tuning.FILE).exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shapes", "T"], "found --shapes T; wanted AXIS=VALUE,VALUE of dtype, precision, s_kv, topk, D, H, T, positive numbers"),
        (["--shapes", "N=1"], "found --shapes N=1; wanted AXIS=VALUE"),
        (["--shapes", "T=1,0"], "found --shapes T=1,0; wanted"),
        (["--shapes", "dtype=f32"], "found --shapes dtype=f32; wanted .* dtype fp8.bf16"),
        (["--shapes", "H=200"], "1 <= H <= 128"),
        (["--packs", "/nowhere"], "/nowhere"),
        (["--op", "concat_cast_q"], r"'concat_cast_q' is not one of 'sparse_mla_decode', 'sparse_mla_prefill'"),
    ],
)
def test_wrong_arguments_say_what_is_wanted(command, arguments, message):
    done = command("--shapes", "T=8", *arguments)
    assert done.exit_code and re.search(message, " ".join(done.output.split())), done.output


def test_packs_of_another_target_are_refused(tmp_path, command):
    with pytest.raises(
        LookupError, match=r"found packs of sm90; wanted one of gfx950, which the device is; python -m aot.build --arch gfx950"
    ):
        tune.pack_of(TARGETS["gfx950"], [tmp_path / "packs"])


def test_without_a_compiler_configurations_are_an_error_that_says_so(command, monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(recipe, "version", missing)
    done = command("--shapes", "T=8", "--configurations")
    assert done.exit_code == 1 and "found no triton, which compiles triton for sm90; run pip install -e '.[build]'" in done.output


def test_configurations_that_nobody_listed_are_an_error():
    with pytest.raises(
        LookupError, match=r"found no configurations of sparse_mla_prefill for sm90 and fp8; .* kernels/sparse_mla_prefill/conf"
    ):
        next(configured.compile_configurations(registry.discover()["sparse_mla_prefill"], SM90, "fp8", None, print))


def test_without_a_gpu_the_device_says_what_is_missing(monkeypatch):
    cuda = SimpleNamespace(device_count=lambda: 1, set_device=lambda _: None, get_device_properties=lambda _: properties)
    properties = SimpleNamespace(name="a GPU", major=10, minor=0, gcnArchName="gfx950:sramecc+:xnack-")
    monkeypatch.setitem(__import__("sys").modules, "torch", SimpleNamespace(cuda=cuda, version=SimpleNamespace(hip=None)))
    with pytest.raises(LookupError, match="found 1 GPUs that torch can use; wanted number 3; pass another --device"):
        device.Device(3)
    with pytest.raises(LookupError, match="found a GPU of sm100; wanted one of sm90, gfx942, gfx950"):
        device.Device(0)
    monkeypatch.setattr(__import__("sys").modules["torch"].version, "hip", "7.0")
    assert device.Device(0).target.name == "gfx950"
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(LookupError, match="found no torch; wanted it for inputs and timing"):
        device.Device(0)


# ---- configurations -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", tune.SHAPES)
def test_every_listed_configuration_makes_its_candidates_and_one_is_shipped(name, target):
    op = registry.discover()[name]
    for dtype in ("fp8", "bf16"):
        listed = configurations(name, target, dtype)
        made = [configured.configured(op, TARGETS[target], dtype, c) for c in listed]
        counts = [len(m) for m in made]
        assert not listed or min(counts) < max(counts), "the candidates of what is shipped are not made again"
        for c, candidates in zip(listed, made, strict=True):
            words = ",".join(f"{k}={v}" for k, v in c.items())
            assert all(x.name.endswith(f"[{words}]") for x in candidates)
            assert all(f"cdiv(H, {c['BLOCK_H']})" in str(x.launches[0].grid[0]) for x in candidates)


def test_a_configuration_is_compiled_and_becomes_a_trial(tmp_path, driver):
    pytest.importorskip("triton")
    said = []
    (made,) = configured.compile_configurations(DECODE, SM90, "bf16", tmp_path / "made", said.append)
    assert any("BLOCK_N=64" in line and "spill_bytes" in line for line in said)
    given = inputs(SHAPE) | {"q": toy.Array("bf16", (8, 16, 576)), "kv": toy.Array("bf16", (4096, 576))}
    trials = Trials(DECODE.name, [write_pack(tmp_path, DECODE), made], tmp_path / "trials")
    assert trials.explain(given).accepted[-2:] == ("bf16_sm90_d576_split", "bf16_sm90_d576_split[BLOCK_H=16,BLOCK_N=64,num_warps=4]")
    trials.close()
