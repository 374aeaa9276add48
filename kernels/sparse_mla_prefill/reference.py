"""Oracle for sparse MLA prefill, any input dtype, plain torch.

For every token ``t`` and head ``h``, over the columns ``j`` of ``indices[t]`` that are valid::

    valid(t, j)      = 0 <= indices[t, j] < s_kv  and  j < clamp(topk_length[t], 0, topk)
    k(t, j)          = kv_scale * kv[indices[t, j]]            # d_qk = 512 (+ 64) columns
    logit(t, h, j)   = sm_scale * dot(q_scale * q[t, h], k(t, j))
    max_logits[t, h] = max_j logit(t, h, j)
    lse[t, h]        = ln sum_j exp(logit(t, h, j))
    out[t, h]        = sum_j exp(logit(t, h, j)) * k(t, j)[:512] / (exp(lse[t, h]) + exp(attn_sink[h]))

The sink's term is absent without ``attn_sink``; the sink changes neither ``lse`` nor ``max_logits``. A repeated index counts as
often as it appears. A row without a valid column gives ``out = 0``, ``max_logits = -inf``, ``lse = +inf``; ``attn_sink = +inf``
gives ``out = 0``. Rows of ``kv`` that no valid column selects are never used, whatever bytes they hold.

Logits and softmax are computed in float64, the weighted sum of V in float64 too, in chunks of tokens.
"""

from __future__ import annotations

import torch

D_V = 512


def reference(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    sm_scale: float,
    q_rope: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
    attn_sink: torch.Tensor | None = None,
    q_scale: torch.Tensor | float | None = None,
    kv_scale: torch.Tensor | float | None = None,
    *,
    chunk_bytes: int = 1 << 30,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns ``(out, max_logits, lse)`` in float32: [T, H, 512], [T, H], [T, H].

    ``q`` is [T, H, d] and ``kv`` [s_kv, d] or [s_kv, 1, d], with d = 512 or 576; with ``q_rope`` ([T, H, 64]) ``q`` holds the
    latent columns only. ``indices`` is int32 [T, topk] or [T, 1, topk]. Scales are numbers or one-element tensors.
    """
    kv = kv.reshape(kv.shape[0], kv.shape[-1])
    indices = indices.reshape(indices.shape[0], indices.shape[-1]).long()
    if q_rope is not None:
        # Upcast before joining: not every build of torch can concatenate float8 tensors.
        q = torch.cat((q.float(), q_rope.float()), dim=-1)
    tokens, heads, width = q.shape
    if kv.shape[1] != width:
        raise ValueError(f"q has {width} columns, kv has {kv.shape[1]}; they must agree")
    s_kv, topk = kv.shape[0], indices.shape[1]
    logit_scale = float(sm_scale) * _number(q_scale) * _number(kv_scale)

    valid = (indices >= 0) & (indices < s_kv)
    if topk_length is not None:
        length = topk_length.reshape(-1, 1).clamp(0, topk)
        valid &= torch.arange(topk, device=indices.device).unsqueeze(0) < length

    out = torch.zeros(tokens, heads, D_V, dtype=torch.float32, device=q.device)
    max_logits = torch.full((tokens, heads), float("-inf"), dtype=torch.float32, device=q.device)
    lse = torch.full((tokens, heads), float("inf"), dtype=torch.float32, device=q.device)
    if tokens == 0 or topk == 0 or s_kv == 0:
        return out, max_logits, lse

    chunk = max(1, chunk_bytes // max(1, 8 * topk * (width + 3 * heads)))
    for start in range(0, tokens, chunk):
        rows = slice(start, min(tokens, start + chunk))
        ok = valid[rows]
        # Masked columns read row 0 and are then cleared: a NaN there must not survive as NaN * 0.
        gathered = _gather(kv, indices[rows].masked_fill(~ok, 0)).double()
        gathered.masked_fill_(~ok.unsqueeze(-1), 0.0)
        logits = torch.einsum("thd,tkd->thk", q[rows].double(), gathered).mul_(logit_scale)
        logits.masked_fill_(~ok.unsqueeze(1), float("-inf"))
        top = logits.amax(dim=-1)
        some = ok.any(dim=-1).unsqueeze(1)  # [chunk, 1]
        base = top.where(some, torch.zeros_like(top))
        weights = torch.exp(logits - base.unsqueeze(-1))
        total = weights.sum(dim=-1)
        divisor = total
        if attn_sink is not None:
            divisor = total + torch.exp(attn_sink.double().unsqueeze(0) - base)
        value = torch.einsum("thk,tkd->thd", weights, gathered[..., :D_V]).mul_(_number(kv_scale))
        result = value / divisor.unsqueeze(-1)
        out[rows] = result.where(some.unsqueeze(-1), torch.zeros_like(result)).float()
        max_logits[rows] = top.where(some, torch.full_like(top, float("-inf"))).float()
        lse[rows] = (torch.log(total) + base).where(some, torch.full_like(top, float("inf"))).float()
    return out, max_logits, lse


def _gather(kv: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    # One-byte types are gathered as bytes: indexing is not implemented for every float8 type and device.
    if kv.element_size() == 1:
        return kv.view(torch.uint8)[rows].view(kv.dtype)
    return kv[rows]


def _number(scale: torch.Tensor | float | None) -> float:
    if scale is None:
        return 1.0
    return float(scale.item()) if isinstance(scale, torch.Tensor) else float(scale)
