"""MSCCL XML, the interchange format of GPU collective schedules.

The public face of three files: `msccl_read` (text to Program, with lines and target objections),
`msccl_write` (Program to text), `msccl_select` (when a runtime selects a program).
"""

from __future__ import annotations

from .msccl_read import ProgramSource, SyntaxNote, looks_like, parse, read, read_source
from .msccl_select import OPERATIONS, Predicate, predicate, selection
from .msccl_write import DEFAULT_MAX_BYTES, render, write

__all__ = [
    "DEFAULT_MAX_BYTES", "OPERATIONS", "Predicate", "ProgramSource", "SyntaxNote", "looks_like", "parse",
    "predicate", "read", "read_source", "render", "selection", "write",
]  # fmt: skip
