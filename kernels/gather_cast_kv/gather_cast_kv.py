"""Gather latent rows through a page table and cast them to FP8.

One program takes BLOCK_T rows whole. All their loads are issued before the first store, so a block of 128 threads has
BLOCK_T KiB of bf16 in flight; the rope columns are predicated on D at run time. Rows without a slot are stored as zeros. RAW rows
are FP8 already and pass byte for byte.
"""

import triton
import triton.language as tl
from dsak_fp8 import saturate


@triton.jit
def gather_cast_kv(kv_cache, kv_cache_s0, page_table, out, out_s0, N, rows, slots, D, BLOCK_T: tl.constexpr, RAW: tl.constexpr):
    t = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    slot = tl.load(page_table + t, mask=t < N, other=-1)
    inside = ((slot >= 0) & (slot < slots))[:, None]
    live = (t < rows)[:, None]
    source = kv_cache + slot.to(tl.int64)[:, None] * kv_cache_s0
    to = out + t.to(tl.int64)[:, None] * out_s0

    d = tl.arange(0, 512)[None, :]
    r = 512 + tl.arange(0, 64)[None, :]
    latent = tl.load(source + d, mask=inside, other=0.0)
    rope = tl.load(source + r, mask=inside & (r < D), other=0.0)
    if not RAW:
        latent = saturate(latent, out.dtype.element_ty)
        rope = saturate(rope, out.dtype.element_ty)
    tl.store(to + d, latent, mask=live)
    tl.store(to + r, rope, mask=live & (r < D))
