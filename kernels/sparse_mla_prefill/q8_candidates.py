"""The CUDA kernel: FP8 queries x FP8 rows on SM90, 64-head tiles, persistent blocks."""

from aot.spec import Candidate, Kernel, Launch, f32, i32, i64, ptr

PRECISIONS = {"fast": 0, "exact": 1, "high": 2}
THREADS = 512
SHARED = {  # bytes; the source asserts that its plan comes to the same
    (512, "fast"): 215312,
    (512, "exact"): 215312,
    (512, "high"): 231696,
    (576, "fast"): 223504,
    (576, "exact"): 223504,
    (576, "high"): 198360,
}


def kernel(d: int, precision: str, rope_tensor: bool) -> Kernel:
    rope = "q_rope" if rope_tensor else "q"
    return Kernel(
        language="cuda",
        source="q8_prefill.cu",
        entry="sparse_mla_prefill_q8",
        args=(
            ptr("q", dtype="fp8"),
            ptr("q_rope", of=rope, offset=0 if rope_tensor else 512, dtype="fp8"),
            ptr("kv", dtype="fp8"),
            ptr("indices"),
            ptr("topk_length"),
            ptr("attn_sink"),
            ptr("q_scale"),
            ptr("kv_scale"),
            ptr("out"),
            ptr("max_logits"),
            ptr("lse"),
            i64("q_stride_t", "q.s0"),
            i64("q_stride_h", "q.s1"),
            i64("q_rope_stride_t", f"{rope}.s0"),
            i64("q_rope_stride_h", f"{rope}.s1"),
            i64("kv_stride", "kv.s0"),
            i64("indices_stride", "indices.s0"),
            i64("out_stride_t", "out.s0"),
            i64("out_stride_h", "out.s1"),
            i32("T"),
            i32("H"),
            i32("topk"),
            i32("s_kv"),
            f32("sm_scale"),
        ),
        constants={"DSAK_D": d, "DSAK_PRECISION": PRECISIONS[precision]},
        options={"threads": THREADS, "shared": SHARED[d, precision]},
        promises=(r"QGMMA",),
    )


def candidates() -> tuple[Candidate, ...]:
    """``exact`` comes first: it is the default."""
    return tuple(
        Candidate(
            name=f"q8_d{d}_{precision}{'_rope' if rope_tensor else ''}",
            targets=("sm90",),
            when=f"D == {d} and {'' if rope_tensor else 'not '}has(q_rope) and H % 64 == 0 and precision == '{precision}'",
            launches=(Launch(kernel(d, precision, rope_tensor), ("min(sm_count, T * (H // 64))", 1, 1)),),
        )
        for precision in ("exact", "high", "fast")
        for d in (576, 512)
        for rope_tensor in ((False, True) if d == 576 else (False,))
    )
