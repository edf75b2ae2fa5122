r"""All-pairs direct: every rank talks to every other one, in rotation.

    step 1: u -> u+1     step 2: u -> u+2    ...    step n-1: u -> u-1     (mod n)

With n ranks and M payload bytes:

    collective                   steps      bytes that each rank sends
    AllGather, ReduceScatter     n-1        (n-1)/n * M
    AllReduce (RS, then AG)      2(n-1)     2(n-1)/n * M
    AllToAll                     n-1        (n-1)/n * M

The steps do not depend on one another within AllGather, ReduceScatter and AllToAll (one hop each);
the rotation keeps every port busy with one message at a time.  Where two ranks are not adjacent,
AllToAll relays along a shortest path, store and forward, one row a hop.
"""

from __future__ import annotations

from collsynth.collective import Collective
from collsynth.schedule import Schedule
from collsynth.synth.assemble import Row, schedule_of
from collsynth.synth.machine import Machine, machine_of
from collsynth.topology import Topology

from ._common import direct_route, missing_pair, pieces_of, require

COLLECTIVES = ("allgather", "reducescatter", "allreduce", "alltoall")


def accepts(topology: Topology, collective: str) -> str | None:
    """Why all-pairs direct is impossible, None when it is possible."""
    if collective not in COLLECTIVES:
        return f"all-pairs direct knows {', '.join(COLLECTIVES)}"
    machine = machine_of(topology)
    if collective == "alltoall":
        machine.hops()
        return None
    ranks = range(topology.nranks)
    return missing_pair(machine, ((u, v) for u in ranks for v in ranks if u != v))


def direct(topology: Topology, collective: Collective) -> Schedule:
    """All-pairs schedule of AllGather, ReduceScatter, AllReduce or AllToAll.

    Raises:
        RefusedError: another collective, or two ranks are not adjacent (AllToAll relays instead).
        DisconnectedError: AllToAll, and a rank cannot reach another one.
    """
    require(collective, COLLECTIVES, "direct")
    machine = machine_of(topology)
    if collective.name == "alltoall":
        return _alltoall(machine, collective)
    n = topology.nranks
    rows: list[Row] = []
    for owner, pieces in enumerate(pieces_of(collective)):
        for shift in range(1, n):
            other = (owner + shift) % n
            out, home = direct_route(machine, owner, other), direct_route(machine, other, owner)
            for chunk in pieces:
                if collective.combining:
                    # The rank `shift` ahead of the owner sends back: another shift is its rotation step.
                    rows.append(Row(chunk, other, owner, True, n - shift, home.links))
                if collective.name != "reducescatter":
                    after = n if collective.combining else 0
                    rows.append(Row(chunk, owner, other, False, after + shift, out.links))
    return schedule_of(topology, collective, rows, "direct")


def _alltoall(machine: Machine, collective: Collective) -> Schedule:
    """Rotation by pairs; hop h of a relayed pair starts after hop h of all pairs of smaller shift."""
    n = machine.nranks
    depth = max(max(row) for row in machine.hops())
    rows: list[Row] = []
    for chunk in range(collective.nchunks):
        src, dst = int(collective.sources.of(chunk)[0]), int(collective.destinations.of(chunk)[0])
        if src == dst:
            continue
        for hop, route in enumerate(machine.shortest_path(src, dst)):
            rows.append(
                Row(chunk, route.src, route.dst, False, (dst - src) % n + hop * max(1, n // depth), route.links)
            )
    return schedule_of(machine.topology, collective, rows, "direct")
