"""What verification says: findings with stable codes, and a report that carries the stamp."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from .codes import CODES

__all__ = ["CODES", "MAX_PER_CODE", "Finding", "Report", "Severity", "error", "make_report", "warning"]

#: Findings of one code that a report lists one by one; the rest are counted in a last one.
MAX_PER_CODE = 1000


class Severity(StrEnum):
    """An error makes the answer "no"; a warning does not."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong (or odd), and where.

    Attributes:
        code: stable code, a key of `CODES` (or of the reader that found it).
        severity: `error` or `warning`.
        message: the fault in words.
        rank, threadblock, step: the place in a program; for a schedule rank and start level (as step).
            None where the fault has no such place.
        where: file:line when the source text is known.
        other: (rank, threadblock, step) of the second step where two are at fault (races), None otherwise.
    """

    code: str
    severity: Severity
    message: str
    rank: int | None = None
    threadblock: int | None = None
    step: int | None = None
    where: str | None = None
    other: tuple[int, int, int] | None = None

    def place(self) -> str:
        """The place in words, '' when there is none."""
        parts = [
            f"{label} {value}"
            for label, value in (("rank", self.rank), ("tb", self.threadblock), ("step", self.step))
            if value is not None
        ]
        return " ".join(parts)

    def __str__(self) -> str:
        place = "" if self.place() in self.message else self.place()
        return ": ".join(part for part in (self.where, f"{self.severity} {self.code}", place, self.message) if part)


@dataclass(frozen=True, slots=True)
class Report:
    """The verdict.

    Attributes:
        ok: no finding is an error.
        findings: every finding, errors first, each kind in program order.
        stamp: content hash of what was proven when ok, None otherwise.
        collective: canonical name of what it was judged against, "" when it was not judged.
        nranks: ranks.
        reduction_depth: additions on the longest way from a term to a result, which error bounds of floating
            point grow with; None when not known (wrong, or not judged).
    """

    ok: bool
    findings: tuple[Finding, ...]
    stamp: str | None
    collective: str
    nranks: int
    reduction_depth: int | None = None

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that make the verdict "no"."""
        return tuple(f for f in self.findings if f.severity is Severity.ERROR)

    @property
    def race(self) -> bool:
        """Whether two accesses are not ordered."""
        return any(f.code == "E-RACE" for f in self.findings)

    @property
    def verdict(self) -> str:
        """The verdict in one word.

        BROKEN: the ends do not fit together.  DEADLOCK: it does not end.  WRONG: it ends with a wrong result.
        RACE: it ends, and the result is a matter of luck.  RUNS: it ends, and nobody knows what it should do.
        REFUSED: it is right, and the target does not take it.  OK.
        """
        codes = {f.code for f in self.errors}
        for word, members in _VERDICTS.items():
            if codes & members:
                return word
        return "REFUSED" if codes else "OK"


#: Codes that decide a verdict, the first match wins; all other errors are rules of a target.
_VERDICTS = {
    "BROKEN": {"E-CONN-SHARED", "E-PAIRING", "E-SIZE", "E-PEER", "E-CHANNEL", "E-RANGE", "E-UNSUPPORTED", "E-ROUTE",
               "E-SELF", "E-GROUP", "E-SYMMETRY", "E-READ", "E-SIGNAL", "E-BARRIER", "E-PACKET", "E-ID", "E-DEPENDENCY",
               "E-ATTRIBUTE", "E-TAG", "E-NODE", "E-EMPTY"},
    "DEADLOCK": {"E-DEADLOCK", "E-DEP", "E-CYCLE"},
    "WRONG": {"E-POST", "E-CLOBBER", "E-UNDEFINED-READ", "E-MIX", "E-DOUBLE", "E-ABSENT", "E-ORDER", "E-REDUCE",
              "E-COLLECTIVE", "W-REPLICA-DRIFT"},
    "RUNS": {"E-NOT-JUDGED"}, "RACE": {"E-RACE", "E-NOSYNC"},
}  # fmt: skip


def error(
    code: str, message: str, *, rank: int | None = None, threadblock: int | None = None, step: int | None = None
) -> Finding:
    """An error finding."""
    return Finding(code, Severity.ERROR, message, rank, threadblock, step)


def warning(
    code: str, message: str, *, rank: int | None = None, threadblock: int | None = None, step: int | None = None
) -> Finding:
    """A warning."""
    return Finding(code, Severity.WARNING, message, rank, threadblock, step)


def make_report(
    findings: Iterable[Finding], content_hash: str, collective: str, nranks: int, depth: int | None = None
) -> Report:
    """Sort, cut each code to `MAX_PER_CODE` findings (saying how many more there are), and judge."""
    everything = list(findings)
    totals = Counter(f.code for f in everything)
    kept: list[Finding] = []
    listed: Counter[str] = Counter()
    for finding in everything:
        listed[finding.code] += 1
        if listed[finding.code] <= MAX_PER_CODE:
            kept.append(finding)
        elif listed[finding.code] == MAX_PER_CODE + 1:
            more = totals[finding.code] - MAX_PER_CODE
            kept.append(Finding(finding.code, finding.severity, f"and {more} more findings of this kind"))
    kept.sort(key=lambda f: f.severity is not Severity.ERROR)
    ok = not any(f.severity is Severity.ERROR for f in everything)
    return Report(ok, tuple(kept), content_hash if ok else None, collective, nranks, depth)
