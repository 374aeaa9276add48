"""check_config: every row of the gating tables, and the traps that must raise. A row is what differs from a working configuration."""

from __future__ import annotations

from typing import Any

import pytest

dsa = pytest.importorskip("dsa_kernels", reason="the runtime is not installed: pip install -e .")
from dsa_kernels.config import BACKENDS, kv_row_bytes, raw_fp8_nope  # noqa: E402
from dsa_kernels.rules import RULES  # noqa: E402

Q8, BF16, FP8 = "flashmla_sparse_q8", "bfloat16", "fp8_e4m3"
# DeepSeek-V3.2 as served with packed FP8 rows; GLM-5.3-Flash with raw ones; a ROCm host.
ROPE = {"prefill": Q8, "decode": "flashmla_kv", "device": "sm90", "kv_dtype": FP8, "kv_lora_rank": 512, "rope_dim": 64, "heads": 64}
NOPE = {**ROPE, "decode": "tilelang", "rope_dim": 0, "kpool": 4, "heads": 16}
ROCM = {**ROPE, "prefill": "tilelang", "decode": "tilelang", "device": "gfx950", "heads": 16}
DENSE = {"prefill": Q8, "decode": "fa3", "kv_dtype": BF16}


def check(base: dict[str, Any], **changes: Any) -> Any:
    return dsa.check_config(**{"environment": {}, **base, **changes})


# what is accepted: base, changes, layout, why
ACCEPTED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "q8 over bf16 with rope": (ROPE, DENSE, "bf16-576"),
    "q8 over bf16 without rope": (NOPE, DENSE, "bf16-512"),
    "q8 over packed rows with rope": (ROPE, {}, "pack-656"),
    "q8 over a raw NoPE pool, tilelang decode": (NOPE, {}, "raw8-512"),
    "tilelang for both phases over FP8 on SM90": (ROPE, {"prefill": "tilelang", "decode": "tilelang"}, "raw8-576"),
    "tilelang for both phases over FP8 on SM89": (ROPE, {"prefill": "tilelang", "decode": "tilelang", "device": "sm89"}, "raw8-576"),
    "tilelang over bf16 on SM80": (ROPE, {"prefill": "tilelang", "decode": "tilelang", "device": "sm80", "kv_dtype": BF16}, "bf16-576"),
    "tilelang beside another backend over bf16": (ROPE, {"prefill": "tilelang", "decode": "fa3", "kv_dtype": BF16}, "bf16-576"),
    "tilelang over FP8 on ROCm": (ROCM, {}, "raw8-576"),
    "tilelang over FP8 on ROCm, dcp": (ROCM, {"dcp": 2}, "raw8-576"),
    "fnuz": (ROCM, {"device": "gfx942"}, "raw8-576"),
    "packed NoPE rows for flashmla_kv": (ROPE, {"prefill": "flashmla_kv", "rope_dim": 0}, "pack-528"),
    "kpool with tilelang": (NOPE, {"prefill": "tilelang"}, "raw8-512"),
    "kpool with fa3": (NOPE, {"prefill": "fa3", "decode": "fa3", "kv_dtype": BF16}, "bf16-512"),
    "kpool with trtllm": (NOPE, {"prefill": "trtllm", "decode": "trtllm", "kv_dtype": BF16, "device": "sm100"}, "bf16-512"),
    "kpool with triton": (NOPE, {"prefill": "triton", "decode": "triton"}, "raw8-512"),
    "kpool with q8 over bf16": (NOPE, DENSE, "bf16-512"),
    "aiter with both scales": (ROCM, {"prefill": "aiter", "decode": "aiter", "q_scale": True, "kv_scale": True}, "raw8-576"),
    "dcp over bf16": (ROPE, {**DENSE, "dcp": 2}, "bf16-576"),
    "a level of precision for FP8": (ROPE, {"precision": "high"}, "pack-656"),
    # More general than the engine's kernels:
    "8 heads: no padding to 64, in Q8 or in the gfx950 gate": (NOPE, {"heads": 8}, "raw8-512"),
    "40 heads, which do not divide 64: tiles are predicated": (ROPE, {"heads": 40}, "pack-656"),
    "32 heads": (ROPE, {"heads": 32}, "pack-656"),
    "3 heads on ROCm: rows of a tile are predicated there too": (ROCM, {"heads": 3}, "raw8-576"),
    "1000 columns, no multiple of 64 or 128: tails are predicated": (ROPE, {"index_topk": 1000}, "pack-656"),
    "2051 columns on ROCm": (ROCM, {"kpool": 4}, "raw8-576"),
    "q8 over raw rows with rope: read in place, no bf16 gather": (ROPE, {"decode": "tilelang", "kv_layout": "raw8-576"}, "raw8-576"),
    "q8 beside triton decode over raw rows: it reads them in place": (
        NOPE,
        {"decode": "triton", "kv_layout": "raw8-512"},
        "raw8-512",
    ),
}


@pytest.mark.parametrize("what", ACCEPTED)
def test_accepted(what: str) -> None:
    base, changes, layout = ACCEPTED[what]
    config = check(base, **changes)
    assert config.kv_layout == layout
    geometry = {n: getattr(config, n) for n in ("prefill", "decode", "kv_dtype", "kv_lora_rank", "rope_dim", "device")}
    assert config.row_bytes == config.layout.row_bytes
    if "kv_layout" not in changes:
        assert kv_row_bytes(**geometry) == config.row_bytes
    assert config.layout.fp8 == ("e4m3fnuz" if config.device == "gfx942" else "e4m3fn")


TRITON_PREFILL = {"environment": {"SGLANG_DSA_TRITON_PREFILL": "1"}}
REJECTED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    # Q8
    "q8 decode": (ROPE, {"decode": Q8}, r"prefill-only backend: found decode flashmla_sparse_q8.*flashmla_kv over packed FP8"),
    "q8 on sm100": (ROPE, {"device": "sm100"}, r"prefill device: found prefill flashmla_sparse_q8 on sm100.*SM90"),
    "q8 on gfx950": (ROCM, {"prefill": Q8}, r"prefill flashmla_sparse_q8 on gfx950; wanted .*\(amd\)"),
    "fp16 KV": (ROPE, {"kv_dtype": "float16"}, r"found kv_dtype 'float16'; wanted bfloat16 or fp8_e4m3"),
    "q8 over packed NoPE rows": (NOPE, {"kpool": 1, "decode": "flashmla_kv"}, r"prefill pool: found prefill .* over a pack-528"),
    "q8 over packed NoPE rows by layout": (NOPE, {"kpool": 1, "kv_layout": "pack-528"}, r"prefill flashmla_sparse_q8 over a pack-528"),
    "tilelang decode of packed rows": (ROPE, {"decode": "tilelang"}, r"tilelang over a pack-656 pool.*kv_layout='raw8-512' or"),
    "flashmla_kv decode of raw rows": (ROPE, {"kv_layout": "raw8-576"}, r"decode flashmla_kv over a raw8-576 pool"),
    "q8 with HiSparse": (ROPE, {"hisparse": True}, r"found flashmla_sparse_q8 with HiSparse"),
    "q8 with mixed chunks": (ROPE, {"mixed_chunks": True}, r"found flashmla_sparse_q8 with mixed chunks"),
    "dcp over raw rows": (NOPE, {"dcp": 2}, r"raw dcp: found dcp 2 over raw FP8 KV \(raw8-512\); wanted dcp 1"),
    # TileLang over FP8
    "tilelang prefill, flashmla_kv decode": (ROPE, {"prefill": "tilelang"}, r"tilelang fp8 pair: .*tilelang and decode flashmla_kv"),
    "flashmla_sparse prefill, tilelang decode": (ROPE, {"prefill": "flashmla_sparse", "decode": "tilelang"}, r"tilelang fp8 pair"),
    "tilelang over FP8 on SM86": (ROPE, {"prefill": "tilelang", "decode": "tilelang", "device": "sm86"}, r"FP8 KV on sm86; wanted SM89"),
    "tilelang over FP8, dcp": (ROPE, {"prefill": "tilelang", "decode": "tilelang", "dcp": 2}, r"raw dcp: found dcp 2"),
    # KPool
    "kpool, q8 over packed rows": (ROPE, {"kpool": 4, "decode": "flashmla_kv"}, r"kpool q8 pool: .*packed FP8 rows \(pack-656\)"),
    "kpool, flashmla_kv decode": (NOPE, {"decode": "flashmla_kv"}, r"kpool decode: found kpool 4 with decode flashmla_kv.*2051 columns"),
    "kpool, flashmla_sparse prefill": (NOPE, {**DENSE, "prefill": "flashmla_sparse"}, r"kpool prefill: .*without a word; name the one"),
    "kpool that does not divide": (NOPE, {"index_topk": 2046}, r"found index_topk 2046 with kpool 4"),
    # Traps
    "the variable under aiter does nothing": (
        ROCM,
        {"prefill": "aiter", "decode": "aiter", "q_scale": True, "kv_scale": True, **TRITON_PREFILL},
        r"SGLANG_DSA_TRITON_PREFILL: found the environment variable set with prefill aiter, .*no effect.*unset it",
    ),
    "aiter over FP8 with one scale": (
        ROCM,
        {"prefill": "aiter", "decode": "aiter", "kv_scale": True},
        r"aiter scales: found aiter over FP8 KV with q_scale False, kv_scale True",
    ),
    "one flag of two on ROCm": (ROCM, {"decode": None}, r"found decode None; wanted one of .*name both phases"),
    "the other flag resolved to flashmla_kv": (ROCM, {"decode": "flashmla_kv"}, r"decode device: found decode flashmla_kv on gfx950"),
    "a capability for a device": (ROCM, {"device": (9, 0)}, r"found device \(9, 0\); .*gfx950 reports major 9 like SM90"),
    "major 9": (ROCM, {"device": 9}, r"found device 9; wanted an architecture's name"),
    # The gfx950 gate, condition by condition
    "gate: device": (ROCM, {"device": "gfx942", **TRITON_PREFILL}, r"on gfx942"),
    "gate: bf16": (ROCM, {"kv_dtype": BF16, **TRITON_PREFILL}, r"bfloat16, 16 heads.*no effect"),
    "gate: 8 heads": (ROCM, {"heads": 8, **TRITON_PREFILL}, r"8 heads.*no effect.*pass prefill='triton', which takes any shape"),
    "gate: no rope": (ROCM, {"rope_dim": 0, **TRITON_PREFILL}, r"rope 0.*no effect"),
    "gate: width": (ROCM, {"kpool": 4, **TRITON_PREFILL}, r"2051 columns, where it has no effect"),
    "gate: prefill": (ROCM, {"prefill": "triton", **TRITON_PREFILL}, r"prefill triton.*no effect"),
    # Options without effect
    "q8's variables without q8": (
        ROPE,
        {"prefill": "flashmla_sparse", "kv_dtype": BF16, "decode": "fa3", "environment": {"SGLANG_ENABLE_DSA_Q8KV8_TOPK_LENGTH": "true"}},
        r"SGLANG_ENABLE_DSA_Q8KV8_TOPK_LENGTH: .*wanted prefill flashmla_sparse_q8",
    ),
    "precision in bf16": (ROPE, {"prefill": "tilelang", "decode": "fa3", "kv_dtype": BF16, "precision": "high"}, r"precision without"),
    "precision elsewhere": (ROPE, {"prefill": "flashmla_kv", "precision": "high"}, r"no kernel of this package computes in FP8"),
    "scales in bf16": (ROPE, {"prefill": "tilelang", "decode": "fa3", "kv_dtype": BF16, "kv_scale": True}, r"scales without effect"),
    # Geometry
    "layout of another width": (ROPE, {"kv_layout": "raw8-512"}, r"kv_layout raw8-512 with rope 64"),
    "layout of another type": (ROPE, {"kv_layout": "bf16-576"}, r"kv_layout bf16-576 with rope 64 and fp8_e4m3"),
    "unknown layout": (ROPE, {"kv_layout": "raw"}, r"found kv_layout raw; wanted one of bf16-512"),
    "unknown backend": (ROPE, {"prefill": "flashmla"}, r"found prefill 'flashmla'; wanted one of flashmla_sparse_q8, "),
    "a backend with a layout of its own": (ROPE, {"prefill": "flashinfer_sparse_mla", "device": "sm120"}, r"a layout of its own"),
    "rank": (NOPE, {"kv_lora_rank": 256}, r"found kv_lora_rank 256; wanted the int 512"),
    "heads": (ROPE, {"heads": 129}, r"found heads 129; wanted 1 to 128"),
}  # fmt: skip


@pytest.mark.parametrize("what", REJECTED)
def test_rejected(what: str) -> None:
    base, changes, message = REJECTED[what]
    with pytest.raises(dsa.ArgumentError, match=message) as caught:
        check(base, **changes)
    for line in str(caught.value).splitlines():
        found, wanted, *fix = line.split("; ")
        assert "found " in found and wanted.startswith("wanted ") and fix


def test_every_rule_is_broken_by_a_row() -> None:
    said = []
    for base, changes, _ in REJECTED.values():
        with pytest.raises(dsa.ArgumentError) as caught:
            check(base, **changes)
        said += str(caught.value).splitlines()
    variables = [r.name for r in RULES if r.name.startswith("SGLANG_ENABLE")]  # rows of one kind
    unbroken = {r.name for r in RULES if not any(line.startswith(r.name + ": ") for line in said)}
    assert unbroken <= set(variables[1:])


@pytest.mark.parametrize("variable", [r.name for r in RULES if r.name.startswith("SGLANG_ENABLE")])
def test_variables_of_q8(variable: str) -> None:
    assert check(ROPE, environment={variable: "1"}).prefill == Q8
    assert check(ROPE, prefill="flashmla_kv", environment={variable: "0"})
    with pytest.raises(dsa.ArgumentError, match=variable):
        check(ROPE, prefill="flashmla_kv", environment={variable: "1"})


def test_the_gate_itself_is_accepted() -> None:
    assert check(ROCM, **TRITON_PREFILL).prefill == "tilelang"


def test_the_environment_is_the_process_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_DSA_TRITON_PREFILL", "1")
    with pytest.raises(dsa.ArgumentError, match="SGLANG_DSA_TRITON_PREFILL"):
        check(ROPE, environment=None)


def test_all_broken_rules_are_told_at_once() -> None:
    with pytest.raises(dsa.ArgumentError) as caught:
        check(ROPE, hisparse=True, mixed_chunks=True, device="sm100")
    assert len(str(caught.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("rank", "rope", "prefill", "decode", "wanted"),
    [
        (512, 0, Q8, "tilelang", True),
        (512, 64, Q8, "tilelang", False),
        (512, 0, Q8, "trtllm", False),
        (512, 0, Q8, "flashmla_kv", False),
        (256, 0, Q8, "tilelang", False),
        (512, 0, "tilelang", "tilelang", False),
    ],
)
def test_raw_fp8_nope(rank: int, rope: int, prefill: str, decode: str, wanted: bool) -> None:
    assert raw_fp8_nope(prefill, decode, rank, rope) is wanted


@pytest.mark.parametrize("value", [None, "512", 512.0, True])
def test_raw_fp8_nope_wants_ints(value: Any) -> None:
    with pytest.raises(dsa.ArgumentError, match=r"found kv_lora_rank .*wanted an int"):
        raw_fp8_nope(Q8, "tilelang", value, 0)
    with pytest.raises(dsa.ArgumentError, match="found rope_dim"):
        raw_fp8_nope(Q8, "tilelang", 512, value)


@pytest.mark.parametrize(
    ("prefill", "decode", "rope", "wanted"),
    [(Q8, "tilelang", 0, 512), ("tilelang", "tilelang", 0, 512), ("flashmla_kv", "flashmla_kv", 0, 528), (Q8, "flashmla_kv", 64, 656)],
)
def test_row_bytes_of_fp8_pools(prefill: str, decode: str, rope: int, wanted: int) -> None:
    assert kv_row_bytes(prefill=prefill, decode=decode, kv_dtype=FP8, kv_lora_rank=512, rope_dim=rope, device="sm90") == wanted


def test_backends_name_real_things() -> None:
    for backend in BACKENDS.values():
        assert set(backend.devices) <= set(dsa.config.DEVICES) and set(backend.pools) <= set(dsa.layouts.LAYOUTS)
        assert set(backend.tails) | set(backend.ours) <= set(backend.phases)
