"""The best pools of each row, their tokens in ascending order, then the live tail.

One program takes a row. Scores become 32-bit keys in the order of the numbers; four histograms of eight bits, each over the keys
that begin as the threshold does, find the lowest key to take and how many keys equal to it. A last pass over the row numbers
the taken pools by prefix sums (both counts in one word), so they come out in order and ties go to the first. The row is read
five times, from L2 after the first. A row of no more pools than wanted skips the histograms: the threshold stays at zero.
"""

import triton
import triton.language as tl


@triton.jit
def key(x):
    """float32 as uint32 in the same order: both zeros alike, NaN at 0, below -inf."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.uint32, bitcast=True)
    ordered = tl.where(bits >= 0x80000000, ~bits, bits | 0x80000000)
    return tl.where(x != x, 0, ordered).to(tl.uint32)


@triton.jit
def place(position, valid, table, width, shift, has_page_table):
    """Positions to slots or ragged rows; -1 where the page table has none."""
    slot = tl.load(table + position, mask=valid & (position >= 0) & (position < width), other=-1)
    return tl.where(has_page_table != 0, slot, position + shift)


@triton.jit
def kpool_topk(
    score,
    score_s0,
    lengths,
    page_table,
    page_table_s0,
    page_table_row,
    offset,
    row_starts,
    seq_lens,
    out,
    out_s0,
    topk_length,
    S,
    R,
    P,
    topk,
    kpool,
    has_page_table,
    has_page_table_row,
    has_offset,
    has_row_starts,
    has_seq_lens,
    has_topk_length,
    BLOCK: tl.constexpr,
):
    b = tl.program_id(0)
    start = tl.load(row_starts + b, mask=has_row_starts != 0, other=0)
    start = tl.minimum(tl.maximum(start, 0), S)
    complete = tl.maximum(tl.load(lengths + b), 0)
    n = tl.minimum(complete, S - start)
    tail = tl.maximum(tl.load(seq_lens + b, mask=has_seq_lens != 0, other=0), 0) % kpool
    shift = tl.load(offset + b, mask=has_offset != 0, other=0)
    request = tl.load(page_table_row + b, mask=has_page_table_row != 0, other=b)
    width = tl.where((request >= 0) & (request < R), P, 0)  # R is 0 without a page table
    table = page_table + request.to(tl.int64) * page_table_s0
    row = score + b.to(tl.int64) * score_s0 + start
    to = out + b.to(tl.int64) * out_s0
    lane = tl.arange(0, BLOCK)
    digits = tl.arange(0, 256)

    wanted = topk // kpool
    need = wanted
    prefix = tl.full([], 0, tl.uint32)
    searched = tl.where(n > wanted, n, 0)
    for level in tl.static_range(4):
        counts = tl.zeros([256], tl.int32)
        for at in range(0, searched, BLOCK):
            live = at + lane < n
            k = key(tl.load(row + at + lane, mask=live, other=0.0))
            if level > 0:
                live = live & ((k >> (32 - 8 * level)) == prefix)
            counts += tl.histogram(((k >> (24 - 8 * level)) & 255).to(tl.int32), 256, mask=live)
        above = tl.sum(counts) - tl.cumsum(counts)
        hit = (above < need) & (above + counts >= need)
        need -= tl.sum(tl.where(hit, above, 0))
        prefix = (prefix << 8) | tl.sum(tl.where(hit, digits, 0)).to(tl.uint32)

    higher_before = 0
    equal_before = 0
    for at in range(0, n, BLOCK):
        pool = at + lane
        live = pool < n
        k = key(tl.load(row + pool, mask=live, other=0.0))
        higher = (live & (k > prefix)).to(tl.int32)
        equal = (live & (k == prefix)).to(tl.int32)
        both = higher + (equal << 16)
        before = tl.cumsum(both) - both
        ties = equal_before + (before >> 16)
        taken = (higher != 0) | ((equal != 0) & (ties < need))
        column = (higher_before + (before & 0xFFFF) + tl.minimum(ties, need)) * kpool
        for j in range(kpool):
            position = pool.to(tl.int64) * kpool + j
            tl.store(to + column + j, place(position, taken, table, width, shift, has_page_table), mask=taken)
        all_of = tl.sum(both)
        higher_before += all_of & 0xFFFF
        equal_before += all_of >> 16

    history = tl.minimum(n, wanted) * kpool
    columns = topk + tl.where(has_seq_lens != 0, kpool - 1, 0)
    for at in range(history, columns, 256):
        c = at + digits
        position = complete.to(tl.int64) * kpool + c - history
        live = c < history + tail
        value = place(position, live, table, width, shift, has_page_table)
        tl.store(to + c, tl.where(live, value, -1), mask=c < columns)
    tl.store(topk_length + b, history + tail, mask=has_topk_length != 0)
