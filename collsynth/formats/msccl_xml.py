"""MSCCL XML, the interchange format of GPU collective schedules: read and write.

The public face of `msccl_read` (text to Program, with lines and target objections).
"""

from __future__ import annotations

from .msccl_read import ProgramSource, SyntaxNote, looks_like, parse, read, read_source

__all__ = ["ProgramSource", "SyntaxNote", "looks_like", "parse", "read", "read_source"]
