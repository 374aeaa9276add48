"""KV row layouts: sizes, what writers and readers agree on, and that no input makes a NaN of its own."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
layouts = pytest.importorskip("dsa_kernels.layouts", reason="the runtime is not installed: pip install -e .")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from dsa_kernels.errors import ArgumentError  # noqa: E402
from tests import oracle  # noqa: E402

ROW_BYTES = {"bf16-576": 1152, "bf16-512": 1024, "raw8-512": 512, "raw8-576": 576, "pack-656": 656, "pack-528": 528}
LAYOUT = pytest.mark.parametrize("name", ROW_BYTES)
FLAVOUR = pytest.mark.parametrize("fp8", ["e4m3fn", "e4m3fnuz"])
FEW = settings(max_examples=25, deadline=None, derandomize=True)
BOUND = {"bf16": 2.0**-8, "raw8": 2.0**-4, "pack": 2.0**-4}
"""Largest relative error of one rounding: half a unit in the last place."""


def inputs(layout, n=7, scale=1.0):
    torch.manual_seed(n)
    return torch.randn(n, 512) * scale, torch.randn(n, 64) if layout.rope else None


@LAYOUT
def test_row_bytes(name):
    layout = layouts.kv_layout(name)
    assert layout.row_bytes == ROW_BYTES[name]
    assert layout.pool(3).view(torch.uint8).shape == (3, ROW_BYTES[name])
    ends = [p.offset + p.elements * layouts.SIZES[p.dtype] for p in layout.parts]
    assert [p.offset for p in layout.parts] == [0, *ends[:-1]] and ends[-1] == ROW_BYTES[name]


def test_offsets_of_packed_rows():
    assert {p.name: p.offset for p in layouts.LAYOUTS["pack-656"].parts} == {"latent": 0, "scales": 512, "rope": 528}


@LAYOUT
@FLAVOUR
@FEW
@given(exponent=st.integers(-30, 30), n=st.integers(0, 9), stride=st.sampled_from([0, 16, 64]))
def test_what_is_written_is_read(name, fp8, exponent, n, stride):
    layout = layouts.kv_layout(name, fp8)
    latent, rope = inputs(layout, n, 2.0**exponent if layout.packed or name.startswith("bf16") else 1.0)
    rows = layout.pool(12)
    wide = torch.zeros(12, layout.row_bytes + stride, dtype=torch.uint8)
    pool = wide[:, : layout.row_bytes].view(rows.dtype)
    slots = torch.randperm(12)[:n].int()
    layout.write(pool, slots, latent, rope)
    wanted = latent if rope is None else torch.cat((latent, rope), -1)
    found = layout.read(pool, slots)
    kind = name.split("-")[0]
    scales = latent.unflatten(-1, (4, 128)).abs().amax(-1).repeat_interleave(128, -1) / layout._largest if layout.packed else 1.0
    smallest = torch.zeros_like(wanted)
    smallest[:, :512] = (2.0**-9 if kind != "bf16" else 0.0) * scales  # half of it rounds to zero
    smallest[:, 512:] = 2.0**-9 if kind == "raw8" else 0.0
    assert ((found - wanted).abs() <= BOUND[kind] * wanted.abs() + smallest).all()
    untouched = torch.ones(12, dtype=torch.bool)
    untouched[slots.long()] = False
    assert not wide[untouched].any() and not wide[:, layout.row_bytes :].any()


@LAYOUT
@FLAVOUR
def test_pack_and_unpack_are_inverse(name, fp8):
    layout = layouts.kv_layout(name, fp8)
    parts = layout.quantize(*inputs(layout))
    found = layout.unpack(layout.pack(parts))
    assert list(found) == [p.name for p in layout.parts]
    for part in parts:
        assert torch.equal(found[part].contiguous().view(torch.uint8), parts[part].contiguous().view(torch.uint8))


@pytest.mark.parametrize("name", ["pack-656", "pack-528"])
@FLAVOUR
@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, 9.2e-41, 1e-38, 3e38, float("inf")])
def test_groups_of_one_value(name, fp8, value):
    """A group of zeros, of numbers whose scale underflows, and of the largest ones: finite scales that are no zeros, no NaN."""
    layout = layouts.kv_layout(name, fp8)
    latent, rope = inputs(layout, 2)
    latent[:, 128:256] = value
    parts = layout.quantize(latent, rope)
    assert torch.isfinite(parts["scales"]).all() and (parts["scales"] > 0).all()
    found = layout.dequantize(parts)[:, 128:256]
    assert torch.isfinite(found).all()
    wanted = torch.tensor(min(value, 3.4e38))
    assert torch.allclose(found, wanted.expand_as(found), rtol=1e-6, atol=1e-39)


@pytest.mark.parametrize("name", ["raw8-512", "raw8-576", "pack-528"])
def test_casts_saturate_and_a_nan_stays_one(name):
    layout = layouts.kv_layout(name)
    latent, rope = inputs(layout, 1, 0.0)
    latent[0, :3] = torch.tensor([1e30, -1e30, 5.0])
    latent[0, 130] = float("nan")
    found = layout.dequantize(layout.quantize(latent, rope))
    assert torch.isnan(found).nonzero().tolist() == [[0, 130]]
    if not layout.packed:
        assert found[0, :3].tolist() == [448.0, -448.0, 5.0]


@FEW
@given(n=st.integers(1, 20))
def test_the_gathers_read_what_is_written(n):
    """The ops' references agree with the readers: plain and packed pools become the same FP8 rows."""
    for name, op in (("bf16-576", "gather_cast_kv"), ("raw8-512", "gather_cast_kv"), ("pack-656", "gather_requant_kv")):
        layout = layouts.kv_layout(name)
        pool = layout.pool(32)
        slots = torch.randperm(32)[:n].int()
        layout.write(pool, slots, *inputs(layout, n))
        out = torch.empty(n, 512 + layout.rope, dtype=torch.float8_e4m3fn)
        oracle.function(op)(pool, slots, out)
        assert torch.equal(out.float(), layout.read(pool, slots).clamp(-448, 448).to(out.dtype).float())


def test_errors_say_what_is_wanted():
    layout = layouts.kv_layout("pack-656")
    with pytest.raises(ArgumentError, match=r"found KV layout 'raw'.*wanted one of bf16-512.*"):
        layouts.kv_layout("raw")
    with pytest.raises(ArgumentError, match=r"rope None; wanted \[N, 512\] and \[N, 64\] for the layout pack-656"):
        layout.quantize(torch.zeros(2, 512))
    with pytest.raises(ArgumentError, match=r"\[N, 512\] and no rope"):
        layouts.kv_layout("raw8-512").quantize(torch.zeros(2, 512), torch.zeros(2, 64))
    with pytest.raises(ArgumentError, match=r"found rows of shape \[2, 576\].*656 bytes a row"):
        layout.read(torch.zeros(2, 576, dtype=torch.uint8), torch.tensor([0]))
