"""The combination of splits, include/dsak_combine.py."""

from dsak_combine import combine

__all__ = ["combine"]
