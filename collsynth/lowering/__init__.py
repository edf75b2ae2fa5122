"""From a schedule to a program: buffers, channels, threadblocks, dependencies, fusion, instances."""

from __future__ import annotations

from .pipeline import DEFAULT_MAX_BYTES, lower

__all__ = ["DEFAULT_MAX_BYTES", "lower"]
