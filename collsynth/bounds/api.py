"""`bound`: which proof belongs to which collective."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ..collective import Collective, canonical_name
from ..errors import InputError
from ..topology import Capability, Topology
from ..units import fraction_text
from . import words
from .certificates import ANY_SCHEDULE
from .concurrent_flow import alltoall_bound
from .cuts import Cut, minimum_cut, rate, worst_cut
from .graph import Graph, multicast_text
from .latency import latency_of
from .partitions import worst_partition
from .types import Bottleneck, Bound, Certificate

_ROOTED = ("broadcast", "reduce", "gather", "scatter")
#: Largest machine (ranks, ranks times links) for which the optimum over trees is computed.
_TREE_LP_RANKS = 64
_TREE_LP_SIZE = 25_000


@dataclass(frozen=True, slots=True)
class _Task:
    """What is asked: name, root, weight of each rank's shard, units each pair moves (uneven AllToAll)."""

    name: str
    root: int | None
    weights: list[int]
    even: bool
    demand: list[list[int]] | None = None
    payload_units: int = 0


def bound(topology: Topology, collective: str | Collective, *, root: int | None = None) -> Bound:
    """The provable lower bound on the time of a collective on a machine.

    Args:
        topology: the machine; all its ranks take part.
        collective: a name in any spelling (equal shards), or a `Collective`, whose shard weights count.
        root: root rank of a rooted collective (default 0, or the Collective's own).

    Raises:
        InputError: the root is out of range, or the collective is for another number of ranks.
        UnknownSpeedError: a link's bandwidth is not known.
        DisconnectedError: a rank cannot reach one that needs its data.
    """
    task = _task(topology, collective, root)
    graph = Graph.of(topology)
    latency = _latency(topology, task)
    if topology.nranks == 1:
        return _nothing_moves(topology, task)
    if task.name == "alltoall":
        return alltoall_bound(topology, graph, latency, task.demand, task.payload_units)
    if task.name == "allreduce":
        return _allreduce(topology, graph, latency)
    return _by_cut(topology, graph, task, latency)


def latency_bound(topology: Topology, collective: str | Collective, *, root: int | None = None) -> int:
    """Picoseconds: the longest of the shortest paths (latency + overhead) any contribution must travel.

    Arguments and errors as `bound`, but bandwidths need not be known.
    """
    return _latency(topology, _task(topology, collective, root))


def _task(topology: Topology, collective: str | Collective, root: int | None) -> _Task:
    n = topology.nranks
    if isinstance(collective, str):
        name = canonical_name(collective)
        if name not in _ROOTED and root is not None:
            raise InputError(f"{name} has no root", where="--root")
        if name in _ROOTED:
            root = 0 if root is None else root
            if not 0 <= root < n:
                raise InputError(f"root {root} is out of range", where="--root", expected=f"0..{n - 1}")
        return _Task(name, root, [1] * n, even=True, payload_units=n)
    if collective.nranks != n:
        raise InputError(
            f"the collective is for {collective.nranks} ranks, the topology has {n}",
            where=f"topology {topology.name}",
        )
    if root is not None and root != collective.root:
        raise InputError(f"the collective's root is {collective.root}, not {root}", where="--root")
    if collective.name in ("allreduce", "broadcast", "reduce"):
        # Everybody ends with (or contributes to) all of it: who owns which chunk does not matter.
        return _Task(collective.name, collective.root, [1] * n, even=True)
    sums = np.zeros(n, dtype=np.int64)
    np.add.at(sums, collective.owner, collective.weight)
    weights = [int(w) for w in sums]
    common = int(np.gcd.reduce(sums))
    even = len(set(weights)) == 1
    demand = None
    payload = collective.payload_units
    if collective.name == "alltoall":
        table = np.zeros((n, n), dtype=np.int64)
        np.add.at(table, (collective.sources.ranks, collective.destinations.ranks), collective.weight)
        np.fill_diagonal(table, 0)
        off_diagonal = table[~np.eye(n, dtype=bool)]
        if (n > 1 and (off_diagonal != off_diagonal[0]).any()) or (n > 1 and int(off_diagonal[0]) * n != payload):
            demand = table.tolist()
        else:
            payload = n
    return _Task(collective.name, collective.root, [w // common for w in weights], even, demand, payload)


def _latency(topology: Topology, task: _Task) -> int:
    everyone = list(range(topology.nranks))
    holders = [r for r in everyone if task.weights[r]]
    if task.name in ("broadcast", "scatter", "reduce", "gather"):
        root = [task.root or 0]
        peers = holders if task.name in ("gather", "scatter") else everyone
        ends = (root, peers) if task.name in ("broadcast", "scatter") else (peers, root)
    elif task.name == "reducescatter":
        ends = (everyone, holders)
    elif task.name == "allgather":
        ends = (holders, everyone)
    elif task.demand is not None:
        pairs = [(s, d) for s in everyone for d in everyone if task.demand[s][d]]
        return max((latency_of(topology, [s], [d]) for s, d in pairs), default=0)
    else:
        ends = (everyone, everyone)
    return latency_of(topology, *ends)


def _nothing_moves(topology: Topology, task: _Task) -> Bound:
    return Bound(
        collective=task.name,
        nranks=topology.nranks,
        root=task.root,
        seconds_per_byte=Fraction(0),
        latency=0,
        bottleneck=Bottleneck((), (), "nothing has to move between ranks"),
        certificate=Certificate("none", {}, ANY_SCHEDULE),
        rs_ag_seconds_per_byte=Fraction(0) if task.name == "allreduce" else None,
        multicast=multicast_text(topology),
    )


def _by_cut(topology: Topology, graph: Graph, task: _Task, latency: int) -> Bound:
    """Everything that is one question about cuts (see `cuts`); combining ones on the reversed graph."""
    n = topology.nranks
    # Data that must enter the set, seen on the reversed graph as data that must leave it.
    enters = task.name in ("reducescatter", "reduce", "scatter")
    searched = graph.turned_around() if enters else graph
    everyone = list(range(n))
    if task.name in ("allgather", "reducescatter"):
        weight, sinks, total = task.weights, everyone, sum(task.weights)
    elif task.name in ("broadcast", "reduce"):
        weight, sinks, total = [int(r == task.root) for r in everyone], everyone, 1
    else:
        assert task.root is not None
        weight, sinks, total = task.weights, [task.root], sum(task.weights)
    cut = worst_cut(searched, weight, sinks)
    if cut is None:
        return _nothing_moves(topology, task)
    data = _cut_data(graph, cut, Fraction(cut.weight, total), enters=enters)
    if not task.even:
        data["weights"] = list(task.weights)
    shared = task.even and task.name not in ("broadcast", "reduce")
    noun = "slice" if task.name == "scatter" else "partial sum" if task.name == "reducescatter" else "shard"
    what = words.shards(Fraction(cut.weight, total), n if shared else None, noun)
    return Bound(
        collective=task.name,
        nranks=n,
        root=task.root,
        seconds_per_byte=rate(graph, cut, total),
        latency=latency,
        bottleneck=words.cut_bottleneck(graph, cut.side, topology.nlinks, what, enters=enters),
        certificate=Certificate("cut", data, ANY_SCHEDULE),
        multicast=multicast_text(topology),
        notes=_reachability_notes(topology, task.name),
    )


def _cut_data(graph: Graph, cut: Cut, demand: Fraction, *, enters: bool) -> dict[str, object]:
    return {
        "vertices": [int(v) for v in np.flatnonzero(cut.side)],
        "direction": "enter" if enters else "exit",
        "capacity_bytes_per_s": cut.exit * graph.unit,
        "demand": fraction_text(demand),
    }


def _allreduce(topology: Topology, graph: Graph, latency: int) -> Bound:
    n = topology.nranks
    cut = minimum_cut(graph)
    assert cut is not None
    seconds = rate(graph, cut, 1)
    # Only a partition whose ratio is below twice the min cut says more than the cut.
    search = worst_partition(graph, below=Fraction(2 * cut.exit))
    partition = search.partition
    notes = list(_reachability_notes(topology, "allreduce"))
    if partition is not None:
        seconds = 2 / (partition.ratio * graph.unit)
        bottleneck = words.partition_bottleneck(graph, partition, topology.nlinks)
        certificate = Certificate(
            "partition",
            {
                "parts": [[int(v) for v in np.flatnonzero(part)] for part in partition.parts],
                "egress_bytes_per_s": [e * graph.unit for e in partition.egress],
            },
            ANY_SCHEDULE,
        )
    else:
        bottleneck = words.cut_bottleneck(graph, cut.side, topology.nlinks, "the whole payload", enters=False)
        certificate = Certificate("cut", _cut_data(graph, cut, Fraction(1), enters=False), ANY_SCHEDULE)
    even = [1] * n
    spread = worst_cut(graph, even, range(n))
    collected = worst_cut(graph.turned_around(), even, range(n))
    assert spread is not None and collected is not None
    rs_ag = rate(graph, spread, n) + rate(graph, collected, n)
    trees = _tree_optimum(topology, seconds) if rs_ag > seconds else rs_ag
    if not search.complete and trees != seconds:
        notes.append("the search over partitions was cut short: a larger bound may be provable")
    return Bound(
        collective="allreduce",
        nranks=n,
        root=None,
        seconds_per_byte=seconds,
        latency=latency,
        bottleneck=bottleneck,
        certificate=certificate,
        rs_ag_seconds_per_byte=rs_ag,
        tree_seconds_per_byte=trees if trees is not None and trees > seconds else None,
        multicast=multicast_text(topology),
        notes=tuple(notes),
    )


def _tree_optimum(topology: Topology, seconds: Fraction) -> Fraction | None:
    """Seconds per byte of the best tree schedules, None when the machine is too large to ask."""
    if topology.nranks > _TREE_LP_RANKS or topology.nranks * topology.nlinks > _TREE_LP_SIZE:
        return None
    from ..errors import MissingDependencyError
    from .tree_lp import solve

    try:
        trees = solve(topology, limit=1 / seconds)
    except MissingDependencyError:
        return None
    # Rounded rates may seem to beat the bound by the last digits.
    return max(seconds, 1 / trees.value)


def _reachability_notes(topology: Topology, name: str) -> tuple[str, ...]:
    """Why no schedule may reach a cut's or partition's value on this machine."""
    notes = []
    capabilities = {v.capability for v in topology.vertices if v.rank is None}
    if name == "allreduce" and Capability.REDUCE_TO_REQUESTER in capabilities:
        notes.append("NVLS-like switches move M(1+1/N) each way, so schedules reach at best 1+1/N times this bound")
    if capabilities & {Capability.MULTICAST, Capability.REDUCE_AND_MULTICAST}:
        notes.append("with switches that copy, the bound may be out of reach")
    entering = np.zeros(len(topology.vertices), dtype=np.int64)
    leaving = np.zeros(len(topology.vertices), dtype=np.int64)
    np.add.at(entering, topology.link_dst, topology.link_bandwidth)
    np.add.at(leaving, topology.link_src, topology.link_bandwidth)
    uneven = [
        v.name for index, v in enumerate(topology.vertices) if v.rank is None and entering[index] != leaving[index]
    ]
    if uneven:
        notes.append(
            f"{', '.join(uneven[:4])}{' ...' if len(uneven) > 4 else ''} can receive and send at different speeds: "
            "the bound may be out of reach"
        )
    return tuple(notes)
