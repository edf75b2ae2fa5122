"""Rings and chains in a schedule or program: what NCCL's own algorithms could do in its place.

NCCL runs fixed algorithms over orders of ranks that it can be told: a ring for each channel, or, inside a node, a
chain (its trees branch only between nodes).  `find` says which orders a schedule or program uses, and how much of
the payload goes over each.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import reduce
from math import gcd

from ..errors import RefusedError
from ..program import Program
from ..schedule import Schedule
from . import chakra
from .chakra_wire import NodeType

#: NCCL's most channels since 2.19 (MAXCHANNELS).
MAX_CHANNELS = 64
_Edge = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Paths:
    """The orders of ranks over which data go.

    Attributes:
        kind: `ring` (the last rank sends to the first, or would with more ranks) or `chain` (data go up
            and down between neighbours: NCCL's tree inside a node).
        orders: one tuple of all ranks for each channel; equal ones are repeated in proportion to their load.
    """

    kind: str
    orders: tuple[tuple[int, ...], ...]


def find(value: Schedule | Program) -> Paths:
    """The rings or chains that a schedule (by its chunks) or a program (by the units of its payload) consists of.

    Raises:
        RefusedError: it does something else; the message names the first rank that branches.
        VerificationError: a program's messages do not fit together.
    """
    if isinstance(value, Schedule):
        nranks, parts = value.topology.nranks, _edges_of_chunks(value.expand())
    else:
        nranks, parts = value.nranks, _edges_of_units(value)
    if not parts:
        raise _refusal("nothing is sent")
    kinds: Counter[tuple[str, tuple[int, ...]]] = Counter()
    for label, (edges, weight) in parts.items():
        kinds[_order(label, edges, nranks)] += weight
    names = {kind for kind, _ in kinds}
    if len(names) > 1:
        raise _refusal("it mixes rings and chains")
    share = reduce(gcd, kinds.values())
    counts = {order: weight // share for (_, order), weight in sorted(kinds.items())}
    if sum(counts.values()) > MAX_CHANNELS:  # uneven loads that channels cannot express: each order once
        counts = dict.fromkeys(counts, 1)
    if len(counts) > MAX_CHANNELS:
        raise _refusal(f"it has {len(counts)} different orders, more than NCCL's {MAX_CHANNELS} channels")
    if isinstance(value, Program):  # several channels of one order: instances
        times = max(1, min(value.nchannels, MAX_CHANNELS) // sum(counts.values()))
        counts = {order: count * times for order, count in counts.items()}
    return Paths(names.pop(), tuple(order for order, times in counts.items() for _ in range(times)))


def _refusal(why: str) -> RefusedError:
    return RefusedError(f"NCCL's ring and tree algorithms do not do what this does: {why}")


def _edges_of_chunks(schedule: Schedule) -> dict[str, tuple[set[_Edge], int]]:
    edges: dict[int, set[_Edge]] = defaultdict(set)
    for chunk, src, dst in zip(schedule.chunk.tolist(), schedule.src.tolist(), schedule.dst.tolist(), strict=True):
        edges[chunk].add((src, dst))
    weights = schedule.collective.weight.tolist()
    return {f"chunk {chunk}": (found, weights[chunk]) for chunk, found in sorted(edges.items())}


def _edges_of_units(program: Program) -> dict[str, tuple[set[_Edge], int]]:
    """For each unit of the payload the pairs of ranks between which it goes, followed through the buffers."""
    if program.one_sided:
        raise _refusal("it is one-sided")
    edges: dict[int, set[_Edge]] = defaultdict(set)
    for nodes in chakra.traces(program, size=program.nunits):
        for node in nodes:
            if node.type is NodeType.COMM_SEND:
                a = node.attributes
                for unit in range(a["msg_chunk_idx"], a["msg_chunk_idx"] + a["msg_chunk_cnt"]):
                    edges[unit].add((a["comm_src"], a["comm_dst"]))
    return {f"unit {unit}": (found, 1) for unit, found in sorted(edges.items())}


def _order(label: str, edges: set[_Edge], nranks: int) -> tuple[str, tuple[int, ...]]:
    """The kind and order of a set of edges that must join all ranks."""
    after: dict[int, list[int]] = defaultdict(list)
    for src, dst in sorted(edges):
        after[src].append(dst)
    both = nranks > 2 and all((dst, src) in edges for src, dst in edges)
    most = 2 if both else 1
    branching = [rank for rank, peers in after.items() if len(peers) > most]
    if branching:
        raise _refusal(f"in {label} rank {branching[0]} sends to {len(after[branching[0]])} ranks")
    ends = [rank for rank in range(nranks) if len(after[rank]) == 1] if both else []
    if both:
        if len(ends) != 2:
            raise _refusal(f"{label} is no single chain of all ranks")
        start = ends[0]
    else:
        heads = set(after) - {dst for _, dst in edges}
        start = min(heads) if heads else min(after)
    order, seen = [start], {start}
    while following := [peer for peer in after[order[-1]] if peer not in seen]:
        order.append(following[0])
        seen.add(following[0])
    into = Counter(dst for _, dst in edges)
    if len(order) != nranks or max(into.values()) > most:
        raise _refusal(f"{label} joins {len(order)} of {nranks} ranks in a row, not all")
    if both:
        return "chain", tuple(order)
    first = order.index(0)  # a ring has no beginning
    return "ring", tuple(order[first:] + order[:first])
