"""Gather packed 656-byte rows and requantise them to plain FP8 rows of 576.

A packed row: bytes 0..511 e4m3 values in 4 groups of 128, bytes 512..527 one float32 scale a group, bytes 528..655 the 64 bf16
rope elements. One program takes BLOCK_T rows; the latent part is a tile of (row, group) pairs by 128 columns, so that a
thread reads one scale for the 16 bytes that it requantises. BYTES: the pool is typed as bytes, not as FP8.
"""

import triton
import triton.language as tl
from dsak_fp8 import saturate


@triton.jit
def gather_requant_kv(kv_cache, kv_cache_s0, page_table, out, out_s0, N, rows, slots, BLOCK_T: tl.constexpr, BYTES: tl.constexpr):
    fp8: tl.constexpr = out.dtype.element_ty
    first = tl.program_id(0) * BLOCK_T
    values = kv_cache.to(tl.pointer_type(fp8)) if BYTES else kv_cache
    scales = kv_cache.to(tl.pointer_type(tl.float32))
    ropes = kv_cache.to(tl.pointer_type(tl.bfloat16))

    pair = tl.arange(0, 4 * BLOCK_T)
    t = first + pair // 4
    group = pair % 4
    slot = tl.load(page_table + t, mask=t < N, other=-1)
    inside = (slot >= 0) & (slot < slots)
    row = slot.to(tl.int64) * kv_cache_s0
    d = tl.arange(0, 128)[None, :]
    x = tl.load(values + row[:, None] + group[:, None] * 128 + d, mask=inside[:, None], other=0.0)
    scale = tl.load(scales + row // 4 + 128 + group, mask=inside, other=0.0)

    u = first + tl.arange(0, BLOCK_T)
    slot_u = tl.load(page_table + u, mask=u < N, other=-1)
    inside_u = ((slot_u >= 0) & (slot_u < slots))[:, None]
    r = tl.arange(0, 64)[None, :]
    rope = tl.load(ropes + slot_u.to(tl.int64)[:, None] * (kv_cache_s0 // 2) + 264 + r, mask=inside_u, other=0.0)

    y = saturate(x.to(tl.float32) * scale[:, None], fp8)
    tl.store(out + t.to(tl.int64)[:, None] * out_s0 + group[:, None] * 128 + d, y, mask=(t < rows)[:, None])
    tl.store(out + u.to(tl.int64)[:, None] * out_s0 + 512 + r, saturate(rope, fp8), mask=(u < rows)[:, None])
