"""Throughput-optimal forests for a collective: the entry of the packing engine.

`pack_forest` runs, in this order: the least time by cuts (`rates`), whole capacities per link, removal of
switches (`switches`), packing of trees over ranks (`packing`), and physical routes for every tree edge
(here).  AllReduce's own optimum splits each link between a reduce and a broadcast forest
(`allreduce_lp`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from ..bounds import tree_lp
from ..collective import canonical_name
from ..errors import InputError
from ..topology import Capability, Topology, replace_topology
from . import rates
from .allreduce_lp import Split, SplitProgram, best_split, exact_split, rounded
from .forest import Forest, Tree, TreeEdge
from .packing import LogicalTree, pack_trees
from .rates import Graph
from .switches import CannotSplit, Lane, Lanes, remove_switches, take, width

#: Pieces per root (rooted and AllReduce: in all, per rank) beyond which `exact` gives up.
MAX_PIECES = 512


@dataclass(frozen=True, slots=True)
class PackedForest:
    """A forest and what it achieves.

    Attributes:
        forest: trees whose multiplicities are unit pieces.
        pieces_per_root: unit pieces rooted at each rank.
        rate: seconds per payload byte, the busiest link's (or vertex's) bytes over its bandwidth, where
            the payload is `sum(pieces_per_root)` unit pieces; exact.
        bound: the least rate that any number of pieces could reach by such trees.
        optimal: whether `rate` equals `bound`.
        note: what was rounded or assumed, for people.
    """

    forest: Forest
    pieces_per_root: list[int]
    rate: Fraction
    bound: Fraction
    optimal: bool
    note: str = ""


def pack_forest(
    topology: Topology,
    name: str,
    *,
    root: int | None = None,
    weights: Sequence[int] | None = None,
    split: tuple[Sequence[Fraction | int], Sequence[Fraction | int]] | None = None,
    pieces: int | None = None,
    exact: bool = False,
    max_pieces: int | None = None,
) -> PackedForest:
    """The best forest for AllGather, ReduceScatter, AllReduce, Broadcast or Reduce.

    AllReduce chooses its own roots and shares of each link unless they are given; where ReduceScatter and
    AllGather one after the other are optimal, the same rate comes out.

    Args:
        topology: the machine; every bandwidth must be known.  Switches only forward here, whatever they can.
        name: the collective, any spelling.
        root: root of Broadcast and Reduce (default 0).
        weights: shares of the ranks as roots, whole numbers, one a rank (not for Broadcast and Reduce).
        split: AllReduce: bytes/s of each link for broadcast and for reduce trees.
        pieces: AllGather, ReduceScatter, or with `weights`: unit pieces a rank, times its weight
            (default 1).  Broadcast and Reduce: unit pieces in all (default 1).  AllReduce: unit pieces in
            all (default one a rank).
        exact: use as many pieces as the exact optimum needs, up to `max_pieces`; `pieces` is ignored.
        max_pieces: limit for `exact`, pieces a rank (default 512).

    Raises:
        InputError: unknown collective, bad root, weights, split or number of pieces.
        UnknownSpeedError: a bandwidth is not known.
        DisconnectedError: a rank cannot reach another one that needs its data.
    """
    key = canonical_name(name)
    topology.require_speeds()
    n = topology.nranks
    limit = max_pieces or MAX_PIECES
    if pieces is not None and pieces < 1:
        raise InputError(f"{pieces} pieces", expected="1 or more")
    if key in ("broadcast", "reduce"):
        chosen = root or 0
        if not 0 <= chosen < n:
            raise InputError(f"root {chosen} is out of range", expected=f"0..{n - 1}")
        shares = [int(r == chosen) for r in range(n)]
        limit *= n
    elif key in ("allgather", "reducescatter", "allreduce"):
        shares = _shares(weights, n)
    else:
        raise InputError(f"there are no forests for {key}", expected="a collective where everyone gets everything")
    if n == 1:
        count = pieces or 1
        return PackedForest(Forest(topology), [s * count for s in shares], Fraction(0), Fraction(0), True)
    if key != "allreduce":
        turned = key in ("reducescatter", "reduce")
        return _one_way(topology, shares, pieces or 1, exact=exact, limit=limit, turned=turned)
    if split is not None:
        return _along_split(topology, shares, split, pieces or 1)
    fixed = None if weights is None else shares
    return _allreduce(topology, fixed, pieces, exact=exact, limit=limit)


def _shares(weights: Sequence[int] | None, nranks: int) -> list[int]:
    shares = [1] * nranks if weights is None else [int(w) for w in weights]
    if len(shares) != nranks or min(shares) < 0 or sum(shares) == 0:
        raise InputError("weights must be whole numbers, one a rank, not all 0")
    return shares


def _one_way(
    topology: Topology, shares: list[int], pieces: int, *, exact: bool, limit: int, turned: bool
) -> PackedForest:
    """Broadcast trees, or (turned) reduce trees, for `shares` times a number of pieces."""
    plain = Graph.of(topology.without_vertex_capacities())
    graph = plain.reversed() if turned else plain
    least = rates.least_time(graph, shares)
    note, factor = "", pieces
    if exact:
        found = rates.exact_multiplier(graph, shares, limit)
        if found is None:
            note = f"the exact rate needs more than {limit} pieces a rank; this forest uses {limit}"
        factor = found or limit
    multiplicity = [factor * s for s in shares]
    bound = least / (sum(shares) * graph.unit)
    try:
        trees = _by_cuts(graph, multiplicity, topology.nlinks)
    except CannotSplit:
        multiplicity, bound, trees = _balanced(graph, shares, pieces, limit if exact else 0, topology.nlinks)
        note = "more could leave a switch than enters it: the bound is that of trees through switches that only forward"
    if turned:
        forest = Forest(topology, reduce=tuple(tree.reversed() for tree in trees))
    else:
        forest = Forest(topology, broadcast=tuple(trees))
    return _packed(forest, multiplicity, bound, note)


def _by_cuts(graph: Graph, multiplicity: Sequence[int], nlinks: int) -> list[Tree]:
    """Broadcast trees in the least whole time that cuts allow."""
    time = rates.least_whole_time(graph, multiplicity, rates.least_time(graph, multiplicity))
    return routed_trees(remove_switches(graph, rates.floor_capacities(graph, time), multiplicity), multiplicity, nlinks)


def _balanced(
    graph: Graph, shares: list[int], pieces: int, limit: int, nlinks: int
) -> tuple[list[int], Fraction, list[Tree]]:
    """Broadcast trees where cuts are too hopeful: what each link carries is planned with switches in balance.

    Args:
        limit: 0 for `pieces` times the shares, else the exact rate with up to that many times.

    Returns:
        Pieces per root, the bound (seconds per byte), the trees.
    """
    program = SplitProgram(graph, one_way=True)
    least = Fraction(program.least_time(shares)).limit_denominator(1 << 30)
    found = exact_split(program, least, limit * sum(shares), shares) if limit else None
    if found is None:
        found = best_split(program, pieces * sum(shares), least, [pieces * s for s in shares])
    assert found is not None, "a balanced plan exists on every connected machine"
    trees = routed_trees(remove_switches(graph, found.broadcast, found.weights), found.weights, nlinks)
    return found.weights, least / graph.unit, trees


def _allreduce(
    topology: Topology, shares: list[int] | None, pieces: int | None, *, exact: bool, limit: int
) -> PackedForest:
    """Reduce and broadcast trees with the same roots, each link shared as is best."""
    graph = Graph.of(topology.without_vertex_capacities())
    for one in (graph, graph.reversed()):
        rates.least_time(one, [1] * graph.nranks)  # refuses what is disconnected
    program = SplitProgram(graph)
    least = _least_allreduce(topology, program, shares)
    multiplicity = None if shares is None else [s * (pieces or 1) for s in shares]
    total = (pieces or graph.nranks) if multiplicity is None else sum(multiplicity)
    bound = least / graph.unit
    choices = [(shares, multiplicity)]
    central = _central(graph) if shares is None else None
    if central and program.least_time(central) <= least * (1 + Fraction(1, 10**9)):
        choices.append((central, rounded(central, total)))
    packed: list[PackedForest] = []
    for chosen, whole in choices:
        found = exact_split(program, least, limit * graph.nranks, chosen) if exact else None
        note = "" if found or not exact else f"no forest at the exact rate was found with {limit} pieces a rank"
        found = found or best_split(program, total, least, whole)
        if found is not None:
            packed.append(_packed(_along(topology, graph, found), found.weights, bound, note))
    if not packed:
        multiplicity = multiplicity or rounded([1.0] * graph.nranks, total)
        return _packed(_both(topology, multiplicity, graph, graph.reversed()), multiplicity, bound, "")
    return min(packed, key=lambda p: (p.rate, mean_height(p.forest)))


def _along(topology: Topology, graph: Graph, split: Split) -> Forest:
    """The two forests of a split of links."""
    halves = [
        routed_trees(remove_switches(one, capacity, split.weights), split.weights, topology.nlinks)
        for one, capacity in ((graph, split.broadcast), (graph.reversed(), split.reduce))
    ]
    return Forest(topology, broadcast=tuple(halves[0]), reduce=tuple(tree.reversed() for tree in halves[1]))


def _central(graph: Graph) -> list[int] | None:
    """1 for the ranks from which the others are nearest, 0 for the rest; None when all are alike.

    Trees from central roots are about half as high (mesh), and pieces need no root of their own rank.
    """
    following: list[list[int]] = [[] for _ in range(graph.nvertices)]
    for u, v in zip(graph.src, graph.dst, strict=True):
        following[u].append(v)
    farthest = []
    for rank in range(graph.nranks):
        reached, frontier, hops = {rank}, [rank], 0
        while len(reached & set(range(graph.nranks))) < graph.nranks:
            frontier = sorted({v for u in frontier for v in following[u]} - reached)
            reached.update(frontier)
            hops += 1
        farthest.append(hops)
    nearest = min(farthest)
    return None if max(farthest) == nearest else [int(hops == nearest) for hops in farthest]


def mean_height(forest: Forest) -> Fraction:
    """Mean height of the trees, each counted with its multiplicity."""
    trees = (*forest.broadcast, *forest.reduce)
    return Fraction(sum(t.height() * t.multiplicity for t in trees), max(1, sum(t.multiplicity for t in trees)))


def _least_allreduce(topology: Topology, program: SplitProgram, shares: list[int] | None) -> Fraction:
    """The fractional optimum, U per piece, when switches only forward: exact unless shares are given."""
    if shares is not None:
        return Fraction(program.least_time(shares)).limit_denominator(1 << 30)
    vertices = tuple(replace(v, capability=Capability.NONE) for v in topology.vertices)
    return program.graph.unit / tree_lp.solve(replace_topology(topology, vertices=vertices)).value


def _along_split(
    topology: Topology,
    shares: list[int],
    split: tuple[Sequence[Fraction | int], Sequence[Fraction | int]],
    pieces: int,
) -> PackedForest:
    """Reduce and broadcast trees, each within its given part of every link."""
    down, up = ([Fraction(x) for x in part] for part in split)
    if len(down) != topology.nlinks or len(up) != topology.nlinks or any(x < 0 for x in (*down, *up)):
        raise InputError("split must give two shares of 0 or more for every link")
    if any(a + b > int(c) for a, b, c in zip(down, up, topology.link_bandwidth, strict=True)):
        raise InputError("split gives a link more than its bandwidth")
    if any(v.in_capacity or v.out_capacity or v.total_capacity for v in topology.vertices):
        raise InputError("a split of links cannot be combined with capacities of vertices", where=topology.name)
    multiplicity = [s * pieces for s in shares]
    graph = Graph.of(topology)
    forward, backward = graph.with_bandwidth(down), graph.reversed().with_bandwidth(up)
    for part in (forward, backward):
        rates.least_time(part, shares)  # refuses shares that cut a rank off
    even = None if len(set(shares)) == 1 else shares
    bound = _least_allreduce(topology, SplitProgram(graph), even) / graph.unit
    return _packed(_both(topology, multiplicity, forward, backward), multiplicity, bound, "")


def _both(topology: Topology, multiplicity: list[int], forward: Graph, backward: Graph) -> Forest:
    """Broadcast trees in `forward` and reduce trees in `backward`, each as fast as it can be."""
    halves: list[list[Tree]] = []
    for graph in (forward, backward):
        try:
            halves.append(_by_cuts(graph, multiplicity, topology.nlinks))
        except CannotSplit:
            halves.append(_balanced(graph, multiplicity, 1, 0, topology.nlinks)[2])
    down, up = halves
    return Forest(topology, broadcast=tuple(down), reduce=tuple(tree.reversed() for tree in up))


def _packed(forest: Forest, multiplicity: list[int], bound: Fraction, note: str) -> PackedForest:
    rate = forest_rate(forest, sum(multiplicity))
    # A bound that comes from floating point (given weights) is not told apart from the rate it proves.
    if bound and abs(rate / bound - 1) < Fraction(1, 10**9):
        bound = rate
    return PackedForest(forest, multiplicity, rate, bound, rate <= bound, note)


def routed_trees(lanes: Lanes, multiplicity: Sequence[int], nlinks: int) -> list[Tree]:
    """Pack trees into `lanes` and give each tree edge one physical route (links below `nlinks`).

    A logical tree whose edges have several routes becomes several trees.
    """
    pairs = sorted(lanes)
    packed = pack_trees(
        len(multiplicity),
        [u for u, _ in pairs],
        [t for _, t in pairs],
        [width(lanes[pair]) for pair in pairs],
        multiplicity,
    )
    pools = {pair: list(lanes[pair]) for pair in pairs}
    return [tree for logical in packed for tree in _routed(logical, pools, nlinks)]


def _routed(logical: LogicalTree, pools: Lanes, nlinks: int) -> list[Tree]:
    choices = [_best_fit(pools[edge], logical.multiplicity) for edge in logical.edges]
    trees: list[Tree] = []
    left = logical.multiplicity
    while left:
        part = min(lanes[0].amount for lanes in choices)
        edges = []
        for (parent, child), lanes in zip(logical.edges, choices, strict=True):
            (lane,) = take(lanes, part)
            edges.append(TreeEdge(parent, child, tuple(link for link in lane.route if link < nlinks)))
        trees.append(Tree(logical.root, part, tuple(edges)))
        left -= part
    return trees


def _best_fit(lanes: list[Lane], amount: int) -> list[Lane]:
    """Take `amount` pieces from as few lanes as easily possible."""
    for index, lane in enumerate(lanes):
        if lane.amount >= amount:
            lanes.insert(0, lanes.pop(index))
            break
    return take(lanes, amount)


def forest_rate(forest: Forest, pieces: int) -> Fraction:
    """Seconds per payload byte when the payload is `pieces` unit pieces: the busiest link or vertex."""
    load = np.zeros(forest.topology.nlinks, dtype=np.int64)
    for tree in (*forest.broadcast, *forest.reduce):
        for edge in tree.edges:
            np.add.at(load, list(edge.route), tree.multiplicity)
    busiest = (Fraction(int(load[links].sum()), capacity) for capacity, links in forest.topology.capacity_groups())
    return max(busiest, default=Fraction(0)) / pieces
