"""A declaration that contradicts itself is refused when it is read, with what is wrong; the ones in the tree all hold."""

from dataclasses import replace

import pytest

from aot import pack, registry
from aot.expr import parse
from aot.spec import Candidate, Kernel, Launch, Op, Rule, Scalar, SpecError, Tensor, i32, i64, ptr, symbols
from aot.targets import TARGETS, parse_targets

HOLES = {"gfx942": "not yet", "gfx950": "not yet"}


def kernel(*args, **constants):
    return Kernel("triton", "k.py", "k", args or (ptr("x"), ptr("y"), i32("T")), constants)


def params(name="x", **changes):
    return (Tensor(name, "bf16", "T 512", "", **changes), Tensor("y", "fp8", "T 512", "", output=True))


def launched(language="triton", **changes):
    k = Kernel(language, "k.py", "k", (ptr("x"), ptr("y"), i32("T")))
    return (Candidate("c", ("sm90",), "T > 0", (Launch(k, **{"grid": ("T", 1, 1), **changes}),)),)


def op(**changes):
    fields = {
        "name": "k",
        "doc": "",
        "params": (Tensor("x", "bf16", "T 512", ""), Tensor("y", "fp8", "T 512", "", output=True)),
        "candidates": (Candidate("only", ("sm90",), "T > 0", (Launch(kernel(), ("T", 1, 1)),)),),
        "holes": HOLES,
    }
    return Op(**{**fields, **changes})


def test_a_good_declaration_passes():
    assert symbols(op()) == ["T"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"params": (Tensor("x", "bf16", "T 512", ""), Tensor("x", "fp8", "T 512", ""))}, "appears twice"),
        ({"params": (Tensor("x", "bf17", "T 512", ""), Tensor("y", "fp8", "T 512", "", output=True))}, "dtype 'bf17'"),
        ({"params": (Tensor("x", "bf16", ">=T 512", ""), Tensor("y", "fp8", "T 512", "", output=True))}, "outputs only"),
        ({"rules": (Rule("S > 0", "", ""),)}, r"reads \['S'\]"),
        ({"rules": (Rule("T >", "", ""),)}, "does not parse"),
        ({"candidates": (Candidate("c", ("sm91",), "T > 0", ()),)}, "unknown targets"),
        ({"candidates": (Candidate("c", ("sm90",), "T > 0", ()),)}, "found no launches"),
        ({"candidates": (Candidate("c", ("sm90",), "T", (Launch(kernel(ptr("z")), (1, 1, 1)),)),)}, "no tensor of the op"),
        ({"candidates": (Candidate("c", ("sm90",), "T", (Launch(kernel(), ("B", 1, 1)),)),)}, "grid"),
        *(
            ({"params": params(name), "candidates": (), "holes": HOLES | {"sm90": "why"}}, rf"parameters \['{name}'\]: wanted Python names")
            for name in ("", "2x", "x-y", "lambda", "None", "T", "stream", "workspace", "sm_count", "shared_memory")
        ),
        ({"params": params(layout="row")}, "x: found layout 'row', align 16; wanted one of .*'rows'.* and a power of two"),
        *(({"params": params(align=align)}, rf"x: found layout 'rows', align {align};") for align in (-16, 0, 12)),
        *(
            ({"params": (*params(), Scalar("s", dtype, ""))}, f"scalar s has dtype '{dtype}'; wanted f32, i32, i64 or choice")
            for dtype in ("f64", "bf16", "")
        ),
        ({"candidates": launched("fortran")}, "candidate c: unknown language 'fortran'; known are .*'triton'"),
        *(
            ({"candidates": launched(**wrong)}, "candidate c: found the grid .* wanted three sizes each, positive ones")
            for wrong in (
                {"grid": ("T",)},
                {"grid": ("T", 1, 1, 1)},
                {"grid": ()},
                {"cluster": (0, 1, 1)},
                {"cluster": (2, 1, -1)},
                {"cluster": (2,)},
            )
        ),
        ({"holes": {"gfx942": "not yet"}}, "gfx950: wanted either a candidate or a hole"),
        ({"holes": HOLES | {"sm90": "why"}}, "sm90: wanted either"),
    ],
)
def test_contradictions_are_refused(changes, message):
    with pytest.raises(SpecError, match=message):
        op(**changes)


def test_choices_belong_to_choice_scalars():
    scalar = Scalar("p", "f32", "", choices=("a",))
    with pytest.raises(SpecError, match="choices go with"):
        op(params=(*op().params, scalar))


def test_promises_become_guards():
    k = kernel(ptr("x"), ptr("y"), i64("x_s0", "x.s0", multiple=8))
    declared = op(candidates=(Candidate("c", ("sm90",), "T > 0", (Launch(k, ("T", 1, 1)),)),))
    (c,) = declared.candidates_for(TARGETS["sm90"])
    assert parse(c.when)({"T": 1, "x.s0": 16}) == 1
    assert parse(c.when)({"T": 1, "x.s0": 12}) == 0


def test_a_tensor_of_several_dtypes_makes_its_kernels_say_which():
    params = (Tensor("x", "bf16|fp8", "T 512", ""), Tensor("y", "fp8", "T 512", "", output=True))
    with pytest.raises(SpecError, match="needs dtype"):
        op(params=params)
    k = kernel(ptr("x", dtype="fp8"), ptr("y"), i32("T"))
    everywhere = Candidate("c", tuple(TARGETS), "T > 0", (Launch(k, ("T", 1, 1)),))
    declared = op(params=params, candidates=(everywhere,), holes={})
    assert "x.dtype == 'e4m3fn'" in declared.candidates_for(TARGETS["gfx950"])[0].when
    assert "x.dtype == 'e4m3fnuz'" in declared.candidates_for(TARGETS["gfx942"])[0].when


def test_unknown_architecture_names_the_known_ones():
    with pytest.raises(ValueError, match="found unknown architecture 'sm91'; wanted one or more of: sm90, gfx942, gfx950"):
        parse_targets("sm90,sm91")
    with pytest.raises(ValueError, match="found no architecture"):
        parse_targets(" , ")
    assert [t.name for t in parse_targets("gfx950, sm90,gfx950")] == ["gfx950", "sm90"]


OPS = registry.discover()


def test_folders_are_ops():
    assert set(OPS) == {p.parent.name for p in registry.KERNELS.glob("*/op.py")}


@pytest.mark.parametrize("name", OPS)
def test_every_op_has_sources_and_a_reference(name):
    folder = registry.KERNELS / name
    assert (folder / "reference.py").is_file()
    for target in TARGETS.values():
        for k in OPS[name].kernels_for(target):
            assert (folder / k.source).is_file(), k.source


@pytest.mark.parametrize("name", OPS)
def test_every_parameter_is_documented(name):
    for p in OPS[name].params:
        assert p.doc, p.name
    assert OPS[name].doc


def test_kernel_names_are_unique_within_an_op():
    for o in OPS.values():
        for target in TARGETS.values():
            names = [k.name for k in o.kernels_for(target)]
            assert len(names) == len(set(names)), (o.name, target.name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("OP = 3", "found no OP"),
        ("OP = (", "found SyntaxError: .*wanted a declaration that loads"),
        ("import nothing_of_this_name", "found ModuleNotFoundError: .*nothing_of_this_name"),
        ("OP = 1 // 0", "found ZeroDivisionError"),
        ("from aot.spec import Op\nOP = Op('thing', '', (), ())", "op thing: sm90: wanted either a candidate or a hole"),
    ],
)
def test_a_broken_declaration_names_its_file(tmp_path, text, message):
    folder = tmp_path / "kernels" / "thing"
    folder.mkdir(parents=True)
    (folder / "op.py").write_text(text + "\n")
    with pytest.raises(SpecError, match=rf"^kernels/thing/op\.py: {message}"):
        registry.discover(tmp_path / "kernels")


def test_a_recipe_survives_its_file():
    from aot.recipe import Recipe, loads

    k = replace(kernel(A=1, B=True), options={"num_warps": 4}, promises=("QGMMA",))
    r = Recipe("k", "sm90", "triton", "k.py", 0, (k,), ({"x": "bf16"},), {"triton": "3"})
    assert loads(r.dumps()) == r
    assert loads(r.dumps()).dumps() == r.dumps()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", registry.discover())
def test_the_manifest_says_what_the_declaration_says(name, target):
    """Candidates that share an object keep their own arguments, grid and cluster."""
    op, target = registry.discover()[name], TARGETS[target]
    usual = {"block": [128, 1, 1], "shared": 0, "dependent": False}
    made = {k.name: {"sha256": k.name, "symbol": k.entry, "params": k.args} | usual for k in op.kernels_for(target)}
    found = pack.describe(op, target, made)
    for declared, written in zip(op.candidates_for(target), found["candidates"], strict=True):
        for x, launch in zip(declared.launches, written["launches"], strict=True):
            kernel = found["kernels"][launch["kernel"]]
            assert kernel["object"] == x.kernel.name
            assert found["args"][kernel["args"]] == [pack.arg(a) for a in x.kernel.args]
            assert launch["grid"] == [pack.canonical(g) for g in x.grid]
            assert launch["cluster"] == list(x.cluster)


@pytest.mark.parametrize("name", ["sparse_mla_prefill", "sparse_mla_decode"])
@pytest.mark.parametrize("scale", ["q_scale", "kv_scale"])
def test_a_candidate_applies_a_scale_or_refuses_it(name, scale):
    """What a kernel is not given it cannot apply; the guard of such a candidate says so."""
    for c in registry.discover()[name].candidates:
        applied = any(a.value == scale for a in c.launches[0].kernel.args)
        assert applied or f"not has({scale})" in c.when, c.name


def test_split_candidates_take_calls_of_several_splits_alone():
    """With one split the kernel stores its output itself, and a combination would overwrite it with what nobody wrote."""
    found = [c for c in registry.discover()["sparse_mla_decode"].candidates if any(a.name == "splits" for a in c.launches[0].kernel.args)]
    cut = [c for c in found if len(c.launches) == 2 and not c.name.startswith("q8")]
    assert {t for c in cut for t in c.targets} == {"sm90", "gfx950", "gfx942"}
    for c in cut:
        splits = next(a.value for a in c.launches[0].kernel.args if a.name == "splits")
        assert f"({splits}) > 1" in c.when, c.name
