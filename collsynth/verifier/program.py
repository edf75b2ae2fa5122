"""Proof of a program."""

from __future__ import annotations

from typing import Any

from ..collective import Collective
from ..program import Program, Target
from .report import Report, error, make_report


def verify_program(
    program: Program, target: Target, collective: Collective | str | None, source: Any, content_hash: str
) -> Report:
    """The verdict on a program."""
    finding = error("E-UNSUPPORTED", "programs are not proven yet")
    return make_report([finding], content_hash, program.collective, program.nranks)
