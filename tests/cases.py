"""The bank of cases that every algorithm and engine passes at every size it accepts.

A case is a machine and a collective; machines cover direct, switched, multi-node, irregular, one-way
and shared-port networks of 1 to 16 ranks, all small enough that a maker takes well under a second.
"""

from __future__ import annotations

from collections.abc import Iterator

from collsynth.topology import Link, Topology, Vertex, VertexKind

#: collectives that engines make
MADE = ("allgather", "reducescatter", "allreduce", "alltoall", "broadcast", "reduce", "gather", "scatter")

GB = 10**9


def direct(name: str, nranks: int, pairs: dict[tuple[int, int], int]) -> Topology:
    """Ranks with directed links of the given GB/s."""
    vertices = [Vertex(f"gpu:{i}", rank=i, node=0) for i in range(nranks)]
    return Topology.build(name, vertices, [Link(a, b, GB * w, latency=700_000) for (a, b), w in pairs.items()])


def both_ways(pairs: dict[tuple[int, int], int]) -> dict[tuple[int, int], int]:
    """The pairs and the same pairs turned around."""
    return pairs | {(b, a): w for (a, b), w in pairs.items()}


def switch(nranks: int, *, capacity: int | None = None) -> Topology:
    """Ranks on one switch; `capacity` limits what enters each rank, in GB/s."""
    limit = None if capacity is None else capacity * GB
    vertices = [Vertex(f"gpu:{i}", rank=i, node=0, in_capacity=limit) for i in range(nranks)]
    vertices.append(Vertex("switch", VertexKind.SWITCH))
    links = [Link(*ends, 100 * GB, latency=350_000) for i in range(nranks) for ends in ((i, nranks), (nranks, i))]
    return Topology.build(f"switch:{nranks}" + ("" if capacity is None else "-capped"), vertices, links)


def boxes(nodes: int, per_node: int) -> Topology:
    """Nodes with a fast switch inside and a slow rail between the ranks of equal place."""
    n = nodes * per_node
    vertices = [Vertex(f"node{r // per_node}/gpu:{r % per_node}", rank=r, node=r // per_node) for r in range(n)]
    vertices += [Vertex(f"node{k}/switch", VertexKind.SWITCH, node=k) for k in range(nodes)]
    vertices += [Vertex(f"rail:{i}", VertexKind.SWITCH, rail=i) for i in range(per_node)]
    links = []
    for r in range(n):
        for other, speed in ((n + r // per_node, 300), (n + nodes + r % per_node, 25)):
            links += [Link(r, other, speed * GB, latency=350_000), Link(other, r, speed * GB, latency=350_000)]
    return Topology.build(f"boxes:{nodes}x{per_node}", vertices, links)


def machines() -> Iterator[Topology]:
    """Every machine of the bank."""
    yield direct("one", 1, {})
    yield direct("pair", 2, both_ways({(0, 1): 50}))
    yield direct("line3", 3, both_ways({(0, 1): 50, (1, 2): 25}))
    yield direct("one-way-ring5", 5, {(i, (i + 1) % 5): 50 for i in range(5)})
    yield direct("ring6", 6, both_ways({(i, (i + 1) % 6): 50 for i in range(6)}))
    yield direct("uneven4", 4, {(0, 1): 50, (1, 0): 25, (1, 2): 50, (2, 0): 75, (2, 3): 25, (3, 0): 25, (0, 3): 50})
    yield direct("cube8", 8, {(i, i ^ b): 50 for i in range(8) for b in (1, 2, 4)})
    yield direct("mesh3x3", 9, both_ways({
        (3 * x + y, 3 * (x + dx) + y + dy): 50
        for x in range(3) for y in range(3) for dx, dy in ((1, 0), (0, 1)) if x + dx < 3 and y + dy < 3
    }))  # fmt: skip
    yield switch(4)
    yield switch(5, capacity=60)
    yield boxes(2, 3)


def cases() -> Iterator[tuple[Topology, str]]:
    """Every (machine, collective)."""
    for machine in machines():
        for name in MADE:
            yield machine, name
