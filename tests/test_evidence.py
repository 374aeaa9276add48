"""The evidence command reads assembler text rightly, marks what is shipped, and its table in docs is that of the shipped kernels."""

import re
from collections import Counter

import pytest

from aot import evidence
from aot.assembly import RATES, Loop, hot_loop, loops
from aot.registry import KERNELS, ROOT, discover, sibling
from aot.targets import TARGETS

TEXT = """
kernel:
.LBB0_0:
	v_mfma_f32_16x16x32_bf16 v[0:3], v[4:5], v[6:7], v[0:3]
	s_cbranch_scc1 .LBB0_4
; %bb.1:
	global_load_dword v0, v[2:3], off
.LBB0_2:                                ; =>This Inner Loop Header: Depth=1
	global_load_dword v0, v[2:3], off
	s_cbranch_execz .LBB0_3
; %bb.5:                                ;   in Loop: Header=BB0_2 Depth=1
	global_load_dwordx4 v[0:3], v[2:3], off
	buffer_load_dwordx4 v[0:3], v2, s[0:3], 0 offen
	ds_read_b64_tr_b8 v[2:3], v1
	ds_read2_b64 v[2:5], v1 offset1:4
	ds_write2st64_b64 v1, v[2:3], v[4:5] offset1:8
.LBB0_3:                                ;   in Loop: Header=BB0_2 Depth=1
	v_mfma_f32_16x16x128_f8f6f4 v[0:3], v[4:11], v[4:11], v[0:3]
	v_mfma_f32_16x16x32_fp8_fp8 v[0:3], v[4:5], v[6:7], v[0:3]
	v_exp_f32_e32 v1, v1
	v_pk_mul_f32 v[0:1], v[0:1], v[2:3]
	v_mov_b32_e32 v1, 0
	s_cbranch_scc0 .LBB0_2
.LBB0_4:
	v_mov_b32_e32 v1, 0
	s_endpgm
.LBB0_6:                                ; =>This Inner Loop Header: Depth=1
	v_add_u32_e32 v1, v1, v1
	s_cbranch_scc0 .LBB0_6
"""


def test_the_hot_loop_is_the_one_with_the_matrix_work():
    assert set(loops(TEXT)) == {"BB0_2", "BB0_6"}
    loop = hot_loop(TEXT)
    assert loop.mfma == {"16x16x128_f8f6f4": 1, "16x16x32_fp8_fp8": 1}
    assert (loop.tiles, loop.valu) == (5.0, 3)
    assert loop.memory("global_load") == {4: 1, 16: 2}
    assert loop.memory("ds_read") == {8: 1, 16: 1}
    assert loop.memory("ds_write") == {16: 1}


def test_cycles_follow_published_rates():
    loop = hot_loop(TEXT)
    assert loop.matrix_cycles() == 32 + 16
    assert loop.vector_cycles() == 4 + 4 + 16
    assert loop.lds_cycles(RATES["gfx950"]) == 64 * (8 + 16 + 16) / 128


@pytest.mark.parametrize(
    ("opcode", "flops_per_cycle"),
    [
        ("v_mfma_f32_16x16x128_f8f6f4", 2048),  # 8192 a unit: CDNA4's FP8 peak
        ("v_mfma_f32_32x32x64_f8f6f4", 2048),
        ("v_mfma_f32_16x16x32_fp8_fp8", 1024),  # 4096 a unit: CDNA3's
        ("v_mfma_f32_32x32x16_fp8_fp8", 1024),
        ("v_mfma_f32_16x16x32_bf16", 1024),
        ("v_mfma_f32_32x32x16_bf16", 1024),
        ("v_mfma_f32_16x16x16_bf16", 512),
    ],
)
def test_rates_of_matrix_instructions(opcode, flops_per_cycle):
    loop = Loop(Counter({opcode: 1}))
    assert loop.tiles * 16 * 16 * 32 * 2 / loop.matrix_cycles() == flops_per_cycle


def test_text_without_matrix_work_is_refused():
    with pytest.raises(ValueError, match="found no loop with matrix instructions"):
        hot_loop("k:\n\ts_endpgm\n")


@pytest.mark.parametrize("target", RATES)
@pytest.mark.parametrize("name", ["sparse_mla_decode", "sparse_mla_prefill"])
def test_what_is_shipped_is_listed_and_stands_in_the_table(name, target):
    """Triton's kernels and TileLang's: each is one of its configurations, without spills; Triton's hold two waves a SIMD."""
    op = discover()[name]
    table = (ROOT / f"docs/tuning/{target}_evidence.md").read_text().split(f"\n## {name}\n")[1].split("\n## ")[0]
    listed: dict[str, list[bool]] = {}
    for words, kernel, c in evidence.looked_at(op, TARGETS[target]):
        listed.setdefault(kernel.name, []).append(evidence.shipped(kernel, c))
        row = re.search(rf"^\| \**{re.escape(words)}\**(, shipped)? \| {evidence.terms(kernel)} \|(.*)$", table, re.M)
        assert row and bool(row[1]) == evidence.shipped(kernel, c), (kernel.name, words)
        if row[1]:
            assert re.match(r" \d+ \| \d+ \| 0 \|", row[2]), "what is shipped spills nothing"
            assert kernel.language == "tilelang" or float(row[2].split("|")[4]) >= 2, "two waves a SIMD"
    kernels = [k for language in evidence.NAMES for k in evidence.kernels(op, TARGETS[target], language)]
    assert {k.name for k in kernels} == set(listed) and all(marks.count(True) == 1 for marks in listed.values())
    assert {k.language for k in kernels} == {"triton", "tilelang"}


@pytest.mark.parametrize("target", RATES)
def test_blocks_of_a_unit_are_what_the_table_says(target):
    """The number of splits counts on them."""
    tile = sibling(str(KERNELS / "include/op.py"), "tile_gfx")
    table = (ROOT / f"docs/tuning/{target}_evidence.md").read_text().split("\n## sparse_mla_decode\n")[1].split("\n## ")[0]
    for (arch, dtype), form in tile.FORMS.items():
        for heads, block in form.blocks.items() if arch == target else ():
            rows = re.findall(rf"^\| \*\*TileLang {dtype} HEADS={heads} .*, shipped \|(.*)$", table, re.M)
            assert rows
            for row in rows:
                assert float(row.split("|")[5]) * 4 / (heads // 16) == block.per_unit, row


def test_a_configuration_is_compiled_and_read():
    pytest.importorskip("triton")
    op, target = discover()["sparse_mla_decode"], TARGETS["gfx950"]
    kernel = next(evidence.kernels(op, target))
    found = evidence.look(op, evidence.configured(kernel, {"num_warps": 4}), target)
    assert found.warps == 4 and found.resources["spill_bytes"] == 0
    assert "16x16x128_f8f6f4" in found.loop.mfma and set(found.loop.memory("global_load")) <= {4, 8, 16}
    cells = found.cells("a name")
    assert len(cells) == len(evidence.COLUMNS) and cells[0] == "a name"
    assert all(v > 0 for v in found.cycles().values())
