"""Packs of made-up ops and stand-in drivers, for every test that wants them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import cabi
from tests.cabi import Runtime, Standin
from tests.cabi_ops import scale_op, split_op


@pytest.fixture
def sm90(tmp_path: Path) -> Path:
    return cabi.write_pack(tmp_path / "sm90", "sm90", [scale_op(), split_op()])


@pytest.fixture
def gfx950(tmp_path: Path) -> Path:
    return cabi.write_pack(tmp_path / "gfx950", "gfx950", [scale_op()])


@pytest.fixture
def cuda() -> Standin:
    return Standin("cuda", "9.0 9.0")


@pytest.fixture
def hip() -> Standin:
    return Standin("hip", "gfx950:sramecc+:xnack- gfx942", version=70051831, sm_count=256)


@pytest.fixture
def runtime(sm90: Path, cuda: Standin) -> Iterator[Runtime]:
    with Runtime([sm90], cuda=cuda.path) as r:
        yield r
