"""Algorithms written by hand: chunks copied and reduced, in a `with` block, become a verified program.

    with cs.record("allgather", nranks=4) as p:
        for rank in range(4):
            own = p.chunk(rank, "input", 0)
            for peer in range(4):
                own.copy(peer, "output", rank)
    program = p.lower(target=cs.TARGETS["msccl-executor"], instances=2)

Every operation is executed on symbols while it is recorded, so a mistake is an error of the line that
made it.  Lowering is that of schedules (`collsynth.lowering`); the program is proven by the one prover.
"""

from __future__ import annotations

from .operations import Operation, Span
from .recording import Chunk, Recording, record

__all__ = ["Chunk", "Operation", "Recording", "Span", "record"]
