"""Synthesis: from a machine and a collective to one verified schedule.

The way down: `select.synthesize` picks among engines (`engines`); the tree engine asks
`forests.pack_forest` for trees, which `packing` packs; `list_schedule` gives every transfer its time.
"""

from __future__ import annotations

from .select import ENGINES, methods, synthesize
from .spec import Status, SynthResult, SynthSpec

__all__ = ["ENGINES", "Status", "SynthResult", "SynthSpec", "methods", "synthesize"]
