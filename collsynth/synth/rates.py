"""How much a network can carry when every rank must receive everything: cuts, and the least time per piece.

A set X of vertices that holds a rank must be entered by the pieces rooted outside X, so `m[r]` pieces
per root r fit within link capacities c iff `c(entering X) >= m(outside X)` for every such X; that is one
max-flow per rank from a source joined to every root r with capacity m[r].  All quantities are integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import gcd, lcm

import numpy as np

from ..bounds.maxflow import FlowNetwork
from ..errors import DisconnectedError
from ..topology import Topology


@dataclass(frozen=True, slots=True)
class Graph:
    """The links of a topology as plain integers.

    Attributes:
        nvertices, nranks: vertices are 0..nvertices-1, ranks first.
        src, dst: ends of each link.
        bandwidth: divided by the greatest common divisor of all.
        unit: bytes per second of one unit of bandwidth.
    """

    nvertices: int
    nranks: int
    src: tuple[int, ...]
    dst: tuple[int, ...]
    bandwidth: tuple[int, ...]
    unit: int | Fraction

    @staticmethod
    def of(topology: Topology) -> Graph:
        """The graph of a topology without vertex capacities."""
        bandwidth = [int(b) for b in topology.link_bandwidth]
        unit = gcd(*bandwidth) if bandwidth else 1
        return Graph(
            len(topology.vertices),
            topology.nranks,
            tuple(int(v) for v in topology.link_src),
            tuple(int(v) for v in topology.link_dst),
            tuple(b // unit for b in bandwidth),
            unit,
        )

    def with_bandwidth(self, bandwidth: Sequence[Fraction]) -> Graph:
        """The same links with other bandwidths (bytes per second; a link of 0 carries nothing)."""
        scale = lcm(*(b.denominator for b in bandwidth))
        whole = [int(b * scale) for b in bandwidth]
        unit = gcd(*whole) or 1
        return replace(self, bandwidth=tuple(b // unit for b in whole), unit=Fraction(unit, scale))

    def reversed(self) -> Graph:
        """Every link turned around, ids kept."""
        return Graph(self.nvertices, self.nranks, self.dst, self.src, self.bandwidth, self.unit)


def contracted(graph: Graph) -> tuple[Graph, list[tuple[int, ...]]]:
    """The graph without vertices that only pass on (a NIC between a GPU and a switch), vertex ids kept.

    Returns:
        The smaller graph, and for each of its links the links of `graph` that it stands for.
    """
    kept: list[tuple[int, int, int, tuple[int, ...]]] = [
        (graph.src[link], graph.dst[link], bandwidth, (link,)) for link, bandwidth in enumerate(graph.bandwidth)
    ]
    for vertex in range(graph.nranks, graph.nvertices):
        ins = [arc for arc in kept if arc[1] == vertex]
        outs = [arc for arc in kept if arc[0] == vertex]
        before, after = [arc[0] for arc in ins], [arc[1] for arc in outs]
        if len({*before, *after}) != 2 or len(set(before)) < len(before) or len(set(after)) < len(after):
            continue
        kept = [arc for arc in kept if vertex not in arc[:2]] + [
            (u, t, min(b, c), first + second) for u, _, b, first in ins for _, t, c, second in outs if u != t
        ]
    small = replace(
        graph,
        src=tuple(arc[0] for arc in kept),
        dst=tuple(arc[1] for arc in kept),
        bandwidth=tuple(arc[2] for arc in kept),
    )
    return small, [arc[3] for arc in kept]


@dataclass(frozen=True, slots=True)
class Cut:
    """A set of vertices that holds a rank.

    Attributes:
        inside: the set.
        entering: ids of the arcs that enter it.
    """

    inside: frozenset[int]
    entering: tuple[int, ...]

    def demand(self, multiplicity: Sequence[int]) -> int:
        """Pieces that must enter: those of the roots outside."""
        return sum(m for root, m in enumerate(multiplicity) if root not in self.inside)


class CutOracle:
    """Finds cuts that are too small, in one graph under many capacities."""

    def __init__(self, nvertices: int, nranks: int, src: Sequence[int], dst: Sequence[int]) -> None:
        self.nranks, self.source = nranks, nvertices
        self.src, self.dst = list(src), list(dst)
        src, dst = self.src + [nvertices] * nranks, self.dst + list(range(nranks))
        self._network = FlowNetwork(nvertices + 1, src, dst, [0] * len(src))

    def set(self, capacity: Sequence[int], multiplicity: Sequence[int]) -> None:
        """Choose capacities per arc and pieces per root."""
        self._network.set_capacities((*capacity, *multiplicity))
        self._total = sum(multiplicity)

    def slack(self, rank: int) -> int:
        """Smallest spare capacity over all sets that hold `rank`; 0 or more when it receives everything.

        Sets are counted with the pieces rooted inside them, so a positive figure is never reported:
        the answer is min(0, spare).
        """
        return self._network.solve(self.source, rank) - self._total

    def cut(self) -> Cut:
        """The set found by the last `slack`."""
        inside = frozenset(int(v) for v in np.flatnonzero(~self._network.source_side()))
        return Cut(inside, tuple(a for a, (u, v) in enumerate(zip(self.src, self.dst, strict=True))
                                 if v in inside and u not in inside))  # fmt: skip

    def violated(self) -> Cut | None:
        """Some set that is too small, or None."""
        for rank in range(self.nranks):
            if self.slack(rank) < 0:
                return self.cut()
        return None

    def all_violated(self, tolerance: int = 0) -> list[Cut]:
        """One set per rank that lacks more than `tolerance`, without repeats."""
        found: dict[frozenset[int], Cut] = {}
        for rank in range(self.nranks):
            if self.slack(rank) < -tolerance:
                cut = self.cut()
                found[cut.inside] = cut
        return list(found.values())


def least_time(graph: Graph, multiplicity: Sequence[int]) -> Fraction:
    """Least U such that `U * bandwidth` carries the pieces, by Newton's method on cuts (exact).

    U is in pieces per unit of bandwidth.  Each cut that is too small gives the next U; the last one proves
    it (Dinkelbach; values are monotone, so a rank that was satisfied stays so).

    Raises:
        DisconnectedError: nothing enters a set that needs something.
    """
    oracle = CutOracle(graph.nvertices, graph.nranks, graph.src, graph.dst)
    time = Fraction(0)

    def load(value: Fraction) -> None:
        oracle.set([b * value.numerator for b in graph.bandwidth], [m * value.denominator for m in multiplicity])

    load(time)
    for rank in range(graph.nranks):
        while oracle.slack(rank) < 0:
            cut = oracle.cut()
            time = Fraction(cut.demand(multiplicity), _entering(graph, cut))
            load(time)
    return time


def _entering(graph: Graph, cut: Cut) -> int:
    width = sum(graph.bandwidth[a] for a in cut.entering)
    if width == 0:
        inside = sorted(v for v in cut.inside if v < graph.nranks)
        raise DisconnectedError(
            f"no link leads from the other ranks to ranks {', '.join(map(str, inside))}",
            hint="adding links, or leaving those ranks out with --gpus",
        )
    return width


def floor_capacities(graph: Graph, time: Fraction) -> list[int]:
    """Whole pieces that each link carries in `time`."""
    return [b * time.numerator // time.denominator for b in graph.bandwidth]


def least_whole_time(graph: Graph, multiplicity: Sequence[int], start: Fraction) -> Fraction:
    """Least U such that the whole pieces `floor(U * bandwidth)` carry the pieces.

    From the lower bound `start`, each cut that is too small raises U to the least value at which that cut
    is wide enough, so the result is the exact minimum.
    """
    oracle = CutOracle(graph.nvertices, graph.nranks, graph.src, graph.dst)
    time = start
    oracle.set(floor_capacities(graph, time), multiplicity)
    for rank in range(graph.nranks):
        while oracle.slack(rank) < 0:
            cut = oracle.cut()
            time = _least_width_time([graph.bandwidth[a] for a in cut.entering], cut.demand(multiplicity), time)
            oracle.set(floor_capacities(graph, time), multiplicity)
    return time


def _least_width_time(widths: Sequence[int], demand: int, time: Fraction) -> Fraction:
    """Least U >= `time` with sum(floor(U * w)) >= demand."""
    counts: dict[int, int] = {}
    for width in filter(None, widths):
        counts[width] = counts.get(width, 0) + 1
    time = max(time, Fraction(demand, sum(widths)))
    while True:
        whole = {w: w * time.numerator // time.denominator for w in counts}
        if sum(whole[w] * count for w, count in counts.items()) >= demand:
            return time
        time = min(Fraction(whole[w] + 1, w) for w in counts)


def exact_multiplier(graph: Graph, multiplicity: Sequence[int], limit: int) -> int | None:
    """Least whole K <= limit such that K times the pieces fit whole at K times the least time, or None."""
    time = least_time(graph, multiplicity)
    if time == 0:
        return 1
    sure = time.denominator // gcd(time.denominator, *graph.bandwidth)
    oracle = CutOracle(graph.nvertices, graph.nranks, graph.src, graph.dst)
    for factor in range(1, min(limit, sure) + 1):
        if factor == sure:
            return sure
        oracle.set(floor_capacities(graph, factor * time), [factor * m for m in multiplicity])
        if oracle.violated() is None:
            return factor
    return None
