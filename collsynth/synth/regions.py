"""Which groups of ranks are hard to get into: the regions that the greedy respects.

Ranks are merged, those with the most capacity between them first (average linkage); every group met on
the way is weighed by the time that its entering links need for what it lacks.  Groups that take nearly
as long as the whole collective are bottlenecks, and a link into one must not be wasted.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..bounds.maxflow import FlowNetwork
from .greedy import Regions
from .machine import Machine

#: a group is scarce when entering it takes at least this share of the slowest group's time
_SCARCE = 0.9


def _clusters(machine: Machine) -> list[tuple[int, ...]]:
    """Every group of two or more ranks met while merging, smallest first, the whole excluded."""
    n = machine.nranks
    between = {pair: sum(1 / r.ticks for r in routes) for pair, routes in machine.routes.items()}
    groups: list[tuple[int, ...]] = [(r,) for r in range(n)]
    met: list[tuple[int, ...]] = []
    while len(groups) > 2:
        best: tuple[float, int, int] | None = None
        for i in range(len(groups)):
            for j in range(i + 1, len(groups)):
                total = sum(between.get((a, b), 0.0) + between.get((b, a), 0.0) for a in groups[i] for b in groups[j])
                value = -total / (len(groups[i]) * len(groups[j]))
                if best is None or value < best[0]:
                    best = (value, i, j)
        assert best is not None
        _, i, j = best
        merged = tuple(sorted(groups[i] + groups[j]))
        groups = [g for k, g in enumerate(groups) if k not in (i, j)] + [merged]
        met.append(merged)
    return met


def _entering_times(machine: Machine, owners: Sequence[int], groups: Sequence[Sequence[int]]) -> list[float]:
    """For each group, units that it lacks over the units per tick that can enter it."""
    topology = machine.topology.without_vertex_capacities()
    nvertices = len(topology.vertices)
    source, sink = nvertices, nvertices + 1
    ranks = range(machine.nranks)
    scale = max(machine.ticks, default=1)
    bandwidth = topology.link_bandwidth.tolist()
    src = [*topology.link_src.tolist(), *(source for _ in ranks), *ranks]
    dst = [*topology.link_dst.tolist(), *ranks, *(sink for _ in ranks)]
    network = FlowNetwork(sink + 1, src, dst, [0] * len(src))
    wide = sum(bandwidth)
    times = []
    for group in groups:
        inside = set(group)
        network.set_capacities(
            [*bandwidth, *(0 if r in inside else wide for r in ranks), *(wide if r in inside else 0 for r in ranks)]
        )
        flow = network.solve(source, sink)
        lacking = sum(owner not in inside for owner in owners)
        times.append(scale * lacking / flow if flow else 0.0)
    return times


def regions_of(machine: Machine, owners: Sequence[int]) -> list[Regions]:
    """Region pairs worth trying, most promising first.

    Args:
        owners: rank that starts with each chunk.
    """
    n = machine.nranks
    everyone = (0,) * n
    nodes = _numbered([vertex.node for vertex in machine.topology.vertices[:n]])
    found = []
    groups = _clusters(machine)
    times = _entering_times(machine, owners, [*groups, *((r,) for r in range(n))])
    slowest = max(times, default=0.0)
    # The smallest scarce groups, disjoint because the merging is a tree; other ranks stand alone.
    region: list[object] = [("rank", r) for r in range(n)]
    taken: set[int] = set()
    for group, time in zip(groups, times, strict=False):
        if time >= _SCARCE * slowest and not taken & set(group):
            taken.update(group)
            for rank in group:
                region[rank] = group
    tight = _numbered(region)
    if taken:
        found.append(Regions(tight, everyone))
    if max(nodes, default=0):
        found += [Regions(nodes, nodes), Regions(nodes, everyone)]
    found.append(Regions(everyone, everyone))
    return list(dict.fromkeys(found))


def _numbered(keys: Sequence[object]) -> tuple[int, ...]:
    """Keys as numbers in order of first appearance."""
    number: dict[object, int] = {}
    return tuple(number.setdefault(key, len(number)) for key in keys)
