"""What the sparse MLA ops have in common: they compute the same thing and differ in the calls that their kernels are made for."""

from aot.spec import Arg, Param, Rule, Scalar, Tensor, f32, i32, i64, ptr

SEMANTICS = """With s = q_scale * kv_scale * sm_scale, for every token t and head h, over the valid columns c of ``indices[t]``:
logit[c] = s * <q[t, h], kv[indices[t, c]]>, P = softmax(logit), out[t, h] = kv_scale * sum_c P[c] * kv[indices[t, c], :512].
Keys and values are the same rows: a value is the first 512 elements. A column is valid iff 0 <= index < s_kv and
c < topk_length[t]; other columns are never read, and repeated indices count as often as they appear. A token with no valid
column gets out 0, max_logits -inf, lse +inf. ``lse`` (natural log of the sum of exponentials) and ``max_logits`` are in
natural units and do not include the sink, which adds exp(attn_sink[h]) to the softmax denominator of ``out`` alone.

FP8 calls of 64 or 128 heads on sm90 carry a NaN of a selected row or of a query into all outputs that depend on it, and into no
other. There s may be zero, negative or tiny; one that is not finite makes every token with a valid column NaN, and |s| above 1e19
counts as 1e19.

Precision, for FP8 inputs: ``fast`` rounds P to one e4m3 term and lets the matrix units keep short sums; ``exact`` moves sums to
float32, so that rows with a common mean come out right; ``high`` carries P as two e4m3 terms, the accuracy of a BF16 kernel.
BF16 inputs are served at the same accuracy whatever the level.
"""

PARAMS: tuple[Param, ...] = (
    Tensor("q", "fp8|bf16", "T H Dq", "absorbed queries: 512 latent elements, and the 64 rope ones unless q_rope has them"),
    Tensor("kv", "fp8|bf16", "s_kv D", "latent rows of 512 or 576 elements: a ragged buffer or a paged pool in place"),
    Tensor("indices", "i32", "T topk", "selected rows of kv; anything outside 0..s_kv-1 is masked", align=4),
    Scalar("sm_scale", "f32", "softmax scale in natural units"),
    Tensor("q_rope", "fp8|bf16", "T H R", "rope part of the queries, R = 64, where it is a tensor of its own", optional=True),
    Tensor("topk_length", "i32", "T", "valid columns of each row, clamped to 0..topk", optional=True, layout="contiguous", align=4),
    Tensor("attn_sink", "f32", "H", "logit of an extra key without value, one per head", optional=True, layout="contiguous", align=4),
    Tensor("q_scale", "f32", "1", "scale of q; absent is 1", optional=True, layout="contiguous", align=4),
    Tensor("kv_scale", "f32", "1", "scale of kv; absent is 1", optional=True, layout="contiguous", align=4),
    Scalar(
        "precision",
        "choice",
        "accuracy of FP8 attention weights",
        default="'high' if H < 64 else 'exact'",
        choices=("fast", "exact", "high"),
    ),
    Tensor("out", "bf16", "T H 512", "attention output", output=True),
    Tensor("max_logits", "f32", "T H", "largest logit", optional=True, output=True, layout="contiguous", align=4),
    Tensor("lse", "f32", "T H", "log-sum-exp of the logits", optional=True, output=True, layout="contiguous", align=4),
)

RULES = (
    Rule("H >= 1 and H <= 128", "1 <= H <= 128", "split the heads over ranks"),
    Rule("sm_scale > -1e20 and sm_scale < 1e20", "|sm_scale| below 1e20", "pass the softmax scale in natural units, such as 0.0625"),
    Rule("topk >= 1 and topk <= 1073741824", "1 <= topk <= 2**30", "pass at least one column, -1 where nothing is selected"),
    Rule("kv.s0 >= 0 and kv.s0 <= 2147483647", "rows of kv at most 2**31 - 1 elements apart", "pass a pool of narrower rows"),
    Rule("D in (512, 576)", "kv rows of 512 or 576 elements", "dequantise packed rows first (gather_requant_kv)"),
    Rule(
        "Dq == D if not has(q_rope) else (Dq == 512 and D == 576 and R == 64)",
        "q as wide as kv, or q of width 512 with q_rope of width 64 on 576-wide rows",
        "pass the rope part once: inside q or as q_rope",
    ),
    Rule("q.dtype == kv.dtype", "q and kv of one dtype", "cast q with concat_cast_q, or kv with gather_cast_kv"),
    Rule("not has(q_rope) or q_rope.dtype == q.dtype", "q_rope of q's dtype", "cast both parts alike"),
)

PLACES = (
    ("d512", False, "q", "D == 512"),
    ("d576", True, "q", "D == 576 and not has(q_rope)"),
    ("d576_rope", True, "q_rope", "D == 576 and has(q_rope)"),
)
"""Row widths and places of the queries' rope part: name, rope or none, tensor that holds it, guard. The two places share an object."""


GLUON = (r"QGMMA\.64x16x32\.F32\.E4M3", r"HGMMA\.64x16x16\.F32", r"LDSM\.16\.MT88\.4")
"""What the loop of include/dsak_rows_sm90.py becomes: both products, and values that are transposed on the way out of shared memory."""

SIZES = {"fp8": 1, "bf16": 2}
"""Bytes of an element."""


def behind(first: str, bytes_of_a_token: str) -> str:
    """The offset of token ``first`` in a tensor, for a launch that serves the tokens from there on."""
    return "0" if first == "0" else f"{first} * {bytes_of_a_token}"


def cuda_pointers(q_rope: str, dtype: str = "fp8") -> tuple[Arg, ...]:
    """The tensors as every CUDA kernel of these ops takes them, rows of ``dtype``; the queries' rope part is in tensor ``q_rope``."""
    return (
        ptr("q", dtype=dtype),
        ptr("q_rope", of=q_rope, offset=512 * SIZES[dtype] if q_rope == "q" else 0, dtype=dtype),
        ptr("kv", dtype=dtype),
        *map(ptr, ("indices", "topk_length", "attn_sink", "q_scale", "kv_scale", "out", "max_logits", "lse")),
    )


def cuda_strides(q_rope: str) -> tuple[Arg, ...]:
    """Their strides in elements, all at run time."""
    return (
        i64("q_stride_t", "q.s0"),
        i64("q_stride_h", "q.s1"),
        i64("q_rope_stride_t", f"{q_rope}.s0"),
        i64("q_rope_stride_h", f"{q_rope}.s1"),
        i64("kv_stride", "kv.s0"),
        i64("indices_stride", "indices.s0"),
        i64("out_stride_t", "out.s0"),
        i64("out_stride_h", "out.s1"),
    )


def arguments(dtype: str, q_rope: str) -> tuple[Arg, ...]:
    """What every Triton kernel of these ops takes, for rows of ``dtype``; the queries' rope part is in tensor ``q_rope``."""
    size = SIZES[dtype]
    unit = 16 // size  # elements in 16 bytes
    return (
        ptr("q", dtype=dtype),
        i64("q_s0", "q.s0", multiple=unit),
        i64("q_s1", "q.s1", multiple=unit),
        ptr("q_rope", of=q_rope, offset=512 * size if q_rope == "q" else 0, dtype=dtype),
        i64("q_rope_s0", f"{q_rope}.s0", multiple=unit),
        i64("q_rope_s1", f"{q_rope}.s1", multiple=unit),
        ptr("kv", dtype=dtype),
        i32("kv_s0", "kv.s0", multiple=unit),
        ptr("indices"),
        i64("indices_s0", "indices.s0"),
        ptr("topk_length"),
        ptr("attn_sink"),
        ptr("q_scale"),
        ptr("kv_scale"),
        ptr("out"),
        i64("out_s0", "out.s0", multiple=8),
        i64("out_s1", "out.s1", multiple=8),
        ptr("max_logits"),
        ptr("lse"),
        f32("sm_scale"),
        i32("H"),
        i32("s_kv", "min(s_kv, 2147483647)"),
        i32("topk"),
        i32("has_length", "has(topk_length)"),
        i32("has_sink", "has(attn_sink)"),
        i32("has_q_scale", "has(q_scale)"),
        i32("has_kv_scale", "has(kv_scale)"),
        i32("has_max_logits", "has(max_logits)"),
        i32("has_lse", "has(lse)"),
    )
