"""Throughput-optimal forests for a collective: the entry of the packing engine.

`pack_forest` runs, in this order: the least time by cuts (`rates`), whole capacities per link, removal of
switches (`switches`), packing of trees over ranks (`packing`), and physical routes for every tree edge
(here).  AllReduce's own optimum splits each link between a reduce and a broadcast forest
(`allreduce_lp`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ..collective import canonical_name
from ..errors import InputError
from ..topology import Topology
from . import rates
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
    pieces: int | None = None,
    exact: bool = False,
    max_pieces: int | None = None,
) -> PackedForest:
    """The best forest for AllGather, ReduceScatter, AllReduce, Broadcast or Reduce.

    Args:
        topology: the machine; every bandwidth must be known.  Switches forward only, whatever they could do.
        name: the collective, any spelling.
        root: root of Broadcast and Reduce (default 0).
        weights: shares of the ranks, whole numbers (AllGather, ReduceScatter).
        pieces: AllGather, ReduceScatter: unit pieces a rank (times its weight).  Others: unit pieces in all.
        exact: use as many pieces as the exact optimum needs (up to `max_pieces`).
        max_pieces: limit for `exact`, pieces a rank.

    Raises:
        InputError: unknown collective, bad root or weights.
        UnknownSpeedError: a bandwidth is not known.
        DisconnectedError: a rank cannot reach another one that needs its data.
    """
    key = canonical_name(name)
    topology.require_speeds()
    limit = max_pieces or MAX_PIECES
    if key in ("broadcast", "reduce"):
        chosen = root or 0
        if not 0 <= chosen < topology.nranks:
            raise InputError(f"root {chosen} is out of range", expected=f"0..{topology.nranks - 1}")
        multiplicity = [int(r == chosen) for r in range(topology.nranks)]
        limit *= topology.nranks
    elif key in ("allgather", "reducescatter"):
        multiplicity = _shares(weights, topology.nranks)
    else:
        raise InputError(f"there are no forests for {key}")
    turned = key in ("reducescatter", "reduce")
    return _one_way(topology, multiplicity, pieces or 1, exact=exact, limit=limit, turned=turned)


def _shares(weights: Sequence[int] | None, nranks: int) -> list[int]:
    shares = [1] * nranks if weights is None else [int(w) for w in weights]
    if len(shares) != nranks or min(shares) < 0 or sum(shares) == 0:
        raise InputError("weights must be whole numbers, one a rank, not all 0")
    return shares


def _one_way(
    topology: Topology, shares: list[int], pieces: int, *, exact: bool, limit: int, turned: bool
) -> PackedForest:
    """Broadcast trees, or (turned) reduce trees, for `shares` times a number of pieces."""
    if topology.nranks == 1:
        multiplicity = [s * pieces for s in shares]
        return PackedForest(Forest(topology), multiplicity, Fraction(0), Fraction(0), True)
    open_graph = Graph.of(topology.without_vertex_capacities())
    graph = open_graph.reversed() if turned else open_graph
    least = rates.least_time(graph, shares)
    note = ""
    factor = pieces
    if exact:
        found = rates.exact_multiplier(graph, shares, limit)
        if found is None:
            note = f"the exact rate needs more than {limit} pieces; this one uses {limit}"
        factor = limit if found is None else found
    multiplicity = [factor * s for s in shares]
    time = rates.least_whole_time(graph, multiplicity, start=least * factor)
    lanes = None
    while lanes is None:
        try:
            lanes = remove_switches(graph, rates.floor_capacities(graph, time), multiplicity)
        except CannotSplit:
            time = rates.next_time(graph, time)
    trees = routed_trees(lanes, multiplicity, topology.nlinks)
    if turned:
        forest = Forest(topology, reduce=tuple(t.reversed() for t in trees))
    else:
        forest = Forest(topology, broadcast=tuple(trees))
    rate = forest_rate(forest, sum(multiplicity))
    bound = least / (sum(shares) * graph.unit)
    return PackedForest(forest, multiplicity, rate, bound, rate == bound, note)


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
