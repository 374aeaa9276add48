"""In what order include/tile_wave.py hands fragments to AMD's matrix instructions, modelled in numpy: the products come out right, and the
orders are those that the kernel's docstring states. Lanes are (g, i): group of 16, place in it.
"""

import numpy as np
import pytest

LANES = np.arange(64)
G, PLACE = LANES // 16, LANES % 16
SLOTS = np.arange(8)


def mma(a, b):
    """16x16x32 by the ISA: lane (g, i) brings row i of A and column i of B, elements 8 g + slot, and gets rows 4 g + r of column i."""
    A, B = np.zeros((16, 32)), np.zeros((32, 16))
    A[PLACE[:, None], 8 * G[:, None] + SLOTS] = a
    B[8 * G[:, None] + SLOTS, PLACE[:, None]] = b
    D = A @ B
    return D[4 * G[:, None] + np.arange(4), PLACE[:, None]]


def score_rows(tile):
    """Which key is row i of a tile of S^T."""
    return tile // 2 * 32 + PLACE // 4 * 8 + tile % 2 * 4 + PLACE % 4


@pytest.fixture
def block():
    rng = np.random.default_rng(0)
    return rng.normal(size=(64, 512)), rng.normal(size=(16, 512))


def scores(K, Q):
    """[64 lanes, 16]: two tiles for each 32 keys, steps of 32 columns, 8 of them a lane."""
    S = np.zeros((64, 16))
    for tile in range(4):
        for step in range(16):
            columns = 32 * step + 8 * G[:, None] + SLOTS
            S[:, 4 * tile : 4 * tile + 4] += mma(K[score_rows(tile)[:, None], columns], Q[PLACE[:, None], columns])
    return S


def test_a_lane_gets_eight_neighbouring_keys_of_one_head(block):
    K, Q = block
    keys = 32 * (np.arange(16) // 8) + 8 * G[:, None] + np.arange(16) % 8
    np.testing.assert_allclose(scores(K, Q), np.take_along_axis((Q @ K.T)[PLACE], keys, 1))


def transposed(K, rows, first_column, size):
    """What the transposing read gives 16 lanes from the addresses that each passes: 8 bytes a lane, then element i of every row."""
    wide = 8 // size
    got = np.zeros((64, 8))
    for half in range(size):  # two reads for 2-byte elements
        passed = np.stack([K[rows(half), first_column + v] for v in range(wide)], 1)  # [lane, wide]
        for k in range(wide):
            source = 16 * G + 16 // wide * k + PLACE // wide
            got[:, wide * half + k] = passed[source, PLACE % wide]
    return got


@pytest.mark.parametrize("size", [1, 2])
def test_values_read_transposed(block, size):
    K, Q = block
    P = scores(K, Q)
    wide = 8 // size
    for n in range(32):
        total = np.zeros((64, 4))
        for a in range(2):
            rows = lambda half, a=a: 32 * a + 8 * G + PLACE // (16 // wide) + 4 * half  # noqa: E731
            part = transposed(K, rows, 16 * n + PLACE % (16 // wide) * wide, size)
            np.testing.assert_array_equal(part, K[32 * a + 8 * G[:, None] + SLOTS, 16 * n + PLACE[:, None]])
            total += mma(part, P[:, 8 * a : 8 * a + 8])
        np.testing.assert_allclose(total, ((Q @ K.T) @ K)[PLACE[:, None], 16 * n + 4 * G[:, None] + np.arange(4)])


def test_values_permuted_in_registers(block):
    K, Q = block
    P = scores(K, Q)
    for n in range(4):
        for c in range(8):
            total = np.zeros((64, 4))
            for a in range(2):
                part = K[32 * a + 8 * G[:, None] + SLOTS, (16 * n + PLACE[:, None]) * 8 + c]
                total += mma(part, P[:, 8 * a : 8 * a + 8])
            columns = 8 * (16 * n + 4 * G[:, None] + np.arange(4)) + c
            np.testing.assert_allclose(total, ((Q @ K.T) @ K)[PLACE[:, None], columns])


@pytest.mark.parametrize("size", [1, 2])
def test_columns_of_eight_rows(size):
    """The byte selections of dsak_columns: eight rows of eight elements become columns."""

    def select(low, high, selection):
        both = np.concatenate((low, high))
        return both[[selection >> 8 * byte & 7 for byte in range(4)]]

    rows = np.arange(64 * size, dtype=np.uint8).reshape(8, 8 * size)
    found = np.zeros(64 * size, np.uint8)
    for word in range(2 * size):
        r = rows[:, 4 * word : 4 * word + 4]
        c = np.zeros((8, 4), np.uint8)
        if size == 2:
            for pair in range(4):
                c[pair] = select(r[2 * pair], r[2 * pair + 1], 0x05040100)
                c[4 + pair] = select(r[2 * pair], r[2 * pair + 1], 0x07060302)
        else:
            for side in range(2):
                q = r[4 * side : 4 * side + 4]
                low01, high01 = select(q[0], q[1], 0x05010400), select(q[0], q[1], 0x07030602)
                low23, high23 = select(q[2], q[3], 0x05010400), select(q[2], q[3], 0x07030602)
                c[side], c[2 + side] = select(low01, low23, 0x05040100), select(low01, low23, 0x07060302)
                c[4 + side], c[6 + side] = select(high01, high23, 0x05040100), select(high01, high23, 0x07060302)
        found[32 * word : 32 * word + 32] = c.reshape(-1)
    elements = rows.reshape(8, 8, size)
    np.testing.assert_array_equal(found.reshape(8, 8, size), elements.transpose(1, 0, 2))


@pytest.mark.parametrize("row_bytes", [512, 576, 1024, 1152])
def test_rows_that_lanes_read_together_meet_no_bank_twice(row_bytes):
    """64 banks of 4 bytes: the products' reads, 8 lanes with 16 bytes of a row each, and the transposing ones, 16 lanes with 8 bytes."""
    pytest.importorskip("tilelang")
    from aot.registry import KERNELS, sibling

    pitch = sibling(str(KERNELS / "include/op.py"), "tile_wave").pitch(row_bytes)
    assert pitch % 16 == 0

    def banks(starts, width):
        found = np.concatenate([np.arange(s // 4, (s + width) // 4) % 64 for s in starts])
        return len(found) == len(set(found))

    assert banks(score_rows(0)[:8] * pitch, 16) and banks(score_rows(1)[8:16] * pitch, 16)
    wide = 8 if row_bytes < 1000 else 4
    lanes = np.arange(16)
    assert banks(lanes // (16 // wide) * pitch + lanes % (16 // wide) * 8, 8)
