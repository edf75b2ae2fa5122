"""AllReduce by trees: the best root weights and split of every link, as a linear program.

An AllReduce schedule of trees reduces each piece along a tree to its root and broadcasts it along
another.  Let w_v be the rate of the pieces rooted at rank v, and let link e give a_e of its bandwidth to
broadcasting and b_e to reducing.  By Edmonds' theorem on arborescences, broadcast trees at these
rates exist iff every rank can receive a flow of sum(w) from the roots within a, and reduce trees iff
every rank can send as much to the roots within b.  A switch that does not copy (reduce) sends on as
much as it receives, which keeps the theorem true after switches are split off.  The program maximises
sum(w), the algorithm bandwidth.

That the flows exist is asked for cut by cut: solve with the cuts known so far, let max-flows find the
vertex sets that fall short, add those, repeat.  The bound by cuts and partitions caps the objective, so
the rounds end as soon as one solution at the bound is feasible.

The optimum is proven for any schedule when a cut or a partition gives the same value
(`TreeLP.certified`), and otherwise it is the optimum among tree schedules, as exact as floating point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

import numpy as np

from ..errors import InputError
from ..topology import Capability, Topology
from .cuts import minimum_cut
from .graph import BoolArray, Graph, IntArray
from .maxflow import FlowNetwork
from .partitions import worst_partition
from .refine import LinearProgram, Solution, maximise

#: Largest denominators tried, in turn, when the solver's floating point is read as fractions.
_DENOMINATORS = (64, 1024, 65536)
#: Relative difference below which a fraction is taken for the solver's optimum.
_SAME = 1e-9
#: Whole units of the fastest link in the max-flows that look for violated cuts.
_GRID = 1 << 32
#: Share of the fastest link by which a flow may fall short: the solver's own tolerance is a tenth of it.
_SHORT = 1e-6
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
        InputError: there is only one rank.
        MissingDependencyError: SciPy is not installed.
    """
    if topology.nranks < 2:
        raise InputError("AllReduce of one rank moves nothing", where=f"topology {topology.name}", expected="2 ranks")
    graph = Graph.of(topology)
    if limit is None:
        limit = _limit(graph)
    largest = float(graph.capacity.max())
    n, m = graph.nranks, len(graph.tail)
    solution = _best_rates(graph, largest, float(limit / graph.unit) / largest)
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
    assert cut is not None
    partition = worst_partition(graph, below=Fraction(2 * cut.exit)).partition
    return (partition.ratio / 2 if partition else Fraction(cut.exit)) * graph.unit


def _best_rates(graph: Graph, largest: float, limit: float) -> Solution:
    """Optimal w, then a, then b (in units of `largest`), not above `limit` in all."""
    n, m = graph.nranks, len(graph.tail)
    weight = np.arange(n, dtype=np.int64)
    broadcast = n + np.arange(m, dtype=np.int64)
    reduce_ = broadcast + m
    gain = np.zeros(n + 2 * m)
    gain[weight] = 1.0
    program = LinearProgram(len(gain), gain)
    program.add_entries(program.add_rows(np.array([limit]), equal=False), weight, 1.0)
    fits = program.add_rows(graph.capacity / largest, equal=False)
    program.add_entries(fits, broadcast, 1.0)
    program.add_entries(fits, reduce_, 1.0)
    directions = (
        _Direction(graph, broadcast, graph.tail, graph.head, _plain(graph, ())),
        _Direction(graph, reduce_, graph.head, graph.tail, _plain(graph, _REDUCING)),
    )
    for direction in directions:
        direction.add_balance(program)
        for rank in range(n):
            direction.add_cut(program, ~graph.mask([rank]))
    while True:
        solution = maximise(program)
        found = [direction.add_violated(program, solution) for direction in directions]
        if not any(found):
            return solution


class _Direction:
    """The broadcast half (links as they are) or the reduce half (links turned around) of the program."""

    def __init__(self, graph: Graph, share: IntArray, tail: IntArray, head: IntArray, plain: list[int]) -> None:
        self.share, self.tail, self.head, self.plain = share, tail, head, plain
        self.n, self.source = graph.nranks, graph.nvertices
        self._network = FlowNetwork(
            self.source + 1,
            [*tail.tolist(), *([self.source] * self.n)],
            [*head.tolist(), *range(self.n)],
            [0] * (len(tail) + self.n),
        )
        self._known: set[bytes] = set()

    def add_balance(self, program: LinearProgram) -> None:
        """Switches that cannot copy (reduce) pass on what they receive."""
        place = np.full(self.source, -1, dtype=np.int64)
        place[self.plain] = program.add_rows(np.zeros(len(self.plain)), equal=True)
        for ends, sign in ((self.head, 1.0), (self.tail, -1.0)):
            row = place[ends]
            program.add_entries(row[row >= 0], self.share[row >= 0], sign)

    def add_cut(self, program: LinearProgram, side: BoolArray) -> bool:
        """What is rooted in `side` must fit through the links that leave it; False when that is a row already."""
        key = np.packbits(side).tobytes()
        if key in self._known:
            return False
        self._known.add(key)
        row = program.add_rows(np.zeros(1), equal=False)
        program.add_entries(row, np.flatnonzero(side[: self.n]), 1.0)
        program.add_entries(row, self.share[side[self.tail] & ~side[self.head]], -1.0)
        return True

    def add_violated(self, program: LinearProgram, solution: Solution) -> bool:
        """Add the cuts of the ranks that do not receive all rates; whether there was a new one."""
        whole = np.rint(np.maximum(solution.primal, 0.0) * _GRID).astype(np.int64)
        for arc, amount in enumerate((*whole[self.share].tolist(), *whole[: self.n].tolist())):
            self._network.set_capacity(arc, amount)
        enough = int(whole[: self.n].sum()) - int(_GRID * _SHORT)
        added = False
        for rank in range(self.n):
            if self._network.solve(self.source, rank) < enough:
                added |= self.add_cut(program, self._network.source_side()[:-1])
        return added


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
