"""``import dsa_kernels.torch`` registers every op with torch, for ``torch.compile``, ``torch.export`` and CUDA graphs.

``torch.ops.dsa_kernels.<op>(inputs...)`` returns every output, the optional ones included; ``torch.ops.dsa_kernels.<op>_out(inputs...,
*, out=...)`` writes into the tensors given and returns nothing. Schemas and fake kernels follow from the declarations.

Plain ``torch.library.Library`` registrations on the device key: the wrappers around ``custom_op`` cost several microseconds a
call. Inference only: no gradient is defined, and inputs that require one are detached.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

from . import _docs, _packs
from ._core import Op
from .errors import ArgumentError

DTYPES = {
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f32": torch.float32,
    "i32": torch.int32,
    "i64": torch.int64,
    "u8": torch.uint8,
    "e4m3fn": torch.float8_e4m3fn,
    "e4m3fnuz": torch.float8_e4m3fnuz,
}
_TYPES = {"f32": "float", "i32": "SymInt", "i64": "SymInt", "choice": "str"}
_DISPATCH_KEYS = ("CUDA", "CPU")  # ROCm builds of torch use the key CUDA; on the CPU the op itself says what is wrong

Parameter = dict[str, Any]


# ---- schemas ------------------------------------------------------------------------------------------------------------------


def _argument(p: Parameter, default: bool) -> str:
    base = "Tensor" if p["kind"] == "tensor" else _TYPES[p["dtype"]]
    if _docs.is_required(p):
        return f"{base} {p['name']}"
    return f"{base}? {p['name']}" + ("=None" if default else "")


def _inputs(params: Sequence[Parameter]) -> list[str]:
    inputs = [p for p in params if not _docs.is_output(p)]
    last = max((i for i, p in enumerate(inputs) if _docs.is_required(p)), default=-1)
    return [_argument(p, i > last) for i, p in enumerate(inputs)]


def functional_schema(name: str, params: Sequence[Parameter]) -> str:
    """Returns every output, the optional ones included."""
    count = sum(_docs.is_output(p) for p in params)
    returns = "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"
    return f"{name}({', '.join(_inputs(params))}) -> {returns}"


def out_schema(name: str, params: Sequence[Parameter]) -> str:
    """Writes into the outputs given; optional ones may be left out."""
    outputs = [p for p in params if _docs.is_output(p)]
    words = []
    for i, p in enumerate(outputs):
        alias = chr(ord("a") + i)
        words.append(f"Tensor({alias}!)? {p['name']}=None" if p["optional"] else f"Tensor({alias}!) {p['name']}")
    return f"{name}_out({', '.join([*_inputs(params), '*', *words])}) -> ()"


# ---- fake kernels -------------------------------------------------------------------------------------------------------------


def _cdiv(a: Any, b: Any) -> Any:
    return -(-a // b)


def _pow2(a: Any) -> Any:
    n = int(a)
    return 1 << (n - 1).bit_length() if n > 1 else 1


def _min(*values: Any) -> Any:
    return functools.reduce(torch.sym_min, values)


def _max(*values: Any) -> Any:
    return functools.reduce(torch.sym_max, values)


def _has(fields: _Fields) -> int:
    return int(fields.tensor is not None)


# The functions of the expression grammar, which is a subset of Python checked when the pack was built; here over SymInts.
_FUNCTIONS: dict[str, Any] = {
    "__builtins__": {},
    "has": _has,
    "cdiv": _cdiv,
    "pow2": _pow2,
    "min": _min,
    "max": _max,
    "float": torch.sym_float,
}


class _Fields:
    """What expressions read of a tensor: ``q.d0``, ``q.s0``, ``q.dtype``. An absent tensor reads as 0."""

    def __init__(self, tensor: torch.Tensor | None) -> None:
        self.tensor = tensor

    def __getattr__(self, name: str) -> Any:
        t = self.tensor
        if t is None:
            return "" if name == "dtype" else 0
        if name == "dtype":
            return next((n for n, d in DTYPES.items() if d == t.dtype), "")
        return t.shape[int(name[1:])] if name[0] == "d" else t.stride(int(name[1:]))


class Shapes:
    """Shapes and dtypes of an op's outputs, from its inputs."""

    def __init__(self, name: str, params: Sequence[Parameter], dtype_of: Callable[[Parameter, torch.device], str]) -> None:
        self.name = name
        self.inputs = [p for p in params if not _docs.is_output(p)]
        self.outputs = [p for p in params if _docs.is_output(p)]
        self.dtype_of = dtype_of
        self._shapes = [[compile(word, f"<shape of {p['name']}>", "eval") for word in p["shape"]] for p in self.outputs]
        self._defaults = {
            p["name"]: compile(str(p["default"]), f"<default of {p['name']}>", "eval")
            for p in self.inputs
            if p["kind"] == "scalar" and p["default"] is not None and p["dtype"] != "choice"
        }

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """The fake kernel: empty outputs of the right shapes."""
        values = {**dict(zip((p["name"] for p in self.inputs), args, strict=False)), **kwargs}
        env = self._environment(values)
        device = next(v.device for v in values.values() if isinstance(v, torch.Tensor))
        made = [
            torch.empty([eval(word, env) for word in words], dtype=DTYPES[self.dtype_of(p, device)], device=device)
            for p, words in zip(self.outputs, self._shapes, strict=True)
        ]
        return made[0] if len(made) == 1 else tuple(made)

    def _environment(self, values: dict[str, Any]) -> dict[str, Any]:
        """Names that shape expressions may read, for these input values."""
        env = dict(_FUNCTIONS)
        absent: list[str] = []
        for p in self.inputs:
            value = values.get(p["name"])
            if p["kind"] == "scalar":
                env[p["name"]] = value
                continue
            env[p["name"]] = _Fields(value)
            symbols = [(i, word) for i, word in enumerate(p["shape"]) if word.isidentifier()]
            if value is None:
                absent += [word for _, word in symbols]
                continue
            self._check_rank(p, value)
            for i, word in symbols:
                env.setdefault(word, value.shape[i])
        for word in absent:
            env.setdefault(word, 0)
        for name, code in self._defaults.items():
            if env[name] is None:
                env[name] = eval(code, env)
        return env

    def _check_rank(self, p: Parameter, value: torch.Tensor) -> None:
        if value.dim() != len(p["shape"]):
            raise ArgumentError(f"{self.name}: found {p['name']} with {value.dim()} dimensions; wanted {_docs.shape_text(p)}; reshape it")


class _Dtypes:
    """The element type that an output has on a device: FP8 flavours differ between targets."""

    def __init__(self, info: dict[str, Any], name: str) -> None:
        targets = next(op["targets"] for op in info["ops"] if op["name"] == name)
        self._name = name
        self._packs = [p for p in info["packs"] if p["target"] in targets]
        self._found: dict[str, dict[str, str]] = {}

    def __call__(self, output: Parameter, device: torch.device) -> str:
        pack = self._pack(device)
        if pack["target"] not in self._found:
            with open(os.path.join(pack["directory"], "manifest.json"), encoding="utf-8") as file:
                op = next(op for op in json.load(file)["ops"] if op["name"] == self._name)
            self._found[pack["target"]] = {p["name"]: p["dtypes"][0] for p in op["params"] if _docs.is_output(p)}
        return self._found[pack["target"]][output["name"]]

    def _pack(self, device: torch.device) -> dict[str, Any]:
        vendor = "amd" if torch.version.hip else "nvidia"
        packs: list[dict[str, Any]] = [p for p in self._packs if p["vendor"] == vendor] or self._packs
        if len(packs) > 1 and device.type == "cuda" and torch.cuda.is_available():
            properties = torch.cuda.get_device_properties(device)
            name = properties.gcnArchName.split(":")[0] if torch.version.hip else f"sm{properties.major}{properties.minor}"
            packs = [p for p in packs if p["target"] == name] or packs
        return packs[0]


# ---- registration -------------------------------------------------------------------------------------------------------------


def register(packs: _packs.Packs, namespace: str = "dsa_kernels") -> torch.library.Library:
    """Register every op of ``packs`` under ``torch.ops.<namespace>``. The registrations last as long as the library returned."""
    library = torch.library.Library(namespace, "FRAGMENT")
    info = packs.info()
    for name in packs.ops():
        _register(library, packs.op(name), name, info)
    return library


def _register(library: torch.library.Library, op: Op, name: str, info: dict[str, Any]) -> None:
    params = _docs.parameters(op)
    # Layouts are part of the contract: a compiler must not change the strides that it saw.
    strides = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)
    tags = (strides, torch.Tag.pt2_compliant_tag)
    for key, schema, kernel, fake in (
        (name, functional_schema(name, params), op.functional(), Shapes(name, params, _Dtypes(info, name))),
        (f"{name}_out", out_schema(name, params), op.writing(), _nothing),
    ):
        library.define(schema, tags=tags)
        for dispatch_key in _DISPATCH_KEYS:
            library.impl(key, kernel, dispatch_key)
        # No gradient is defined; without this line the default autograd kernel costs 1.5 us a call to say so.
        library.impl(key, torch.library.fallthrough_kernel, "Autograd")
        torch.library.register_fake(f"{library.ns}::{key}", fake, lib=library)


def _nothing(*_: object, **__: object) -> None:
    """The fake kernel of an op that only writes."""


LIBRARY = register(_packs.default_packs())
