"""The only prover: says whether a schedule or a program does what its collective asks.

It imports the types and nothing that makes schedules or programs, so that no maker can vouch for itself.
Verdicts are cached by content hash: nothing is proven twice in one process.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from ..collective import Collective, canonical_name
from ..errors import InputError, VerificationError
from ..program import TARGETS, Program, Target
from ..schedule import Schedule
from .codes import CODES, CURES
from .limits import accepted_by
from .meaning import wrong_meaning
from .program import verify_program
from .report import Finding, Report, Severity, error, make_report
from .schedule import check_schedule
from .witness import Witness, race_witness

__all__ = [
    "CODES",
    "CURES",
    "Finding",
    "Report",
    "Severity",
    "Source",
    "Witness",
    "accepted_by",
    "race_witness",
    "require_verified",
    "verify",
]

_CACHE: OrderedDict[tuple[str, ...], Report] = OrderedDict()
_CACHE_ENTRIES = 512


class Source(Protocol):
    """What a reader keeps of the text beside the program (`collsynth.formats.msccl_xml.ProgramSource`).

    `flags` tells which rows publish their index (bool[nrows], None when the format has no such flag),
    `syntax` the rules of parsers that the text breaks.
    """

    @property
    def flags(self) -> Any:
        """bool[nrows] or None."""
        ...

    @property
    def syntax(self) -> Sequence[Any]:
        """Notes with code, severity, line, message, targets, rank, threadblock, step."""
        ...

    @property
    def path(self) -> str:
        """File name for messages."""
        ...

    def where(self, rank: int | None = None, threadblock: int | None = None, step: int | None = None) -> str:
        """file:line of a step, or of the best known part of it."""
        ...


def verify(
    obj: Schedule | Program,
    *,
    target: Target = TARGETS["any"],
    collective: Collective | str | None = None,
    source: Source | None = None,
    deterministic: bool = False,
) -> Report:
    """Prove a schedule or a program.

    Args:
        obj: what to prove.
        target: whose limits a program must keep, beside meaning the right thing (`any`: none).
        collective: what to judge a program against when it does not say, or says another one.  A schedule
            holds its own collective; a name given here must agree with it.
        source: the text that a program came from, for file:line in findings, publishing flags and syntax.
        deterministic: whether replicas of a sum that may differ in the last bits are an error.

    Returns:
        The verdict with every finding; `stamp` is the content hash when it is ok.

    Raises:
        InputError: `obj` is neither, or the collective's name is unknown.
    """
    if not isinstance(obj, Schedule | Program):
        raise InputError(f"{type(obj).__name__} cannot be verified", expected="a schedule or a program")
    named = canonical_name(collective) if isinstance(collective, str) else collective
    key = (obj.content_hash(), target.name, repr(target), _collective_key(named), str(deterministic))
    if source is None and key in _CACHE:
        _CACHE.move_to_end(key)
        return _CACHE[key]
    if isinstance(obj, Schedule):
        report = _verify_schedule(obj, named, key[0], deterministic)
    else:
        report = verify_program(obj, target, named, source, key[0], deterministic)
    if source is None:
        _CACHE[key] = report
        if len(_CACHE) > _CACHE_ENTRIES:
            _CACHE.popitem(last=False)
    return report


def require_verified(obj: Schedule | Program, **options: Any) -> Report:
    """`verify(obj, **options)`, for those who can only go on with a right one.

    Raises:
        VerificationError: it is wrong; the message shows the first findings, `findings` holds all.
    """
    report = verify(obj, **options)
    if not report.ok:
        shown = [str(f) for f in report.errors[:5]]
        more = len(report.errors) - len(shown)
        kind = type(obj).__name__.lower()
        text = "\n  ".join([f"the {kind} is wrong:", *shown, *([f"and {more} more findings"] if more else [])])
        raise VerificationError(text, report.findings)
    return report


def _collective_key(collective: Collective | str | None) -> str:
    return collective.content_hash() if isinstance(collective, Collective) else collective or ""


def _verify_schedule(
    schedule: Schedule, collective: Collective | str | None, content_hash: str, deterministic: bool
) -> Report:
    own = schedule.collective
    findings: list[Finding] = []
    if isinstance(collective, str) and collective != own.name:
        findings.append(error("E-COLLECTIVE", f"the schedule is for {own.name}, not {collective}"))
    elif isinstance(collective, Collective) and collective.content_hash() != own.content_hash():
        findings.append(error("E-COLLECTIVE", f"the schedule's {own.name} is not the {collective.name} that was given"))
    reason = wrong_meaning(own)
    if reason:
        findings.append(error("E-COLLECTIVE", f"the schedule's collective is not what its name says: {reason}"))
    found, depth = check_schedule(schedule, deterministic=deterministic)
    report = make_report(findings + found, content_hash, own.name, own.nranks, depth)
    return report if report.ok else replace(report, reduction_depth=None)
