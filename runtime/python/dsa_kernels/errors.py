"""What can go wrong, as types. Every message says what was found, what was wanted and what to do.

``code`` is the number of the C interface (``dsak_status`` in ``dsa_kernels.h``).
"""

from __future__ import annotations


class Error(RuntimeError):
    """Any failure of this package; used as it is only for defects of the package itself."""

    code = 13


class ArgumentError(Error, ValueError):
    """A call that breaks the op's contract: type, dtype, rank, size, stride, alignment, a missing argument, a rule."""

    code = 1


class UnknownOp(Error, AttributeError):
    """No pack has an op of that name. Also an ``AttributeError``, so that ``hasattr`` works."""

    code = 2


class NoPack(Error):
    """No pack for the device's architecture."""

    code = 3


class NoCandidate(Error):
    """The pack has the op but nothing that serves this call; the message lists every candidate with its reason."""

    code = 4


class DeviceError(Error):
    """Tensors on the CPU, on two devices, or on a device that is not there."""

    code = 5


class PackError(Error):
    """A pack that cannot be used."""


class PackMissing(PackError):
    """A manifest or object that is not there."""

    code = 6


class PackTruncated(PackError):
    """An object of the wrong size."""

    code = 7


class PackDigest(PackError):
    """An object whose sha256 is not the manifest's."""

    code = 8


class PackSchema(PackError):
    """A manifest that does not parse, breaks its schema, or has a newer major version."""

    code = 9


class PackArch(PackError):
    """An object for another architecture than its manifest says."""

    code = 10


class DriverError(Error):
    """No driver library, or a driver call that failed; the message names the call."""

    code = 12


class DriverTooOld(DriverError):
    """The driver is older than the pack's ``min_driver``."""

    code = 11


class NoPackInstalled(NoPack, AttributeError):
    """No pack at all where an op was asked for as an attribute of the package."""


class IntegrationError(Error):
    """A serving engine that is not the one that an integration was written for."""
