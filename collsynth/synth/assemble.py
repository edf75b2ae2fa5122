"""From rows with start times to a Schedule, and from a schedule to its mirror image.

ReduceScatter is AllGather on the turned-around machine with time reversed: every row (chunk,
u -> v) that copies becomes a row (chunk, v -> u) that reduces, its route read backwards, the last row
first.
"""

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


def schedule_of(topology: Topology, collective: Collective, rows: Sequence[Row], method: str) -> Schedule:
    """The schedule whose start levels are the ranks of the rows' start times, in the rows' order.

    Rows that start at once share a level.
    """
    ordered = sorted(range(len(rows)), key=lambda i: rows[i].start)
    kept = [rows[i] for i in ordered]
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


def mirrored(rows: Sequence[Row], ends: Sequence[int]) -> list[Row]:
    """The rows in reversed time on the turned-around machine: copies become reductions.

    Args:
        rows: with start times.
        ends: when each row is delivered; in reversed time it starts then.
    """
    last = max(ends, default=0)
    return [
        Row(row.chunk, row.dst, row.src, not row.reduce, last - end, tuple(reversed(row.links)))
        for row, end in zip(rows, ends, strict=True)
    ]
