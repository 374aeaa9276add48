"""Kernel rates on this GPU, through the installed wheels: medians of device time, rotating inputs, beside the card's ceilings.

    python benchmarks/rates.py [--only q8,low,tile,triton,decode,split,kpool,helpers] [--json FILE]

TFLOP/s counts 2 * T * H * topk * (D + 512) / time; GB/s counts bytes read plus bytes written. Needs torch for inputs and events.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

import dsa_kernels

sys.path.append(str(Path(__file__).parents[1]))
from aot.trial import alone

FP8 = torch.float8_e4m3fn
SM_SCALE = 0.0625
PAUSE = 0.3  # seconds
Q8_SHAPES = [  # s_kv, H, D, topk, T
    (32768, 128, 576, 2048, 4096),
    (8192, 128, 576, 2048, 4096),
    (65536, 128, 576, 2048, 4096),
    (32768, 64, 576, 2048, 4096),
    (32768, 64, 512, 2176, 4096),
    (8192, 64, 512, 512, 4096),
]
LOW_SHAPES = [(32768, heads, d, topk, 4096) for heads in (8, 16, 32) for d, topk in ((512, 2176), (576, 2048))] + [
    (32768, 16, 512, 2051, 4096),
    (32768, 48, 512, 2176, 4096),
]
LOW_DECODE_SHAPES = [(65536, 8, 512, 2112), (65536, 16, 512, 2112), (65536, 16, 576, 2048), (65536, 32, 512, 2112), (65536, 64, 512, 2112)]
TILE_SHAPES = {  # prefill by the TileLang kernels
    torch.bfloat16: [(32768, heads, 512, 2112, 4096) for heads in (16, 32, 64)]
    + [(32768, heads, 576, 2048, 4096) for heads in (16, 64, 128)],
    FP8: [(32768, heads, 512, 2112, 4096) for heads in (16, 32, 64)] + [(32768, heads, 576, 2048, 4096) for heads in (16, 64)],
}
TILE_DECODE_SHAPES = [(65536, heads, d, topk) for d, topk in ((512, 2112), (576, 2048)) for heads in (16, 64)]
DECODE_SHAPES = [(65536, 16, 512, 2112), (65536, 16, 576, 2048), (65536, 64, 512, 2112), (65536, 64, 576, 2048)]  # s_kv, H, D, topk
SPLIT_SHAPES = [(65536, 16, 512, 2112), *((65536, heads, 576, 2048) for heads in (16, 64, 128))]
KPOOL_SHAPES = [(64, 65536), (1, 65536), (64, 8192), (4096, 8192)]  # rows, pools
TRITON_SHAPES = [(32768, 16, 576, 2048, 4096), (32768, 16, 512, 2176, 4096)]


def medians_us(calls: dict[str, list[Callable[[], object]]], repeats: int = 14) -> dict[str, float]:
    """Median device time in microseconds of each entry's calls, which are taken in turn, so that no input stays in the cache.

    The entries take turns too: a card at its power limit slows down while it is measured, and that must fall on all of them.
    For the same reason a pause comes first: what ran before would else decide the clock.
    Everything is queued before anything is read, so that the time of the host's calls does not show.
    """
    for choices in calls.values():
        for call in choices:
            call()
    torch.cuda.synchronize()
    time.sleep(PAUSE)
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in calls}
    for i in range(repeats):
        for name, choices in calls.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            choices[i % len(choices)]()
            end.record()
            events[name].append((start, end))
    torch.cuda.synchronize()
    return {name: statistics.median(start.elapsed_time(end) * 1e3 for start, end in pairs) for name, pairs in events.items()}


def median_us(calls: list[Callable[[], object]], repeats: int = 14) -> float:
    """``medians_us`` of one entry."""
    return medians_us({"": calls}, repeats)[""]


def graph_us(call: Callable[[], object], launches: int = 20, repeats: int = 15) -> float:
    """Median device time of one call out of a graph of many: short kernels would else be timed with the gaps between launches."""
    dsa_kernels.preload()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(launches):
            call()
    return median_us([graph.replay], repeats) / launches


def attention_inputs(s_kv: int, heads: int, d: int, topk: int, tokens: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    indices = torch.empty(tokens, topk, dtype=torch.int32, device="cuda")
    for t in range(0, tokens, 256):
        rows = min(256, tokens - t)
        indices[t : t + rows] = torch.rand(rows, s_kv, device="cuda").topk(topk, 1).indices.int()
    return {
        "q": (torch.randn(tokens, heads, d, device="cuda") * 0.25).to(dtype),
        "kv": (torch.randn(s_kv, d, device="cuda") * 0.25).to(dtype),
        "indices": indices,
        "out": torch.empty(tokens, heads, 512, dtype=torch.bfloat16, device="cuda"),
    }


def attention(
    shape: tuple[int, int, int, int, int],
    dtype: torch.dtype,
    variants: list[dict[str, dict[str, object]]],
    packs: dsa_kernels.Packs | None = None,
) -> list[dict[str, object]]:
    """Rates of one shape; the variants of a group are interleaved."""
    op = (packs or dsa_kernels).sparse_mla_prefill
    s_kv, heads, d, topk, tokens = shape
    sets = [attention_inputs(s_kv, heads, d, topk, tokens, dtype) for _ in range(2)]
    rows = []
    for group in variants:
        calls = {}
        for name, extra in group.items():
            made = {k: v(tokens, heads, topk) if callable(v) else v for k, v in extra.items()}
            calls[name] = [functools.partial(op, sm_scale=SM_SCALE, **s, **made) for s in sets]
        for name, us in medians_us(calls).items():
            tflops = 2 * tokens * heads * topk * (d + 512) / us / 1e6
            kind = str(dtype)[6:]
            rows.append({"op": "sparse_mla_prefill", "dtype": kind, "shape": list(shape), "variant": name, "us": us, "tflops": tflops})
            what = f"T={tokens} s_kv={s_kv:6d} H={heads:3d} D={d} topk={topk:4d} {name:16s}"
            print(f"sparse_mla_prefill {kind:16s} {what} {us:9.1f} us {tflops:7.1f} TFLOP/s", flush=True)
    return rows


def decode(
    shape: tuple[int, int, int, int],
    tokens: int,
    dtype: torch.dtype,
    op: str = "sparse_mla_decode",
    packs: dsa_kernels.Packs | None = None,
    variant: str = "",
) -> dict[str, object]:
    """One decode call out of a graph of many, over several index sets; GB/s counts the selected rows."""
    found = packs or dsa_kernels
    found.preload(op)
    call = getattr(found, op)
    s_kv, heads, d, topk = shape
    sets = [attention_inputs(s_kv, heads, d, topk, tokens, dtype) for _ in range(4)]
    turn = itertools.cycle(sets)
    us = graph_us(lambda: call(sm_scale=SM_SCALE, **next(turn)))
    gbytes = tokens * topk * d * dtype.itemsize / us / 1e3
    kind = str(dtype)[6:]
    what = f"T={tokens:4d} H={heads:3d} D={d} topk={topk:4d} {variant:8s}"
    print(f"{op:18s} {kind:16s} {what} {us:9.2f} us {gbytes:8.0f} GB/s", flush=True)
    return {"op": op, "dtype": kind, "shape": [*shape, tokens], "variant": variant, "us": us, "gbytes": gbytes}


def kpool(batch: int, pools: int) -> dict[str, object]:
    """The best 512 pools as slots with their tail, in one launch, beside torch.topk and the index arithmetic that it needs."""
    score = torch.randn(batch, pools, device="cuda")
    lengths = torch.full((batch,), pools, dtype=torch.int32, device="cuda")
    seq_lens = lengths * 4 + 3
    table = torch.randint(0, 1 << 20, (min(batch, 64), pools * 4 + 4), dtype=torch.int32, device="cuda")
    row = torch.arange(batch, dtype=torch.int32, device="cuda") % len(table)
    in_pool, in_tail = torch.arange(4, device="cuda"), torch.arange(3, device="cuda")

    def composed() -> torch.Tensor:
        history = (score.topk(512, sorted=False).indices[:, :, None] * 4 + in_pool).flatten(1)
        tail = torch.where(in_tail < (seq_lens % 4)[:, None], lengths[:, None] * 4 + in_tail, -1)
        positions = torch.cat((history, tail), 1)
        return torch.where(positions < 0, -1, table[row[:, None], positions.clamp(min=0)])

    us = graph_us(lambda: dsa_kernels.kpool_topk(score, lengths, table, row, seq_lens=seq_lens))
    other = graph_us(composed, launches=5)
    print(
        f"kpool_topk B={batch:4d} pools={pools:6d} {us:9.2f} us   torch.topk and index arithmetic {other:9.2f} us ({other / us:.1f}x)",
        flush=True,
    )
    return {"op": "kpool_topk", "shape": [batch, pools], "us": us, "torch_us": other}


def ceilings() -> list[dict[str, object]]:
    n = 8192
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    rows = [{"op": "bf16 matmul 8192^3", "tflops": 2 * n**3 / median_us([lambda: a @ b]) / 1e6}]
    one = torch.ones((), device="cuda")
    a8, b8 = a.to(FP8), b.to(FP8).t()
    us = median_us([lambda: torch._scaled_mm(a8, b8, one, one, out_dtype=torch.bfloat16, use_fast_accum=False)])
    rows.append({"op": "fp8 matmul 8192^3, no fast accumulate", "tflops": 2 * n**3 / us / 1e6})
    source, target = (torch.empty(2**31, dtype=torch.uint8, device="cuda") for _ in range(2))
    rows.append({"op": "device copy 2 GiB", "gbytes": 2 * 2**31 / median_us([lambda: target.copy_(source)]) / 1e3})
    for row in rows:
        print(" ".join(f"{v:.1f}" if isinstance(v, float) else str(v) for v in row.values()), flush=True)
    return rows


def helpers() -> list[dict[str, object]]:
    """The memory-bound ops at serving sizes; bytes are the ones that must move."""
    tokens, heads, rows_n, slots = 4096, 64, 65536, 200_000
    bf = torch.bfloat16
    nope, rope = (torch.randn(tokens, heads, w, device="cuda", dtype=bf) for w in (512, 64))
    q8 = torch.empty(tokens, heads, 576, device="cuda", dtype=FP8)
    pool = torch.randn(slots, 576, device="cuda", dtype=bf)
    raw = torch.randn(slots, 512, device="cuda").to(FP8)
    packed = torch.randint(0, 120, (slots, 656), device="cuda", dtype=torch.uint8)
    packed[:, 512:528] = torch.full((4,), 0.5, device="cuda").view(torch.uint8)
    table = torch.randperm(slots, device="cuda")[:rows_n].int()
    out576, out512 = (torch.empty(rows_n, w, device="cuda", dtype=FP8) for w in (576, 512))
    indices = torch.randint(0, slots, (tokens, 2051), device="cuda", dtype=torch.int32)
    length = torch.empty(tokens, device="cuda", dtype=torch.int32)
    k, k_rope = torch.randn(rows_n, 512, device="cuda", dtype=bf), torch.randn(rows_n, 64, device="cuda", dtype=bf)
    cases = {
        "concat_cast_q": (lambda: dsa_kernels.concat_cast_q(nope, rope, out=q8), tokens * heads * 576 * 3),
        "gather_cast_kv bf16 576": (lambda: dsa_kernels.gather_cast_kv(pool, table, out=out576), rows_n * (576 * 3 + 4)),
        "gather_cast_kv raw 512": (lambda: dsa_kernels.gather_cast_kv(raw, table, out=out512), rows_n * (512 * 2 + 4)),
        "gather_requant_kv": (lambda: dsa_kernels.gather_requant_kv(packed, table, out=out576), rows_n * (656 + 576 + 4)),
        "concat_cast_kv": (lambda: dsa_kernels.concat_cast_kv(k, k_rope, out=out576), rows_n * 576 * 3),
        "topk_length 2051": (lambda: dsa_kernels.topk_length(indices, out=length), tokens * 4),
    }
    rows = []
    for name, (call, nbytes) in cases.items():
        us = graph_us(call)
        rows.append({"op": name, "us": us, "gbytes": nbytes / us / 1e3})
        print(f"{name:36s} {us:9.1f} us {nbytes / us / 1e3:8.0f} GB/s", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="ceilings,q8,low,tile,triton,decode,split,kpool,helpers")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    only = options.only.split(",")
    half = {"topk_length": lambda tokens, heads, topk: torch.full((tokens,), topk // 2, dtype=torch.int32, device="cuda")}
    full = {"topk_length": lambda tokens, heads, topk: torch.full((tokens,), topk, dtype=torch.int32, device="cuda")}
    sink = {"attn_sink": lambda tokens, heads, topk: torch.randn(heads, device="cuda")}
    levels = [{"exact": {}}, {"fast": {"precision": "fast"}}, {"high": {"precision": "high"}}]
    options_of_exact = [{"exact, again": {}, "lengths": full, "half lengths": half, "sink": sink}]
    rows: list[dict[str, object]] = []
    if "ceilings" in only:
        rows += ceilings()
    if "q8" in only:
        for i, shape in enumerate(Q8_SHAPES):
            rows += attention(shape, FP8, levels + (options_of_exact if i in (0, 4) else []))
    if "low" in only:
        for i, shape in enumerate(LOW_SHAPES):
            rows += attention(
                shape, FP8, [{"high": {}}] + ([{"high, again": {}, "lengths": full, "half lengths": half, "sink": sink}] if i == 2 else [])
            )
            if shape[1] <= 32:
                rows += attention(shape, torch.bfloat16, [{"": {}}])
        for dtype in (FP8, torch.bfloat16):
            rows += [decode(shape, tokens, dtype) for shape in LOW_DECODE_SHAPES for tokens in (1, 8, 16, 32, 64, 128, 256)]
    if "tile" in only:
        with tempfile.TemporaryDirectory() as folder:
            with alone("sparse_mla_prefill", Path(folder), "tile_") as packs:
                rows += [row for t, shapes in TILE_SHAPES.items() for s in shapes for row in attention(s, t, [{"tilelang": {}}], packs)]
            with alone("sparse_mla_decode", Path(folder), "tile_") as packs:
                for t, shape, tokens in itertools.product(TILE_SHAPES, TILE_DECODE_SHAPES, (1, 8, 64, 256)):
                    rows.append(decode(shape, tokens, t, packs=packs, variant="tilelang"))
    if "triton" in only:
        with tempfile.TemporaryDirectory() as folder:
            with alone("sparse_mla_prefill", Path(folder), "fp8_sm90_") as packs:
                rows += [row for shape in TRITON_SHAPES for row in attention(shape, FP8, [{"gluon": {}}], packs)]
            with alone("sparse_mla_decode", Path(folder), "fp8_sm90_") as packs:
                for shape, tokens in itertools.product(DECODE_SHAPES, (1, 8, 16, 32, 64, 128, 256)):
                    rows.append(decode(shape, tokens, FP8, packs=packs, variant="gluon"))
    if "decode" in only:
        rows += [decode(shape, tokens, FP8) for shape in DECODE_SHAPES for tokens in (1, 8, 64, 256)]
        rows += [decode(DECODE_SHAPES[1], tokens, torch.bfloat16) for tokens in (1, 64)]
    if "split" in only:  # from how many tokens on prefill is the faster op
        for shape, tokens, dtype in itertools.product(SPLIT_SHAPES, (64, 128, 192, 256, 384, 512), (FP8, torch.bfloat16)):
            rows += [decode(shape, tokens, dtype, op) for op in ("sparse_mla_decode", "sparse_mla_prefill")]
    if "kpool" in only:
        rows += [kpool(batch, pools) for batch, pools in KPOOL_SHAPES]
    if "helpers" in only:
        rows += helpers()
    if options.json:
        options.json.write_text(
            json.dumps({"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
