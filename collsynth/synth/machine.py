"""A topology as a scheduler sees it: routes between ranks, and integer times on shared servers.

A *server* is a capacity group of the topology (a link, or a vertex with a capacity).  One unit of
data occupies server g for `ticks[g]` ticks; the tick is the simulator's, so that a plan made here is
the simulated one to the last bit.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from ..errors import DisconnectedError
from ..simulator.clock import Clock
from ..topology import Topology

#: one stage of a route: ticks until a unit is through, and (server, ticks) of everything it occupies
Stage = tuple[int, tuple[tuple[int, int], ...]]

#: at most this many routes are kept for one ordered pair of ranks
_ROUTES_PER_PAIR = 3


@dataclass(frozen=True, slots=True)
class Route:
    """Links from one rank to another through vertices that are no ranks.

    Attributes:
        src, dst: ranks.
        links: link ids in order.
        stages: what each link occupies, in order.
        ticks: ticks of one unit on the slowest server of the route.
        servers: every (server, ticks) of all stages.
    """

    src: int
    dst: int
    links: tuple[int, ...]
    stages: tuple[Stage, ...]
    ticks: int
    servers: tuple[tuple[int, int], ...]


class Machine:
    """Routes and integer times of one topology.

    Args:
        topology: all bandwidths known.

    Attributes:
        topology, nranks: the machine.
        ticks: ticks that a unit occupies each server (capacity groups, links first).
        alpha: latency + overhead of each link in picoseconds.

    Raises:
        UnknownSpeedError: a bandwidth is not known.
    """

    def __init__(self, topology: Topology) -> None:
        topology.require_speeds()
        self.topology = topology
        self.nranks = topology.nranks
        self.ticks = list(Clock.of(topology, 1, None).ticks_per_unit)
        self.alpha = (topology.link_latency + topology.link_overhead).tolist()
        self._groups: list[list[int]] = [[link] for link in range(topology.nlinks)]
        for index, (_, members) in enumerate(topology.capacity_groups()):
            if index >= topology.nlinks:
                for link in members.tolist():
                    self._groups[link].append(index)
        self._leaving: list[list[int]] = [[] for _ in topology.vertices]
        for link, src in enumerate(topology.link_src.tolist()):
            self._leaving[src].append(link)
        self._dst: list[int] = topology.link_dst.tolist()
        self._routes: dict[tuple[int, int], list[Route]] | None = None
        self._by_links: dict[tuple[int, ...], Route] = {}
        self._shortest: dict[tuple[int, int], tuple[Route, ...]] = {}

    def route(self, links: tuple[int, ...]) -> Route:
        """The route along these links."""
        found = self._by_links.get(links)
        if found is None:
            shared = [tuple((g, self.ticks[g]) for g in self._groups[link]) for link in links]
            stages = tuple((max(ticks for _, ticks in groups), groups) for groups in shared)
            servers = tuple(pair for _, groups in stages for pair in groups)
            found = Route(
                int(self.topology.link_src[links[0]]), self._dst[links[-1]], links, stages,
                max(t for _, t in servers), servers,
            )  # fmt: skip
            self._by_links[links] = found
        return found

    @property
    def routes(self) -> dict[tuple[int, int], list[Route]]:
        """For each ordered pair of ranks that reach one another without a third rank: its routes, best
        first, no two sharing their slowest link."""
        if self._routes is None:
            self._routes = {}
            for src in range(self.nranks):
                self._add_routes(src)
        return self._routes

    def _add_routes(self, src: int) -> None:
        assert self._routes is not None
        first = self._paths(src, frozenset())
        for dst, links in sorted(first.items()):
            kept = [self.route(links)]
            banned: set[int] = set()
            while len(kept) < _ROUTES_PER_PAIR:
                slowest = max(self.ticks[link] for link in kept[-1].links)
                banned.update(link for link in kept[-1].links if self.ticks[link] == slowest)
                other = self._paths(src, frozenset(banned), dst).get(dst)
                if other is None:
                    break
                kept.append(self.route(other))
            self._routes[src, dst] = kept

    def _paths(self, src: int, banned: frozenset[int], only: int | None = None) -> dict[int, tuple[int, ...]]:
        """Quickest route (sum of link times, then fewest links) from `src` to every rank it reaches."""
        done: dict[int, tuple[int, ...]] = {}
        queue: list[tuple[int, int, tuple[int, ...], int]] = [(0, 0, (), src)]
        while queue:
            time, hops, links, vertex = heapq.heappop(queue)
            if vertex in done:
                continue
            done[vertex] = links
            if vertex == only:
                break
            if vertex != src and vertex < self.nranks:
                continue
            for link in self._leaving[vertex]:
                head = self._dst[link]
                if head not in done and link not in banned:
                    heapq.heappush(queue, (time + self.ticks[link], hops + 1, (*links, link), head))
        return {v: path for v, path in done.items() if v < self.nranks and v != src}

    def twins(self) -> list[int] | None:
        """For each link an equal one that runs the other way, one to one; None where the machine differs
        from itself turned around."""
        topology = self.topology
        if any(v.in_capacity != v.out_capacity for v in topology.vertices):
            return None
        waiting: dict[tuple[int, ...], list[int]] = {}
        columns = (topology.link_src, topology.link_dst, topology.link_bandwidth, topology.link_latency,
                   topology.link_overhead)  # fmt: skip
        rows = list(zip(*(c.tolist() for c in columns), strict=True))
        for link, row in enumerate(rows):
            waiting.setdefault(row, []).append(link)
        for links in waiting.values():
            links.reverse()
        found = []
        for src, dst, *figures in rows:
            partners = waiting.get((dst, src, *figures))
            if not partners:
                return None
            found.append(partners.pop())
        return found

    def neighbours(self) -> list[list[int]]:
        """For each rank the ranks that it reaches directly, in order."""
        result: list[list[int]] = [[] for _ in range(self.nranks)]
        for src, dst in sorted(self.routes):
            result[src].append(dst)
        return result

    def hops(self) -> list[list[int]]:
        """hops[u][v]: fewest rows that bring a chunk from u to v.

        Raises:
            DisconnectedError: some rank cannot reach another.
        """
        near = self.neighbours()
        table: list[list[int]] = []
        for src in range(self.nranks):
            row = [-1] * self.nranks
            row[src] = 0
            frontier = [src]
            for rank in frontier:
                for other in near[rank]:
                    if row[other] < 0:
                        row[other] = row[rank] + 1
                        frontier.append(other)
            if -1 in row:
                raise DisconnectedError(
                    f"rank {src} cannot reach rank {row.index(-1)}", where=f"topology {self.topology.name}"
                )
            table.append(row)
        return table

    def shortest_path(self, src: int, dst: int) -> list[Route]:
        """Routes of the quickest relayed way from `src` to `dst` (fewest rows, then sum of ticks).

        Raises:
            DisconnectedError: there is none.
        """
        known = self._shortest.get((src, dst))
        if known is not None:
            return list(known)
        queue: list[tuple[int, int, int, tuple[int, ...]]] = [(0, 0, src, (src,))]
        done: set[int] = set()
        while queue:
            rows, ticks, rank, path = heapq.heappop(queue)
            if rank == dst:
                known = self._shortest[src, dst] = tuple(self.routes[a, b][0] for a, b in pairwise(path))
                return list(known)
            if rank in done:
                continue
            done.add(rank)
            for other in self.neighbours_of(rank):
                if other not in done:
                    step = self.routes[rank, other][0].ticks
                    heapq.heappush(queue, (rows + 1, ticks + step, other, (*path, other)))
        raise DisconnectedError(f"rank {src} cannot reach rank {dst}", where=f"topology {self.topology.name}")

    def neighbours_of(self, rank: int) -> list[int]:
        """Ranks that `rank` reaches directly."""
        return [dst for dst in range(self.nranks) if (rank, dst) in self.routes]

    def load(self, routes: Iterable[Route]) -> list[int]:
        """Ticks that one unit over each of `routes` occupies every server."""
        total = [0] * len(self.ticks)
        for route in routes:
            for server, ticks in route.servers:
                total[server] += ticks
        return total


@lru_cache(maxsize=8)
def machine_of(topology: Topology) -> Machine:
    """The machine of a topology, remembered for the topologies used last.

    Raises:
        UnknownSpeedError: a bandwidth is not known.
    """
    return Machine(topology)
