"""The tuning file: what it puts first and for which calls, and how a wrong one is refused."""

import json

import pytest

from aot import registry, tuning
from aot.expr import parse
from aot.spec import SpecError
from aot.targets import TARGETS

SM90 = TARGETS["sm90"]
OP = """
from aot.spec import Arg, Candidate, Kernel, Launch, Op, Tensor
params = Tensor("x", "bf16", "T D", ""), Tensor("y", "bf16", "T D", "", output=True)
def one(name, targets, when):
    kernel = Kernel("triton", "k.py", name, (Arg("x", "ptr", "x"), Arg("D", "i32", "D", multiple=8)))
    return Candidate(name, targets, when, (Launch(kernel, ("T", 1, 1)),))
OP = Op("thing", "", params, (one("a", ("sm90", "gfx950"), "T > 0"), one("b", ("sm90",), "T < 100")), holes={"gfx942": "no"})
"""
ENTRY = {"when": "D == 64", "first": "b", "us": {"T=8": [1.0, 2.0]}, "measured": {"device": "d", "command": "c"}}


@pytest.fixture
def thing(tmp_path):
    """A function: the op beside a tuning file of some text."""
    folder = tmp_path / "kernels" / "thing"
    folder.mkdir(parents=True)
    (folder / "op.py").write_text(OP)

    def discover(table):
        if table is not None:
            (folder / tuning.FILE).write_text(table if isinstance(table, str) else json.dumps(table))
        return registry.discover(tmp_path / "kernels")["thing"]

    return discover


def names(op, target="sm90"):
    return [c.name for c in op.candidates_for(TARGETS[target])]


def test_without_a_file_nothing_changes(thing):
    assert thing(None).tuned == () and names(thing(None)) == ["a", "b"]


def test_an_entry_puts_its_candidate_first_for_its_calls_on_its_target(thing):
    plain, op = thing(None), thing({"sm90": [ENTRY, ENTRY | {"when": "D == 32", "first": "a"}]})
    assert names(op) == ["tuned1_b", "tuned2_a", "a", "b"] and names(op, "gfx950") == ["a"]
    first, declared = op.candidates_for(SM90)[0], plain.candidates_for(SM90)[1]
    assert (first.launches, first.workspace) == (declared.launches, declared.workspace)
    calls = [({"T": 9, "D": 64}, 1), ({"T": 9, "D": 72}, 0), ({"T": 100, "D": 64}, 0)]
    assert [parse(first.when)(call) for call, _ in calls] == [wanted for _, wanted in calls]
    assert "D % 8" in first.when.replace("(", "").replace(")", ""), "promises hold for what goes first, too"


def test_tuning_recompiles_nothing(thing):
    plain, op = thing(None), thing({"sm90": [ENTRY]})
    assert [k.name for k in op.kernels_for(SM90)] == [k.name for k in plain.kernels_for(SM90)] == ["a", "b"]


REFUSED = {
    "no JSON": ("{", "kernels/thing/tuning.json: found Expecting property name"),
    "a list": ([], r"kernels/thing/tuning.json: found \[\]; wanted lists of entries by target"),
    "no list": ({"sm90": {}}, "wanted lists of entries by target"),
    "target": ({"sm91": []}, r"found the targets \['sm91'\]; wanted some of \['sm90', 'gfx942', 'gfx950'\]"),
    "keys": ({"sm90": [{"when": "1"}]}, r'sm90, entry 1: found \{"when": "1"\}; wanted an object of when, first, us, measured'),
    "name": ({"sm90": [ENTRY, ENTRY | {"first": "bb"}]}, "sm90, entry 2: found first 'bb'; wanted a candidate of thing on sm90, such as b"),
    "other target": ({"gfx950": [ENTRY]}, "gfx950, entry 1: found first 'b'; wanted a candidate of thing on gfx950, such as a;"),
    "hole": ({"gfx942": [ENTRY]}, "gfx942, entry 1: found first 'b'; .*such as none"),
    "no text": ({"sm90": [ENTRY | {"when": 1}]}, "entry 1: found when 1; wanted a guard"),
    "syntax": ({"sm90": [ENTRY | {"when": "T >"}]}, "sm90, entry 1: when: found 'T >', which does not parse"),
    "grammar": ({"sm90": [ENTRY | {"when": "1 < T < 8"}]}, "sm90, entry 1: when: found .* wanted the grammar"),
    "unknown": ({"sm90": [ENTRY | {"when": "H == 8"}]}, r"entry 1: found when 'H == 8', which reads \['H'\]; wanted names that thing has"),
    "slower": ({"sm90": [ENTRY | {"us": {"T=8": [2.0, 1.0]}}]}, "entry 1: found us .* wanted by shape two times"),
    "one time": ({"sm90": [ENTRY | {"us": {"T=8": [2.0]}}]}, "wanted by shape two times"),
    "no times": ({"sm90": [ENTRY | {"us": {}}]}, "wanted by shape two times"),
    "measured": ({"sm90": [ENTRY | {"measured": {"device": "d"}}]}, "entry 1: found measured .*; wanted an object of device and command"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_wrong_is_refused_by_file_and_entry(thing, what):
    table, message = REFUSED[what]
    with pytest.raises(SpecError, match=message) as caught:
        thing(table)
    assert str(caught.value).startswith("kernels/thing/tuning.json: ") and str(caught.value).endswith(tuning.AGAIN)


def test_what_is_measured_again_replaces_what_stood_on_it(thing, tmp_path):
    file = tmp_path / "kernels/thing" / tuning.FILE
    op = thing({"sm90": [ENTRY, ENTRY | {"us": {"T=9": [1.0, 2.0], "T=10": [1.0, 2.0]}}], "gfx950": [ENTRY | {"first": "a"}]})
    table = tuning.read(op, file)
    eight, nine = table["sm90"]
    assert tuning.merge([eight, nine], [], {"T=7"}) == [eight, nine]
    assert tuning.merge([eight, nine], [eight], {"T=10"}) == [eight, eight]
    tuning.write(file, table)
    assert tuning.read(op, file) == table
    tuning.write(file, {"sm90": []})
    assert not file.exists() and tuning.read(op, file) == {}
