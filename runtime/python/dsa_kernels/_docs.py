"""Help text and signatures of ops, written from their declarations when somebody asks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import inspect

    from ._core import Op

_NAMES = {
    "bf16": "bfloat16",
    "f16": "float16",
    "f32": "float32",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
    "e4m3fn": "float8_e4m3fn",
    "e4m3fnuz": "float8_e4m3fnuz",
}
_LAYOUTS = {"rows": "last stride 1, other strides free", "contiguous": "contiguous", "any": "any strides"}
_SCALARS = {"f32": "float", "i32": "int", "i64": "int", "choice": "str"}
_ERRORS = (
    ("ArgumentError", "a dtype, rank, size, stride, alignment or rule is broken, or an argument is missing"),
    ("DeviceError", "a tensor is on the CPU, or tensors are on two devices"),
    ("NoPack", "nothing is installed for the device's architecture"),
    ("NoCandidate", "no kernel serves this call; the message lists each with its reason"),
    ("PackError", "an object is missing, cut, altered or of another architecture"),
    ("DriverError", "the driver is missing, too old, or refused the launch"),
)


def parameters(op: Op) -> list[dict[str, Any]]:
    """The parameters as the manifest declares them."""
    found: list[dict[str, Any]] = json.loads(op.declaration)
    return found


def is_output(p: dict[str, Any]) -> bool:
    return bool(p["kind"] == "tensor" and p["output"])


def is_required(p: dict[str, Any]) -> bool:
    """Whether a call must give the parameter: an output never must."""
    if p["kind"] == "scalar":
        return p["default"] is None
    return not (p["optional"] or p["output"])


def shape_text(p: dict[str, Any]) -> str:
    """``[T, H, >=512]``."""
    words = zip(p["shape"], p["at_least"], strict=True)
    return "[" + ", ".join((">=" if at_least else "") + word for word, at_least in words) + "]"


def _with_defaults(params: list[dict[str, Any]]) -> list[tuple[dict[str, Any], bool]]:
    """Each parameter and whether the signature shows a default: Python wants none before a required one."""
    last = max((i for i, p in enumerate(params) if is_required(p)), default=-1)
    return [(p, i > last) for i, p in enumerate(params)]


def text_signature(op: Op) -> str:
    words = [p["name"] + ("=None" if shown else "") for p, shown in _with_defaults(parameters(op))]
    return f"({', '.join([*words, '*', 'stream=None', 'workspace=None'])})"


def signature(op: Op) -> inspect.Signature:
    import inspect

    kinds = inspect.Parameter
    found = [
        kinds(p["name"], kinds.POSITIONAL_OR_KEYWORD, default=None if shown else kinds.empty) for p, shown in _with_defaults(parameters(op))
    ]
    found += [kinds(name, kinds.KEYWORD_ONLY, default=None) for name in ("stream", "workspace")]
    return inspect.Signature(found)


def _describe(p: dict[str, Any]) -> str:
    if p["kind"] == "scalar":
        kind = " | ".join(repr(c) for c in p["choices"]) if p["choices"] else _SCALARS[p["dtype"]]
        return kind + ("" if p["default"] is None else f", default {p['default']}")
    dtypes = " | ".join(_NAMES[d] for d in p["dtypes"])
    words = [f"{dtypes} {shape_text(p)}", _LAYOUTS[p["layout"]]]
    if p["align"] > 1:
        words.append(f"{p['align']}-byte aligned")
    if p["output"]:
        words.append("written only when asked for: True allocates it" if p["optional"] else "allocated when None")
    elif p["optional"]:
        words.append("or None")
    return "; ".join(words)


def _section(title: str, params: list[dict[str, Any]]) -> list[str]:
    lines = [title, "-" * len(title)]
    for p in params:
        lines += [f"{p['name']} : {_describe(p)}", *(f"    {line.strip()}" for line in p["doc"].splitlines() if line.strip())]
    return [*lines, ""]


def op_doc(op: Op) -> str:
    """What the declaration says of the op as a whole."""
    return next((str(entry["doc"]) for entry in json.loads(op.info)["ops"] if entry["name"] == op.__name__), "")


def docstring(op: Op) -> str:
    params = parameters(op)
    head, *rest = op_doc(op).strip().splitlines() or [op.__name__]
    indent = min((len(line) - len(line.lstrip()) for line in rest if line.strip()), default=0)
    lines = [head, *(line[indent:].rstrip() for line in rest), ""]
    lines += _section("Parameters", [p for p in params if not is_output(p)])
    lines += _section("Outputs", [p for p in params if is_output(p)])
    lines += [
        "stream : int, or an object with cuda_stream or __cuda_stream__",
        "    Where to launch; default: the current stream of the tensors' library, or the device's default stream.",
        "workspace : uint8 tensor",
        "    Scratch memory; allocated by the tensors' library when None and needed.",
        "",
        "Returns the output, or a tuple of the outputs present in the order above. Asynchronous.",
        "",
        *("Raises", "------"),
        *(f"{name} : {reason}" for name, reason in _ERRORS),
    ]
    return "\n".join(lines)
