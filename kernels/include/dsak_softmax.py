"""What the Triton attention kernels share: scales, lengths, the softmax's ends.

Logits are kept in base 2 (scaled by log2 e), P at 2^p_bits times its value; the sums carry the same power, so it cancels in the output.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
NO_LOGIT = tl.constexpr(-1.0e30)  # where the running maximum starts: finite, so that maxima never differ by inf - inf


@triton.jit
def scales(q_scale, kv_scale, sm_scale, has_q_scale, has_kv_scale):
    """The factor from products to base-2 logits, and the scale of values."""
    kv = tl.load(kv_scale, mask=has_kv_scale != 0, other=1.0)
    return tl.load(q_scale, mask=has_q_scale != 0, other=1.0) * kv * sm_scale * LOG2E, kv


@triton.jit
def row_length(topk_length, t, topk, has_length):
    """Columns of row t to look at."""
    length = tl.load(topk_length + t, mask=has_length != 0, other=topk)
    return tl.minimum(tl.maximum(length, 0), topk)


@triton.jit
def reciprocal(top, total, attn_sink, h, sinks, p_bits: tl.constexpr):
    """One over the softmax denominator of each head, the sink of the first ``sinks`` heads included; 0 where nothing was selected."""
    sink = tl.load(attn_sink + h, mask=h < sinks, other=-float("inf"))
    denominator = total + tl.exp2(sink * LOG2E - (top - p_bits))
    return tl.where(total == 0.0, 0.0, 1.0 / tl.where(total == 0.0, 1.0, denominator))


@triton.jit
def store_statistics(max_logits, lse, at, top, total, maxima, sums, p_bits: tl.constexpr):
    """max_logits and lse in natural units, where ``maxima`` and ``sums`` say so; -inf and +inf where nothing was selected."""
    none = total == 0.0
    log_sum = (tl.log2(tl.where(none, 1.0, total)) + (top - p_bits)) * LN2
    tl.store(max_logits + at, tl.where(none, -float("inf"), top * LN2), mask=maxima)
    tl.store(lse + at, tl.where(none, float("inf"), log_sum), mask=sums)
