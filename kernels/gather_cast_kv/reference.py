"""gather_cast_kv in plain torch."""

import torch


def cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Round to nearest even e4m3; the largest finite value bounds what is beyond it; a NaN stays one (torch's bits)."""
    limit = torch.finfo(dtype).max
    return x.float().clamp(-limit, limit).to(dtype)


def gather_cast_kv(kv_cache: torch.Tensor, page_table: torch.Tensor, out: torch.Tensor, pad_rows: int = 0) -> torch.Tensor:
    """Write the first ``len(page_table) + pad_rows`` rows of ``out``; leave the rest."""
    n = len(page_table)
    inside = (page_table >= 0) & (page_table < len(kv_cache))
    slots = page_table[inside].long()
    bytes_ = out.view(torch.uint8)
    bytes_[: n + pad_rows] = 0
    raw = kv_cache.dtype == out.dtype
    bytes_[:n][inside] = kv_cache.view(torch.uint8)[slots] if raw else cast(kv_cache[slots], out.dtype).view(torch.uint8)
    return out
