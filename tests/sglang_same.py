"""sglang's own Triton functions and ours on the same inputs, on the CPU: theirs by Triton's interpreter, ours by the references.

python -m tests.sglang_same FOLDER, where FOLDER has sglang and TRITON_INTERPRET=1; prints a JSON object, case by case: same, or what
differs. Values are multiples of 1/4 below 4, which FP8 holds: the interpreter's casts round otherwise.
"""

from __future__ import annotations

import importlib
import json
import sys
import types
from collections.abc import Callable, Iterator

import torch

from dsa_kernels.integrations import sglang as ours
from dsa_kernels.integrations.sglang_plugin import TARGETS
from dsa_kernels.layouts import kv_layout
from tests import serving

FP8 = torch.float8_e4m3fn


def values(*shape: int) -> torch.Tensor:
    return (torch.randint(-15, 16, shape) / 4).bfloat16()


def ints(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def dirty(*shape: int) -> torch.Tensor:
    return torch.full(shape, 0x7F, dtype=torch.uint8).view(FP8)


def cases() -> Iterator[tuple[str, str, Callable[[], tuple[tuple[object, ...], dict[str, object]]]]]:
    """Name of the function, of the case, and arguments; made twice, since some are written to."""
    for rope in (0, 64):
        for heads in (8, 9):  # eight are asked for
            q = values(3, heads, 512 + rope)
            name = f"rope {rope}, {heads} heads"
            yield "concat_and_cast_q_fp8_pad", name, lambda q=q: ((dirty(5, 64, q.shape[2]), q[..., :512], q[..., 512:], 8), {})
        k = values(3, 1, 512 + rope)
        for drop in (False, True):
            rows = k[:, 0] if drop else k
            name = f"rope {rope}, {rows.ndim} dimensions"
            yield "concat_cast_kv_fp8_pad", name, lambda k=rows: ((dirty(7, k.shape[-1]), k[..., :512], k[..., 512:], 3), {})
    parts = {"latent": values(9, 512), "scales": torch.full((9, 4), 0.5), "rope": values(9, 64)}
    pool = kv_layout("pack-656").pack(parts)
    cache, slots = pool.view(FP8)[:, None], ints(2, 2, 8)
    yield "gather_dequant_requant_fp8_paged_dsa", "fresh", lambda: ((cache, slots), {"extra_rows": 4})
    yield "gather_dequant_requant_fp8_paged_dsa", "into", lambda: ((cache, slots), {"extra_rows": 4, "out": dirty(7, 1, 576)})
    chosen = torch.where(torch.rand(6, 256) < 0.3, -1, 1).int()
    chosen[1, 100:], chosen[2] = -1, -1
    yield "q8kv8_topk_length_from_indices", "holes, tails, none", lambda: ((chosen,), {})

    for topk in (3, 2048):
        table = torch.arange(60, dtype=torch.int32).flip(0).view(6, 10)
        positions = torch.randint(-1, 10, (6, topk), dtype=torch.int32)
        yield "transform_index_page_table_decode", f"topk {topk}", lambda t=table, p=positions: ((t, p), {})
        yield "transform_index_page_table_decode", f"topk {topk}, into", lambda t=table, p=positions: ((t, p, torch.full_like(p, 7)), {})
        two = table[:2].contiguous()
        for name, given, lengths, options in (
            ("lengths", two, [4, 2], {}),
            ("fewer tokens than rows", two, [3, 1], {}),
            ("more rows out", two, [3, 1], {"output_num_tokens": 8}),
            ("starts", two, [4, 2], {"cu_seqlens_q": ints(0, 4, 6)}),
            ("starts before lengths", two, [3, 1], {"cu_seqlens_q": ints(0, 4, 6)}),
            ("none", two, [], {"cu_seqlens_q": ints(0, 4, 6)}),
            ("expanded", table, [3, 3], {"page_table_is_expanded": True}),
            ("expanded, fewer tokens", table, [3, 1], {"page_table_is_expanded": True, "output_num_tokens": 9}),
        ):
            yield (
                "transform_index_page_table_prefill",
                f"topk {topk}, {name}",
                lambda t=given, p=positions, n=lengths, o=options: ((t, p, n), o),
            )


def told(function: Callable[..., object], arguments: tuple[tuple[object, ...], dict[str, object]]) -> list[torch.Tensor]:
    """What it returns and what its tensors hold then, as bytes."""
    args, options = arguments
    found = [function(*args, **options), *args, *options.values()]
    return [x.contiguous().view(torch.uint8) for x in found if isinstance(x, torch.Tensor)]


def main(folder: str) -> None:
    torch.manual_seed(1)
    sys.path.append(folder)
    bare = types.ModuleType("sglang")  # its own __init__ imports a server
    bare.__path__ = [f"{folder}/sglang"]
    sys.modules["sglang"] = bare
    ours.ops = serving.reference_ops()
    modules = {target.name: target.module for target in TARGETS}
    report = {}
    for name, case, make in cases():
        theirs = getattr(importlib.import_module(modules[name]), name)
        a, b = told(theirs, make()), told(getattr(ours, name), make())
        same = len(a) == len(b) and all(x.shape == y.shape and torch.equal(x, y) for x, y in zip(a, b, strict=True))
        report[f"{name}: {case}"] = "same" if same else f"{[list(x.shape) for x in a]} {[list(x.shape) for x in b]}"
    print(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1])
