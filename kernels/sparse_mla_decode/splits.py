"""Into how many splits a token's list is cut, worked out for each call from T, H, topk and the number of units.

- as many as make the blocks of all tokens fill the chip once (``slots`` blocks at a time): fewer leave units idle, more only add
  partials to write and read;
- three where the tokens alone fill more than half of it but two thirds at most, and lists are long (1024 columns or more): two full
  rounds of thirds end before one round of wholes does;
- where ``alone`` is given: one for each unit instead, while that leaves more than ``alone``. A program that has a unit to itself takes
  its blocks faster, and every partial must be combined;
- at least ``least`` columns each but for the last, below which the fixed cost of a split (queries, indices, rows: three trips to
  memory, then its partials) outweighs its work, and at most 64 splits, which keeps the combination a matter of microseconds;
- no more than have a block of keys to themselves when those are dealt evenly: 24 splits of 32 would be 16 of two and 8 of none.

topk_length is on the device and does not enter; a program works out its share from the length that it finds.
"""


def splits(heads: int, keys: int, slots: str, least: int, alone: int = 0) -> str:
    """The number of splits, an expression over the call, for blocks of ``heads`` heads that take ``keys`` keys at a time."""
    tiles = f"max(1, T * cdiv(H, {heads}))"
    full = f"{slots} // {tiles}"
    if alone:
        full = f"(sm_count // {tiles} if sm_count // {tiles} > {alone} else {full})"
    filling = f"3 if topk >= 1024 and 2 * {tiles} > {slots} and 3 * {tiles} <= 2 * {slots} else {full}"
    blocks = f"cdiv(topk, {keys})"
    return f"cdiv({blocks}, cdiv({blocks}, max(1, min(64, cdiv(topk, {least}), {filling}))))"
