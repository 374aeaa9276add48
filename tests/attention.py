"""Inputs of the sparse MLA ops that show faults, and what the output must be: shared by the GPU tests of their kernels."""

import importlib.util
import math
from pathlib import Path

import torch

import dsa_kernels

REFERENCE = Path(__file__).parents[1] / "kernels/sparse_mla_prefill/reference.py"
INF = float("inf")
FP8 = torch.float8_e4m3fn
BF16 = torch.bfloat16


def _load():
    spec = importlib.util.spec_from_file_location("sparse_mla_prefill_reference", REFERENCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.reference


reference = _load()


class Case:
    """Inputs on strided storage, rows that no valid column selects poisoned with NaN, outputs poisoned too."""

    def __init__(
        self,
        T=4,
        H=64,
        D=576,
        s_kv=1024,
        topk=256,
        rope=False,
        std=0.25,
        mean=0.0,
        pad=0,
        seed=0,
        holes=0.0,
        dtype=torch.bfloat16,
        precision=None,
        scale=None,
        device="cuda",
        op="sparse_mla_prefill",
        ops=dsa_kernels,
    ):
        g = torch.Generator(device).manual_seed(seed)

        unit = 16 if dtype == FP8 else 8  # elements in 16 bytes

        def normal(*shape, mean=0.0):
            return (torch.randn(shape, generator=g, device=device) * std + mean).to(dtype)

        self.op, self.ops, self.workspace = op, ops, None
        self.H, self.D, self.scale = H, D, D**-0.5 if scale is None else scale
        self.precision = precision
        self.q_scale = self.kv_scale = None
        self.q = normal(T, H + pad, (512 if rope else D) + unit * pad)[:, :H, : 512 if rope else D]
        self.q_rope = normal(T, H, 64 + unit * pad)[..., :64] if rope else None
        self.kv = normal(s_kv, D + unit * pad, mean=mean)[:, :D]
        self.indices = torch.randint(0, s_kv, (T, topk + pad), generator=g, device=device, dtype=torch.int32)[:, :topk]
        if holes:
            draw = torch.rand((T, topk), generator=g, device=device)
            for low, value in ((0.0, -1), (0.5, s_kv), (0.75, 2**31 - 1), (0.9, -(2**31))):
                self.indices[(draw >= low * holes) & (draw < holes)] = value
        self.length = self.sink = None
        self.out = torch.full((T, H + pad, 512 + 8 * pad), math.nan, dtype=torch.bfloat16, device=device)[:, :H, :512]
        self.max_logits = torch.full((T, H), math.nan, device=device)
        self.lse = torch.full((T, H), math.nan, device=device)

    def poison(self):
        valid = (self.indices >= 0) & (self.indices < len(self.kv))
        if self.length is not None:
            valid &= torch.arange(self.indices.shape[1], device=valid.device) < self.length[:, None]
        free = torch.ones(len(self.kv), dtype=torch.bool, device=valid.device)
        free[self.indices[valid].long()] = False
        if self.kv.dtype == FP8:
            self.kv.view(torch.uint8)[free] = 0x7F
        else:
            self.kv[free] = math.nan

    def inputs(self):
        optional = {"q_rope": self.q_rope, "topk_length": self.length, "attn_sink": self.sink}
        scales = {"q_scale": self.q_scale, "kv_scale": self.kv_scale}
        return {"q": self.q, "kv": self.kv, "indices": self.indices, "sm_scale": self.scale, **optional, **scales}

    def run(self):
        self.poison()
        self.launch()
        torch.cuda.synchronize()
        return self

    def launch(self):
        outputs = {"out": self.out, "max_logits": self.max_logits, "lse": self.lse}
        scratch = {} if self.workspace is None else {"workspace": self.workspace}
        getattr(self.ops, self.op)(**self.inputs(), precision=self.precision, **outputs, **scratch)

    def wanted(self):
        return reference(**self.inputs())

    def check(self, rel=6e-3, lse_tol=2e-4, elements=True):
        out, max_logits, lse = self.wanted()
        got = self.out.float()
        assert torch.isfinite(got).all()
        assert (got - out).norm() <= rel * out.norm() + 1e-6
        if elements:
            torch.testing.assert_close(got, out, atol=2e-3 + 8e-3 * out.abs().max().item(), rtol=1e-2)
        torch.testing.assert_close(self.max_logits, max_logits, atol=max(lse_tol, 2e-3 if self.kv.dtype == FP8 else 0), rtol=2e-5)
        torch.testing.assert_close(self.lse, lse, atol=lse_tol, rtol=2e-5)
        empty = torch.isneginf(max_logits)
        assert (got[empty] == 0).all() and torch.isposinf(self.lse[empty]).all()
        if (parent := self.out._base) is not None and parent.shape[1] > self.H:
            assert torch.isnan(parent[:, self.H :]).all() and torch.isnan(parent[:, :, 512:]).all()

    def gain(self):
        """Projection of the output on the reference: 1 when sums lose nothing."""
        want = self.wanted()[0].double()
        return ((self.out.double() * want).sum() / (want * want).sum()).item()


def check_nans(case, row, head):
    """A NaN in the first token's selected row number ``row`` and one in ``head`` of its last query reach their outputs and no others."""
    case.run()
    before = case.out.clone(), case.max_logits.clone(), case.lse.clone()
    wrong = torch.zeros_like(case.lse, dtype=torch.bool)
    wrong[-1, head] = True
    valid = case.indices[0][(case.indices[0] >= 0) & (case.indices[0] < len(case.kv))]
    wrong |= (case.indices == valid[row]).any(1, keepdim=True)
    for x, place in ((case.kv, valid[row]), (case.q, (-1, head))):
        if x.dtype == FP8:
            x.view(torch.uint8)[place][17] = 0x7F
        else:
            x[place][17] = math.nan
    case.launch()
    torch.cuda.synchronize()
    for now, then in zip((case.out, case.max_logits, case.lse), before, strict=True):
        assert torch.isnan(now[wrong]).all()
        assert torch.equal(now[~wrong], then[~wrong])
