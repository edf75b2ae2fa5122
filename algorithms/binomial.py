r"""Binomial tree: in step j the 2^j ranks that have the data each give it to one more.

      0            step 0: 0 -> 1
      | \ \        step 1: 0 -> 2, 1 -> 3          (numbers relative to the root)
      1  2 4       step 2: 0 -> 4, 1 -> 5, 2 -> 6, 3 -> 7
     ...

With n ranks and M payload bytes: Broadcast and Reduce take ceil(log2 n) steps and the root sends (or
receives) ceil(log2 n) * M bytes; AllReduce is a Reduce to rank 0 and a Broadcast from it: twice that.
"""

from __future__ import annotations

from collsynth.collective import Collective
from collsynth.schedule import Schedule
from collsynth.synth.assemble import Row, schedule_of
from collsynth.synth.machine import machine_of
from collsynth.topology import Topology

from ._common import direct_route, missing_pair, require

COLLECTIVES = ("broadcast", "reduce", "allreduce")


def _edges(nranks: int, root: int) -> list[tuple[int, int, int]]:
    """(step, parent, child) of the tree."""
    edges = []
    step, have = 0, 1
    while have < nranks:
        edges += [(step, (u + root) % nranks, (u + have + root) % nranks) for u in range(min(have, nranks - have))]
        step, have = step + 1, 2 * have
    return edges


def accepts(topology: Topology, collective: str) -> str | None:
    """Why a binomial tree from rank 0 is impossible, None when it is possible."""
    if collective not in COLLECTIVES:
        return f"the binomial tree knows {', '.join(COLLECTIVES)}"
    edges = _edges(topology.nranks, 0)
    return missing_pair(machine_of(topology), [pair for _, u, v in edges for pair in ((u, v), (v, u))])


def binomial(topology: Topology, collective: Collective) -> Schedule:
    """Binomial-tree schedule of Broadcast, Reduce or AllReduce.

    Raises:
        RefusedError: another collective, or a parent and its child are not adjacent.
    """
    require(collective, COLLECTIVES, "binomial")
    machine = machine_of(topology)
    edges = _edges(topology.nranks, collective.root or 0)
    depth = 1 + max((step for step, _, _ in edges), default=-1)
    rows: list[Row] = []
    for chunk in range(collective.nchunks):
        for step, parent, child in edges:
            if collective.combining:
                links = direct_route(machine, child, parent).links
                rows.append(Row(chunk, child, parent, True, depth - 1 - step, links))
            if collective.name != "reduce":
                after = depth if collective.combining else 0
                links = direct_route(machine, parent, child).links
                rows.append(Row(chunk, parent, child, False, after + step, links))
    return schedule_of(topology, collective, rows, "binomial")
