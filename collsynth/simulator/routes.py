"""Routes for programs: a program names peers, not links."""

from __future__ import annotations

import heapq

from ..errors import DisconnectedError
from ..topology import Topology


class Router:
    """Finds, and remembers, the route of each rank pair through vertices that are no ranks.

    The route with the least latency + overhead wins; among equals the one with the larger bottleneck
    bandwidth, then fewer links, then smaller link ids.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._found: dict[int, dict[int, tuple[int, ...]]] = {}
        self._leaving: list[list[int]] = [[] for _ in topology.vertices]
        for link, src in enumerate(topology.link_src.tolist()):
            self._leaving[src].append(link)

    def route(self, src: int, dst: int) -> tuple[int, ...]:
        """Link ids from rank `src` to rank `dst`.

        Raises:
            DisconnectedError: every path passes through another rank, or there is none.
        """
        if src not in self._found:
            self._found[src] = self._from(src)
        try:
            return self._found[src][dst]
        except KeyError:
            names = self.topology.vertices[src].name, self.topology.vertices[dst].name
            raise DisconnectedError(
                f"rank {src} ({names[0]}) has no path to rank {dst} ({names[1]}) that avoids other ranks",
                where=f"topology {self.topology.name}",
                hint="a program made for this topology",
            ) from None

    def _from(self, src: int) -> dict[int, tuple[int, ...]]:
        topology = self.topology
        queue: list[tuple[int, int, int, tuple[int, ...], int]] = [(0, 0, 0, (), src)]
        done: dict[int, tuple[int, ...]] = {}
        while queue:
            cost, slowness, hops, links, vertex = heapq.heappop(queue)
            if vertex in done:
                continue
            done[vertex] = links
            if vertex != src and topology.vertices[vertex].rank is not None:
                continue
            for link in self._leaving[vertex]:
                head = int(topology.link_dst[link])
                if head in done:
                    continue
                step = int(topology.link_latency[link]) + int(topology.link_overhead[link])
                bandwidth = int(topology.link_bandwidth[link])
                # Larger is worse, so that the heap prefers the wider bottleneck.
                narrow = max(slowness, -bandwidth) if links else -bandwidth
                heapq.heappush(queue, (cost + step, narrow, hops + 1, (*links, link), head))
        return {v: r for v, r in done.items() if v != src and topology.vertices[v].rank is not None}
