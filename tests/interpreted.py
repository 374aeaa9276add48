"""Runs declared ops on the CPU: the declaration is executed as the runtime would, its Triton kernels by Triton's interpreter.

Needs TRITON_INTERPRET=1 before the first import of triton. The interpreter's float conversions are replaced: its own round ties
away from zero, truncate float32 to bfloat16 and overflow FP8 mantissas, while the hardware rounds to nearest even; torch does too.
Its dot is replaced as well: it takes bfloat16 for integers. Inline PTX it cannot run at all; the one form that kernels use, two
bytes chosen and widened, is carried out here.
"""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

from aot import registry
from aot.compilers.triton import load
from aot.expr import Value, parse
from aot.spec import Op, Scalar, Tensor, symbols
from aot.targets import TARGETS

TORCH = {
    tl.float32: torch.float32,
    tl.float16: torch.float16,
    tl.bfloat16: torch.bfloat16,
    tl.float8e4nv: torch.float8_e4m3fn,
    tl.float8e4b8: torch.float8_e4m3fnuz,
}
NAMES = {
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.int32: "i32",
    torch.uint8: "u8",
    torch.float8_e4m3fn: "e4m3fn",
    torch.float8_e4m3fnuz: "e4m3fnuz",
}


def _convert(values: np.ndarray, source: tl.dtype, to: tl.dtype, rounding: object = None) -> np.ndarray:
    """Round-to-nearest-even conversion, on the bits as the interpreter keeps them."""
    bits = {1: (np.uint8, torch.uint8), 2: (np.int16, torch.int16), 4: (np.int32, torch.int32)}
    size_in, size_out = source.primitive_bitwidth // 8, to.primitive_bitwidth // 8
    raw = np.frombuffer(values.tobytes(), bits[size_in][0]).copy()
    x = torch.from_numpy(raw).view(TORCH[source]).to(TORCH[to])
    return x.view(bits[size_out][1]).numpy().view(f"u{size_out}").reshape(values.shape)


WIDEN = re.compile(r"prmt\.b32 chosen, \$1, 0, 0x44(\d)(\d);.*cvt\.rn\.f16x2\.e4m3x2 \$0, two;", re.S)


class _Results:
    def __init__(self, *handles: Any) -> None:
        self.get_result = handles.__getitem__


def _inline_asm(self: Any, asm: str, constraints: str, values: Any, types: Any, pure: bool, pack: int) -> _Results:
    """Two e4m3 bytes of each 32-bit word, that is of two 16-bit elements, as two float16 elements."""
    found = WIDEN.search(asm)
    assert found and (constraints, pack, len(values)) == ("=r,r", 2, 1), asm
    words = values[0].data.reshape(-1, 2).view(np.uint8)
    chosen = np.ascontiguousarray(words[:, [int(found[2]), int(found[1])]])
    halves = _convert(chosen, tl.float8e4nv, tl.float16).view(np.float16)
    return _Results(interpreter.TensorHandle(halves.reshape(values[0].data.shape), tl.float16))


def _dot(self: Any, a: Any, b: Any, d: Any, precision: Any, imprecise: Any) -> Any:
    """Products of narrow floats in float32, where they are exact; the interpreter multiplies the bits of bfloat16 as integers."""
    x, y = (_convert(v.data, v.dtype.scalar, tl.float32).view(np.float32) for v in (a, b))
    return interpreter.TensorHandle(np.matmul(x, y) + d.data, d.dtype.scalar)


interpreter._convert_float = _convert
interpreter.InterpreterBuilder.create_dot = _dot
interpreter.InterpreterBuilder.create_inline_asm = _inline_asm


def bind(op: Op, given: dict[str, Any]) -> dict[str, Value]:
    """Every name that expressions may read, from the arguments of a call."""
    env: dict[str, Value] = {"sm_count": 132, "shared_memory": 232448, **dict.fromkeys(symbols(op), 0)}
    bound: set[str] = set()
    for t in op.tensors.values():
        x = given.get(t.name)
        env[f"has({t.name})"] = int(x is not None)
        env[f"{t.name}.dtype"] = "" if x is None else NAMES[x.dtype]
        for i, word in enumerate(t.dims):
            env[f"{t.name}.d{i}"] = 0 if x is None else x.shape[i]
            env[f"{t.name}.s{i}"] = 0 if x is None or x.shape[i] < 2 else x.stride(i)
            if x is not None and not t.output and word.isidentifier() and word not in bound:
                bound.add(word)
                env[word] = x.shape[i]
    for s in op.scalars.values():
        env[s.name] = given[s.name] if s.name in given else parse(s.default if s.default is not None else "0")(env)
    return env


def check(op: Op, given: dict[str, Any], env: dict[str, Value]) -> None:
    """The runtime's checks of shapes, layouts and rules."""
    for t in op.tensors.values():
        x = given.get(t.name)
        if x is None:
            assert t.optional, t.name
            continue
        for i, word in enumerate(t.dims):
            wanted = parse(word.removeprefix(">="))(env)
            assert x.shape[i] >= wanted if word.startswith(">=") else x.shape[i] == wanted, (t.name, word, tuple(x.shape))
        assert x.numel() == 0 or x.data_ptr() % t.align == 0, t.name
        if t.layout == "rows" and x.numel():
            assert x.shape[-1] < 2 or x.stride(-1) == 1, t.name
    for rule in op.rules:
        assert parse(rule.check)(env), rule


def _pointer(x: torch.Tensor, offset: int) -> torch.Tensor:
    return x if not offset else torch.as_strided(x, (1,), (1,), x.storage_offset() + offset // x.element_size())


def call(name: str, target: str = "sm90", **given: Any) -> str:
    """Run op ``name`` on CPU tensors with the first Triton candidate of ``target`` that serves the call; returns its name.

    None stands for an absent optional.
    """
    op_ = op(name)
    given = {k: v for k, v in given.items() if v is not None}
    assert {p.name for p in op_.params if not (isinstance(p, Tensor) and p.optional) and not isinstance(p, Scalar)} <= set(given)
    env = bind(op_, given)
    check(op_, given, env)
    for c in op_.candidates_for(TARGETS[target]):
        if c.launches[0].kernel.language == "triton" and parse(c.when)(env):
            break
    else:
        raise AssertionError(f"no Triton candidate of {op_.name} for {target} serves the call")
    if scratch := int(parse(c.workspace)(env)):
        given["workspace"] = torch.full((scratch,), 0xFF, dtype=torch.uint8)  # NaN in every float type
    for launch in c.launches:
        kernel = launch.kernel
        module = load(registry.KERNELS / op_.name / kernel.source, registry.KERNELS / "include")
        grid = tuple(int(parse(g)(env)) for g in launch.grid)
        args = []
        for a in kernel.args:
            if a.type == "ptr" and given.get(a.value) is not None:
                args.append(_pointer(given[a.value], int(parse(a.offset)(env))))
            elif a.type in ("ptr", "null"):
                args.append(torch.empty(0, dtype=torch.float32 if a.name.endswith("scale") else torch.int32))
            else:
                args.append(parse(a.value)(env))
        if all(grid):
            getattr(module, kernel.entry)[grid](*args, **kernel.constants)
    return c.name


def op(name: str) -> Op:
    """The declaration of ``name``."""
    found = registry.load(registry.KERNELS / name / "op.py").OP
    assert isinstance(found, Op)
    return found


def reference(name: str) -> ModuleType:
    """The oracle of op ``name``."""
    return registry.load(registry.KERNELS / name / "reference.py")
