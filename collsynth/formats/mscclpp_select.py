"""When MSCCL++'s executor accepts a call for a plan, as its loader says it."""

from __future__ import annotations

from ..program import Program
from .msccl_select import Predicate
from .mscclpp_read import DEFAULT_OPTIONS, PlanOptions

#: Reductions that the executor's kernels do.
OPERATIONS = ("sum",)


class PlanPredicate(Predicate):
    """As `Predicate`, for an executor that adds only."""

    def text(self) -> str:
        """The predicate as one line."""
        return super().text().replace("op in sum/prod/min/max", "op sum")


def bytes_multiple(program: Program, options: PlanOptions | None = None) -> int:
    """What the payload's bytes are a multiple of: each of its chunks is one of the buffer alignment."""
    return (options or DEFAULT_OPTIONS).buffer_alignment * program.nunits


def predicate(program: Program) -> PlanPredicate:
    """The calls that a plan of `program` serves.

    The executor takes what it is given by the caller's own selection; it checks the size window (on the input,
    for allgather on the output) and that the input and output bytes are whole chunks of the buffer alignment.
    So the payload's bytes are a multiple of `bytes_multiple`, whatever its type.
    """
    never = None
    if not (program.input_units.all() and program.output_units.all()):
        never = "a rank has no input or output chunks, and the loader divides by them"
    return PlanPredicate(
        target="mscclpp", collective=program.collective or "custom", nranks=program.nranks, in_place=program.in_place,
        out_of_place=program.out_of_place, min_bytes=program.min_bytes or 0, max_bytes=program.max_bytes,
        max_inclusive=True, elements_multiple=program.nunits, never=never,
    )  # fmt: skip
