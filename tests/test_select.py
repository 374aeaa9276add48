"""select and the command explain: the trace, wishes, and calls described in words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import cabi, toy

dsa = pytest.importorskip("dsa_kernels", reason="the runtime is not installed: pip install -e .")
from dsa_kernels import __main__, _packs, _select  # noqa: E402

CALL = ["q=bf16", "kv=bf16", "T=2", "H=16", "D=576", "N=7", "sm_scale=0.5"]


def _mark(manifest: dict[str, Any]) -> None:
    """The kernel of `few` as made by NVRTC, that of `split` by Triton, those of the others by TileLang and Clang."""
    tools = {"attend_few": {"nvrtc": "12.9", "ptxas": "12.9"}, "attend_split": {"triton": "3.9.0", "ptxas": "12.9"}}
    for entry in manifest["objects"].values():
        entry["tools"] = tools.get(entry["kernel"].split("/")[1], {"tilelang": "0.1.15", "nvrtc": "12.9"})


@pytest.fixture
def packs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    toy.write_packs(tmp_path, "sm90", "gfx942")
    for target in ("sm90", "gfx942"):
        cabi.edit_manifest(tmp_path / target, _mark)
    with dsa.open_packs([tmp_path]) as opened:
        monkeypatch.setattr(_packs, "_default", opened)
        yield opened


def call(n: int = 4, target: str = "sm90", **more: Any) -> Any:
    q, kv = dsa.View(0, (2, 16, 576), "bf16"), dsa.View(0, (7, 576), "bf16")
    return dsa.select("attend", q, kv, 0.5, n=n, target=target, **more)


def test_the_trace_is_data(packs: Any) -> None:
    found = call(20)
    few, split = found.verdicts
    assert (few.candidate, few.language, few.verdict) == ("few", "cuda", "rejected") and "n < 16" in few.reason and "20" in few.reason
    assert (split.candidate, split.language, split.verdict, split.reason) == ("split", "triton", "chosen", "")
    assert found.chosen is split and found.op == "attend" and found.target.startswith("sm90")
    assert "attend_split" in found.launches and "workspace" in found.launches and "n: 20" in found.call


def test_the_table(packs: Any) -> None:
    lines = str(call(20)).splitlines()
    assert lines[1].split() == ["candidate", "language", "verdict", "reason"]
    assert lines[2].split()[:3] == ["few", "cuda", "rejected"] and lines[3].split() == ["split", "triton", "chosen"]
    assert lines[1].index("verdict") == lines[2].index("rejected") == lines[3].index("chosen")


def test_neighbours_that_are_alike_share_a_row() -> None:
    verdict = _select.Verdict
    alike = [verdict(f"c{i}", "cuda", "rejected", "wants D == 512") for i in range(3)]
    found = _select.Selection(
        "op", "sm90", (*alike, verdict("d", "cuda", "chosen", ""), verdict("e", "cuda", "rejected", "wants D == 512")), "", ""
    )
    assert [line.split() for line in str(found).splitlines()[2:]] == [
        ["c0", "to", "c2", "(3)", "cuda", "rejected", "wants", "D", "==", "512"],
        ["d", "cuda", "chosen"],
        ["e", "cuda", "rejected", "wants", "D", "==", "512"],
    ]


@pytest.mark.parametrize(("n", "wish"), [(4, "few"), (4, "cuda"), (20, "split"), (20, "triton")])
def test_a_wish_that_is_honoured(packs: Any, n: int, wish: str) -> None:
    chosen = call(n, candidate=wish).chosen
    assert wish in (chosen.candidate, chosen.language)


@pytest.mark.parametrize(("n", "wish", "instead"), [(20, "few", "split"), (20, "cuda", "split"), (4, "triton", "few"), (4, "split", "few")])
def test_a_wish_that_is_not_raises_with_the_trace(packs: Any, n: int, wish: str, instead: str) -> None:
    with pytest.raises(dsa.NoCandidate, match=rf"(?s)found {instead} .*wanted {wish};.*few +cuda.*split +triton"):
        call(n, candidate=wish)


def test_a_wish_for_nothing(packs: Any) -> None:
    with pytest.raises(dsa.ArgumentError, match=r"found candidate 'flashmla'; wanted one of cuda, few, split, triton"):
        call(candidate="flashmla")


def test_no_candidate(packs: Any) -> None:
    with pytest.raises(dsa.NoCandidate, match=r"(?s)found no candidate.*n: 5000.*few +cuda +rejected.*split +triton +rejected"):
        call(5000)


def test_a_call_that_breaks_the_contract(packs: Any) -> None:
    with pytest.raises(dsa.ArgumentError, match="1 <= H"):
        dsa.select("concat", dsa.View(0, (2, 200, 512), "bf16"), out=dsa.View(0, (2, 200, 512), "e4m3fn"), target="sm90")


def explain(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = __main__.main(["explain", *words])
    said = capsys.readouterr()
    return code, said.err if code else said.out


def test_explain(packs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = explain(capsys, "attend", *CALL, "n=20", "lse=yes", "precision=exact", "--target", "sm90")
    assert code == 0 and text.splitlines() == str(call(20, lse=dsa.View(0, (2, 16), "f32"), precision="exact")).splitlines()
    code, text = explain(capsys, "--target", "gfx942", "concat", "T=2", "H=16", "q_rope=bf16", "R=64")
    assert code == 0 and "both       tilelang  chosen" in text
    code, text = explain(capsys, "attend", *CALL, "--target", "sm90", "--candidate", "triton")
    assert code == 1 and text.startswith("NoCandidate: found few (cuda)")


def test_fp8_is_the_target_s_flavour(packs: Any) -> None:
    words = ["q=fp8", "kv=fp8", *CALL[2:]]
    for target, flavour in (("sm90", "e4m3fn"), ("gfx942", "e4m3fnuz")):
        where, made = _select.from_words("attend", words, target)
        assert where == target and made["q"].dtype == made["kv"].dtype == flavour
        assert made["q"].shape == (2, 16, 576) and made["sm_scale"] == 0.5 and set(made) == {"q", "kv", "out", "sm_scale"}


def test_shapes_are_worked_out(packs: Any) -> None:
    for rope in ([], ["q_rope=yes", "R=64"]):
        _, made = _select.from_words("concat", ["T=3", "H=5", *rope], "sm90")
        assert made["out"].shape == (3, 5, 576 if rope else 512)
    for more, rows in (([], 3), (["pad_rows=4"], 7)):
        _, made = _select.from_words("pad", ["N=3", "D=5", *more], "sm90")
        assert made["out"].shape == (rows, 5)


WRONG = {
    "no equals": (["attend", "T"], r"found the word 'T'; wanted NAME=VALUE"),
    "unknown": (["attend", *CALL, "top_k=3"], r"found top_k; wanted names among D, H, N, T, bias, kv,"),
    "no size": (["attend", *CALL[:2], "T=3", "sm_scale=1"], r"found no D, H, N; wanted a size for each of D, H, N, T; add D=1, H=1, N=1"),
    "no type": (["attend", *CALL[1:]], r"found q without a type; wanted one of bf16, e4m3fn; add q=TYPE"),
    "another type": (["attend", "q=f32", *CALL[1:]], r"found q f32; wanted one of bf16, e4m3fn"),
    "no effect": (["concat", "T=2", "H=4", "R=64"], r"found R, which no tensor of this call has"),
    "no number": (["attend", *CALL[:6], "sm_scale=x"], r"found sm_scale=x; wanted a number"),
    "no int": (["attend", *CALL, "n=1.5"], r"found n=1.5; wanted an int"),
    "no scalar": (["attend", *CALL[:6]], r"found no sm_scale"),
    "rule": (["concat", "T=2", "H=129"], r"ArgumentError: .*1 <= H <= 128"),
    "unknown op": (["atend", "T=1"], r"UnknownOp: .*atend"),
    "unknown target": (["attend", *CALL, "--target", "sm80"], r"NoPack: found target 'sm80'; wanted one of gfx942, sm90; pass --target"),
}


@pytest.mark.parametrize("what", WRONG)
def test_words_that_are_wrong(packs: Any, capsys: pytest.CaptureFixture[str], what: str) -> None:
    words, message = WRONG[what]
    code, text = explain(capsys, *words, *([] if "--target" in words else ["--target", "sm90"]))
    assert code == 1
    assert re.search(message, text), text
