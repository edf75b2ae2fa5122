"""AllReduce's bound by partitions.

Cut the ranks into p >= 2 parts.  No part knows the sum before every other part's contribution has
reached it, and among p parties that takes at least 2(p - 1) messages of the payload's size (one-way
gossip: p - 1 until somebody knows all, p - 1 until everybody does); each leaves the part of its
sender.  So `T >= 2 (p - 1) M / sum of exit(part)`.  A switch that neither copies nor reduces only
forwards: it may stand in no part.  One that copies or reduces must stand in a part.

**Method.**  For a set A of ranks let h(A) be the least exit of a vertex set whose ranks are A.  h is
submodular, so minimising `sum (h(A_i) - x)` over partitions of the ranks is a Dilworth truncation,
solved by one max-flow per rank (Cunningham, "Optimal attack and reinforcement of a network", JACM
1985; Barahona, "Separating from the dominant of the spanning tree polytope", 1992).  Newton's
iteration on x ends at the exact least `sum h(A_i) / (p - 1)` after a few rounds.

The smallest minimising sets are disjoint whenever each forwarding switch can send at least what it
can receive.  Where they are not (a switch with a faster way in than out), and where a copying switch
stands in no part, the choice of the switch's part is branched on, best relaxation first, within a
budget; past it the best partition found is returned, which is a valid bound but perhaps not the best.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from .graph import BoolArray, Graph
from .maxflow import FlowNetwork

#: Relaxations solved at most, times the number of ranks.
_BRANCHING_BUDGET = 3000
#: Relaxations that are always allowed.
_LEAST_BRANCHES = 4
#: In `_Choice`: the switch stands in no part.
_NOWHERE = -1


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """Disjoint vertex sets, each with a rank, that together hold every rank and every copying switch.

    Attributes:
        parts: bool[nvertices] each.
        egress: capacity units that leave each part.
        best: whether no partition of the graph gives a larger bound than this one, or than the limit
            that the search was given.
    """

    parts: tuple[BoolArray, ...]
    egress: tuple[int, ...]
    best: bool

    @property
    def ratio(self) -> Fraction:
        """Total egress per part beyond the first, in capacity units."""
        return Fraction(sum(self.egress), len(self.parts) - 1)


_Choice = Mapping[int, int]


def worst_partition(graph: Graph, *, below: Fraction | None = None) -> Partition | None:
    """The partition with the least `sum exit(part) / (p - 1)`; None when there is none below `below`.

    Args:
        graph: the machine, connected both ways between all ranks.
        below: only a ratio smaller than this is of interest (twice the min cut: else the cut says more).
    """
    if graph.nranks < 2:
        return None
    copying = graph.can_copy_or_reduce()
    best: Partition | None = None
    limit = below
    order = itertools.count()
    budget = max(_LEAST_BRANCHES, _BRANCHING_BUDGET // graph.nranks)
    queue: list[tuple[Fraction, int, dict[int, int]]] = [(Fraction(0), next(order), {})]
    while queue and budget:
        promise, _, choice = heapq.heappop(queue)
        if limit is not None and promise >= limit:
            queue.clear()
            break
        budget -= 1
        parts, ratio = _relaxed(graph, choice)
        if limit is not None and ratio >= limit:
            continue
        count = np.sum(parts, axis=0)
        open_switches = [v for v in copying if count[v] == 0]
        open_switches += [int(v) for v in np.flatnonzero(count > 1)]
        candidate = _repaired(graph, parts, open_switches, copying)
        if limit is None or candidate.ratio < limit:
            best, limit = candidate, candidate.ratio
        if not open_switches:
            continue
        switch = open_switches[0]
        places = list(range(graph.nranks)) + ([] if switch in copying else [_NOWHERE])
        for place in places:
            heapq.heappush(queue, (ratio, next(order), {**choice, switch: place}))
    proven = not any(limit is None or promise < limit for promise, _, _ in queue)
    if best is None:
        return None
    return Partition(best.parts, best.egress, proven)


def _relaxed(graph: Graph, choice: _Choice) -> tuple[list[BoolArray], Fraction]:
    """Sets with the least `sum exit / (p - 1)` when switches without a choice may stand in several sets or none."""
    truncation = _Truncation(graph, choice)
    # Every rank by itself: a valid start, and often the answer.
    ratio = Fraction(sum(truncation.exit_of([r]) for r in range(graph.nranks)), graph.nranks - 1)
    blocks = [[r] for r in range(graph.nranks)]
    while (better := truncation.partition_below(ratio)) is not None:
        blocks, ratio = better
    return [truncation.smallest_set(block) for block in blocks], ratio


class _Truncation:
    """The max-flows of one graph after the choices: chosen switches are merged into their rank, or the sink."""

    def __init__(self, graph: Graph, choice: _Choice) -> None:
        self._graph = graph
        self._nranks = graph.nranks
        self._source, self._sink = graph.nvertices, graph.nvertices + 1
        self._place = np.arange(graph.nvertices, dtype=np.int64)
        for switch, rank in choice.items():
            self._place[switch] = self._sink if rank == _NOWHERE else rank
        tail, head = self._place[graph.tail], self._place[graph.head]
        kept = (tail != head) & (tail != self._sink)
        self._capacity = [int(c) for c in graph.capacity[kept]]
        self._nlinks = len(self._capacity)
        ranks = list(range(self._nranks))
        self._network = FlowNetwork(
            graph.nvertices + 2,
            [*tail[kept].tolist(), *([self._source] * self._nranks), *ranks],
            [*head[kept].tolist(), *ranks, *([self._sink] * self._nranks)],
            [*self._capacity, *([0] * (2 * self._nranks))],
        )
        self._scale = 1

    def _set_scale(self, scale: int) -> None:
        if scale != self._scale:
            for arc, capacity in enumerate(self._capacity):
                self._network.set_capacity(arc, capacity * scale)
            self._scale = scale

    def _pull(self, rank: int, from_source: int, to_sink: int) -> None:
        self._network.set_capacity(self._nlinks + rank, from_source)
        self._network.set_capacity(self._nlinks + self._nranks + rank, to_sink)

    def _solve_for(self, block: list[int]) -> int:
        """Least exit, in scaled units, of a set whose ranks are `block`."""
        endless = sum(self._capacity) * self._scale + 1
        inside = set(block)
        for rank in range(self._nranks):
            self._pull(rank, endless if rank in inside else 0, 0 if rank in inside else endless)
        return self._network.solve(self._source, self._sink)

    def exit_of(self, block: list[int]) -> int:
        """h(block) in capacity units."""
        self._set_scale(1)
        return self._solve_for(block)

    def smallest_set(self, block: list[int]) -> BoolArray:
        """bool[nvertices]: the smallest set whose ranks are `block` and whose exit is h(block)."""
        self._set_scale(1)
        self._solve_for(block)
        side = self._network.source_side()
        return side[self._place]

    def partition_below(self, ratio: Fraction) -> tuple[list[list[int]], Fraction] | None:
        """A partition of the ranks with a smaller `sum h / (p - 1)` than `ratio`, None if there is none."""
        price, scale = ratio.numerator, ratio.denominator
        self._set_scale(scale)
        # No value exceeds its rank's exit, so the rewards together never exceed all links.
        endless = 2 * sum(self._capacity) * scale + 1
        gain = 0
        value: list[int] = []
        block_of = list(range(self._nranks))
        for rank in range(self._nranks):
            self._pull(rank, 0, endless)
        for rank in range(self._nranks):
            self._pull(rank, endless, 0)
            value.append(self._network.solve(self._source, self._sink) - gain - price)
            self._pull(rank, max(value[-1], 0), max(-value[-1], 0))
            gain += max(value[-1], 0)
            side = self._network.source_side()
            # Tight sets that meet have a tight union: their blocks become one.
            met = {block_of[i] for i in range(rank + 1) if side[i]}
            for i in range(rank + 1):
                if block_of[i] in met:
                    block_of[i] = rank
        if sum(value) >= -price:
            return None
        blocks: dict[int, list[int]] = {}
        for rank, block in enumerate(block_of):
            blocks.setdefault(block, []).append(rank)
        total = sum(value) + price * len(blocks)
        assert total % scale == 0 and len(blocks) > 1
        return list(blocks.values()), Fraction(total // scale, len(blocks) - 1)


def _repaired(graph: Graph, parts: list[BoolArray], switches: list[int], copying: list[int]) -> Partition:
    """A true partition near the relaxed one: each open switch goes where the total egress grows least."""
    parts = [part.copy() for part in parts]
    for part in parts:
        part[switches] = False
    for switch in switches:
        options: list[tuple[int, int]] = []
        for index, part in enumerate(parts):
            before = graph.exit(part)
            part[switch] = True
            options.append((graph.exit(part) - before, index))
            part[switch] = False
        growth, index = min(options)
        if switch in copying or growth < 0:
            parts[index][switch] = True
    return Partition(tuple(parts), tuple(graph.exit(part) for part in parts), best=False)
