"""Step tables: what SCCL-like solvers print, (chunk, source, destination) for each step."""

from __future__ import annotations

from collections.abc import Sequence

import collsynth as cs
from collsynth.frontend import Recording

#: SCCL's 1-chunk, 2-step, 2-round AllGather of a ring of four (both directions): chunk = the rank it is of.
RING4: Sequence[Sequence[tuple[int, int, int]]] = (
    tuple((r, r, (r + d) % 4) for r in range(4) for d in (1, 3)),
    ((0, 1, 2), (1, 0, 3), (2, 3, 0), (3, 2, 1)),
)


def allgather(nranks: int, table: Sequence[Sequence[tuple[int, int, int]]], chunks: int = 1) -> Recording:
    """An AllGather from a step table; chunk c is part c % chunks of rank c // chunks."""
    with cs.record("allgather", nranks, chunks) as p:
        held = {}
        for rank in range(nranks):
            for part in range(chunks):
                c = rank * chunks + part
                held[c, rank] = p.chunk(rank, "input", part).copy(rank, "output", c)
        for step in table:
            for c, src, dst in step:
                held[c, dst] = held[c, src].copy(dst, "output", c)
    return p
