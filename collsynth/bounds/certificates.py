"""Checking what a bound claims, from the machine alone: sums, comparisons and shortest paths, no solver."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from ..errors import InputError, UnknownSpeedError
from ..topology import Topology
from .graph import BoolArray, Graph
from .latency import plain_distances
from .types import Bound

ANY_SCHEDULE = "any schedule"
ANY_ROUTING = "any routing, also through other ranks"


def check_certificate(topology: Topology, bound: Bound) -> bool:
    """Whether the bound's certificate proves its `seconds_per_byte` on this machine.

    Everything is recomputed in integers from the topology and the certificate's own content: the
    certificate may come from anywhere.  Uneven shards or demands in it are part of what it claims.
    False for a wrong figure as well as for a malformed one.
    """
    try:
        graph = Graph.of(topology)
        check = {"cut": _cut, "partition": _partition, "lp-dual": _lengths, "none": _nothing}[bound.certificate.kind]
        if bound.nranks != graph.nranks:
            return False
        return check(graph, bound, bound.certificate.data) == bound.seconds_per_byte
    except (KeyError, ValueError, TypeError, IndexError, ZeroDivisionError, InputError, UnknownSpeedError):
        return False


def _nothing(graph: Graph, bound: Bound, data: Mapping[str, Any]) -> Fraction:
    """Nothing moves: right for one rank, or when no rank wants anything of another."""
    if graph.nranks > 1 and any(any(row) for row in _demand(graph, bound, data)):
        raise ValueError("something must move")
    return Fraction(0)


def _side(graph: Graph, vertices: list[int]) -> BoolArray:
    if len(set(vertices)) != len(vertices) or any(not 0 <= v < graph.nvertices for v in vertices):
        raise ValueError("not a set of vertices")
    return graph.mask(vertices)


def _demand(graph: Graph, bound: Bound, data: Mapping[str, Any]) -> list[list[int]]:
    """Units that each pair moves in a collective without copies; `data` may carry uneven ones."""
    n = graph.nranks
    if "demand" in data:
        return [[int(u) for u in row] for row in data["demand"]]
    weights = data.get("weights") or [1] * n
    if bound.collective == "alltoall":
        return [[0 if s == d else 1 for d in range(n)] for s in range(n)]
    if bound.collective == "gather":
        return [[weights[s] if d == bound.root != s else 0 for d in range(n)] for s in range(n)]
    if bound.collective == "scatter":
        return [[weights[d] if s == bound.root != d else 0 for d in range(n)] for s in range(n)]
    if bound.root is not None:
        return [[1 if s != d and bound.root in (s, d) else 0 for d in range(n)] for s in range(n)]
    return [[weights[s] if s != d else 0 for d in range(n)] for s in range(n)]


def _cut(graph: Graph, bound: Bound, data: Mapping[str, Any]) -> Fraction:
    """Share of the payload that must cross, over the capacity it can cross by."""
    side = _side(graph, data["vertices"])
    inside, n = graph.ranks_in(side), graph.nranks
    outside = [r for r in range(n) if not side[r]]
    enters = data["direction"] == "enter"
    capacity = graph.exit(~side if enters else side)
    if capacity * graph.unit != data["capacity_bytes_per_s"]:
        raise ValueError("wrong capacity")
    weights = data.get("weights") or [1] * n
    if len(weights) != n or min(weights) < 0:
        raise ValueError("wrong weights")
    name, root = bound.collective, bound.root
    # Combining collectives are the others turned around: what a set must take in.
    if enters != (name in ("reducescatter", "reduce", "scatter")):
        raise ValueError("wrong direction")
    if name in ("allgather", "reducescatter"):
        share = Fraction(sum(weights[r] for r in inside) if outside else 0, sum(weights))
    elif name in ("broadcast", "reduce"):
        share = Fraction(int(root in inside and bool(outside)))
    elif name in ("gather", "scatter"):
        share = Fraction(sum(weights[r] for r in inside) if root in outside else 0, sum(weights))
    elif name == "allreduce":
        share = Fraction(int(bool(inside) and bool(outside)))
    else:
        raise ValueError("no cut bound for this collective")
    if share != Fraction(data["demand"]):
        raise ValueError("wrong demand")
    return share / (capacity * graph.unit)


def _partition(graph: Graph, bound: Bound, data: Mapping[str, Any]) -> Fraction:
    """2 (p - 1) messages of the whole payload over the egress of p parts."""
    parts = [_side(graph, part) for part in data["parts"]]
    count = np.sum(parts, axis=0)
    egress = [graph.exit(part) * graph.unit for part in parts]
    if (
        bound.collective != "allreduce"
        or len(parts) < 2
        or count.max() > 1
        or count[: graph.nranks].min() < 1
        or any(count[v] != 1 for v in graph.can_copy_or_reduce())
        or any(not part[: graph.nranks].any() for part in parts)
        or egress != list(data["egress_bytes_per_s"])
    ):
        raise ValueError("not a partition")
    return Fraction(2 * (len(parts) - 1), sum(egress))


def _lengths(graph: Graph, bound: Bound, data: Mapping[str, Any]) -> Fraction:
    """Give every link a length: all demands times their distances fit into capacity times length."""
    lengths = np.zeros(len(graph.tail), dtype=np.int64)
    for link, length in data["lengths"].items():
        lengths[int(link)] = int(length)
    if (lengths < 0).any() or bound.collective not in ("alltoall", "gather", "scatter"):
        raise ValueError("wrong lengths")
    demand = _demand(graph, bound, data)
    payload = int(data["payload_units"])
    if bound.collective == "alltoall" and "demand" not in data and payload != graph.nranks:
        raise ValueError("wrong payload")
    table = plain_distances(graph.nvertices, graph.tail, graph.head, lengths, list(range(graph.nranks)))
    needed = sum(u * int(table[s, d]) for s, row in enumerate(demand) for d, u in enumerate(row) if u)
    room = sum(int(c) * int(w) for c, w in zip(graph.capacity, lengths, strict=True))
    return Fraction(needed, payload * room * graph.unit)
