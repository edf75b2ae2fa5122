"""What verification says: findings with stable codes, and a report that carries the stamp."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

#: Findings of one code that a report lists one by one; the rest are counted in a last one.
MAX_PER_CODE = 1000


class Severity(StrEnum):
    """An error makes the answer "no"; a warning does not."""

    ERROR = "error"
    WARNING = "warning"


#: Stable codes and what each means (docs/verification.md prints this table).
CODES: dict[str, str] = {
    # schedules
    "E-ROUTE": "a row's route is no connected path from its source to its destination through vertices that are "
    "no ranks",
    "E-SELF": "a row sends a chunk from a rank to itself",
    "E-ABSENT": "a row sends a chunk that its source does not hold at that level",
    "E-ORDER": "two arrivals of one level do not commute, so the result is not defined",
    "E-REDUCE": "a row adds where nothing may be added",
    "E-GROUP": "rows declared as one multicast or in-network reduction are none",
    "E-SYMMETRY": "the generators of the orbit form do not give a full set of rows",
    "W-REDUNDANT": "a row brings a chunk to a rank that holds it already",
    # both
    "E-DOUBLE": "a contribution is added twice",
    "E-POST": "an output does not hold what the collective asks for",
    "E-COLLECTIVE": "the collective does not fit, or does not fit the one that was given",
    "E-NOT-JUDGED": "the collective is not known, so the result cannot be judged (give it with -c)",
    # programs
    "E-RANGE": "an operand lies outside its buffer",
    "E-SIZE": "a declared buffer size does not fit the collective's arithmetic",
    "E-PEER": "a step needs a peer that its threadblock does not have, or a peer is no other rank",
    "E-CONN-SHARED": "a connection (source, destination, channel) is used by two threadblocks of one rank",
    "E-CHANNEL": "a channel number is not below the number of channels",
    "E-PAIRING": "the two ends of a connection do not exchange the same messages",
    "E-DEP": "a step waits for a step that does not exist or never publishes its index",
    "E-DEADLOCK": "steps wait for each other in a circle",
    "E-RACE": "two conflicting accesses are not ordered",
    "E-UNDEFINED-READ": "a step reads memory that nobody wrote",
    "E-MIX": "a step adds data of different places",
    "E-CLOBBER": "the input buffer is not intact at the end although it must be",
    "E-UNSUPPORTED": "an instruction that this prover cannot execute",
    "W-NOP": "a nop that carries no dependency, or is followed by no step that carries one",
    "W-EMPTY": "a step that moves nothing",
    # target limits
    "E-LIMIT-STEPS": "more steps in a threadblock than the target allows",
    "E-LIMIT-TBS": "more threadblocks on a rank than the target allows",
    "E-LIMIT-DEP-TB": "a dependency on a threadblock whose id is too large for the target",
    "E-LIMIT-CHANNELS": "more channels than the target has",
    "E-LIMIT-TBS-PER-CHANNEL": "more sending or receiving threadblocks on one channel of a rank than the target allows",
    "E-LIMIT-COUNT": "a step moves more units than the target allows",
    "E-LIMIT-INDEX": "an operand's index is larger than the target allows",
    "E-LIMIT-FUSED": "a fused receive that the target does not run",
    "E-LIMIT-DEPS": "several dependencies on one step, which the target can only carry on nops",
    "E-LIMIT-NODES": "more XML nodes for one rank than the target reads",
    "E-LIMIT-ROOT": "a root other than 0, which the target cannot express",
    "E-LIMIT-NOP": "a nop that the target does not accept where it stands",
    "E-READ": "the file cannot be read (`collsynth verify --json` only)",
}


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
    """

    code: str
    severity: Severity
    message: str
    rank: int | None = None
    threadblock: int | None = None
    step: int | None = None
    where: str | None = None

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
    """

    ok: bool
    findings: tuple[Finding, ...]
    stamp: str | None
    collective: str
    nranks: int

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that make the verdict "no"."""
        return tuple(f for f in self.findings if f.severity is Severity.ERROR)


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


def make_report(findings: Iterable[Finding], content_hash: str, collective: str, nranks: int) -> Report:
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
    return Report(ok, tuple(kept), content_hash if ok else None, collective, nranks)
