"""From rows with start times to a Schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..collective import Collective
from ..schedule import Schedule
from ..topology import Topology


@dataclass(frozen=True, slots=True)
class Row:
    """One transfer with its start time in any integer unit."""

    chunk: int
    src: int
    dst: int
    reduce: bool
    start: int
    links: tuple[int, ...]


def schedule_of(
    topology: Topology, collective: Collective, rows: Sequence[Row], method: str, *, in_order: bool = False
) -> Schedule:
    """The schedule whose levels count the distinct start times; rows that start at once share a level.

    Args:
        rows: with start times; a row starts later than those that it waits for.
        in_order: the rows stand in the order in which shared servers are to serve them, and the levels
            keep it; else they are sorted by start time first.
    """
    kept = list(rows) if in_order else sorted(rows, key=lambda row: row.start)
    starts = np.array([row.start for row in kept], dtype=object)
    level = np.zeros(len(kept), dtype=np.int64)
    if len(kept):
        level[1:] = np.cumsum(starts[1:] != starts[:-1])
    lengths = [len(row.links) for row in kept]
    return Schedule(
        topology, collective,
        chunk=np.array([row.chunk for row in kept], dtype=np.int64),
        src=np.array([row.src for row in kept], dtype=np.int64),
        dst=np.array([row.dst for row in kept], dtype=np.int64),
        reduce=np.array([row.reduce for row in kept], dtype=bool),
        level=level,
        route_ptr=np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
        route_links=np.array([link for row in kept for link in row.links], dtype=np.int64),
        method=method,
    )  # fmt: skip
