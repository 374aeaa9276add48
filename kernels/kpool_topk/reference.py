"""kpool_topk in plain torch, row by row."""

import torch


def kpool_topk(
    score: torch.Tensor,
    lengths: torch.Tensor,
    out: torch.Tensor,
    page_table: torch.Tensor | None = None,
    page_table_row: torch.Tensor | None = None,
    offset: torch.Tensor | None = None,
    row_starts: torch.Tensor | None = None,
    seq_lens: torch.Tensor | None = None,
    topk: int = 2048,
    kpool: int = 4,
    topk_length: torch.Tensor | None = None,
) -> torch.Tensor:
    """Write all of ``out`` and ``topk_length``."""
    out.fill_(-1)
    for b in range(len(score)):
        start = 0 if row_starts is None else min(max(int(row_starts[b]), 0), score.shape[1])
        complete = max(int(lengths[b]), 0)
        row = score[b, start : start + complete]
        order = torch.argsort(row.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf), descending=True, stable=True)
        order = order[torch.argsort(row[order].isnan().int(), stable=True)]  # numbers first, each kind in order
        pools = order[: topk // kpool].sort().values
        positions = (pools[:, None] * kpool + torch.arange(kpool, device=score.device)).flatten()
        if seq_lens is not None:
            tail = max(int(seq_lens[b]), 0) % kpool
            positions = torch.cat((positions, complete * kpool + torch.arange(tail, device=score.device)))
        if topk_length is not None:
            topk_length[b] = len(positions)
        if page_table is not None:
            r = b if page_table_row is None else int(page_table_row[b])
            inside = positions < (page_table.shape[1] if 0 <= r < len(page_table) else 0)
            found = torch.full_like(positions, -1)
            found[inside] = page_table[r, positions[inside]].long() if bool(inside.any()) else found[inside]
            positions = found
        elif offset is not None:
            positions = positions + int(offset[b])
        out[b, : len(positions)] = positions.int()
    return out
