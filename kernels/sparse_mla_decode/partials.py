"""What the partial kernels agree on with the combine kernel.

The workspace holds O as [T, splits, H, 512], divided by its own sum and without kv_scale: float16 from FP8 rows, whose weighted
means never exceed 448 and keep 11 bits that way, bfloat16 from BF16 rows. After it, [T, splits, H, 2] float32: the largest base-2
logit and the base-2 logarithm of the sum of exponentials, -inf both where a split selected nothing; its O is not read then.
"""

import triton
import triton.language as tl


@triton.jit
def share(length, split, splits, BLOCK_N: tl.constexpr):
    """Columns start..stop-1 of a list of ``length``: an equal share in whole blocks; the last ones may be short or empty."""
    width = tl.cdiv(tl.cdiv(length, BLOCK_N), splits) * BLOCK_N
    start = tl.minimum(split * width, length)
    return start, tl.minimum(start + width, length)


@triton.jit
def store_partial_statistics(statistics, at, top, total, live, P_BITS: tl.constexpr):
    to = statistics.to(tl.pointer_type(tl.float32)) + at * 2
    none = total == 0.0
    tl.store(to, tl.where(none, -float("inf"), top), mask=live)
    tl.store(to + 1, tl.where(none, -float("inf"), tl.log2(tl.where(none, 1.0, total)) + (top - P_BITS)), mask=live)
