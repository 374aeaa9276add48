"""BF16 queries x BF16 rows: in TileLang one kernel for all head counts on SM90, in Triton one on gfx942."""

from collections.abc import Mapping

from aot.registry import sibling
from aot.spec import Arg, Candidate, Kernel, Launch, f32, i32, i64, ptr

shared = sibling(__file__, "../include/sparse_mla")


def arguments(d: int, rope_tensor: bool) -> tuple[Arg, ...]:
    """In TileLang's order: pointers by name, then scalars by name. Strides of 16-byte aligned rows count 8 elements."""
    tail = "q_rope" if rope_tensor else "q"
    return (
        ptr("attn_sink"),
        ptr("indices"),
        ptr("kv", dtype="bf16"),
        ptr("lse"),
        ptr("max_logits"),
        ptr("out"),
        ptr("q", dtype="bf16"),
        *((ptr("q_tail", of=tail, offset=0 if rope_tensor else 1024, dtype="bf16"),) if d == 576 else ()),
        ptr("topk_length"),
        i32("H"),
        i32("T"),
        i32("has_length", "has(topk_length)"),
        i32("has_lse", "has(lse)"),
        i32("has_max_logits", "has(max_logits)"),
        i32("has_sink", "has(attn_sink)"),
        i64("indices_s0", "indices.s0"),
        i64("kv_s0", "kv.s0 // 8"),
        i64("out_s0", "out.s0 // 8"),
        i64("out_s1", "out.s1 // 8"),
        i64("q_s0", "q.s0 // 8"),
        i64("q_s1", "q.s1 // 8"),
        *((i64("q_tail_s0", f"{tail}.s0 // 8"), i64("q_tail_s1", f"{tail}.s1 // 8")) if d == 576 else ()),
        i32("s_kv"),
        f32("sm_scale"),
        i32("topk"),
    )


def wgmma(d: int, rope_tensor: bool) -> Kernel:
    return Kernel(
        language="tilelang",
        source="bf16_prefill.py",
        entry="sparse_mla_wgmma",
        args=arguments(d, rope_tensor),
        constants={"D": d},
        options={"fast_math": True},
        promises=(r"HGMMA\.64x64x16\.F32\.BF16", r"HGMMA\.64x256x16\.F32\.BF16", r"LDGSTS"),
    )


GFX942 = {"BLOCK_H": 16, "BLOCK_N": 16, "num_warps": 4, "waves_per_eu": 2}


def gfx942(rope: bool, q_rope: str, configuration: Mapping[str, int]) -> Kernel:
    """The Triton kernel that serves FP8 rows on AMD; 16 keys keep BF16 rows within two waves a SIMD."""
    return Kernel(
        language="triton",
        source="prefill.py",
        entry="prefill",
        args=shared.arguments("bf16", q_rope),
        constants={"ROPE": 64 if rope else 0, "PV": "one", "XCDS": 8, **{k: v for k, v in configuration.items() if k.isupper()}},
        options={"num_stages": 1, **{k: v for k, v in configuration.items() if not k.isupper()}},
        promises=(r"v_mfma_f32_16x16x16_bf16",),
    )


def gfx942_candidates(configuration: Mapping[str, int] = GFX942) -> tuple[Candidate, ...]:
    grid = (f"T * cdiv(H, {configuration['BLOCK_H']})", 1, 1)
    return tuple(
        Candidate(f"bf16_gfx942_{name}", ("gfx942",), when, (Launch(gfx942(rope, q_rope, configuration), grid),))
        for name, rope, q_rope, when in shared.PLACES
    )


def candidates() -> tuple[Candidate, ...]:
    """Every ``precision`` is served alike; the TileLang kernels take no scales."""
    found = [*gfx942_candidates()]
    for d, rope_tensor in ((576, False), (576, True), (512, False)):
        when = f"D == {d} and {'' if rope_tensor else 'not '}has(q_rope) and not has(q_scale) and not has(kv_scale)"
        suffix = f"d{d}{'_rope' if rope_tensor else ''}"
        found.append(
            Candidate(
                name=f"bf16_wgmma_{suffix}",
                targets=("sm90",),
                when=when,
                launches=(Launch(wgmma(d, rope_tensor), ("T * cdiv(H, 64)", 1, 1)),),
            )
        )
    return tuple(found)
