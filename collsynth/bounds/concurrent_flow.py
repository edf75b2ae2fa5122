"""AllToAll by concurrent flow: every pair's slice is its own commodity, routed anywhere.

Give every link a length.  A slice that travels from s to d uses at least dist(s, d) of length times
bytes, and in time T the links together offer T * sum(capacity * length).  So

    T >= sum over pairs of units(s, d) * dist(s, d) / (payload units * sum(capacity * length))

per byte of payload, whatever the lengths; the best lengths are the dual of the maximum concurrent
flow (Shahrokhi, Matula, "The maximum concurrent flow problem", JACM 1990), solved here with one
commodity a source.  The solver's lengths are read as whole numbers and the bound is computed from
those exactly: it holds however inexact the solver was.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm

import numpy as np

from ..topology import Topology
from . import words
from .certificates import ANY_ROUTING
from .cuts import worst_cut
from .graph import BoolArray, FloatArray, Graph, IntArray, multicast_text
from .latency import distances
from .refine import LinearProgram, equitable_classes, maximise
from .types import Bottleneck, Bound, Certificate

#: Largest number of flow variables given to the solver; beyond, lengths are equal on alike links.
_LARGEST_PROGRAM = 400_000
#: Largest denominators tried, in turn, when the solver's lengths are read as fractions.
_DENOMINATORS = (12, 60, 1024, 10**5, 10**7)
#: Relative distance to the solver's optimum that counts as reaching it.
_SAME = 1e-9
#: Rounds, and shortest path trees in all, that cutting planes may take.
_KELLEY_ROUNDS = 100
_KELLEY_TREES = 3000


@dataclass(frozen=True, slots=True, eq=False)
class _Lengths:
    """Whole link lengths and what they prove: needed / room in (units of the graph) of time."""

    lengths: IntArray
    needed: int
    room: int
    side: BoolArray | None = None

    @property
    def value(self) -> Fraction:
        return Fraction(self.needed, self.room)


def alltoall_bound(
    topology: Topology, graph: Graph, latency: int, demand: list[list[int]] | None, payload_units: int
) -> Bound:
    """The bound of AllToAll (even slices, or `demand[s][d]` units of the payload's `payload_units`).

    Raises:
        MissingDependencyError: SciPy is not installed.
    """
    n = graph.nranks
    units = np.ones((n, n), dtype=np.int64) if demand is None else np.array(demand, dtype=np.int64)
    np.fill_diagonal(units, 0)
    if not units.any():
        return _nothing(topology, latency, demand, payload_units)
    best = max((_proven(graph, units, side) for side in _sides(graph, units)), key=lambda found: found.value)
    if n * len(graph.tail) <= _LARGEST_PROGRAM:
        rough, optimum = _optimal_lengths(graph, units)
    else:
        rough, optimum = _alike_lengths(graph, units)
    for denominator in _DENOMINATORS:
        if float(best.value) >= optimum * (1 - _SAME):
            break
        found = _read(graph, units, rough, denominator)
        if found is not None and found.value > best.value:
            best = _as_cut(graph, units, found)
    data: dict[str, object] = {
        "lengths": {str(int(e)): int(best.lengths[e]) for e in np.flatnonzero(best.lengths)},
        "payload_units": payload_units,
    }
    if demand is not None:
        data["demand"] = units.tolist()
    gap = optimum / float(best.value) - 1
    notes = [f"the solver's optimum is {gap:.2g} above what its lengths prove exactly"] if gap > _SAME else []
    if n * len(graph.tail) > _LARGEST_PROGRAM:
        notes.append("a large machine: alike links were given equal lengths, a larger bound may be provable")
    return Bound(
        collective="alltoall",
        nranks=n,
        root=None,
        seconds_per_byte=best.value / (payload_units * graph.unit),
        latency=latency,
        bottleneck=_bottleneck(topology, graph, units, best, even=demand is None),
        certificate=Certificate("lp-dual", data, ANY_ROUTING),
        multicast=multicast_text(topology),
        notes=tuple(notes),
    )


def _nothing(topology: Topology, latency: int, demand: list[list[int]] | None, payload_units: int) -> Bound:
    return Bound(
        collective="alltoall",
        nranks=topology.nranks,
        root=None,
        seconds_per_byte=Fraction(0),
        latency=latency,
        bottleneck=Bottleneck((), (), "nothing has to move between ranks"),
        certificate=Certificate("none", {"demand": demand, "payload_units": payload_units}, ANY_ROUTING),
        multicast=multicast_text(topology),
    )


def _sides(graph: Graph, units: IntArray) -> Iterator[BoolArray]:
    """Vertex sets that people understand: single ranks, host machines, and AllGather's bottleneck, both ways."""
    n = graph.nranks
    for rank in range(n):
        yield graph.mask([rank])
        yield ~graph.mask([rank])
    nodes: dict[int, list[int]] = {}
    for index, vertex in enumerate(graph.topology.vertices):
        if vertex.node is not None:
            nodes.setdefault(vertex.node, []).append(index)
    if len(nodes) > 1:
        for members in nodes.values():
            yield graph.mask(members)
            yield ~graph.mask(members)
    for turned in (graph, graph.turned_around()):
        cut = worst_cut(turned, [1] * n, range(n))
        if cut is not None:
            yield cut.side
            yield ~cut.side


def _proven(graph: Graph, units: IntArray, side: BoolArray) -> _Lengths:
    """What must leave `side` over what can: length 1 on the links that leave it."""
    inside = side[: graph.nranks]
    leaving = graph.exit_links(side)
    lengths = np.zeros(len(graph.tail), dtype=np.int64)
    lengths[leaving] = 1
    needed = int(units[inside][:, ~inside].sum())
    return _Lengths(lengths, needed, max(1, graph.exit(side)) if not needed else graph.exit(side), side)


def _as_cut(graph: Graph, units: IntArray, found: _Lengths) -> _Lengths:
    """The same bound by one cut, when the links with a length separate the machine; else `found` itself."""
    block = np.arange(graph.nvertices)
    free = found.lengths == 0
    while True:
        # Each vertex takes the least block number of its neighbours over links without a length.
        lower = block.copy()
        np.minimum.at(lower, graph.head[free], block[graph.tail[free]])
        np.minimum.at(lower, graph.tail[free], block[graph.head[free]])
        if (lower == block).all():
            break
        block = lower
    for number in np.unique(block[: graph.nranks])[:8]:
        for side in (block == number, block != number):
            cut = _proven(graph, units, side)
            if cut.value >= found.value:
                return cut
    return found


def _measured(graph: Graph, units: IntArray, lengths: IntArray) -> _Lengths:
    """What whole lengths prove, by exact shortest paths."""
    table = distances(graph.nvertices, graph.tail, graph.head, lengths, list(range(graph.nranks)))[:, : graph.nranks]
    needed = int((units.astype(object) * table.astype(object)).sum())
    room = sum(int(c) * int(w) for c, w in zip(graph.capacity, lengths, strict=True))
    return _Lengths(lengths, needed, room)


def _read(graph: Graph, units: IntArray, rough: FloatArray, denominator: int) -> _Lengths | None:
    """Lengths rounded to fractions of the largest one with small denominators; None when they explode."""
    shares = [Fraction(float(x)).limit_denominator(denominator) for x in rough / rough.max()]
    scale = lcm(*(s.denominator for s in shares))
    if scale > 10**12:
        shares = [Fraction(round(float(x) * denominator), denominator) for x in rough / rough.max()]
        scale = denominator
    whole = [int(s * scale) for s in shares]
    common = gcd(*whole)
    if not common:
        return None
    return _measured(graph, units, np.array([w // common for w in whole], dtype=np.int64))


def _optimal_lengths(graph: Graph, units: IntArray) -> tuple[FloatArray, float]:
    """Dual lengths and optimum (time in graph units) of the concurrent flow, one commodity a source."""
    n, m, nvertices = graph.nranks, len(graph.tail), graph.nvertices
    largest = float(graph.capacity.max())
    theta = n * m
    gain = np.zeros(n * m + 1)
    gain[theta] = 1.0
    program = LinearProgram(n * m + 1, gain)
    capacity = program.add_rows(graph.capacity / largest, equal=False)
    # A source sends; nothing comes back to it.
    source, link = np.nonzero(graph.head[None, :] != np.arange(n)[:, None])
    flow = source * m + link
    program.add_entries(capacity[link], flow, 1.0)
    place = np.full((n, nvertices), -1, dtype=np.int64)
    of_source, vertex = np.nonzero(np.arange(n)[:, None] != np.arange(nvertices)[None, :])
    place[of_source, vertex] = program.add_rows(np.zeros(len(vertex)), equal=True)
    for ends, sign in ((graph.head, 1.0), (graph.tail, -1.0)):
        row = place[source, ends[link]]
        program.add_entries(row[row >= 0], flow[row >= 0], sign)
    # What stays at a rank is its slice, theta times the demand.
    sender, receiver = np.nonzero(units)
    program.add_values(
        place[sender, receiver], np.full(len(sender), theta), -units[sender, receiver].astype(np.float64)
    )
    solution = maximise(program)
    return np.maximum(solution.dual[capacity], 0.0), 1.0 / (solution.optimum * largest)


def _alike_lengths(graph: Graph, units: IntArray) -> tuple[FloatArray, float]:
    """Lengths that are equal on alike links (colour classes of the machine), by Kelley's cutting planes.

    The needed length is a concave, piecewise linear function of the few class lengths; each round
    solves the pieces found so far and adds the one at the answer.  Alike sources share one shortest
    path tree.
    """
    n = graph.nranks
    vertex_class, link_class = _alike(graph, units)
    nclasses = int(link_class.max()) + 1
    room: FloatArray = np.zeros(nclasses)
    np.add.at(room, link_class, graph.capacity / float(graph.capacity.max()))
    _, chosen, size = np.unique(vertex_class[:n], return_index=True, return_counts=True)
    pieces: list[FloatArray] = []
    lengths: FloatArray = 1.0 / (room * nclasses)
    best, best_value = lengths, 0.0
    for _ in range(min(_KELLEY_ROUNDS, max(2, _KELLEY_TREES // len(chosen)))):
        use = np.zeros(nclasses)
        for source, members in zip(chosen, size, strict=True):
            use += members * _use(graph, lengths[link_class], int(source), units[source], link_class, nclasses)
        value = float(use @ lengths)
        if value > best_value:
            best, best_value = lengths, value
        pieces.append(use)
        gain = np.zeros(nclasses + 1)
        gain[nclasses] = 1.0
        program = LinearProgram(nclasses + 1, gain)
        row = program.add_rows(np.ones(1), equal=False)
        program.add_values(np.zeros(nclasses, dtype=np.int64), np.arange(nclasses), room)
        rows = program.add_rows(np.zeros(len(pieces)), equal=False)
        scale = max(float(p.max()) for p in pieces)
        for piece, row_id in zip(pieces, rows, strict=True):
            program.add_values(np.full(nclasses, row_id), np.arange(nclasses), -piece / scale)
        program.add_entries(rows, np.full(len(rows), nclasses), 1.0)
        assert len(row) == 1
        solution = maximise(program)
        lengths = np.maximum(solution.primal[:nclasses], 0.0)
        if solution.optimum * scale <= best_value * (1 + _SAME):
            break
    return best[link_class], best_value / (float(room @ best) * float(graph.capacity.max()))


def _alike(graph: Graph, units: IntArray) -> tuple[IntArray, IntArray]:
    """Colour classes of vertices and links; ranks with different demands start with different colours."""
    n = graph.nranks
    start = np.zeros(graph.nvertices, dtype=np.int64)
    sums = np.stack((units.sum(axis=0), units.sum(axis=1)))
    start[:n] = 1 + np.unique(sums, axis=1, return_inverse=True)[1].ravel()
    links = np.arange(len(graph.tail), dtype=np.int64)
    values = np.concatenate((np.ones(len(links)), np.full(len(links), 2.0)))
    return equitable_classes(
        np.concatenate((graph.tail, graph.head)), np.concatenate((links, links)), values, start,
        np.unique(graph.capacity, return_inverse=True)[1].ravel(),
    )  # fmt: skip


def _use(
    graph: Graph, length: FloatArray, source: int, wanted: IntArray, link_class: IntArray, nclasses: int
) -> FloatArray:
    """How often one source's units cross links of each class along a shortest path tree."""
    out: list[list[tuple[int, float, int]]] = [[] for _ in range(graph.nvertices)]
    for e, (u, v, w) in enumerate(zip(graph.tail.tolist(), graph.head.tolist(), length.tolist(), strict=True)):
        out[u].append((v, w, e))
    best = {source: 0.0}
    by: dict[int, tuple[int, int]] = {}
    order: list[int] = []
    done: set[int] = set()
    queue = [(0.0, source)]
    while queue:
        d, u = heapq.heappop(queue)
        if u in done:
            continue
        done.add(u)
        order.append(u)
        for v, w, e in out[u]:
            if v not in best or d + w < best[v]:
                best[v] = d + w
                by[v] = (u, e)
                heapq.heappush(queue, (d + w, v))
    carried = np.zeros(graph.nvertices)
    carried[: graph.nranks] = wanted
    use = np.zeros(nclasses)
    for v in reversed(order[1:]):
        u, e = by[v]
        use[link_class[e]] += carried[v]
        carried[u] += carried[v]
    return use


def _bottleneck(topology: Topology, graph: Graph, units: IntArray, best: _Lengths, *, even: bool) -> Bottleneck:
    if best.side is not None:
        total = int(best.needed)
        what = f"{total} {'slice' if even else 'unit'}{'' if total == 1 else 's'}"
        return words.cut_bottleneck(graph, best.side, topology.nlinks, what, enters=False)
    limiting = [int(e) for e in np.flatnonzero(best.lengths)]
    pairs = int(units.sum())
    equal = len(set(best.lengths[limiting].tolist())) == 1
    times = Fraction(best.needed, pairs * (int(best.lengths[limiting[0]]) if equal else 1))
    weighted = "" if equal else " (links weighted by their lengths in the certificate)"
    text = (
        f"{pairs} {'slices' if even else 'units'} must cross {words.through(graph, limiting)} "
        f"{float(times):.4g} times each on average{weighted}"
    )
    return Bottleneck(tuple(range(graph.nranks)), tuple(e for e in limiting if e < topology.nlinks), text)
