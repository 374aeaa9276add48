"""Expressions: C++ and Python agree on every value and on what has none."""

from __future__ import annotations

import ctypes as c
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aot.expr import INT64_MAX, INT64_MIN, ExprError, Value, parse
from tests import cabi

KINDS = {int: 0, float: 1, str: 2}
NAMES = ("T", "H", "x", "flag", "q.s0", "q.d1", "q.dtype", "has(q)", "mode")


class _Variable(c.Structure):
    _fields_ = [("name", c.c_char_p), ("type", c.c_int32), ("i", c.c_int64), ("f", c.c_double), ("s", c.c_char_p)]


class _Result(c.Structure):
    _fields_ = [("type", c.c_int32), ("i", c.c_int64), ("f", c.c_double), ("s", c.c_char * 512)]


def evaluate(text: str, env: dict[str, Value], split: bool = False) -> Value:
    """The C++ value; ``ExprError`` where there is none, ``SyntaxError`` where the text does not parse."""
    variables = (_Variable * max(1, len(env)))()
    for v, (name, value) in zip(variables, env.items(), strict=False):
        v.name, v.type = name.encode(), KINDS[type(value)]
        if isinstance(value, str):
            v.s = value.encode()
        elif isinstance(value, float):
            v.f = value
        else:
            v.i = value
    out = _Result()
    cabi.inner().inner_eval(text.encode(), variables, len(env), int(split), c.byref(out))
    if out.type == -2:
        raise SyntaxError(out.s.decode())
    if out.type == -1:
        raise ExprError(out.s.decode())
    return (out.i, out.f, out.s.decode())[out.type]


def same(a: Value, b: Value) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    return a == b


def agree(text: str, env: dict[str, Value]) -> None:
    tree = parse(text)
    try:
        wanted: Value | None = tree(env)
    except ExprError:
        wanted = None
    for form in (text, tree.text):
        try:
            found: Value | None = evaluate(form, env)
        except ExprError:
            found = None
        assert (found is None) == (wanted is None), (form, env, found, wanted)
        if found is not None and wanted is not None:
            assert same(found, wanted), (form, env, found, wanted)
    # As a guard, conjunct by conjunct: the truth is the same.
    try:
        truth: Value | None = evaluate(tree.text, env, split=True)
    except ExprError:
        truth = None
    if wanted is None or isinstance(wanted, str):
        assert truth is None
    else:
        assert truth == int(wanted != 0)


INTS = st.one_of(st.integers(-4, 12), st.sampled_from([0, 1, 64, 2**31, 2**32 + 1, INT64_MAX, INT64_MAX - 1]))
FLOATS = st.one_of(st.sampled_from([0.0, 0.5, 1.0, 1e-05, 1e300, 3.25]), st.floats(0, 1e18))
WORDS = st.sampled_from(["bf16", "e4m3fn", "exact", "a_b"])
LEAVES = st.one_of(
    INTS.map(str),
    FLOATS.map(repr),
    WORDS.map(lambda w: f"'{w}'"),
    st.sampled_from(NAMES),
    st.sampled_from(["T", "H", "q.s0", "has(q)"]),
)


def _combine(e: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    def join(template: str, n: int) -> st.SearchStrategy[str]:
        return st.tuples(*[e] * n).map(lambda parts: template.format(*(f"({p})" for p in parts)))

    binary = ["+", "-", "*", "//", "%", "==", "!=", "<", "<=", ">", ">=", "and", "or"]
    return st.one_of(
        *(join("{} " + b + " {}", 2) for b in binary),
        *(join(f + "({}, {})", 2) for f in ("min", "max", "cdiv")),
        *(join(f + "({})", 1) for f in ("pow2", "float", "-", "not ")),
        join("min({}, {}, {})", 3),
        join("{} in ({}, {})", 3),
        join("{} in ({},)", 2),
        join("{} if {} else {}", 3),
        join("{} and {} and {}", 3),
        join("{} or {} or {}", 3),
        # No parentheses: precedence must agree as well.
        st.tuples(LEAVES, st.sampled_from(["+", "-", "*", "//", "%"]), LEAVES, st.sampled_from(["+", "-", "*", "//", "%"]), LEAVES).map(
            " ".join
        ),
        st.tuples(LEAVES, st.sampled_from(["==", "<", "and", "or"]), LEAVES, st.sampled_from(["and", "or"]), LEAVES).map(" ".join),
        st.tuples(st.sampled_from(["not ", "-"]), LEAVES, st.sampled_from([" < ", " and ", " or "]), LEAVES).map("".join),
    )


def _parses(text: str) -> bool:
    try:
        parse(text)
    except ExprError:
        return False
    return True


EXPRESSIONS = st.recursive(LEAVES, _combine, max_leaves=12).filter(_parses)
VALUES = st.one_of(
    st.integers(-3, 200),
    st.sampled_from([INT64_MIN, INT64_MIN + 1, INT64_MAX, 2**31, 2**62, 2**62 + 1, -(2**31)]),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from(["", "bf16", "e4m3fn", "exact"]),
)
ENVIRONMENTS = st.fixed_dictionaries(dict.fromkeys(NAMES, VALUES)) | st.fixed_dictionaries({n: st.integers(0, 300) for n in NAMES})


@settings(max_examples=800, deadline=None)
@given(EXPRESSIONS, ENVIRONMENTS)
def test_agreement(text: str, env: dict[str, Value]) -> None:
    agree(text, env)


@pytest.mark.parametrize("a", [INT64_MIN, INT64_MIN + 1, -7, -1, 0, 1, 7, 2**62, 2**62 + 1, INT64_MAX])
@pytest.mark.parametrize("b", [INT64_MIN, -3, -1, 0, 1, 3, INT64_MAX])
def test_integer_corners(a: int, b: int) -> None:
    for text in ("T + H", "T - H", "T * H", "T // H", "T % H", "cdiv(T, H)", "pow2(T)", "-T", "min(T, H)", "max(T, H, 1.5)"):
        agree(text, {"T": a, "H": b})


@pytest.mark.parametrize(
    "text",
    ["T +", "T + + H", "T if H", "a < T < H", "T in (H)", "T in H", "f(T)", "min(T)", "cdiv(T)", "pow2(T, H)", "q.x0", "q.s10", "T ** 2",
     "T / 2", "True", "not", "(T", "T)", "'a b'", "''", "9223372036854775808", "T; H", "has(1)", "T is H", "T not in (1, 2)", "", "1e999",
     "T.dtype.x", "T H", "01", "unknown"],
)  # fmt: skip
def test_refused(text: str) -> None:
    with pytest.raises(SyntaxError):
        evaluate(text, {"T": 1, "H": 2, "a": 3, "q.s0": 1})


def test_depth_is_bounded() -> None:
    with pytest.raises(SyntaxError):
        evaluate("(" * 5000 + "1" + ")" * 5000, {})
    with pytest.raises(SyntaxError):
        evaluate("-" * 5000 + "1", {})
    right = "1 + (" * 80 + "1" + ")" * 80
    with pytest.raises(SyntaxError, match="deeper"):
        evaluate(right, {})
    assert evaluate(" + ".join(["1"] * 500), {}) == 500
