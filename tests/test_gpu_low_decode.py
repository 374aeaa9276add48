"""The decode whose keys a cluster of blocks shares, on a GPU: every cluster size, tile of heads and row width.

The op's own matrix is tests/test_gpu_decode.py; here stand the hazards of the cluster: split borders, shares without keys, blocks
of threads on one SM, repeats, streams.
"""

import re

import pytest

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch", reason="the numeric matrix builds its inputs with torch")
if not torch.cuda.is_available():
    pytest.skip("found no GPU that torch can use", allow_module_level=True)
dsa_kernels = pytest.importorskip("dsa_kernels", reason="install the runtime wheel and the wheel of this architecture")
if torch.cuda.get_device_capability() != (9, 0) or torch.version.cuda is None:
    pytest.skip("found no SM90 device", allow_module_level=True)

from tests.attention import BF16, FP8, Case, check_nans  # noqa: E402

COMMON = {16: "h16_c6", 25: "h16_c4", 40: "h16_c3", 64: "h16_c2"}
ALONE = {300: "h16"}
NAMES = {
    FP8: {1: "h8_c11", 4: "h8_c9_t2", 5: "h8_c8_t2", 8: "h8_c6_t2", 9: "h16_c8_t2"}
    | {T: f"{name}_t2" for T, name in COMMON.items()}
    | {100: "h16_c2"}
    | ALONE,
    BF16: {1: "h8_c11", 4: "h8_c9", 5: "h16_c11", 8: "h16_c9", 12: "h16_c8"} | COMMON | ALONE,
}
"""For a number of tokens with 16 heads and 2051 columns: the tile and the cluster size that the tables give them at 132 SMs."""
TOKENS = (1, 4, 5, 8, 9, 12, 16, 25, 40, 64, 100, 150, 200, 300, 500, 700)
"""Every size of cluster, and none."""
FEW = (1, 4, 8, 16, 25, 40, 64)
dtypes = pytest.mark.parametrize("dtype", [FP8, BF16], ids=["fp8", "bf16"])


def decode(**options):
    return Case(**{"op": "sparse_mla_decode", "scale": 0.0625, "H": 16, "s_kv": 4096, "topk": 2051, **options})


def scaled(case):
    """BF16 calls with scales are served by these kernels alone."""
    case.kv_scale = torch.tensor([0.7], device="cuda")
    return case


def chosen(case):
    return re.search(r"(\S+): chosen", dsa_kernels.explain("sparse_mla_decode", **case.inputs()))[1]


def check(case, lse_tol=3e-4):
    case.check(rel=3e-3, lse_tol=lse_tol, elements=False)
    return case


@pytest.mark.parametrize(("dtype", "T", "name"), [(dtype, T, name) for dtype, names in NAMES.items() for T, name in names.items()])
def test_the_cluster_is_the_one_meant(dtype, T, name):
    if torch.cuda.get_device_properties(0).multi_processor_count != 132:
        pytest.skip("the sizes are those of 132 SMs")
    prefix = "low" if dtype == FP8 else "low_bf16"
    assert chosen(decode(T=T, dtype=dtype)) == f"{prefix}_d576_{name}"


def test_lists_of_2048_columns_are_shared_by_sixteen_blocks():
    for dtype, prefix in ((FP8, "low"), (BF16, "low_bf16")):
        case = decode(T=1, dtype=dtype, topk=2048)
        assert chosen(case) == f"{prefix}_d576_h8_c16"
        check(case.run())


@dtypes
@pytest.mark.parametrize("T", TOKENS)
@pytest.mark.parametrize("D", [512, 576])
@pytest.mark.parametrize("H", [8, 16, 32, 64])
def test_clusters_of_every_size(H, D, T, dtype):
    case = decode(T=T, H=H, D=D, dtype=dtype, pad=1, precision="high")
    if dtype == BF16:
        assert chosen(scaled(case)).startswith("low_bf16_")
    check(case.run(), lse_tol=1e-5)


@dtypes
@pytest.mark.parametrize("topk", [1, 63, 64, 65, 129, 257, 513, 577, 2051])
@pytest.mark.parametrize("T", FEW)
def test_split_borders(T, topk, dtype):
    for H in (5, 8, 13, 16, 29, 32):
        check(decode(T=T, H=H, dtype=dtype, topk=topk, pad=1, holes=0.2).run())


@dtypes
@pytest.mark.parametrize("T", FEW)
@pytest.mark.parametrize("D", [512, 576])
def test_fewer_keys_than_blocks(D, T, dtype):
    case = decode(T=T, D=D, dtype=dtype)
    case.indices[:, 1:] = -1  # one key: every other share is empty
    case.indices[0] = -1
    case.indices[-1, :-1] = -1
    check(case.run())
    case = decode(T=T, D=D, dtype=dtype)
    case.indices[:, 64:1984] = -1  # runs of empty blocks between others
    check(case.run())
    case = decode(T=T, D=D, dtype=dtype)
    case.length = torch.arange(T, dtype=torch.int32, device="cuda") % 70
    check(case.run())
    case.sink = torch.linspace(-4, 4, 16, device="cuda")
    check(case.run())


@dtypes
@pytest.mark.parametrize("D", [512, 576])
@pytest.mark.parametrize("T", [1, 8, 25, 64])
def test_coherent_rows_are_exact(T, D, dtype):
    for rows in ("equal", "mean"):
        case = decode(T=T, D=D, dtype=dtype, mean=1.0)
        if rows == "equal":
            case.kv[:] = case.kv[:1].clone()
        case.run()
        out = case.wanted()[0]
        assert (case.out.float() - out).norm() <= 5e-3 * out.norm()
        assert abs(case.gain() - 1) < 2e-3


@dtypes
@pytest.mark.parametrize("T", [1, 4, 8, 16, 25, 40, 64, 100, 200, 300])
@pytest.mark.parametrize("H", [8, 16, 32])
def test_a_thousand_repeats_are_bitwise_equal(H, T, dtype):
    case = decode(T=T, H=H, D=512, dtype=dtype, holes=0.1)
    if dtype == BF16:
        assert chosen(scaled(case)).startswith("low_bf16_")
    case.run()
    first = case.out.clone(), case.lse.clone(), case.max_logits.clone()
    inputs = case.inputs()
    differs = torch.zeros((), dtype=torch.bool, device="cuda")
    for _ in range(1000):
        case.out.fill_(torch.nan)
        dsa_kernels.sparse_mla_decode(**inputs, out=case.out, max_logits=case.max_logits, lse=case.lse)
        differs |= (case.out.view(torch.int16) != first[0].view(torch.int16)).any() | (case.lse != first[1]).any()
    assert not differs.item()
    check(case)


@dtypes
@pytest.mark.parametrize("T", [1, 8, 25, 64, 200, 300])
def test_a_nan_that_is_selected_comes_out_where_it_belongs(T, dtype):
    check_nans(decode(T=T, H=13, dtype=dtype, s_kv=20_000, topk=577, holes=0.2), row=3, head=5)


@dtypes
def test_two_streams_at_once(dtype):
    cases = [decode(T=T, dtype=dtype, seed=T) for T in (1, 8)]
    wanted = [case.run().out.clone() for case in cases]
    streams = [torch.cuda.Stream() for _ in cases]
    for case in cases:
        case.out.fill_(torch.nan)
    torch.cuda.synchronize()
    for _ in range(50):
        for case, stream in zip(cases, streams, strict=True):
            with torch.cuda.stream(stream):
                dsa_kernels.sparse_mla_decode(**case.inputs(), out=case.out)
    torch.cuda.synchronize()
    assert all(torch.equal(case.out, want) for case, want in zip(cases, wanted, strict=True))
