"""gather_requant_kv in plain torch."""

import torch


def cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Round to nearest even e4m3; the largest finite value bounds what is beyond it; a NaN stays one (torch's bits)."""
    limit = torch.finfo(dtype).max
    return x.float().clamp(-limit, limit).to(dtype)


def gather_requant_kv(kv_cache: torch.Tensor, page_table: torch.Tensor, out: torch.Tensor, pad_rows: int = 0) -> torch.Tensor:
    """Write the first ``len(page_table) + pad_rows`` rows of ``out``; leave the rest."""
    n = len(page_table)
    inside = (page_table >= 0) & (page_table < len(kv_cache))
    rows = kv_cache.view(torch.uint8)[page_table[inside].long()].contiguous()
    values = rows[:, :512].contiguous().view(out.dtype).float().view(-1, 4, 128)
    scales = rows[:, 512:528].contiguous().view(torch.float32)
    rope = rows[:, 528:].contiguous().view(torch.bfloat16)
    latent = (values * scales[:, :, None]).view(-1, 512)
    bytes_ = out.view(torch.uint8)
    bytes_[: n + pad_rows] = 0
    bytes_[:n][inside] = torch.cat((cast(latent, out.dtype), cast(rope, out.dtype)), -1).view(torch.uint8)
    return out
