"""Concatenate the parts of fresh latent rows and cast them to FP8.

One program takes BLOCK_T rows whole; the rope columns are predicated on R at run time. Rows past the last token are stored as zeros.
"""

import triton
import triton.language as tl
from dsak_fp8 import saturate


@triton.jit
def concat_cast_kv(k, k_s0, k_rope, k_rope_s0, out, out_s0, T, rows, R, BLOCK_T: tl.constexpr):
    t = (tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T))[:, None]
    token = t < T
    live = t < rows
    t = t.to(tl.int64)
    to = out + t * out_s0
    fp8: tl.constexpr = out.dtype.element_ty

    d = tl.arange(0, 512)[None, :]
    r = tl.arange(0, 64)[None, :]
    latent = tl.load(k + t * k_s0 + d, mask=token, other=0.0)
    rope = tl.load(k_rope + t * k_rope_s0 + r, mask=token & (r < R), other=0.0)
    tl.store(to + d, saturate(latent, fp8), mask=live)
    tl.store(to + 512 + r, saturate(rope, fp8), mask=live & (r < R))
