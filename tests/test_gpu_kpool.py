"""On a GPU, from installed wheels: kpool_topk agrees with its reference, and with torch.topk where scores differ."""

import pytest

torch = pytest.importorskip("torch")
dsa_kernels = pytest.importorskip("dsa_kernels")
if not torch.cuda.is_available():
    pytest.skip("found no GPU", allow_module_level=True)

from tests import kpool, oracle  # noqa: E402

pytestmark = pytest.mark.gpu
LENGTHS = [0, 1, 511, 512, 513, 700, 4095, 4096, 4097, 8191, 8193, 16385, 65536, 200_000]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def agree(given):
    kpool.agree(dsa_kernels.kpool_topk, oracle.function("kpool_topk"), given)


@pytest.mark.parametrize("kind", kpool.KINDS)
@pytest.mark.parametrize("space", kpool.SPACES)
def test_pools_with_a_tail(kind, space):
    agree(kpool.call(kind, space, LENGTHS, starts=space == "ragged", device="cuda"))


@pytest.mark.parametrize(
    ("topk", "kpool_", "lengths"), [(2048, 1, [3, 2048, 2049, 70000]), (8, 4, [1, 2, 3, 300]), (6, 2, [9]), (4, 4, [70])]
)
@pytest.mark.parametrize("tail", [True, False])
def test_other_widths(topk, kpool_, lengths, tail):
    agree(kpool.call("ties", "positions", lengths, tail=tail, topk=topk, kpool=kpool_, device="cuda"))


def test_what_is_out_of_range():
    agree(kpool.out_of_range("cuda"))


def test_more_rows_than_units():
    agree(kpool.call("distinct", "slots", list(range(400, 1000)), device="cuda"))


def test_the_set_of_torch_topk():
    for n in (512, 5000, 65536, 200_000):
        given = kpool.call("distinct", "positions", [n] * 3, tail=False, device="cuda")
        out = dsa_kernels.kpool_topk(given["score"], given["lengths"])
        pools = given["score"][:, :n].topk(512).indices.sort().values
        assert torch.equal(out.long(), (pools[:, :, None] * 4 + torch.arange(4, device="cuda")).flatten(1))


def test_one_launch_that_a_graph_repeats():
    given = kpool.call("distinct", "slots", [5000, 70000], device="cuda")
    dsa_kernels.kpool_topk(**given)
    wanted = given["out"].clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dsa_kernels.kpool_topk(**given)
    for _ in range(3):
        given["out"].fill_(-9)
        graph.replay()
        assert torch.equal(given["out"], wanted)
    assert "grid (2, 1, 1)" in dsa_kernels.select("kpool_topk", **given).launches
