"""The architectures that we build for: one table, data only.

``name`` is what users write (``--arch sm90``); ``arch`` is the exact name that compilers take. Identity is
(vendor, name): gfx950 also reports compute capability major 9 through torch, so a number never identifies a target.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Vendor = Literal["nvidia", "amd"]


@dataclass(frozen=True)
class Target:
    """One architecture: names, limits that kernels are held to, and how its code objects identify themselves.

    ``shared_memory`` is the most that one block may ask for, in bytes, and ``units`` the SMs or CUs of the part that data
    sheets name (a launch asks the device; ``explain`` without one takes this). ``fp8`` is the e4m3 flavour that the matrix
    units take and ``fp8_max`` its largest finite value. ``elf_machine``, ``elf_abi`` and ``elf_flags`` (under
    ``elf_flags_mask``) are what a code object for this target must carry in its ELF header. ``min_driver`` is the lowest driver API version
    that loads our objects, in the driver's own encoding (CUDA: 1000 * major + 10 * minor), 0 where none is known.
    """

    name: str
    vendor: Vendor
    arch: str
    wave: int
    shared_memory: int
    units: int
    fp8: Literal["e4m3fn", "e4m3fnuz"]
    fp8_max: int
    elf_machine: int
    elf_abi: int
    elf_flags: int
    elf_flags_mask: int
    min_driver: int
    suffix: Literal["cubin", "hsaco"]


_ALL = (
    # ptxas 12.9 writes ELF ABI 7: e_flags hold the SM number in bits 0..7 and 16..23 and the "a" of sm_90a in bit 11.
    # Drivers of the CUDA 12 series load it (minor version compatibility), hence 12000; ABI 8 would need driver 580.
    Target("sm90", "nvidia", "sm_90a", 32, 232448, 132, "e4m3fn", 448, 190, 7, 0x5A085A, 0xFF08FF, 12000, "cubin"),
    # EF_AMDGPU_MACH of the AMDGPU ABI: gfx942 0x4c, gfx950 0x4f. ELF ABI version 3 is code object version 5.
    Target("gfx942", "amd", "gfx942", 64, 65536, 304, "e4m3fnuz", 240, 224, 3, 0x4C, 0xFF, 0, "hsaco"),
    Target("gfx950", "amd", "gfx950", 64, 163840, 256, "e4m3fn", 448, 224, 3, 0x4F, 0xFF, 0, "hsaco"),
)

TARGETS: dict[str, Target] = {t.name: t for t in _ALL}


def parse_targets(names: str) -> list[Target]:
    """Targets named by a comma-separated list such as ``sm90,gfx950``, in the order given, each once.

    Raises ``ValueError`` with the list of known names when one is unknown or the list is empty.
    """
    wanted = list(dict.fromkeys(n.strip() for n in names.split(",") if n.strip()))
    known = ", ".join(TARGETS)
    if not wanted:
        raise ValueError(f"found no architecture in {names!r}; wanted one or more of: {known}; write --arch sm90,gfx950")
    for name in wanted:
        if name not in TARGETS:
            raise ValueError(f"found unknown architecture {name!r}; wanted one or more of: {known}; a new one is a row in aot/targets.py")
    return [TARGETS[n] for n in wanted]
