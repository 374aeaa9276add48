"""Small calls of every op, to be run under compute-sanitizer: ``compute-sanitizer --tool memcheck python benchmarks/sanitize.py``.

Exits non-zero when an output is not finite where it must be. Shapes are small because the tools slow kernels down a hundredfold;
they still take several key blocks, several items per block of threads, ragged lengths, masks and odd widths.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from pathlib import Path

import torch

import dsa_kernels

sys.path.append(str(Path(__file__).parents[1]))
from aot.trial import alone

FP8 = torch.float8_e4m3fn


def attention(
    heads: int,
    d: int,
    dtype: torch.dtype,
    precision: str | None,
    tokens: int,
    op: str = "sparse_mla_prefill",
    topk: int = 203,
    packs: dsa_kernels.Packs | None = None,
    scales: bool = False,
) -> None:
    q = (torch.randn(tokens, heads, d, device="cuda") * 0.25).to(dtype)
    kv = (torch.randn(300, d, device="cuda") * 0.25).to(dtype)
    indices = torch.randint(-30, 330, (tokens, topk), dtype=torch.int32, device="cuda")
    length = torch.randint(0, topk + 1, (tokens,), dtype=torch.int32, device="cuda")
    sink = torch.randn(heads, device="cuda")
    scale = torch.ones(1, device="cuda") if scales else None
    given = {"precision": precision, "q_scale": scale, "kv_scale": scale, "max_logits": True, "lse": True}
    for extra in ({}, {"topk_length": length, "attn_sink": sink}):
        out, top, lse = getattr(packs or dsa_kernels, op)(q, kv, indices, 0.0625, **given, **extra)
        assert torch.isfinite(out).all() and not torch.isnan(top).any() and not torch.isnan(lse).any()


def helpers() -> None:
    bf = torch.bfloat16
    nope, rope = (torch.randn(7, 5, w, device="cuda", dtype=bf) for w in (512, 64))
    dsa_kernels.concat_cast_q(nope, rope)
    k, k_rope = torch.randn(19, 512, device="cuda", dtype=bf), torch.randn(19, 64, device="cuda", dtype=bf)
    dsa_kernels.concat_cast_kv(k, k_rope, pad_rows=3)
    table = torch.randint(-2, 25, (37,), dtype=torch.int32, device="cuda")
    dsa_kernels.gather_cast_kv(torch.randn(20, 576, device="cuda", dtype=bf), table, pad_rows=5)
    dsa_kernels.gather_cast_kv(torch.randn(20, 512, device="cuda").to(FP8), table, pad_rows=5)
    packed = torch.randint(0, 100, (20, 656), dtype=torch.uint8, device="cuda")
    dsa_kernels.gather_requant_kv(packed, table, pad_rows=5)
    indices = torch.randint(-1, 40, (9, 2051), dtype=torch.int32, device="cuda")
    dsa_kernels.topk_length(indices)
    pages = torch.randint(0, 1000, (9, 33), dtype=torch.int32, device="cuda")
    dsa_kernels.topk_transform(pages, indices)
    cu = torch.tensor([0, 4, 9], dtype=torch.int32, device="cuda")
    dsa_kernels.topk_transform(pages[:2], indices, cu)
    dsa_kernels.topk_transform(topk_indices=indices, offset=cu[:1].expand(9).contiguous())
    for pools in (100, 3000, 20000):  # all taken, counted at once, and after a sample
        lengths = torch.tensor([pools, pools - 7], dtype=torch.int32, device="cuda")
        dsa_kernels.kpool_topk(torch.randn(2, pools, device="cuda"), lengths, pages, seq_lens=lengths * 4 + 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=150, help="more than the SMs, so that blocks take several items")
    parser.add_argument("--only", default="q8,low,tile,triton,helpers")
    options = parser.parse_args()
    only = options.only.split(",")
    if "q8" in only:
        for d in (512, 576):
            for precision in ("fast", "exact", "high"):
                attention(64, d, FP8, precision, options.tokens)
                attention(64, d, FP8, precision, 7)  # in few parts
                attention(64, d, FP8, precision, 3, topk=1100)  # in many
    if "low" in only:
        # In decode clusters of eleven blocks or eight, of six, of three or four, and of two or none. Scales keep BF16 calls with CUDA.
        sizes = (3, 20, 40, options.tokens)
        for op, widths in (("sparse_mla_prefill", (options.tokens,)), ("sparse_mla_decode", sizes)):
            with tempfile.TemporaryDirectory() as folder:
                packs = alone(op, Path(folder), "low_")
                for dtype, d, heads, tokens in itertools.product((FP8, torch.bfloat16), (512, 576), (8, 16, 31), widths):
                    attention(heads, d, dtype, None, tokens, op, 403, packs, scales=dtype == torch.bfloat16)
                if op == "sparse_mla_decode":
                    for d in (512, 576):
                        attention(16, d, FP8, None, 70, op, 203, packs)  # clusters of two, two blocks of threads on an SM
        with tempfile.TemporaryDirectory() as folder:
            # What is taken for more tokens than these tools have patience for: whole lists with three stages, and three blocks on an SM.
            for heads, form in itertools.product((8, 16), ("s3", "c2_s2")):
                packs = alone("sparse_mla_decode", Path(folder, f"{heads}{form}"), f"low_d512_h{heads}_{form}")
                attention(heads, 512, FP8, None, 9, "sparse_mla_decode", 403, packs)
    for group, prefix, dtypes in (("tile", "tile_", (FP8, torch.bfloat16)), ("triton", "fp8_sm90_", (FP8,))):
        if group not in only:
            continue
        with tempfile.TemporaryDirectory() as folder:
            for op in ("sparse_mla_prefill", "sparse_mla_decode"):
                packs = alone(op, Path(folder), prefix)
                for dtype, d, heads in itertools.product(dtypes, (512, 576), (13, 64)):
                    for tokens in (2, options.tokens):
                        attention(heads, d, dtype, None, tokens, op, 403, packs)
    if "helpers" in only:
        helpers()
    torch.cuda.synchronize()
    print("done")


if __name__ == "__main__":
    main()
