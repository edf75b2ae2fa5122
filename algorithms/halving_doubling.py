r"""Recursive halving and doubling: partners at distance 1, 2, 4, ... (n a power of two).

    AllGather (doubling), n = 4          ReduceScatter (halving) is the same in reversed time
      0 <-> 1     2 <-> 3    1 shard
      0 <-> 2     1 <-> 3    2 shards

With n = 2^d ranks and M payload bytes:

    collective                   steps     bytes that each rank sends
    AllGather, ReduceScatter     d         (n-1)/n * M
    AllReduce (RS, then AG)      2d        2(n-1)/n * M
"""

from __future__ import annotations

from collsynth.collective import Collective
from collsynth.errors import RefusedError
from collsynth.schedule import Schedule
from collsynth.synth.assemble import Row, schedule_of
from collsynth.synth.machine import machine_of
from collsynth.topology import Topology

from ._common import direct_route, missing_pair, pieces_of, require

COLLECTIVES = ("allgather", "reducescatter", "allreduce")


def accepts(topology: Topology, collective: str) -> str | None:
    """Why halving-doubling is impossible, None when it is possible."""
    n = topology.nranks
    if collective not in COLLECTIVES:
        return f"recursive halving-doubling knows {', '.join(COLLECTIVES)}"
    if n & (n - 1):
        return f"{n} ranks are no power of two"
    bits = [1 << j for j in range(n.bit_length() - 1)]
    return missing_pair(machine_of(topology), ((u, u ^ b) for u in range(n) for b in bits))


def halving_doubling(topology: Topology, collective: Collective) -> Schedule:
    """Recursive halving-doubling schedule of AllGather, ReduceScatter or AllReduce.

    Raises:
        RefusedError: another collective, n is no power of two, or partners are not adjacent.
    """
    require(collective, COLLECTIVES, "halving-doubling")
    n = topology.nranks
    if n & (n - 1):
        raise RefusedError(f"recursive halving-doubling needs a power of two, not {n} ranks")
    machine = machine_of(topology)
    pieces = pieces_of(collective)
    depth = n.bit_length() - 1
    rows: list[Row] = []
    for rank in range(n):
        for step in range(depth):
            bit = 1 << step
            route = direct_route(machine, rank, rank ^ bit)
            mine = [c for o in range(n) if o ^ rank < bit for c in pieces[o]]
            theirs = [c for o in range(n) if o ^ rank ^ bit < bit for c in pieces[o]]
            if collective.combining:
                rows += [Row(c, rank, rank ^ bit, True, depth - 1 - step, route.links) for c in theirs]
            if collective.name != "reducescatter":
                after = depth if collective.combining else 0
                rows += [Row(c, rank, rank ^ bit, False, after + step, route.links) for c in mine]
    return schedule_of(topology, collective, rows, "halving-doubling")
