"""The CUDA kernel of 64-head tiles (dsak/q8): FP8 queries x FP8 rows on SM90, persistent blocks.

An item is one token and 64 heads. Where the items do not fill the last round of the multiprocessors, those left over are cut
into parts by their keys (``SPLITS`` parts each, so that the round is full) and a second launch puts the parts together. A
decode batch is all left-over; a prefill chunk of 4096 tokens has a few.
"""

from aot.registry import sibling
from aot.spec import Candidate, Kernel, Launch, boxes, f32, i32, i64, ptr

shared = sibling(__file__, "sparse_mla")

PRECISIONS = {"fast": 0, "exact": 1, "high": 2}
THREADS = 512
SHARED = {  # bytes; the source asserts that its plan comes to the same
    (512, "fast"): 231696,
    (512, "exact"): 231696,
    (512, "high"): 231696,
    (576, "fast"): 223504,
    (576, "exact"): 223504,
    (576, "high"): 198360,
}
ITEMS = "(T * (H // 64))"
LEFT_OVER = f"({ITEMS} % sm_count)"
WHOLE = f"({ITEMS} - {LEFT_OVER})"
# Rows are counted as if they were padded to a multiple of 128 columns, so that a caller's own padding changes no bit of the results.
SPLITS = f"min(sm_count // {LEFT_OVER}, 2 * cdiv(topk, 128))"
# Worth a second launch (about 4 us): at least two parts of an item of eight key blocks of 64, or, where there are no whole items to
# hide behind, of four. A part may be a single block.
SPLIT = f"{LEFT_OVER} > 0 and {LEFT_OVER} * 2 <= sm_count and cdiv(topk, 128) >= (4 if {WHOLE} > 0 else 2)"
PARTS = f"({LEFT_OVER} * {SPLITS})"
COMBINED_HEADS = f"(1 if {SPLITS} >= 8 else 4)"  # of a block of the second launch
PART_BYTES = 64 * 512 * 2  # float16
SCALAR_BYTES = 64 * 2 * 4


MAPS = {"q": boxes("q", rows=64, dtype="fp8"), "out": boxes("out", rows=16)}
"""Queries and output move by tensor copies: 128 bytes of so many heads."""


def kernel(d: int, precision: str, rope_tensor: bool, split: bool) -> Kernel:
    rope = "q_rope" if rope_tensor else "q"
    return Kernel(
        language="cuda",
        source="q8_prefill.cu",
        entry="sparse_mla_prefill_q8",
        args=(
            *(MAPS.get(a.name, a) for a in shared.cuda_pointers(rope)),
            ptr("partial_out", of="workspace"),
            ptr("partial_scalars", of="workspace", offset=f"{PARTS} * {PART_BYTES}" if split else 0),
            *shared.cuda_strides(rope),
            i32("T"),
            i32("H"),
            i32("topk"),
            i32("s_kv", "min(s_kv, 2147483647)"),  # an index is 32 bits wide
            i32("whole_items", WHOLE if split else ITEMS),
            i32("splits", SPLITS if split else 1),
            f32("sm_scale"),
        ),
        constants={"DSAK_D": d, "DSAK_PRECISION": PRECISIONS[precision]},
        options={"threads": THREADS, "shared": SHARED[d, precision]},
        promises=(r"QGMMA", r"UTMALDG", r"UTMASTG"),
    )


COMBINE = Launch(
    Kernel(
        language="cuda",
        source="q8_combine.cu",
        entry="sparse_mla_combine",
        args=(
            ptr("partial_out", of="workspace"),
            ptr("partial_scalars", of="workspace", offset=f"{PARTS} * {PART_BYTES}"),
            ptr("attn_sink"),
            ptr("kv_scale"),
            ptr("out"),
            ptr("max_logits"),
            ptr("lse"),
            i64("out_stride_t", "out.s0"),
            i64("out_stride_h", "out.s1"),
            i32("H"),
            i32("whole_items", WHOLE),
            i32("splits", SPLITS),
            i32("heads", COMBINED_HEADS),
        ),
        options={"threads": 256},
    ),
    (LEFT_OVER, f"64 // {COMBINED_HEADS}", 1),
)


def candidate(d: int, precision: str, rope_tensor: bool, split: bool, calls: str) -> Candidate:
    when = f"D == {d} and {'' if rope_tensor else 'not '}has(q_rope) and H % 64 == 0 and precision == '{precision}' and {calls}"
    units = f"{WHOLE} + {PARTS}" if split else ITEMS
    attention = Launch(kernel(d, precision, rope_tensor, split), (f"min(sm_count, {units})", 1, 1))
    return Candidate(
        name=f"q8_d{d}_{precision}{'_rope' if rope_tensor else ''}{'_split' if split else ''}",
        targets=("sm90",),
        when=f"{when} and {SPLIT}" if split else when,
        launches=(attention, COMBINE) if split else (attention,),
        workspace=f"{PARTS} * {PART_BYTES + SCALAR_BYTES}" if split else "0",
    )


def candidates(calls: str = "T >= 0") -> tuple[Candidate, ...]:
    """Every level, row width and place of the queries' rope part, for the calls that ``calls`` admits.

    The op's folder has ``q8_prefill.cu`` and ``q8_combine.cu``. ``exact`` comes first: it is the default.
    """
    return tuple(
        candidate(d, precision, rope_tensor, split, calls)
        for precision in ("exact", "high", "fast")
        for d in (576, 512)
        for rope_tensor in ((False, True) if d == 576 else (False,))
        for split in (True, False)
    )
