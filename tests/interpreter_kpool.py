"""Cases of test_triton_kernels.py for kpool_topk; run with TRITON_INTERPRET=1."""

import functools

import interpreted
import pytest
import torch

from tests import kpool


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def agree(given):
    kpool.agree(functools.partial(interpreted.call, "kpool_topk", "gfx950"), interpreted.reference("kpool_topk").kpool_topk, given)


@pytest.mark.parametrize("kind", kpool.KINDS)
@pytest.mark.parametrize("space", kpool.SPACES)
def test_pools_with_a_tail(kind, space):
    agree(kpool.call(kind, space, [0, 1, 511, 512, 513, 700, 5000], starts=space == "ragged"))


@pytest.mark.parametrize(("topk", "kpool_", "lengths"), [(2048, 1, [3, 2048, 2049]), (8, 4, [1, 2, 3, 300]), (6, 2, [9]), (4, 4, [70])])
@pytest.mark.parametrize("tail", [True, False])
def test_other_widths(topk, kpool_, lengths, tail):
    agree(kpool.call("ties", "positions", lengths, tail=tail, topk=topk, kpool=kpool_))


def test_what_is_out_of_range():
    agree(kpool.out_of_range())
