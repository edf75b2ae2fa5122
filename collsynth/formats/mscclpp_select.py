"""When MSCCL++'s executor accepts a call for a plan, as its loader says it."""

from __future__ import annotations

from ..program import Program
from .msccl_select import Predicate
from .mscclpp_read import DEFAULT_OPTIONS, PlanOptions


def predicate(program: Program, options: PlanOptions | None = None) -> Predicate:
    """The calls that a plan of `program` serves.

    The executor takes what it is given by the caller's own selection; it checks the size window (on the input,
    for allgather on the output) and that the input and output bytes are whole chunks of the buffer alignment.
    The multiple is given for the payload in elements of one byte and holds for every larger type.
    """
    alignment = (options or DEFAULT_OPTIONS).buffer_alignment
    # every chunk is a multiple of the alignment, so the payload is one of as many alignments as it has chunks
    multiple = alignment * program.nunits
    never = None
    if not (program.input_units.all() and program.output_units.all()):
        never = "a rank has no input or output chunks, and the loader divides by them"
    return Predicate(
        target="mscclpp", collective=program.collective or "custom", nranks=program.nranks, in_place=program.in_place,
        out_of_place=program.out_of_place, min_bytes=program.min_bytes or 0, max_bytes=program.max_bytes,
        max_inclusive=True, elements_multiple=multiple, never=never,
    )  # fmt: skip
