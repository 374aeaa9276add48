"""What an op is: the one declaration from which code objects, manifest, checks, docs and bindings follow.

An ``Op`` has parameters (tensors with named dimensions, scalars, outputs), rules, and candidates in order of preference. A
candidate is a guard and the launches that serve the call; a launch is a kernel (one source with its compile-time constants),
a grid and the arguments, all written as expressions (``aot/expr.py``) over the call.

Three habits keep declarations short:

* a dimension symbol is bound by its first appearance in a shape and checked at every other one;
* what the compiler is promised (``multiple`` of an argument) becomes a guard of the candidate by itself;
* variants are Python comprehensions, so there is no second list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from keyword import iskeyword
from typing import Literal, get_args

from aot.expr import Expr, ExprError, parse
from aot.targets import TARGETS, Target

DTYPES = {"bf16": 2, "f16": 2, "f32": 4, "i32": 4, "i64": 8, "u8": 1, "e4m3fn": 1, "e4m3fnuz": 1}
"""Element types and their sizes in bytes. In declarations ``fp8`` stands for the e4m3 flavour of the target."""

Layout = Literal["contiguous", "rows", "any"]
Language = Literal["triton", "tilelang", "cuda", "hip"]


class SpecError(ValueError):
    """A declaration that contradicts itself."""


@dataclass(frozen=True)
class Tensor:
    """A tensor parameter.

    ``shape`` is written as words, ``"T H D"``: symbols, numbers or expressions without blanks (``"N+pad_rows 512"``). On an
    output ``>=T`` accepts more and only the first T are written. ``dtype`` may list alternatives, ``"bf16|fp8"``.
    ``layout``: ``rows`` wants a unit last stride and leaves the others free, ``contiguous`` and ``any`` say themselves.
    ``align`` in bytes holds for the base address and, with ``rows``, for every stride but the last one.
    ``output`` marks what the op writes. ``optional`` inputs may be None; an optional output is written only when asked for.
    """

    name: str
    dtype: str
    shape: str
    doc: str
    optional: bool = False
    output: bool = False
    layout: Layout = "rows"
    align: int = 16

    def dtypes(self, target: Target) -> list[str]:
        return [target.fp8 if d == "fp8" else d for d in self.dtype.split("|")]

    @property
    def dims(self) -> list[str]:
        return self.shape.split()


@dataclass(frozen=True)
class Scalar:
    """A scalar parameter. ``dtype`` is ``f32``, ``i32``, ``i64`` or ``choice``; a choice is one of ``choices``, a word.

    ``default`` is an expression over the call; without one the scalar is required.
    """

    name: str
    dtype: Literal["f32", "i32", "i64", "choice"]
    doc: str
    default: str | int | float | None = None
    choices: tuple[str, ...] = ()


Param = Tensor | Scalar


@dataclass(frozen=True)
class Rule:
    """A condition on the call: ``check`` must be true; the error says the values found, then ``wanted`` and ``fix``."""

    check: str
    wanted: str
    fix: str


@dataclass(frozen=True)
class Arg:
    """One launch argument: ``type`` is ``ptr`` (``value`` names a tensor; absent optionals pass null), ``map``, ``null`` or a scalar
    type.

    ``map`` is a CUDA tensor map of tensor ``value``, 128 bytes by value, whose rows are lines of 128 bytes: a tensor copy moves a
    ``box`` of so many lines (0: all) of each of so many neighbouring rows, with the 128-byte swizzle in shared memory. Of rows that are
    not there it brings zeros. ``offset`` moves a pointer by so many bytes. ``multiple`` promises the compiler that the value is a
    multiple of it, and ``dtype`` which of a tensor's element types it points to; both become guards.
    """

    name: str
    type: Literal["ptr", "map", "null", "i32", "i64", "f32"]
    value: str = ""
    offset: str = "0"
    multiple: int = 1
    dtype: str = ""
    box: tuple[int, int] = (0, 1)


def ptr(name: str, of: str | None = None, offset: str | int = 0, dtype: str = "") -> Arg:
    """The address of tensor ``of`` (default: of the same name) plus ``offset`` bytes.

    ``dtype`` must be given where the tensor takes several; elsewhere it is the tensor's own.
    """
    return Arg(name, "ptr", of or name, str(offset), dtype=dtype)


def rows(name: str, of: str | None = None, dtype: str = "") -> Arg:
    """A tensor map of tensor ``of`` (default: of the same name) whose boxes are whole rows. ``dtype`` as for ``ptr``."""
    return Arg(name, "map", of or name, dtype=dtype)


def boxes(name: str, rows: int, of: str | None = None, dtype: str = "") -> Arg:
    """A tensor map whose boxes are one line of each of ``rows`` rows. What a row has beyond its last whole line is not in the map."""
    return Arg(name, "map", of or name, dtype=dtype, box=(1, rows))


def null(name: str) -> Arg:
    """A null pointer."""
    return Arg(name, "null")


def i32(name: str, value: str | int | None = None, multiple: int = 1) -> Arg:
    """A 32-bit integer; the value (default: the expression ``name``) must fit, or the launch is refused."""
    return Arg(name, "i32", str(name if value is None else value), multiple=multiple)


def i64(name: str, value: str | int | None = None, multiple: int = 1) -> Arg:
    """A 64-bit integer."""
    return Arg(name, "i64", str(name if value is None else value), multiple=multiple)


def f32(name: str, value: str | float | None = None) -> Arg:
    """A 32-bit float."""
    return Arg(name, "f32", str(name if value is None else value))


@dataclass(frozen=True)
class Kernel:
    """One source with one set of compile-time constants.

    ``source`` is a file in the op's folder, ``entry`` the function in it (for CUDA and HIP the extern "C" symbol).
    ``constants`` are constexpr arguments (Triton), factory arguments (TileLang) or macros (CUDA, HIP).
    ``options``: ``num_warps``, ``num_stages``, ``waves_per_eu``, ... for Triton; ``threads`` and ``shared`` (bytes of dynamic
    shared memory) for CUDA and HIP, whose compilers cannot know them. ``promises`` are regular expressions that the
    disassembly must contain.
    """

    language: Language
    source: str
    entry: str
    args: tuple[Arg, ...]
    constants: Mapping[str, int | float | bool | str] = field(default_factory=dict)
    options: Mapping[str, int | float | bool | str] = field(default_factory=dict)
    promises: tuple[str, ...] = ()

    def __hash__(self) -> int:
        return hash(self.identity)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Kernel) and self.identity == other.identity

    @property
    def name(self) -> str:
        """Readable and unique within an op: entry, constants and options."""
        words = [f"{k}={v}" for k, v in (*sorted(self.constants.items()), *sorted(self.options.items()))]
        return self.entry + (f"[{','.join(words)}]" if words else "")

    @property
    def identity(self) -> tuple[object, ...]:
        return (self.language, self.source, self.name, tuple((a.name, a.type, a.multiple, a.dtype) for a in self.args))


@dataclass(frozen=True)
class Launch:
    """A kernel over a grid of blocks (three expressions)."""

    kernel: Kernel
    grid: tuple[str | int, str | int, str | int]
    cluster: tuple[int, int, int] = (1, 1, 1)


@dataclass(frozen=True)
class Candidate:
    """One way to serve a call on some targets: ``when`` must hold; the first candidate that holds is taken.

    ``workspace`` is the number of scratch bytes that the launches share, addressed as tensor ``workspace``.
    """

    name: str
    targets: tuple[str, ...]
    when: str
    launches: tuple[Launch, ...]
    workspace: str = "0"


@dataclass(frozen=True)
class Op:
    """A user-level operation. ``holes`` lists targets that it does not serve, each with the reason.

    ``tuned`` are candidates once more, narrowed to calls for which they were measured to be the fastest: they go before all others
    (``aot/tuning.py``).
    """

    name: str
    doc: str
    params: tuple[Param, ...]
    candidates: tuple[Candidate, ...]
    rules: tuple[Rule, ...] = ()
    holes: Mapping[str, str] = field(default_factory=dict)
    tuned: tuple[Candidate, ...] = ()

    def __post_init__(self) -> None:
        check_op(self)

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        return {p.name: p for p in self.params if isinstance(p, Tensor)}

    @cached_property
    def scalars(self) -> dict[str, Scalar]:
        return {p.name: p for p in self.params if isinstance(p, Scalar)}

    def candidates_for(self, target: Target) -> list[Candidate]:
        """Candidates on ``target`` in order of preference, the promises of their arguments added to their guards."""
        return [self._guarded(c, target) for c in (*self.tuned, *self.candidates) if target.name in c.targets]

    def _guarded(self, c: Candidate, target: Target) -> Candidate:
        promised: dict[str, None] = {}
        for a in (a for x in c.launches for a in x.kernel.args):
            if a.multiple > 1:
                promised[f"({a.value}) % {a.multiple} == 0"] = None
            if a.type == "map":
                last = len(self.tensors[a.value].dims) - 1
                lines = "% 128 == 0" if a.box[0] == 0 else f">= {128 * a.box[0]}"
                promised[f"{a.value}.d{last} * {DTYPES[self.pointer_dtype(a, target)]} {lines}"] = None
            if a.dtype:
                promised[f"{a.value}.dtype == '{self.pointer_dtype(a, target)}'"] = None
        return replace(c, when=" and ".join((f"({c.when})", *promised)) if promised else c.when)

    def pointer_dtype(self, arg: Arg, target: Target) -> str:
        """Element type behind a pointer argument on ``target``; ``u8`` for workspace."""
        if arg.value == "workspace":
            return "u8"
        return (target.fp8 if arg.dtype == "fp8" else arg.dtype) or self.tensors[arg.value].dtypes(target)[0]

    def kernels_for(self, target: Target) -> list[Kernel]:
        """Every kernel of the op on ``target``, each once, in the order of first use, which tuning leaves as it is."""
        return list(dict.fromkeys(x.kernel for c in self.candidates if target.name in c.targets for x in c.launches))


def symbols(op: Op) -> list[str]:
    """Dimension symbols in the order in which they are bound (a plain name as a whole shape word of an input)."""
    return list(dict.fromkeys(d for t in op.tensors.values() if not t.output for d in t.dims if d.isidentifier()))


def variables(op: Op) -> set[str]:
    """Every name that expressions of ``op`` may read."""
    names = {*symbols(op), *op.scalars, "sm_count", "shared_memory"}
    for t in op.tensors.values():
        rank = len(t.dims)
        names |= {f"{t.name}.dtype", f"has({t.name})"}
        names |= {f"{t.name}.{kind}{i}" for kind in "sd" for i in range(rank)}
    return names


def check_op(op: Op) -> None:
    """Raise ``SpecError`` when the declaration contradicts itself: unknown names, dtypes, targets, or a repeated name."""

    def fail(what: str) -> SpecError:
        return SpecError(f"op {op.name}: {what}")

    names = [p.name for p in op.params]
    if len(set(names)) != len(names):
        raise fail("a parameter name appears twice")
    known = variables(op)
    taken = {*symbols(op), "stream", "workspace", "sm_count", "shared_memory"}
    if bad := [n for n in names if not n.isidentifier() or iskeyword(n) or n in taken]:
        raise fail(f"parameters {bad}: wanted Python names that are no symbol and not stream, workspace, sm_count or shared_memory")

    def expr(text: str | int | float, where: str) -> Expr:
        try:
            e = parse(text)
        except ExprError as error:
            raise fail(f"{where}: {error}") from None
        if unknown := e.names - known:
            raise fail(f"{where}: {text!r} reads {sorted(unknown)}; known are {sorted(known)}")
        return e

    for t in op.tensors.values():
        if t.layout not in get_args(Layout) or t.align < 1 or t.align & (t.align - 1):
            raise fail(f"{t.name}: found layout {t.layout!r}, align {t.align}; wanted one of {get_args(Layout)} and a power of two")
        for d in t.dtype.split("|"):
            if d != "fp8" and d not in DTYPES:
                raise fail(f"{t.name} has dtype {d!r}; wanted fp8 or one of {sorted(DTYPES)}")
        for d in t.dims:
            if d.startswith(">=") and not t.output:
                raise fail(f"{t.name}: {d!r} is for outputs only")
            expr(d.removeprefix(">="), f"shape of {t.name}")
    for s in op.scalars.values():
        if s.dtype not in ("f32", "i32", "i64", "choice"):
            raise fail(f"scalar {s.name} has dtype {s.dtype!r}; wanted f32, i32, i64 or choice")
        if (s.dtype == "choice") != bool(s.choices):
            raise fail(f"scalar {s.name}: choices go with dtype choice")
        if s.default is not None:
            expr(s.default, f"default of {s.name}")
    for r in op.rules:
        expr(r.check, "rule")
    every = (*op.tuned, *op.candidates)
    if len({c.name for c in every}) != len(every):
        raise fail("a candidate name appears twice")
    for c in every:
        _check_candidate(op, c, expr, fail)
    for name in TARGETS:
        served = any(name in c.targets for c in op.candidates)
        if served == (name in op.holes):
            raise fail(f"{name}: wanted either a candidate or a hole with its reason, found {'both' if served else 'none'}")


def _check_candidate(op: Op, c: Candidate, expr: Callable[[str | int | float, str], Expr], fail: Callable[[str], SpecError]) -> None:
    where = f"candidate {c.name}"
    for x in c.launches:
        if x.kernel.language not in get_args(Language):
            raise fail(f"{where}: unknown language {x.kernel.language!r}; known are {list(get_args(Language))}")
        if len(x.grid) != 3 or len(x.cluster) != 3 or min(x.cluster) < 1:
            raise fail(f"{where}: found the grid {x.grid} and the cluster {x.cluster}; wanted three sizes each, positive ones")
    if bad := [t for t in c.targets if t not in TARGETS]:
        raise fail(f"{where}: unknown targets {bad}; known are {list(TARGETS)}")
    if not c.launches:
        raise fail(f"{where}: found no launches; wanted at least one")
    expr(c.when, f"{where}, when")
    expr(c.workspace, f"{where}, workspace")
    for x in c.launches:
        for g in x.grid:
            expr(g, f"{where}, grid")
        for a in x.kernel.args:
            if a.type in ("ptr", "map") and a.value != "workspace":
                if a.value not in op.tensors:
                    raise fail(f"{where}: argument {a.name} points to {a.value!r}, which is no tensor of the op")
                dtypes = op.tensors[a.value].dtype.split("|")
                if a.dtype not in (dtypes if len(dtypes) > 1 else [""]):
                    raise fail(f"{where}: argument {a.name} needs dtype exactly when {a.value} takes several ({'|'.join(dtypes)})")
            if a.type == "ptr":
                expr(a.offset, f"{where}, offset of {a.name}")
            elif a.type == "map":
                t = op.tensors.get(a.value)
                if t is None or len(t.dims) not in (2, 3) or t.optional or t.layout != "rows" or t.align % 16:
                    raise fail(
                        f"{where}: argument {a.name} needs a required tensor of two or three dimensions, layout rows, aligned to 16 bytes"
                    )
                if not (0 <= a.box[0] <= 256 and 1 <= a.box[1] <= 256):
                    raise fail(f"{where}: argument {a.name} has boxes of {a.box}; wanted at most 256 lines of 1 to 256 rows")
                if any(TARGETS[name].vendor != "nvidia" for name in c.targets if name in TARGETS):
                    raise fail(f"{where}: argument {a.name} is a tensor map, which only CUDA has")
            elif a.type != "null":
                expr(a.value, f"{where}, argument {a.name}")
