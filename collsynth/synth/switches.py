"""From a machine with switches to a graph of ranks only, without losing what it can carry.

A switch is replaced by direct arcs between its neighbours: so many pieces that entered from u now leave
to t.  Every direct arc remembers the physical routes behind it (`Lane`), so a tree over ranks can be put
back onto links.  Switches are taken as plain forwarders: none copies or adds.

Three ways, in order of preference for each switch:

1. a vertex with at most two neighbours (a NIC) leaves no choice;
2. a *flat* plan, where every pair of neighbours gets as equal a share as the ports allow, is accepted if
   one pass over the cuts (`rates.CutOracle`) shows that nothing is lost, and otherwise drawn again with
   pairs inside the cuts that lost made dearer; flat plans keep trees shallow;
3. otherwise pair by pair, splitting off for (u, switch, t) as much as no cut forbids.  Only cuts that hold
   the switch but neither neighbour, or both neighbours but not the switch, shrink (Mader; Bang-Jensen,
   Frank and Jackson, SIAM J. Discrete Math. 8, 1995; Zhao et al., ForestColl, arXiv 2402.06787).
   It completes whenever as many pieces enter the switch as leave it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..bounds.maxflow import FlowNetwork
from ..errors import require
from .rates import CutOracle, Graph

#: Flat plans tried for one switch before it is split pair by pair.
_FLAT_TRIES = 8

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Lane:
    """`amount` pieces that may travel along the links of `route`."""

    route: tuple[int, ...]
    amount: int


Lanes = dict[Pair, list[Lane]]


class CannotSplit(Exception):
    """The capacities lose what they carry when switches are removed (unbalanced switches)."""


def width(lanes: list[Lane]) -> int:
    """Pieces that the lanes carry together."""
    return sum(lane.amount for lane in lanes)


def take(lanes: list[Lane], amount: int) -> list[Lane]:
    """Remove `amount` pieces from the front of `lanes` (in place) and return them."""
    taken: list[Lane] = []
    while amount:
        lane = lanes[0]
        part = min(amount, lane.amount)
        taken.append(Lane(lane.route, part))
        if part == lane.amount:
            lanes.pop(0)
        else:
            lanes[0] = Lane(lane.route, lane.amount - part)
        amount -= part
    return taken


def join(first: list[Lane], second: list[Lane]) -> list[Lane]:
    """Lanes that run along `first`, then along `second`; both carry the same amount."""
    joined: list[Lane] = []
    first, second = first[:], second[:]
    while first:
        part = min(first[0].amount, second[0].amount)
        (head,), (tail,) = take(first, part), take(second, part)
        joined.append(Lane(head.route + tail.route, part))
    return joined


def remove_switches(graph: Graph, capacity: Sequence[int], multiplicity: Sequence[int]) -> Lanes:
    """Direct lanes between ranks that still carry `multiplicity[r]` pieces from every rank r to all.

    Args:
        graph: the physical links.
        capacity: whole pieces per link; they carry the pieces (checked by the caller).
        multiplicity: pieces per root.

    Raises:
        CannotSplit: the capacities do not suffice once switches forward without copying.
    """
    lanes: Lanes = {}
    for link, amount in enumerate(capacity):
        if amount:
            lanes.setdefault((graph.src[link], graph.dst[link]), []).append(Lane((link,), amount))
    switches = set(range(graph.nranks, graph.nvertices))
    _contract(lanes, switches)
    for switch in _farthest_first(lanes, switches, graph.nranks):
        if switch not in switches:
            continue
        _remove(lanes, switch, switches, graph, multiplicity)
        switches.discard(switch)
        _contract(lanes, switches)
    if _lost(lanes, graph, multiplicity):
        raise CannotSplit
    return lanes


def _neighbours(lanes: Lanes, vertex: int) -> tuple[list[int], list[int]]:
    return sorted(u for u, w in lanes if w == vertex), sorted(t for w, t in lanes if w == vertex)


def _contract(lanes: Lanes, switches: set[int]) -> None:
    """Remove the switches that leave no choice: at most two neighbours, or no way in or out."""
    changed = True
    while changed:
        changed = False
        for switch in sorted(switches):
            entering, leaving = _neighbours(lanes, switch)
            if len({*entering, *leaving}) <= 2 or not entering or not leaving:
                ins = {u: width(lanes[u, switch]) for u in entering}
                outs = {t: width(lanes[switch, t]) for t in leaving}
                plan = {(u, t): min(ins[u], outs[t]) for u in entering for t in leaving if u != t}
                _apply(lanes, switch, plan)
                switches.discard(switch)
                changed = True


def _farthest_first(lanes: Lanes, switches: set[int], nranks: int) -> list[int]:
    """Switches by falling distance from the ranks: leaf switches last keeps trees shallow."""
    distance = dict.fromkeys(range(nranks), 0)
    frontier, level = set(range(nranks)), 0
    while frontier:
        level += 1
        frontier = {w for u, w in lanes if u in frontier} - distance.keys()
        distance.update(dict.fromkeys(frontier, level))
    return sorted(switches, key=lambda switch: (-distance.get(switch, 0), switch))


def _apply(lanes: Lanes, switch: int, plan: dict[Pair, int]) -> None:
    """Replace the switch by direct lanes of the planned amounts; what is not planned is dropped."""
    for (u, t), amount in sorted(plan.items()):
        if amount:
            part = join(take(lanes[u, switch], amount), take(lanes[switch, t], amount))
            lanes.setdefault((u, t), []).extend(part)
    for pair in [pair for pair in lanes if switch in pair]:
        del lanes[pair]


def _lost(lanes: Lanes, graph: Graph, multiplicity: Sequence[int]) -> list[frozenset[int]]:
    """Sets of vertices that no longer receive what they need (one a rank at most); empty when all is well."""
    pairs = sorted(lanes)
    oracle = CutOracle(graph.nvertices, graph.nranks, [u for u, _ in pairs], [t for _, t in pairs])
    oracle.set([width(lanes[pair]) for pair in pairs], multiplicity)
    return [cut.inside for cut in oracle.all_violated()]


def _remove(lanes: Lanes, switch: int, switches: set[int], graph: Graph, multiplicity: Sequence[int]) -> None:
    entering, leaving = _neighbours(lanes, switch)
    ins = {u: width(lanes[u, switch]) for u in entering}
    outs = {t: width(lanes[switch, t]) for t in leaving}
    inner: list[frozenset[int]] = []
    plan = circulant_plan(ins, outs) or flat_plan(ins, outs, switches)
    for _ in range(_FLAT_TRIES):
        trial = {pair: list(pool) for pair, pool in lanes.items()}
        _apply(trial, switch, plan)
        lost = _lost(trial, graph, multiplicity)
        if not lost:
            lanes.clear()
            lanes.update(trial)
            return
        # These sets need what the plan spent on pairs inside them.
        inner.extend(inside for inside in lost if inside not in inner)
        plan = flat_plan(ins, outs, switches, inner)
    _apply(lanes, switch, _pairwise_plan(lanes, switch, plan, graph, multiplicity))


def circulant_plan(ins: dict[int, int], outs: dict[int, int]) -> dict[Pair, int] | None:
    """The same share for every pair, the rest on symmetric shifts; None unless all ports are equal."""
    ports = sorted(ins)
    if len(ports) < 2 or ports != sorted(outs) or len({*ins.values(), *outs.values()}) != 1:
        return None
    count = len(ports)
    share, rest = divmod(ins[ports[0]], count - 1)
    shifts = [shift for near in range(1, count // 2 + 1) for shift in dict.fromkeys((near, count - near))]
    extra = set(shifts[:rest])
    return {
        (ports[i], ports[(i + shift) % count]): share + (shift in extra)
        for i in range(count)
        for shift in range(1, count)
    }


def flat_plan(
    ins: dict[int, int], outs: dict[int, int], switches: set[int], inner: Sequence[frozenset[int]] = ()
) -> dict[Pair, int]:
    """As much as possible from `ins` to `outs`, spread evenly: a min-cost flow with convex costs.

    From switch to switch costs most, because it lengthens routes; a pair inside one of the sets `inner`
    costs more than one that enters it.  Nothing returns where it came from.
    """
    solver_module = require("ortools.graph.python.min_cost_flow", "synth", "switch removal")
    solver = solver_module.SimpleMinCostFlow()  # type: ignore[attr-defined]
    sources, sinks = sorted(ins), sorted(outs)
    source, sink = len(sources) + len(sinks), len(sources) + len(sinks) + 1
    arcs: list[tuple[int, int, int, int]] = []
    pairs: list[Pair | None] = []
    for i, u in enumerate(sources):
        arcs.append((source, i, ins[u], 0))
        pairs.append(None)
    for j, t in enumerate(sinks, len(sources)):
        arcs.append((j, sink, outs[t], 0))
        pairs.append(None)
    for i, u in enumerate(sources):
        for j, t in enumerate(sinks, len(sources)):
            room = min(ins[u], outs[t])
            if u == t or room == 0:
                continue
            fair = min(ins[u] // max(1, len(sinks) - 1), outs[t] // max(1, len(sources) - 1))
            base = 16 * sum(u in inside and t in inside for inside in inner)
            base += 16 * (len(inner) + 1) if u in switches and t in switches else 0
            for amount, cost in ((fair, 1), (1, 2), (1, 3), (1, 4), (max(1, fair), 6), (room, 9)):
                if amount:
                    arcs.append((i, j, amount, base + cost))
                    pairs.append((u, t))
    table = np.array(arcs, dtype=np.int64)
    solver.add_arcs_with_capacity_and_unit_cost(
        table[:, 0].astype(np.int32), table[:, 1].astype(np.int32), table[:, 2], table[:, 3]
    )
    supply = min(sum(ins.values()), sum(outs.values()))
    solver.set_node_supply(source, supply)
    solver.set_node_supply(sink, -supply)
    solver.solve_max_flow_with_min_cost()
    plan: dict[Pair, int] = {}
    for arc, pair in enumerate(pairs):
        if pair is not None:
            plan[pair] = plan.get(pair, 0) + int(solver.flow(arc))
    return plan


def _pairwise_plan(
    lanes: Lanes, switch: int, flat: dict[Pair, int], graph: Graph, multiplicity: Sequence[int]
) -> dict[Pair, int]:
    """Split off pair by pair what no cut forbids, first up to the flat plan, then without that limit."""
    entering, leaving = _neighbours(lanes, switch)
    amounts = {pair: width(pool) for pair, pool in lanes.items()}
    for u in entering:
        for t in leaving:
            if u != t:
                amounts.setdefault((u, t), 0)
    forced = _ForcedCuts(graph, amounts, multiplicity)
    plan = dict.fromkeys(((u, t) for u in entering for t in leaving if u != t), 0)
    for limits in (flat, None):
        for u, t in sorted(plan):
            room = min(amounts[u, switch], amounts[switch, t])
            if limits is not None:
                room = min(room, limits.get((u, t), 0))
            if room:
                room = forced.spare(amounts, u, switch, t, room)
            if room:
                plan[u, t] += room
                amounts[u, switch] -= room
                amounts[switch, t] -= room
                amounts[u, t] += room
    return plan


class _ForcedCuts:
    """Spare capacity over the cuts that shrink when (u, switch, t) is split off."""

    def __init__(self, graph: Graph, amounts: dict[Pair, int], multiplicity: Sequence[int]) -> None:
        pairs = sorted(amounts)
        self.nvertices, self.nranks, self.pairs = graph.nvertices, graph.nranks, pairs
        self.source, self.sink = graph.nvertices, graph.nvertices + 1
        everyone = list(range(graph.nvertices))
        src = [u for u, _ in pairs] + [self.source] * self.nvertices + everyone
        dst = [t for _, t in pairs] + everyone + [self.sink] * self.nvertices
        self.multiplicity = [*map(int, multiplicity), *[0] * (self.nvertices - self.nranks)]
        self.total = sum(self.multiplicity)
        self.infinite = sum(amounts.values()) + self.total + 1
        capacity = [amounts[pair] for pair in pairs] + self.multiplicity + [0] * self.nvertices
        self.network = FlowNetwork(self.nvertices + 2, src, dst, capacity)

    def _flow(self, inner: tuple[int, ...], outer: tuple[int, ...]) -> int:
        """Least cut with `outer` on the source's side and `inner` on the sink's, less what must enter."""
        start, end = len(self.pairs), len(self.pairs) + self.nvertices
        for vertex in outer:
            self.network.set_capacity(start + vertex, self.infinite)
        for vertex in inner:
            self.network.set_capacity(end + vertex, self.infinite)
        value = self.network.solve(self.source, self.sink)
        for vertex in outer:
            self.network.set_capacity(start + vertex, self.multiplicity[vertex])
        for vertex in inner:
            self.network.set_capacity(end + vertex, 0)
        return value - self.total

    def spare(self, amounts: dict[Pair, int], u: int, switch: int, t: int, room: int) -> int:
        """How much of `room` may be split off."""
        for arc, pair in enumerate(self.pairs):
            self.network.set_capacity(arc, amounts[pair])
        has_rank = u < self.nranks or t < self.nranks
        for rank in (None,) if has_rank else range(self.nranks):
            inner = (u, t) if rank is None else (u, t, rank)
            room = min(room, self._flow(inner, (switch,)))
            if room <= 0:
                return 0
        for rank in range(self.nranks):
            if rank not in (u, t):
                room = min(room, self._flow((switch, rank), (u, t)))
                if room <= 0:
                    return 0
        return room
