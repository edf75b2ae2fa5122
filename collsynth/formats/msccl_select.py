"""When a runtime selects an MSCCL program, as the runtimes' sources say it."""

from __future__ import annotations

from dataclasses import dataclass

from ..program import Program, Target

#: Reductions for which a program may be selected (averages and user operations always fall back).
OPERATIONS = ("sum", "prod", "min", "max")
#: What msccl takes for an absent maxBytes.
MSCCL_DEFAULT_MAX_BYTES = 128 << 20
_RUNTIMES = ("msccl-executor", "msccl", "rccl")
#: Collectives whose calls a runtime can match.
_MATCHED = {
    "msccl": ("allreduce", "allgather", "reduce", "broadcast", "alltoall", "reducescatter"),
    "msccl-executor": (
        "allreduce", "allgather", "reduce", "broadcast", "alltoall", "reducescatter", "gather", "scatter",
    ),
}  # fmt: skip
_MATCHED["rccl"] = _MATCHED["msccl-executor"]


@dataclass(frozen=True, slots=True)
class Predicate:
    """The calls for which a runtime selects a program.

    Attributes:
        target: the runtime.
        collective, nranks: what the call and its communicator must be.
        in_place, out_of_place: whether such calls qualify.
        min_bytes, max_bytes: payload bytes (nccl-tests' size); None: no limit.
        max_inclusive: whether max_bytes itself qualifies.
        elements_multiple: payload elements must be a multiple of this (1: no rule).
        never: why no call at all qualifies, None when some do.
    """

    target: str
    collective: str
    nranks: int
    in_place: bool
    out_of_place: bool
    min_bytes: int
    max_bytes: int | None
    max_inclusive: bool
    elements_multiple: int
    never: str | None

    def text(self) -> str:
        """The predicate as one line."""
        if self.never:
            return f"never: {self.never}"
        modes = [label for label, on in (("in place", self.in_place), ("out of place", self.out_of_place)) if on]
        sign = "<=" if self.max_inclusive else "<"
        window = f"{self.min_bytes} <= bytes" + ("" if self.max_bytes is None else f" {sign} {self.max_bytes}")
        rule = f"elements % {self.elements_multiple} == 0, " if self.elements_multiple > 1 else ""
        reduces = self.collective in ("allreduce", "reducescatter", "reduce")
        operations = f", op in {'/'.join(OPERATIONS)}" if reduces else ""
        return (
            f"{self.collective}, {self.nranks} ranks, {' or '.join(modes)}, {window}, {rule}".rstrip(", ") + operations
        )


def predicate(program: Program, target: Target) -> Predicate:
    """When `target` selects `program`.

    Args:
        program: as read from, or to be written to, a file for that runtime.
        target: one of the runtimes that read MSCCL XML; any other has no selection of its own, so that every
            call in the program's modes and window qualifies.
    """
    in_place, out_of_place = program.in_place, program.out_of_place
    never = None
    inclusive = True
    runtime = target.name in _RUNTIMES
    if target.name == "msccl":
        # it compares the call's mode with inplace and does not read outofplace
        out_of_place = not in_place
        inclusive = False
    if not in_place and not out_of_place:
        never = "neither inplace nor outofplace is set"
    if runtime and program.collective not in _MATCHED[target.name]:
        never = f"{program.collective or 'a program without coll'} is no call of {target.name}"
    low, high = program.min_bytes or 0, program.max_bytes
    if target.name == "msccl" and high is None:
        high = MSCCL_DEFAULT_MAX_BYTES
    if high is not None and (high < low or (high == low and not inclusive)):
        never = f"no size lies between minBytes {low} and maxBytes {high}"
    return Predicate(
        target.name, program.collective, program.nranks, in_place, out_of_place, low, high, inclusive,
        program.nunits if target.divisible else 1, never,
    )  # fmt: skip


def selection(program: Program, target: Target, size: int, element_size: int = 4, in_place: bool = True) -> str | None:
    """Why `target` would not select `program` for a call, or None when it would.

    Args:
        program: what a file says or will say.
        target: the runtime.
        size: payload bytes as nccl-tests counts them.
        element_size: bytes of the data type.
        in_place: the mode of the call.
    """
    rule = predicate(program, target)
    if rule.never:
        return rule.never
    if (in_place and not rule.in_place) or (not in_place and not rule.out_of_place):
        asked, has = ("in place", "out of place") if in_place else ("out of place", "in place")
        extra = " (msccl uses a file in one mode only: write one file for each)" if target.name == "msccl" else ""
        return f"the call is {asked}, the program {has} only{extra}"
    if size < rule.min_bytes:
        return f"{size} bytes are below minBytes {rule.min_bytes}"
    if rule.max_bytes is not None and (size > rule.max_bytes or (size == rule.max_bytes and not rule.max_inclusive)):
        return f"{size} bytes are above maxBytes {rule.max_bytes}" + ("" if rule.max_inclusive else " (exclusive)")
    if size % element_size:
        return f"{size} bytes are no whole number of {element_size}-byte elements"
    elements = size // element_size
    if elements % rule.elements_multiple:
        return (
            f"{elements} elements of {element_size} bytes are not a multiple of the program's "
            f"{rule.elements_multiple} chunks"
        )
    return None
