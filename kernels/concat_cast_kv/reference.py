"""concat_cast_kv in plain torch."""

import torch


def cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Round to nearest even e4m3; the largest finite value bounds what is beyond it; a NaN stays one (torch's bits)."""
    limit = torch.finfo(dtype).max
    return x.float().clamp(-limit, limit).to(dtype)


def concat_cast_kv(k: torch.Tensor, k_rope: torch.Tensor | None, out: torch.Tensor, pad_rows: int = 0) -> torch.Tensor:
    """Write the first ``T + pad_rows`` rows of ``out``; leave the rest."""
    tokens = len(k)
    out[:tokens] = cast(k if k_rope is None else torch.cat((k, k_rope), -1), out.dtype)
    out.view(torch.uint8)[tokens : tokens + pad_rows] = 0
    return out
