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
stands in no part (the general case is NP-hard: it holds multiway cut), the choice of the switch's part
is branched on, best relaxation first, within a budget; past it the best partition found is returned,
which is a valid bound but perhaps not the best.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from .graph import BoolArray, Graph, IntArray
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
    """

    parts: tuple[BoolArray, ...]
    egress: tuple[int, ...]

    @property
    def ratio(self) -> Fraction:
        """Total egress per part beyond the first, in capacity units."""
        return Fraction(sum(self.egress), len(self.parts) - 1)


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """What a search for the worst partition came to.

    Attributes:
        partition: the one with the least ratio found, None when none was below the limit.
        complete: whether it is proven that there is none with a smaller ratio (below the limit).
    """

    partition: Partition | None
    complete: bool


_Choice = Mapping[int, int]


def worst_partition(graph: Graph, *, below: Fraction | None = None) -> Search:
    """The partition with the least `sum exit(part) / (p - 1)`.

    Args:
        graph: the machine, connected both ways between all ranks.
        below: only a ratio smaller than this is of interest (twice the min cut: else the cut says more).
    """
    if graph.nranks < 2:
        return Search(None, complete=True)
    copying = graph.can_copy_or_reduce()
    best: Partition | None = None
    limit = below
    order = itertools.count()
    budget = max(_LEAST_BRANCHES, _BRANCHING_BUDGET // graph.nranks)
    # Smallest promise first, then the deepest: the first partitions come soon.
    queue: list[tuple[Fraction, int, int, dict[int, int]]] = [(Fraction(0), 0, next(order), {})]
    while queue and budget and (limit is None or queue[0][0] < limit):
        _, depth, _, choice = heapq.heappop(queue)
        budget -= 1
        parts, ratio = _relaxed(graph, choice)
        if limit is not None and ratio >= limit:
            continue
        open_switches = _open_switches(parts, copying)
        candidates = [_repaired(graph, parts, open_switches, copying)]
        if open_switches and not choice and copying:
            candidates += _with_neighbours(graph, copying)
        for candidate in candidates:
            if limit is None or candidate.ratio < limit:
                best, limit = candidate, candidate.ratio
        if not open_switches:
            continue
        switch = open_switches[0]
        places = list(range(graph.nranks)) + ([] if switch in copying else [_NOWHERE])
        for place in places:
            heapq.heappush(queue, (ratio, depth - 1, next(order), {**choice, switch: place}))
    return Search(best, complete=not any(limit is None or entry[0] < limit for entry in queue))


def _open_switches(parts: list[BoolArray], copying: list[int]) -> list[int]:
    """The switches that keep relaxed parts from being a partition: copying ones in no part, any in several."""
    count = np.sum(parts, axis=0)
    return [v for v in copying if count[v] == 0] + [int(v) for v in np.flatnonzero(count > 1)]


def _with_neighbours(graph: Graph, copying: list[int]) -> list[Partition]:
    """The best partition that keeps every copying switch together with all ranks it has links with (a box)."""
    group = np.arange(graph.nvertices, dtype=np.int64)
    for switch in copying:
        ends = np.concatenate((graph.head[graph.tail == switch], graph.tail[graph.head == switch]))
        members = np.unique(group[ends[ends < graph.nranks]])
        if len(members):
            group[np.isin(group, members)] = members[0]
            group[switch] = members[0]
    terminals = sorted({int(g) for g in group[: graph.nranks]})
    if len(terminals) < 2:
        return []
    parts, _ = _Truncation(graph, group, terminals).least()
    return [_repaired(graph, parts, _open_switches(parts, copying), copying)]


def _relaxed(graph: Graph, choice: _Choice) -> tuple[list[BoolArray], Fraction]:
    """Sets with the least `sum exit / (p - 1)` when switches without a choice may stand in several sets or none."""
    place = np.arange(graph.nvertices, dtype=np.int64)
    for switch, rank in choice.items():
        place[switch] = rank
    return _Truncation(graph, place, list(range(graph.nranks))).least()


class _Truncation:
    """The max-flows of one graph in which some vertices are merged.

    Args:
        graph: the machine.
        place: int64[nvertices], the vertex that each one is merged into (itself, or a terminal), or
            `_NOWHERE`: in no part.
        terminals: the ranks that stand for themselves and for what is merged into them.
    """

    def __init__(self, graph: Graph, place: IntArray, terminals: list[int]) -> None:
        self._nterminals = len(terminals)
        self._source, self._sink = graph.nvertices, graph.nvertices + 1
        self._place = np.where(place == _NOWHERE, self._sink, place)
        tail, head = self._place[graph.tail], self._place[graph.head]
        kept = (tail != head) & (tail != self._sink)
        self._capacity = [int(c) for c in graph.capacity[kept]]
        self._nlinks = len(self._capacity)
        self._network = FlowNetwork(
            graph.nvertices + 2,
            [*tail[kept].tolist(), *([self._source] * self._nterminals), *terminals],
            [*head[kept].tolist(), *terminals, *([self._sink] * self._nterminals)],
            [*self._capacity, *([0] * (2 * self._nterminals))],
        )
        self._terminals = terminals
        self._scale = 1

    def least(self) -> tuple[list[BoolArray], Fraction]:
        """The sets with the least `sum exit / (p - 1)`, and that ratio."""
        # Every terminal by itself: a valid start, and often the answer.
        blocks = [[t] for t in range(self._nterminals)]
        ratio = Fraction(sum(self._exit_of(block) for block in blocks), self._nterminals - 1)
        while (better := self._partition_below(ratio)) is not None:
            blocks, ratio = better
        return [self._smallest_set(block) for block in blocks], ratio

    def _set_scale(self, scale: int) -> None:
        if scale != self._scale:
            for arc, capacity in enumerate(self._capacity):
                self._network.set_capacity(arc, capacity * scale)
            self._scale = scale

    def _pull(self, terminal: int, from_source: int, to_sink: int) -> None:
        self._network.set_capacity(self._nlinks + terminal, from_source)
        self._network.set_capacity(self._nlinks + self._nterminals + terminal, to_sink)

    def _solve_for(self, block: list[int]) -> int:
        """Least exit, in scaled units, of a set whose terminals are `block`."""
        endless = sum(self._capacity) * self._scale + 1
        inside = set(block)
        for t in range(self._nterminals):
            self._pull(t, endless if t in inside else 0, 0 if t in inside else endless)
        return self._network.solve(self._source, self._sink)

    def _exit_of(self, block: list[int]) -> int:
        """h(block) in capacity units."""
        self._set_scale(1)
        return self._solve_for(block)

    def _smallest_set(self, block: list[int]) -> BoolArray:
        """bool[nvertices]: the smallest set whose terminals are `block` and whose exit is h(block)."""
        self._set_scale(1)
        self._solve_for(block)
        side = self._network.source_side()
        return side[self._place]

    def _partition_below(self, ratio: Fraction) -> tuple[list[list[int]], Fraction] | None:
        """A partition of the terminals with a smaller `sum h / (p - 1)` than `ratio`, None if there is none."""
        price, scale = ratio.numerator, ratio.denominator
        self._set_scale(scale)
        # No value exceeds its terminal's exit, so the rewards together never exceed all links.
        endless = 2 * sum(self._capacity) * scale + 1
        gain = 0
        value: list[int] = []
        block_of = list(range(self._nterminals))
        for last in range(self._nterminals):
            self._pull(last, 0, endless)
        for last in range(self._nterminals):
            self._pull(last, endless, 0)
            value.append(self._network.solve(self._source, self._sink) - gain - price)
            self._pull(last, max(value[-1], 0), max(-value[-1], 0))
            gain += max(value[-1], 0)
            side = self._network.source_side()
            # Tight sets that meet have a tight union: their blocks become one.
            met = {block_of[i] for i in range(last + 1) if side[self._terminals[i]]}
            for i in range(last + 1):
                if block_of[i] in met:
                    block_of[i] = last
        if sum(value) >= -price:
            return None
        blocks: dict[int, list[int]] = {}
        for terminal, block in enumerate(block_of):
            blocks.setdefault(block, []).append(terminal)
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
    return Partition(tuple(parts), tuple(graph.exit(part) for part in parts))
