"""AllReduce by trees: the best root weights and split of every link, as a linear program.

An AllReduce schedule of trees reduces each piece along a tree to its root and broadcasts it along
another.  Let w_v be the rate of the pieces rooted at rank v, and let link e give a_e of its bandwidth to
broadcasting and b_e to reducing.  By Edmonds' theorem on arborescences, broadcast trees at these
rates exist iff every rank can receive a flow of sum(w) from the roots within a, and reduce trees iff
every rank can send as much to the roots within b.  A switch that does not copy (reduce) sends on as
much as it receives, which keeps the theorem true after switches are split off.  The program maximises
sum(w), the algorithm bandwidth.

The optimum is proven for any schedule when a cut or a partition gives the same value
(`TreeLP.certified`), and otherwise it is the optimum among tree schedules, as exact as floating point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

import numpy as np

from ..topology import Capability, Topology
from .cuts import minimum_cut
from .graph import Graph
from .maxflow import FlowNetwork
from .partitions import worst_partition
from .refine import LinearProgram, maximise

#: Largest denominators tried, in turn, when the solver's floating point is read as fractions.
_DENOMINATORS = (64, 1024, 65536)
#: Relative difference below which a fraction is taken for the solver's optimum.
_SAME = 1e-9
_REDUCING = (Capability.REDUCE_TO_REQUESTER, Capability.REDUCE_AND_MULTICAST)


@dataclass(frozen=True, slots=True)
class TreeLP:
    """Rates of the best AllReduce by trees.

    Attributes:
        value: algorithm bandwidth, bytes/s: the sum of `root_weights`.
        root_weights: bytes/s of payload rooted at each rank.
        broadcast_split, reduce_split: bytes/s of each link of the topology (by link id) given to
            broadcast and to reduce trees; together at most the link's bandwidth.
        exact: the weights and splits were proven feasible in rational arithmetic; when False they are
            rounded from floating point and may be off by about 1 in 10^9.
        certified: `value` equals the bound by cuts and partitions, so nothing is faster.
    """

    value: Fraction
    root_weights: tuple[Fraction, ...]
    broadcast_split: tuple[Fraction, ...]
    reduce_split: tuple[Fraction, ...]
    exact: bool
    certified: bool


def solve(topology: Topology, *, limit: Fraction | None = None) -> TreeLP:
    """The best root weights and link splits for AllReduce by trees.

    Args:
        topology: the machine; 2 ranks or more.
        limit: algorithm bandwidth (bytes/s) that nothing can exceed, when it is known already.

    Raises:
        UnknownSpeedError: a link's bandwidth is not known.
        DisconnectedError: some rank cannot reach another.
        MissingDependencyError: SciPy is not installed.
    """
    graph = Graph.of(topology)
    if limit is None:
        limit = _limit(graph)
    columns = _Columns(graph)
    largest = float(graph.capacity.max())
    solution = maximise(_program(graph, columns, largest))
    n, m = graph.nranks, len(graph.tail)
    rough = solution.primal[: n + 2 * m] * largest
    for denominator in _DENOMINATORS:
        values = [Fraction(float(x)).limit_denominator(denominator) for x in rough]
        weights, broadcast, reduce_ = values[:n], values[n : n + m], values[n + m :]
        # A coarse grid may hold a solution that is not the best one.
        exact = abs(float(sum(weights)) / (solution.optimum * largest) - 1) < _SAME and _is_feasible(
            graph, weights, broadcast, reduce_
        )
        if exact:
            break
    unit = graph.unit
    value = sum(weights, Fraction(0)) * unit
    return TreeLP(
        value=value,
        root_weights=tuple(w * unit for w in weights),
        broadcast_split=tuple(a * unit for a in broadcast[: topology.nlinks]),
        reduce_split=tuple(b * unit for b in reduce_[: topology.nlinks]),
        exact=exact,
        certified=exact and value == limit,
    )


def _limit(graph: Graph) -> Fraction:
    cut = minimum_cut(graph)
    assert cut is not None, "AllReduce by trees needs two ranks"
    partition = worst_partition(graph, below=Fraction(2 * cut.exit))
    return (partition.ratio / 2 if partition else Fraction(cut.exit)) * graph.unit


class _Columns:
    """Where the variables are: w, a, b, then the broadcast and the reduce flow of each rank on each link."""

    def __init__(self, graph: Graph) -> None:
        self.n, self.m = graph.nranks, len(graph.tail)
        self.weight = np.arange(self.n, dtype=np.int64)
        self.broadcast = self.n + np.arange(self.m, dtype=np.int64)
        self.reduce = self.broadcast + self.m
        start = self.n + 2 * self.m
        self.count = start + 2 * self.n * self.m
        self.flow = start + np.arange(self.n * self.m, dtype=np.int64).reshape(self.n, self.m)
        self.back_flow = self.flow + self.n * self.m


def _program(graph: Graph, columns: _Columns, largest: float) -> LinearProgram:
    n, m, nvertices = columns.n, columns.m, graph.nvertices
    gain = np.zeros(columns.count)
    gain[columns.weight] = 1.0
    program = LinearProgram(columns.count, gain)
    # Each link's two shares fit into it.
    rows = program.add_rows(graph.capacity / largest, equal=False)
    program.add_entries(rows, columns.broadcast, 1.0)
    program.add_entries(rows, columns.reduce, 1.0)
    # The flow to (from) each rank fits into the link's share; the rank does not forward its own.
    for flow, share, skipped in (
        (columns.flow, columns.broadcast, graph.tail),
        (columns.back_flow, columns.reduce, graph.head),
    ):
        rank, link = np.nonzero(skipped[None, :] != np.arange(n)[:, None])
        rows = program.add_rows(np.zeros(len(rank)), equal=False)
        program.add_entries(rows, flow[rank, link], 1.0)
        program.add_entries(rows, share[link], -1.0)
        # What enters a vertex leaves it; a rank adds its weight to the flow (takes it from the way back).
        place = np.full((n, nvertices), -1, dtype=np.int64)
        at_rank, at_vertex = np.nonzero(np.arange(n)[:, None] != np.arange(nvertices)[None, :])
        place[at_rank, at_vertex] = program.add_rows(np.zeros(len(at_rank)), equal=True)
        for ends, sign in ((graph.head, 1.0), (graph.tail, -1.0)):
            row = place[rank, ends[link]]
            program.add_entries(row[row >= 0], flow[rank, link][row >= 0], sign)
        own_rank, other = np.nonzero(~np.eye(n, dtype=bool))
        sign = 1.0 if flow is columns.flow else -1.0
        program.add_entries(place[own_rank, other], columns.weight[other], sign)
    for share, switches in ((columns.broadcast, _plain(graph, ())), (columns.reduce, _plain(graph, _REDUCING))):
        balance = np.full(nvertices, -1, dtype=np.int64)
        balance[switches] = program.add_rows(np.zeros(len(switches)), equal=True)
        for ends, sign in ((graph.head, 1.0), (graph.tail, -1.0)):
            row = balance[ends]
            program.add_entries(row[row >= 0], share[row >= 0], sign)
    assert m == len(graph.head)
    return program


def _plain(graph: Graph, able: tuple[Capability, ...]) -> list[int]:
    """The vertices that are no ranks and can do none of `able` (empty: nothing at all)."""
    return [
        index
        for index, vertex in enumerate(graph.topology.vertices)
        if vertex.rank is None and (vertex.capability not in able if able else vertex.capability is Capability.NONE)
    ]


def _is_feasible(
    graph: Graph, weights: Sequence[Fraction], broadcast: Sequence[Fraction], reduce_: Sequence[Fraction]
) -> bool:
    """Whether every rank gets all roots' rates within `broadcast`, and back within `reduce_`: in integers."""
    if min((*weights, *broadcast, *reduce_), default=Fraction(0)) < 0 or not any(weights):
        return False
    if any(a + b > int(c) for a, b, c in zip(broadcast, reduce_, graph.capacity, strict=True)):
        return False
    scale = lcm(*(x.denominator for x in (*weights, *broadcast, *reduce_)))
    for share, tail, head, able in (
        (broadcast, graph.tail, graph.head, ()),
        (reduce_, graph.head, graph.tail, _REDUCING),
    ):
        capacity = [int(x * scale) for x in share]
        for switch in _plain(graph, able):
            entering = sum(c for c, v in zip(capacity, head, strict=True) if v == switch)
            leaving = sum(c for c, v in zip(capacity, tail, strict=True) if v == switch)
            if entering != leaving:
                return False
        source = graph.nvertices
        roots = [r for r in range(graph.nranks) if weights[r]]
        supply = [int(weights[r] * scale) for r in roots]
        network = FlowNetwork(
            source + 1,
            [*tail.tolist(), *([source] * len(roots))],
            [*head.tolist(), *roots],
            [*capacity, *supply],
        )
        if any(network.solve(source, rank) < sum(supply) for rank in range(graph.nranks)):
            return False
    return True
