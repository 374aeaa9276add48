"""Rows of a KV pool: what an engine allocates, what writes them, what reads them. One table, ``LAYOUTS``.

A row holds one token's latent vector of 512 and, for models with rope, 64 more elements. ``raw8`` rows are unscaled e4m3 casts;
``pack`` rows carry one float32 scale for each group of 128 latent elements. Importing this module needs no torch; its tensors do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .errors import ArgumentError

if TYPE_CHECKING:
    import torch

LATENT, ROPE, GROUP = 512, 64, 128
SIZES = {"bf16": 2, "f32": 4, "fp8": 1}
FLAVOURS = {"e4m3fn": "float8_e4m3fn", "e4m3fnuz": "float8_e4m3fnuz"}


@dataclass(frozen=True)
class Part:
    """``elements`` values of ``dtype`` from byte ``offset`` of a row on."""

    name: str
    dtype: str
    elements: int
    offset: int


@dataclass(frozen=True)
class Layout:
    """What the bytes of a row mean. ``fp8`` is the flavour: ``e4m3fn``, or ``e4m3fnuz`` on gfx942.

    Rows are tensors [N, width]: of the layout's only element type, or of bytes where a row mixes types; they may be strided.
    """

    name: str
    parts: tuple[Part, ...]
    fp8: str = "e4m3fn"

    @property
    def row_bytes(self) -> int:
        return sum(SIZES[p.dtype] * p.elements for p in self.parts)

    @property
    def rope(self) -> int:
        """Rope elements of a row: 64 or 0."""
        return sum(p.elements for p in self.parts if p.name == "rope")

    @property
    def packed(self) -> bool:
        """Whether rows carry scales."""
        return any(p.name == "scales" for p in self.parts)

    def torch_dtype(self, dtype: str) -> torch.dtype:
        import torch

        name = FLAVOURS[self.fp8] if dtype == "fp8" else {"bf16": "bfloat16", "f32": "float32", "u8": "uint8"}[dtype]
        found: torch.dtype = getattr(torch, name)
        return found

    def pool(self, slots: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """``slots`` rows of zero bytes, [slots, width]."""
        import torch

        kinds = {p.dtype for p in self.parts}
        dtype = self.torch_dtype(kinds.pop() if len(kinds) == 1 else "u8")
        return torch.zeros(slots, self.row_bytes, dtype=torch.uint8, device=device).view(dtype)

    def quantize(self, latent: torch.Tensor, rope: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """The parts of rows, from ``latent`` [N, 512] and ``rope`` [N, 64] of any float type; ``rope`` exactly where the layout has it.

        Casts round to nearest even and saturate; a NaN stays one. A group's scale is its largest magnitude over the largest e4m3,
        and 1 where that is zero, so a group of zeros reads back as zeros.
        """
        self._check(latent, rope)
        parts = {"latent": latent.float()}
        if self.packed:
            groups = parts["latent"].unflatten(-1, (-1, GROUP))
            scales = groups.abs().amax(-1).clamp(max=3.4e38) / self._largest
            scales = scales.where(scales > 0, 1.0)
            parts = {"latent": (groups / scales[..., None]).flatten(-2), "scales": scales}
        if rope is not None:
            parts["rope"] = rope.float()
        return {p.name: self._cast(parts[p.name], p.dtype) for p in self.parts}

    def pack(self, parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Rows [N, width] from their parts."""
        rows = self.pool(len(parts["latent"]), parts["latent"].device)
        for name, view in self.unpack(rows).items():
            view.copy_(parts[name])
        return rows

    def unpack(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        """The parts of ``rows`` [N, width], as views."""
        import torch

        raw = rows.view(torch.uint8)
        if raw.ndim != 2 or raw.shape[1] != self.row_bytes:
            raise ArgumentError(
                f"found rows of shape {list(rows.shape)} {rows.dtype}; wanted [N, width] with {self.row_bytes} bytes a row, "
                f"the layout {self.name}; allocate them with pool()"
            )
        return {p.name: raw[:, p.offset : p.offset + p.elements * SIZES[p.dtype]].view(self.torch_dtype(p.dtype)) for p in self.parts}

    def dequantize(self, parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """float32 rows [N, 512 or 576]."""
        import torch

        latent = parts["latent"].float()
        if self.packed:
            latent = (latent.unflatten(-1, (-1, GROUP)) * parts["scales"][..., None]).flatten(-2)
        return torch.cat((latent, parts["rope"].float()), -1) if self.rope else latent

    def write(self, pool: torch.Tensor, slots: torch.Tensor, latent: torch.Tensor, rope: torch.Tensor | None = None) -> None:
        """Quantise rows into ``pool`` at ``slots`` [N], each of them inside the pool."""
        import torch

        self.unpack(pool)  # its check
        pool.view(torch.uint8)[slots.long()] = self.pack(self.quantize(latent, rope)).view(torch.uint8)

    def read(self, pool: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """The rows at ``slots`` [N] as float32 [N, 512 or 576]."""
        import torch

        self.unpack(pool)
        return self.dequantize(self.unpack(pool.view(torch.uint8)[slots.long()]))

    @property
    def _largest(self) -> float:
        import torch

        return float(torch.finfo(self.torch_dtype("fp8")).max)

    def _cast(self, x: torch.Tensor, dtype: str) -> torch.Tensor:
        if dtype == "fp8":  # torch's own cast overflows to NaN
            x = x.clamp(-self._largest, self._largest)
        return x.to(self.torch_dtype(dtype))

    def _check(self, latent: torch.Tensor, rope: torch.Tensor | None) -> None:
        width = 0 if rope is None else rope.shape[-1]
        if latent.ndim != 2 or latent.shape[1] != LATENT or width != self.rope or (rope is not None and len(rope) != len(latent)):
            found = f"latent {list(latent.shape)} and rope {None if rope is None else list(rope.shape)}"
            wanted = f"[N, {LATENT}] and " + (f"[N, {ROPE}]" if self.rope else "no rope")
            raise ArgumentError(f"found {found}; wanted {wanted} for the layout {self.name}; choose the layout by the model's rope width")


def _layout(name: str, *parts: tuple[str, str, int]) -> Layout:
    made: list[Part] = []
    for part, dtype, elements in parts:
        made.append(Part(part, dtype, elements, sum(SIZES[p.dtype] * p.elements for p in made)))
    return Layout(name, tuple(made))


_SCALES = ("scales", "f32", LATENT // GROUP)
LAYOUTS = {
    layout.name: layout
    for layout in (
        _layout("bf16-512", ("latent", "bf16", LATENT)),
        _layout("bf16-576", ("latent", "bf16", LATENT), ("rope", "bf16", ROPE)),
        _layout("raw8-512", ("latent", "fp8", LATENT)),
        _layout("raw8-576", ("latent", "fp8", LATENT), ("rope", "fp8", ROPE)),
        _layout("pack-528", ("latent", "fp8", LATENT), _SCALES),
        _layout("pack-656", ("latent", "fp8", LATENT), _SCALES, ("rope", "bf16", ROPE)),
    )
}
"""By name. bf16-576 and bf16-512: BF16 pools. raw8-512 and raw8-576: unscaled FP8, read in place. pack-656 and pack-528: scaled FP8."""


def kv_layout(name: str, fp8: str = "e4m3fn") -> Layout:
    """The layout of that name in an FP8 flavour. Raises ``ArgumentError`` when either is unknown."""
    if name not in LAYOUTS or fp8 not in FLAVOURS:
        raise ArgumentError(
            f"found KV layout {name!r} with fp8 {fp8!r}; wanted one of {', '.join(LAYOUTS)} and one of {', '.join(FLAVOURS)}; correct it"
        )
    return replace(LAYOUTS[name], fp8=fp8)
