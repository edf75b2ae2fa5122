"""Random machines and slow, obvious answers for the tests of `collsynth.bounds`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction

from collsynth.topology import Capability, Link, Topology, Vertex, VertexKind

GB = 10**9


def machine(
    nranks: int,
    links: Sequence[tuple[int, int, int]],
    nswitches: int = 0,
    *,
    capability: Capability = Capability.NONE,
    both_ways: bool = False,
    name: str = "machine",
) -> Topology:
    """A topology of `links` (from, to, bytes/s); vertices from `nranks` on are switches."""
    vertices = [Vertex(f"gpu:{r}", rank=r) for r in range(nranks)] + [
        Vertex(f"switch:{s}", VertexKind.SWITCH, capability=capability) for s in range(nswitches)
    ]
    rows = [Link(u, v, bandwidth) for u, v, bandwidth in links]
    if both_ways:
        rows += [Link(v, u, bandwidth) for u, v, bandwidth in links]
    return Topology.build(name, vertices, rows)


def random_machine(seed: int, *, max_ranks: int = 8, switches: int = 0, balanced: bool = True) -> Topology:
    """Ranks on a directed ring with random chords; switches that join random ranks.

    `balanced`: every switch port is as fast in as out (else a quarter of them are not).
    """
    rng = random.Random(seed)
    n = rng.randint(3, max_ranks)
    order = rng.sample(range(n), n)
    links = [(order[i], order[(i + 1) % n], rng.randint(1, 4) * GB) for i in range(n)]
    for _ in range(rng.randint(0, 2 * n)):
        u, v = rng.sample(range(n), 2)
        links.append((u, v, rng.randint(1, 6) * GB))
    for switch in range(n, n + switches):
        for rank in rng.sample(range(n), rng.randint(2, n)):
            speed = rng.randint(1, 6) * GB
            links.append((rank, switch, speed))
            links.append((switch, rank, speed if balanced or rng.random() < 0.75 else rng.randint(1, 6) * GB))
    return machine(n, links, switches, name=f"random-{seed}")


def exits(topology: Topology) -> list[int]:
    """Bytes/s that leave each vertex set, by bit mask."""
    rows = [(k.src, k.dst, k.bandwidth or 0) for k in topology.links()]
    return [
        sum(b for u, v, b in rows if mask >> u & 1 and not mask >> v & 1) for mask in range(1 << len(topology.vertices))
    ]


def worst_cut(topology: Topology, weights: Sequence[int], sinks: Sequence[int]) -> Fraction:
    """max of weight(S) / exit(S) over all vertex sets that lack a sink, seconds per byte."""
    n, leaving = topology.nranks, exits(topology)
    return max(
        Fraction(sum(weights[r] for r in range(n) if mask >> r & 1), leaving[mask])
        for mask in range(1, len(leaving))
        if leaving[mask] and any(not mask >> s & 1 for s in sinks)
    )


def allreduce(topology: Topology) -> Fraction:
    """The larger of 1 / min cut and the worst partition, straight from the definition."""
    nvertices, leaving = len(topology.vertices), exits(topology)
    ranks = (1 << topology.nranks) - 1
    cut = min(leaving[s] for s in range(1, 1 << nvertices) if s & ranks and ~s & ranks)
    return max(Fraction(1, cut), partition(topology))


def partition(topology: Topology) -> Fraction:
    """max of 2 (p - 1) / egress over all families of p >= 2 disjoint parts that the definition allows."""
    n, nvertices, leaving = topology.nranks, len(topology.vertices), exits(topology)
    ranks = (1 << n) - 1
    must = sum(1 << i for i, v in enumerate(topology.vertices) if v.rank is not None or v.capability != Capability.NONE)
    # least[m][p]: least total egress of p disjoint parts inside m that hold all of m's ranks and copying switches.
    least: list[dict[int, int]] = [{} for _ in range(1 << nvertices)]
    for mask in range(1 << nvertices):
        if not mask & must:
            least[mask][0] = 0
            continue
        if not mask & ranks:
            continue
        first = mask & ranks & -(mask & ranks)
        rest = mask ^ first
        sub = rest
        while True:
            part = sub | first
            for p, cost in least[mask ^ part].items():
                total = cost + leaving[part]
                if total < least[mask].get(p + 1, total + 1):
                    least[mask][p + 1] = total
            if not sub:
                break
            sub = (sub - 1) & rest
    return max(Fraction(2 * (p - 1), cost) for p, cost in least[(1 << nvertices) - 1].items() if p > 1)


def alltoall(topology: Topology, demand: Sequence[Sequence[int]]) -> float:
    """Concurrent flow with one commodity a pair: time per unit of demand, seconds per byte."""
    import numpy as np
    from scipy.optimize import linprog

    n, m, nvertices = topology.nranks, topology.nlinks, len(topology.vertices)
    pairs = [(s, d) for s in range(n) for d in range(n) if s != d and demand[s][d]]
    theta = len(pairs) * m
    equal = np.zeros((len(pairs) * (nvertices - 1), theta + 1))
    below = np.zeros((m, theta + 1))
    row = 0
    for p, (s, d) in enumerate(pairs):
        for vertex in range(nvertices):
            if vertex == s:
                continue
            for e, link in enumerate(topology.links()):
                equal[row, p * m + e] += (link.dst == vertex) - (link.src == vertex)
            if vertex == d:
                equal[row, theta] = -demand[s][d]
            row += 1
        below[np.arange(m), p * m + np.arange(m)] = 1
    gain = np.zeros(theta + 1)
    gain[theta] = -1
    result = linprog(
        gain, A_ub=below, b_ub=topology.link_bandwidth / GB, A_eq=equal, b_eq=np.zeros(row), method="highs"
    )
    return float(1 / (-result.fun * GB))
