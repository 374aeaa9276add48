"""FP8 casts for Triton kernels."""

import triton
import triton.language as tl


@triton.jit
def saturate(x, dtype: tl.constexpr):
    """x as e4m3, rounded to nearest even: what is beyond the largest finite value saturates, a NaN stays a NaN.

    The clamp is explicit because AMD's conversions overflow to NaN; on SM90 the conversion saturates by itself.
    """
    largest: tl.constexpr = 448.0 if dtype == tl.float8e4nv else 240.0
    return tl.clamp(x.to(tl.float32), -largest, largest, propagate_nan=tl.PropagateNan.ALL).to(dtype)
