"""concat_cast_q in plain torch."""

import torch


def cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Round to nearest even e4m3; the largest finite value bounds what is beyond it; a NaN stays one (torch's bits)."""
    limit = torch.finfo(dtype).max
    return x.float().clamp(-limit, limit).to(dtype)


def concat_cast_q(q_nope: torch.Tensor, q_rope: torch.Tensor | None, out: torch.Tensor) -> torch.Tensor:
    """Write ``out[:T, :H]``; leave the rest."""
    tokens, heads, _ = q_nope.shape
    parts = q_nope if q_rope is None else torch.cat((q_nope, q_rope), -1)
    out[:tokens, :heads] = cast(parts, out.dtype)
    return out
