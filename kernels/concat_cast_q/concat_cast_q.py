"""Concatenate and cast queries to FP8.

One program casts BLOCK_H heads of one token, 16 elements a thread at a time: 32 bytes read, 16 written. The rope columns are
predicated on R at run time, so one object serves models with and without rope.
"""

import triton
import triton.language as tl
from dsak_fp8 import saturate


@triton.jit
def concat_cast_q(
    q_nope,
    q_nope_s0,
    q_nope_s1,
    q_rope,
    q_rope_s0,
    q_rope_s1,
    out,
    out_s0,
    out_s1,
    H,
    R,
    BLOCK_H: tl.constexpr,
):
    t = tl.program_id(0).to(tl.int64)
    h = (tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H))[:, None]
    live = h < H
    h = h.to(tl.int64)
    fp8: tl.constexpr = out.dtype.element_ty
    to = out + t * out_s0 + h * out_s1

    d = tl.arange(0, 512)[None, :]
    r = tl.arange(0, 64)[None, :]
    has_rope = live & (r < R)
    latent = tl.load(q_nope + t * q_nope_s0 + h * q_nope_s1 + d, mask=live, other=0.0)
    rope = tl.load(q_rope + t * q_rope_s0 + h * q_rope_s1 + r, mask=has_rope, other=0.0)
    tl.store(to + d, saturate(latent, fp8), mask=live)
    tl.store(to + 512 + r, saturate(rope, fp8), mask=has_rope)
