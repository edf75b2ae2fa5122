"""MSCCL++ execution plans (JSON): what the other modules named `mscclpp_*` offer."""

from __future__ import annotations

from .mscclpp_json import looks_like
from .mscclpp_read import PlanOptions, PlanSource, parse, read
from .mscclpp_rules import OPERATIONS, Note
from .mscclpp_select import OPERATIONS as REDUCTIONS
from .mscclpp_select import bytes_multiple, predicate
from .mscclpp_write import losses, plan_of, render, write

__all__ = [
    "OPERATIONS",
    "REDUCTIONS",
    "Note",
    "PlanOptions",
    "PlanSource",
    "bytes_multiple",
    "looks_like",
    "losses",
    "parse",
    "plan_of",
    "predicate",
    "read",
    "render",
    "write",
]
