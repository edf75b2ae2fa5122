"""Random right schedules on small complete graphs: a spanning tree a chunk, levels with random gaps."""

from __future__ import annotations

import itertools
import random

from collsynth import collective as collectives
from collsynth.collective import Collective
from collsynth.schedule import Schedule, Transfer
from collsynth.topology import Link, Topology, Vertex


def complete(nranks: int) -> Topology:
    """Everybody is linked with everybody."""
    links = [Link(a, b, 25 * 10**9, latency=500_000) for a in range(nranks) for b in range(nranks) if a != b]
    return Topology.build(f"complete-{nranks}", [Vertex(f"gpu:{r}", rank=r) for r in range(nranks)], links)


def random_schedule(name: str, nranks: int, chunks: int, seed: int, *, root: int | None = None) -> Schedule:
    """A right schedule of that collective; same arguments, same schedule."""
    generator = random.Random(seed)
    topology = complete(nranks)
    collective = collectives.make(name, nranks, chunks, root=root)
    link = {(int(s), int(d)): i for i, (s, d) in enumerate(zip(topology.link_src, topology.link_dst, strict=True))}
    rows: list[Transfer] = []
    for chunk in range(collective.nchunks):
        rows += [
            Transfer(chunk, src, dst, reduce, level, (link[src, dst],))
            for src, dst, reduce, level in _moves(collective, chunk, generator)
        ]
    generator.shuffle(rows)
    return Schedule.build(topology, collective, rows, method="random")


def _tree(root: int, nranks: int, generator: random.Random) -> list[tuple[int, int, int]]:
    """(parent, child, depth) with parents before children."""
    inside, rest = [(root, 0)], [r for r in range(nranks) if r != root]
    generator.shuffle(rest)
    edges = []
    for child in rest:
        parent, depth = generator.choice(inside)
        edges.append((parent, child, depth))
        inside.append((child, depth + 1))
    return edges


def _moves(collective: Collective, chunk: int, generator: random.Random) -> list[tuple[int, int, bool, int]]:
    """(src, dst, reduce, level) of one chunk."""
    nranks, owner = collective.nranks, int(collective.owner[chunk])
    start = generator.randrange(4)
    if collective.name == "alltoall":
        target = int(collective.destinations.of(chunk)[0])
        if target == owner:
            return []
        relays = [r for r in range(nranks) if r not in (owner, target)]
        path = [owner, *generator.sample(relays, generator.randrange(min(3, len(relays) + 1))), target]
        return [(a, b, False, start + i) for i, (a, b) in enumerate(itertools.pairwise(path))]
    moves: list[tuple[int, int, bool, int]] = []
    if collective.combining:
        edges = _tree(owner, nranks, generator)
        height = max((depth for _, _, depth in edges), default=0) + 1
        moves += [(child, parent, True, start + height - 1 - depth) for parent, child, depth in edges]
        start += height + generator.randrange(2)
    if collective.name in ("allreduce", "allgather", "broadcast"):
        moves += [(a, b, False, start + depth) for a, b, depth in _tree(owner, nranks, generator)]
    return moves
