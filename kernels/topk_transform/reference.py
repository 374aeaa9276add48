"""topk_transform in plain torch."""

import torch


def topk_transform(
    page_table: torch.Tensor | None,
    topk_indices: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None,
    out: torch.Tensor,
    offset: torch.Tensor | None = None,
) -> torch.Tensor:
    """Write all of ``out``."""
    if offset is not None:
        return out.copy_(torch.where(topk_indices < 0, -1, topk_indices + offset[:, None]))
    assert page_table is not None
    requests, width = page_table.shape
    request = torch.arange(len(topk_indices), device=topk_indices.device)
    if cu_seqlens_q is not None:
        request = (cu_seqlens_q[1:].long()[None, :] <= request[:, None]).sum(1)
    selected = (topk_indices >= 0) & (topk_indices < width) & (request < requests)[:, None]
    rows = request.clamp(max=max(requests - 1, 0))[:, None].expand_as(topk_indices)
    out.fill_(-1)
    out[selected] = page_table[rows[selected], topk_indices[selected].long()]
    return out
