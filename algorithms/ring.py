r"""Rings: every chunk goes once around a Hamiltonian cycle of the ranks.

      0 --> 1 --> 2 --> 3          AllGather: chunk r leaves r and stops one hop before it
      ^                 |          ReduceScatter: the sum for r starts one hop after r, ends on r
      +-----------------+          AllReduce: ReduceScatter, then AllGather

With n ranks, M payload bytes, c rings (M/c bytes each):

    collective                   steps      bytes on each ring hop
    AllGather, ReduceScatter     n-1        (n-1)/n * M/c
    AllReduce                    2(n-1)     2(n-1)/n * M/c
    Broadcast, Reduce            n-1 + pieces-1 (pipelined chain)    M/c
"""

from __future__ import annotations

from collsynth.collective import Collective
from collsynth.errors import RefusedError
from collsynth.schedule import Schedule
from collsynth.synth.assemble import Row, schedule_of
from collsynth.synth.machine import Route, machine_of
from collsynth.topology import Topology

from ._common import pieces_of, require
from ._rings import find_rings, reversed_ring

COLLECTIVES = ("allgather", "reducescatter", "allreduce", "broadcast", "reduce")


def accepts(topology: Topology, collective: str) -> str | None:
    """Why a ring is impossible, None when it is possible."""
    if collective not in COLLECTIVES:
        return f"rings know {', '.join(COLLECTIVES)}"
    if topology.nranks > 1 and not find_rings(machine_of(topology), 1):
        return "no ring visits every rank once (within the search budget)"
    return None


def ring(topology: Topology, collective: Collective, *, channels: int = 1, both: bool = False) -> Schedule:
    """Ring schedule of AllGather, ReduceScatter, AllReduce, Broadcast or Reduce.

    Args:
        channels: distinct rings over which each owner's pieces are dealt, at most one a piece.
        both: run every ring in both directions (needs 2 pieces an owner to make use of it).

    Raises:
        RefusedError: no ring, or another collective.
    """
    require(collective, COLLECTIVES, "ring")
    machine = machine_of(topology)
    rings = find_rings(machine, channels)
    if not rings:
        raise RefusedError(f"no ring visits every rank of {topology.name} once")
    if both:
        rings = [way for one in rings for way in (one, reversed_ring(machine, one)) if way is not None]
    rows: list[Row] = []
    for owner, pieces in enumerate(pieces_of(collective)):
        for index, chunk in enumerate(pieces):
            # Owners deal from different rings first, so that uneven deals even out.
            route = rings[(index + (owner if len(pieces) % len(rings) else 0)) % len(rings)]
            rows += _around(collective.name, chunk, owner, route, index // len(rings))
    name = f"ring{'-both' if both else ''}{f'-{channels}' if channels > 1 else ''}"
    return schedule_of(topology, collective, rows, name)


def _around(collective: str, chunk: int, owner: int, ring_: list[Route], turn: int) -> list[Row]:
    """The rows of one chunk; `turn` numbers the chunks that follow one another on a chain."""
    n = len(ring_)
    if n < 2:
        return []
    at = next(i for i, route in enumerate(ring_) if route.src == owner)
    # Hops that leave the owner and stop before it, and hops that start after the owner and end on it.
    outward = [ring_[(at + i) % n] for i in range(n - 1)]
    homeward = [ring_[(at + 1 + i) % n] for i in range(n - 1)]
    copies = [Row(chunk, r.src, r.dst, False, i, r.links) for i, r in enumerate(outward)]
    sums = [Row(chunk, r.src, r.dst, True, i, r.links) for i, r in enumerate(homeward)]
    if collective == "allgather":
        return copies
    if collective == "reducescatter":
        return sums
    if collective == "allreduce":
        return sums + [Row(r.chunk, r.src, r.dst, False, r.start + n - 1, r.links) for r in copies]
    chain = copies if collective == "broadcast" else sums
    return [Row(r.chunk, r.src, r.dst, r.reduce, r.start + turn, r.links) for r in chain]
