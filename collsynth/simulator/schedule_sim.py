"""Exact simulation of a Schedule: FIFO links, cut-through, shared vertices.

A message of w units crosses its route cut-through: its head reaches link i+1 one latency after link
i began to serve it, a link is occupied for overhead + bytes / bandwidth, and the tail leaves link i no
earlier than it has arrived there.  A link serves its messages in (level, row) order, as the schedule
defines; so one pass over the rows in that order is the whole simulation, and it is exact.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from ..schedule import Schedule
from .clock import Clock
from .result import Hop, SimResult


def _vertex_groups(schedule: Schedule) -> list[tuple[int, ...]]:
    """For each link, the capacity groups of vertices that it uses (indices after the links')."""
    topology = schedule.topology
    users: list[list[int]] = [[] for _ in range(topology.nlinks)]
    for index, (_, members) in enumerate(topology.capacity_groups()):
        if index >= topology.nlinks:
            for link in members:
                users[int(link)].append(index)
    return [tuple(u) for u in users]


def simulate_schedule(schedule: Schedule, size: int | None, *, latency: bool = True) -> SimResult:
    """Simulate `size` payload bytes (None: one byte without latency, for makespans).

    Raises:
        UnknownSpeedError: a bandwidth is not known.
    """
    full = schedule.expand()
    topology, collective = full.topology, full.collective
    clock = Clock.of(topology, max(1, collective.payload_units), size)
    per_unit, per_ps = clock.ticks_per_unit, clock.ticks_per_picosecond
    with_latency = latency and size is not None
    lat = [int(x) * per_ps if with_latency else 0 for x in topology.link_latency]
    ovh = [int(x) * per_ps if with_latency else 0 for x in topology.link_overhead]
    extra = _vertex_groups(full)

    free = [0] * len(per_unit)
    busy = [0] * topology.nlinks
    units = [0] * topology.nlinks
    #: (chunk, rank) -> (delivered, row that brought it)
    held: dict[tuple[int, int], tuple[int, int]] = {}
    arriving: list[tuple[tuple[int, int], int, int]] = []
    #: who used a group last, for the critical path
    last_user = [-1] * len(per_unit)
    ready_at = [0] * full.nrows
    start_at = [0] * full.nrows
    done_at = [0] * full.nrows
    cause = [-1] * full.nrows

    chunk, src, dst = full.chunk.tolist(), full.src.tolist(), full.dst.tolist()
    levels, ptr, links = full.level.tolist(), full.route_ptr.tolist(), full.route_links.tolist()
    weight = collective.weight.tolist()
    current = None
    for row in full.order().tolist():
        if levels[row] != current:
            for key, delivered, by in arriving:
                if delivered >= held.get(key, (-1, -1))[0]:
                    held[key] = (delivered, by)
            arriving.clear()
            current = levels[row]
        ready, cause[row] = held.get((chunk[row], src[row]), (0, -1))
        ready_at[row] = ready
        w = weight[chunk[row]]
        arrival, end, previous_latency = ready, 0, 0
        for position in range(ptr[row], ptr[row + 1]):
            link = links[position]
            start = arrival
            groups = (link, *extra[link])
            for group in groups:
                if free[group] > start:
                    start = free[group]
                    # A route may use a vertex's capacity on the way in and out: it then waits for itself.
                    if last_user[group] != row:
                        cause[row] = last_user[group]
            occupied = 0
            for group in groups:
                last_user[group] = row
                free[group] = start + ovh[link] + w * per_unit[group]
                occupied = max(occupied, free[group] - start)
            busy[link] += ovh[link] + w * per_unit[link]
            units[link] += w
            if position == ptr[row]:
                start_at[row] = start
                end = start + occupied
            else:
                end = max(start + occupied, end + previous_latency)
            arrival = start + lat[link]
            previous_latency = lat[link]
        done_at[row] = end + previous_latency
        arriving.append(((chunk[row], dst[row]), done_at[row], row))

    tick_ps = clock.seconds_per_tick * 10**12
    finish = max(done_at, default=0)
    path: list[Hop] = []
    row = done_at.index(finish) if done_at else -1
    while row >= 0:
        text = f"chunk {chunk[row]}: rank {src[row]} -> rank {dst[row]}"
        path.append(
            Hop(chunk[row], src[row], dst[row], ready_at[row] * tick_ps, start_at[row] * tick_ps,
                done_at[row] * tick_ps, text)
        )  # fmt: skip
        row = cause[row]
    payload = Fraction(1 if size is None else size, max(1, collective.payload_units))
    return SimResult(
        collective.name, collective.nranks, 1 if size is None else size, finish * tick_ps,
        tuple(u * payload for u in units), tuple(b * tick_ps for b in busy), tuple(reversed(path)),
    )  # fmt: skip


def rate(schedule: Schedule) -> Fraction:
    """Seconds per payload byte of the busiest link or vertex (latency 0, infinitely fine pieces).

    Raises:
        UnknownSpeedError: a bandwidth is not known.
    """
    full = schedule.expand()
    full.topology.require_speeds()
    w = full.collective.weight[full.chunk] if full.nrows else np.zeros(0, np.int64)
    load = np.zeros(full.topology.nlinks, dtype=np.int64)
    np.add.at(load, full.route_links, np.repeat(w, np.diff(full.route_ptr)))
    units = max(1, full.collective.payload_units)
    return max(
        (Fraction(int(load[members].sum()), capacity * units) for capacity, members in full.topology.capacity_groups()),
        default=Fraction(0),
    )


def makespan(schedule: Schedule) -> Fraction:
    """Seconds per payload byte with the actual chunks, latency and overhead 0, exact."""
    return simulate_schedule(schedule, None).time / 10**12


def steps(schedule: Schedule) -> int:
    """Number of distinct start levels (SCCL's S)."""
    return len(np.unique(schedule.level))


def height(schedule: Schedule) -> int:
    """Rows on the longest dependency chain."""
    full = schedule.expand()
    depth: dict[tuple[int, int], int] = {}
    pending: list[tuple[tuple[int, int], int]] = []
    current, best = None, 0
    chunk, src, dst, level = full.chunk.tolist(), full.src.tolist(), full.dst.tolist(), full.level.tolist()
    for row in full.order().tolist():
        if level[row] != current:
            for key, value in pending:
                depth[key] = max(depth.get(key, 0), value)
            pending.clear()
            current = level[row]
        value = depth.get((chunk[row], src[row]), 0) + 1
        pending.append(((chunk[row], dst[row]), value))
        best = max(best, value)
    return best


def rounds(schedule: Schedule) -> int:
    """SCCL's R: link time summed over the levels, in units of one unit chunk on the slowest link.

    A level takes as many rounds as its busiest link needs, rounded up; a link that is b times as fast
    as the slowest used one carries b chunks a round.
    """
    full = schedule.expand()
    if not full.nrows:
        return 0
    bandwidth = full.topology.link_bandwidth
    slowest = int(bandwidth[np.unique(full.route_links)].min())
    lengths = np.diff(full.route_ptr)
    levels, level_of_row = np.unique(full.level, return_inverse=True)
    load = np.zeros((len(levels), full.topology.nlinks), dtype=np.int64)
    np.add.at(
        load,
        (np.repeat(level_of_row, lengths), full.route_links),
        np.repeat(full.collective.weight[full.chunk], lengths),
    )
    total = 0
    for row in load:
        used = np.flatnonzero(row)
        total += max(-(-int(row[k]) * slowest // int(bandwidth[k])) for k in used)
    return total
