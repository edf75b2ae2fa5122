"""Bounds by cuts: AllGather, ReduceScatter, Broadcast, Reduce, Gather, Scatter, and AllReduce's min cut.

Whatever starts inside a vertex set S and is wanted by a rank outside must leave over the links that
leave S.  All of these collectives ask for the same thing, the set S that lacks some wanting rank and
has the largest weight(S) / exit(S), where weight(S) is the share of the payload that starts in S.

It is found by Newton's iteration on cuts (Dinkelbach 1967): a max-flow that falls short at the
current ratio yields a set with a larger one; ratios are pairs of integers, so the end is exact.
Sinks that have passed stay passed, because the condition only weakens as the ratio grows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ..errors import DisconnectedError
from .graph import BoolArray, Graph
from .maxflow import FlowNetwork


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """A vertex set that cannot get its data out fast enough.

    Attributes:
        side: bool[nvertices], the set S (in the graph that was searched).
        weight: weight inside S.
        exit: capacity units of the links that leave S.
        sinks: ranks outside S that want the weight.
    """

    side: BoolArray
    weight: int
    exit: int
    sinks: tuple[int, ...]

    def exceeds(self, other: Cut) -> bool:
        """Whether this cut's time is larger."""
        return self.weight * other.exit > other.weight * self.exit


def worst_cut(graph: Graph, weight: Sequence[int], sinks: Iterable[int]) -> Cut | None:
    """The set S, lacking some sink, with the largest weight(S) / exit(S); None when nothing must move.

    Args:
        graph: the machine.
        weight: weight that starts at each rank, >= 0.
        sinks: ranks that want all of it (each needs no copy of its own).

    Raises:
        DisconnectedError: some weight cannot reach a sink.
    """
    sinks = tuple(sinks)
    total = sum(weight)
    holders = [r for r in range(graph.nranks) if weight[r]]
    best: Cut | None = None
    for side in _simple_sides(graph, holders, sinks):
        best = _better(graph, best, side, weight, sinks)
    if best is None:
        return None
    source = graph.nvertices
    nlinks = len(graph.tail)
    network = FlowNetwork(
        source + 1,
        [*graph.tail.tolist(), *([source] * len(holders))],
        [*graph.head.tolist(), *holders],
        [0] * (nlinks + len(holders)),
    )

    def scale(cut: Cut) -> None:
        for arc, capacity in enumerate(graph.capacity.tolist()):
            network.set_capacity(arc, capacity * cut.weight)
        for place, rank in enumerate(holders):
            network.set_capacity(nlinks + place, cut.exit * weight[rank])

    scale(best)
    for sink in sinks:
        # A set S on the source side costs exit * (total - weight(S)) + weight * exit(S).
        while network.solve(source, sink) < best.exit * total:
            found = _cut(graph, network.source_side()[:-1].copy(), weight, sinks)
            assert found.exceeds(best)
            best = found
            scale(best)
    return best


def _simple_sides(graph: Graph, holders: list[int], sinks: tuple[int, ...]) -> Iterable[BoolArray]:
    """Everything but one sink, and single holders: sets that people understand, tried first."""
    for sink in sinks:
        side = np.ones(graph.nvertices, dtype=bool)
        side[sink] = False
        yield side
    for holder in holders:
        if any(s != holder for s in sinks):
            yield graph.mask([holder])


def _cut(graph: Graph, side: BoolArray, weight: Sequence[int], sinks: tuple[int, ...]) -> Cut:
    inside = sum(weight[r] for r in graph.ranks_in(side))
    wanting = tuple(s for s in sinks if not side[s])
    leaving = graph.exit(side)
    if inside and not leaving:
        names = [graph.topology.vertices[v].name for v in (
            next(r for r in graph.ranks_in(side) if weight[r]), wanting[0])]  # fmt: skip
        if graph.reversed:
            names.reverse()
        raise DisconnectedError(
            f"nothing leads from {names[0]} to {names[1]}",
            where=f"topology {graph.topology.name}",
            expected="a path of links between them",
        )
    return Cut(side, inside, leaving, wanting)


def _better(
    graph: Graph, best: Cut | None, side: BoolArray, weight: Sequence[int], sinks: tuple[int, ...]
) -> Cut | None:
    cut = _cut(graph, side, weight, sinks)
    if cut.weight and (best is None or cut.exceeds(best)):
        return cut
    return best


def minimum_cut(graph: Graph) -> Cut | None:
    """The set with a rank inside and a rank outside whose exit is smallest, weight 1; None at one rank.

    Raises:
        DisconnectedError: some rank cannot reach some other one.
    """
    others = range(1, graph.nranks)
    first = [1] + [0] * (graph.nranks - 1)
    outwards = worst_cut(graph, first, others)
    inwards = worst_cut(graph.turned_around(), first, others)
    if outwards is None or inwards is None:
        return None
    if inwards.exceeds(outwards):
        side = ~inwards.side
        return Cut(side, 1, inwards.exit, tuple(r for r in range(graph.nranks) if not side[r]))
    return Cut(outwards.side, 1, outwards.exit, outwards.sinks)


def rate(graph: Graph, cut: Cut, total: int) -> Fraction:
    """Seconds per byte of payload that the cut forces; `total` is the payload's weight."""
    return Fraction(cut.weight, total * cut.exit * graph.unit)
