"""Expressions over a call: dimensions, strides, presence of optionals, scalars and device constants.

Grids, guards, workspace sizes, output shapes, default values and kernel arguments are written in this grammar, checked here
when the pack is built and evaluated in C++ (``runtime/src/expr.cpp``) when an op is launched. Python's own syntax, cut down::

    expr    := int | float | 'string' | name | name.field | call | unary | binary | compare | bool | choice
    call    := has(name) | min(a, b, ...) | max(a, b, ...) | cdiv(a, b) | pow2(a) | float(a)
    unary   := -a | not a
    binary  := a + b | a - b | a * b | a // b | a % b
    compare := a == b | != | < | <= | > | >= | a in (b, c, ...)      (one comparison, no chains)
    bool    := a and b | a or b                                       (short-circuit; the result is 0 or 1)
    choice  := a if c else b

Values are int64 (booleans are 0 and 1), float64 and strings. ``//`` and ``%`` are for integers and round down, as in Python.
Mixed int and float operands become float64; ``-a`` is ``0 - a``. Strings can be compared for (in)equality only. ``pow2(a)`` is
the smallest power of two that is at least ``a`` and at least 1. Overflow of int64, division by zero and mixed types are errors.

Names: dimension symbols (``T``), scalars (``sm_scale``), ``q.s0`` (stride of dimension 0, in elements), ``q.d0`` (size),
``q.dtype`` (a string), ``sm_count``, ``shared_memory``.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

Value = int | float | str
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
FUNCTIONS = {"has": 1, "min": None, "max": None, "cdiv": 2, "pow2": 1, "float": 1}


class ExprError(ValueError):
    """An expression that is not in the grammar, or whose evaluation has no value."""


def _int(v: int) -> int:
    if not INT64_MIN <= v <= INT64_MAX:
        raise ExprError("int64 overflow")
    return v


def _numbers(a: Value, b: Value) -> tuple[int, int] | tuple[float, float]:
    if isinstance(a, str) or isinstance(b, str):
        raise ExprError("arithmetic on a string")
    if isinstance(a, int) and isinstance(b, int):
        return a, b
    return float(a), float(b)


def _ints(a: Value, b: Value) -> tuple[int, int]:
    if not isinstance(a, int) or not isinstance(b, int):
        raise ExprError("integers wanted")
    if b == 0:
        raise ExprError("division by zero")
    return a, b


def _arith(op: Callable[[float, float], float]) -> Callable[[Value, Value], Value]:
    def run(a: Value, b: Value) -> Value:
        r = op(*_numbers(a, b))
        return _int(r) if isinstance(r, int) else r

    return run


def _floordiv(a: Value, b: Value) -> Value:
    x, y = _ints(a, b)
    return _int(x // y)


def _mod(a: Value, b: Value) -> Value:
    x, y = _ints(a, b)
    return _int(x % y)


def _cdiv(a: Value, b: Value) -> Value:
    x, y = _ints(a, b)
    return _int(-(-x // y))


def _pow2(a: Value) -> Value:
    if not isinstance(a, int):
        raise ExprError("integers wanted")
    return _int(1 << (a - 1).bit_length()) if a > 1 else 1


def _compare(op: type[ast.cmpop], a: Value, b: Value) -> int:
    if isinstance(a, str) or isinstance(b, str):
        if not (isinstance(a, str) and isinstance(b, str)) or op not in (ast.Eq, ast.NotEq):
            raise ExprError("a string compares with == or != to a string only")
        return int((a == b) == (op is ast.Eq))
    x, y = _numbers(a, b)
    return int(_COMPARE[op](x, y))


_BINARY: dict[type[ast.operator], Callable[[Value, Value], Value]] = {
    ast.Add: _arith(lambda a, b: a + b),
    ast.Sub: _arith(lambda a, b: a - b),
    ast.Mult: _arith(lambda a, b: a * b),
    ast.FloorDiv: _floordiv,
    ast.Mod: _mod,
}
_COMPARE: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
}


def _truth(v: Value) -> bool:
    if isinstance(v, str):
        raise ExprError("a string is neither true nor false")
    return v != 0


@dataclass(frozen=True)
class Expr:
    """A parsed expression. ``text`` is its canonical form, the one that manifests carry."""

    text: str
    _tree: ast.expr

    @functools.cached_property
    def names(self) -> frozenset[str]:
        """Variables read, ``q.s0`` style for fields; ``has(x)`` contributes ``has(x)``."""
        return frozenset(_names(self._tree))

    def __call__(self, env: Mapping[str, Value]) -> Value:
        """The value under ``env`` (name to value; ``has(x)`` is a name of its own). Raises ``ExprError``."""
        return _evaluate(self._tree, env)


def parse(text: str | int | float) -> Expr:
    """Parse ``text`` (a number stands for itself). Raises ``ExprError`` naming the part that is outside the grammar."""
    return _parse(str(text))


@functools.cache  # a hundred candidates share most of their arguments
def _parse(source: str) -> Expr:
    try:
        tree = ast.parse(source.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        raise ExprError(f"found {source!r}, which does not parse ({e})") from None
    _check(tree, source)
    return Expr(ast.unparse(tree), tree)


def _field(node: ast.Attribute) -> str | None:
    ok = node.attr == "dtype" or (len(node.attr) == 2 and node.attr[0] in "sd" and node.attr[1].isdigit())
    return f"{node.value.id}.{node.attr}" if ok and isinstance(node.value, ast.Name) else None


def _check(node: ast.expr, source: str) -> None:
    def refuse(what: str) -> ExprError:
        return ExprError(f"found {what} in {source!r}; wanted the grammar at the head of aot/expr.py")

    match node:
        case ast.Constant(value=v):
            if isinstance(v, bool) or not isinstance(v, int | float | str):
                raise refuse(f"constant {v!r}")
            if isinstance(v, int):
                _int(v)
            elif isinstance(v, float) and v - v != 0:
                raise refuse(f"constant {v!r}")
            elif isinstance(v, str) and not (v.isascii() and v.replace("_", "a").isalnum()):
                raise refuse(f"string {v!r}")
        case ast.Name():
            pass
        case ast.Attribute() if _field(node) is not None:
            pass
        case ast.Call(func=ast.Name(id=f), args=args, keywords=[]) if f in FUNCTIONS:
            arity = FUNCTIONS[f]
            if (arity is not None and len(args) != arity) or (arity is None and len(args) < 2):
                raise refuse(f"{f}() with {len(args)} arguments")
            if f == "has" and not isinstance(args[0], ast.Name):
                raise refuse("has() of something that is not a parameter name")
            for a in args:
                _check(a, source)
        case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=a):
            _check(a, source)
        case ast.BinOp(left=a, op=op, right=b) if type(op) in _BINARY:
            _check(a, source)
            _check(b, source)
        case ast.Compare(left=a, ops=[ast.In()], comparators=[ast.Tuple(elts=elts)]) if elts:
            for e in (a, *elts):
                _check(e, source)
        case ast.Compare(left=a, ops=[op], comparators=[b]) if type(op) in _COMPARE:
            _check(a, source)
            _check(b, source)
        case ast.BoolOp(values=terms):
            for term in terms:
                _check(term, source)
        case ast.IfExp(test=c, body=a, orelse=b):
            for e in (c, a, b):
                _check(e, source)
        case _:
            raise refuse(ast.unparse(node))


def _names(node: ast.expr) -> Iterator[str]:
    match node:
        case ast.Name(id=name):
            yield name
        case ast.Attribute():
            yield str(_field(node))
        case ast.Call(func=ast.Name(id="has"), args=[ast.Name(id=name)]):
            yield f"has({name})"
        case ast.Call(args=args):
            for a in args:
                yield from _names(a)
        case _:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr):
                    yield from _names(child)


def _lookup(name: str, env: Mapping[str, Value]) -> Value:
    try:
        v = env[name]
    except KeyError:
        raise ExprError(f"unknown name {name!r}") from None
    return int(v) if isinstance(v, bool) else v


def _evaluate(node: ast.expr, env: Mapping[str, Value]) -> Value:
    def ev(n: ast.expr) -> Value:
        return _evaluate(n, env)

    match node:
        case ast.Constant(value=v):
            assert isinstance(v, int | float | str)
            return v
        case ast.Name(id=name):
            return _lookup(name, env)
        case ast.Attribute():
            return _lookup(str(_field(node)), env)
        case ast.Call(func=ast.Name(id="has"), args=[ast.Name(id=name)]):
            return _lookup(f"has({name})", env)
        case ast.Call(func=ast.Name(id=f), args=args):
            values = [ev(a) for a in args]
            if f == "cdiv":
                return _cdiv(values[0], values[1])
            if f == "pow2":
                return _pow2(values[0])
            if f == "float":
                return float(_numbers(values[0], 0.0)[0])
            result = values[0]
            _numbers(result, result)
            for v in values[1:]:
                a, b = _numbers(result, v)
                result = (b if b < a else a) if f == "min" else (b if b > a else a)
            return result
        case ast.UnaryOp(op=ast.Not(), operand=a):
            return int(not _truth(ev(a)))
        case ast.UnaryOp(operand=a):
            return _arith(lambda x, y: y - x)(ev(a), 0)
        case ast.BinOp(left=a, op=op, right=b):
            return _BINARY[type(op)](ev(a), ev(b))
        case ast.Compare(left=a, ops=[ast.In()], comparators=[ast.Tuple(elts=elts)]):
            left = ev(a)
            results = [_compare(ast.Eq, left, ev(e)) for e in elts]  # all of them: an error in any is an error
            return int(any(results))
        case ast.Compare(left=a, ops=[op], comparators=[b]):
            return _compare(type(op), ev(a), ev(b))
        case ast.BoolOp(op=word, values=terms):
            stop = isinstance(word, ast.Or)
            for term in terms:
                if _truth(ev(term)) == stop:
                    return int(stop)
            return int(not stop)
        case ast.IfExp(test=c, body=a, orelse=b):
            return ev(a) if _truth(ev(c)) else ev(b)
    raise ExprError(f"found {ast.unparse(node)}, which is outside the grammar")
