"""On a GPU, from installed wheels: kernels that are launched before those before them end read what these leave, and overwrite nothing
that these still read."""

import pytest

torch = pytest.importorskip("torch")
dsa_kernels = pytest.importorskip("dsa_kernels")
if not torch.cuda.is_available():
    pytest.skip("found no GPU", allow_module_level=True)

from tests.attention import BF16, FP8  # noqa: E402

pytestmark = pytest.mark.gpu
ROUNDS, POOLS = 4, 16384


class Chain:
    """Rounds of one selection and the attention over it; every round selects from scores of its own into the same index list."""

    def __init__(self, op, T, H, D, dtype):
        g = torch.Generator("cuda").manual_seed(0)
        self.op = getattr(dsa_kernels, op)
        self.q = (torch.randn(T, H, D, generator=g, device="cuda") * 0.25).to(dtype)
        self.kv = (torch.randn(4 * POOLS, D, generator=g, device="cuda") * 0.25).to(dtype)
        self.lengths = torch.full((T,), POOLS, dtype=torch.int32, device="cuda")
        self.scores = torch.zeros(ROUNDS, T, POOLS, device="cuda")
        self.indices = torch.full((T, 2048), -1, dtype=torch.int32, device="cuda")
        self.outs = torch.empty(ROUNDS, T, H, 512, dtype=torch.bfloat16, device="cuda")

    def fill(self, seed):
        self.scores.normal_(generator=torch.Generator("cuda").manual_seed(seed))
        self.outs.fill_(torch.nan)

    def run(self, between=lambda: None):
        for scores, out in zip(self.scores, self.outs, strict=True):
            dsa_kernels.kpool_topk(scores, self.lengths, out=self.indices)
            between()
            self.op(self.q, self.kv, self.indices, 0.0625, out=out)
            between()


@pytest.mark.parametrize(
    ("op", "T", "H", "D", "dtype"),
    [
        ("sparse_mla_decode", 1, 8, 512, FP8),  # clusters, tensor copies
        ("sparse_mla_decode", 100, 8, 512, FP8),
        ("sparse_mla_decode", 8, 16, 576, FP8),
        ("sparse_mla_decode", 200, 32, 512, FP8),
        ("sparse_mla_decode", 8, 64, 512, FP8),  # in parts, two launches
        ("sparse_mla_decode", 6, 16, 512, BF16),
        ("sparse_mla_prefill", 300, 128, 576, FP8),
        ("sparse_mla_prefill", 300, 16, 512, FP8),
    ],
)
def test_a_chain_in_a_graph(op, T, H, D, dtype):
    chain = Chain(op, T, H, D, dtype)
    dsa_kernels.preload()
    chain.fill(0)
    chain.run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain.run()
    for seed in range(1, 5):
        chain.fill(seed)
        graph.replay()
        found = chain.outs.clone()
        chain.fill(seed)
        chain.run()
        eager = chain.outs.clone()
        chain.fill(seed)
        chain.run(torch.cuda.synchronize)
        assert torch.isfinite(chain.outs).all()
        assert torch.equal(found, chain.outs) and torch.equal(eager, chain.outs)
