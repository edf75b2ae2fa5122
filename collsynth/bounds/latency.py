"""The latency bound: how long the first bit of the farthest contribution travels."""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from ..errors import DisconnectedError
from ..topology import Topology

_EXACT_IN_DOUBLE = 1 << 52


def distances(
    nvertices: int, tail: NDArray[np.int64], head: NDArray[np.int64], length: NDArray[np.int64], sources: list[int]
) -> NDArray[np.int64]:
    """int64[len(sources), nvertices]: exact shortest distances, -1 where there is no path.

    Dijkstra in integers; SciPy's C version where doubles hold the sums exactly and the graph is large.
    """
    largest = int(length.max(initial=0)) * max(1, nvertices)
    if len(sources) * len(tail) > 50_000 and largest < _EXACT_IN_DOUBLE // (nvertices + 1):
        try:
            from scipy.sparse import csr_array
            from scipy.sparse.csgraph import dijkstra
        except ImportError:
            pass
        else:
            # Parallel links: keep the shortest.  A sparse matrix cannot hold a length of 0, so count
            # one hop more in the last digits and cut them off again.
            order = np.lexsort((length, head, tail))
            first = np.ones(len(order), dtype=bool)
            first[1:] = (np.diff(tail[order]) != 0) | (np.diff(head[order]) != 0)
            kept = order[first]
            scaled = length[kept] * (nvertices + 1) + 1
            graph = csr_array((scaled.astype(np.float64), (tail[kept], head[kept])), shape=(nvertices, nvertices))
            found = dijkstra(graph, indices=sources)
            reached = np.isfinite(found)
            result = np.full(found.shape, -1, dtype=np.int64)
            result[reached] = found[reached].astype(np.int64) // (nvertices + 1)
            return result
    return plain_distances(nvertices, tail, head, length, sources)


def plain_distances(
    nvertices: int, tail: NDArray[np.int64], head: NDArray[np.int64], length: NDArray[np.int64], sources: list[int]
) -> NDArray[np.int64]:
    """`distances` in plain Python: no solver, no floating point (what certificates are checked with)."""
    out: list[list[tuple[int, int]]] = [[] for _ in range(nvertices)]
    for u, v, w in zip(tail.tolist(), head.tolist(), length.tolist(), strict=True):
        out[u].append((v, w))
    result = np.full((len(sources), nvertices), -1, dtype=np.int64)
    for row, source in enumerate(sources):
        best = {source: 0}
        queue = [(0, source)]
        while queue:
            d, u = heapq.heappop(queue)
            if d > best[u]:
                continue
            for v, w in out[u]:
                if v not in best or d + w < best[v]:
                    best[v] = d + w
                    heapq.heappush(queue, (d + w, v))
        for v, d in best.items():
            result[row, v] = d
    return result


def latency_of(topology: Topology, sources: list[int], destinations: list[int]) -> int:
    """The longest of the shortest paths (latency + overhead, ps) from `sources` to other `destinations`.

    Raises:
        DisconnectedError: there is no path for some pair.
    """
    if not [1 for s in sources[:2] for d in destinations[:2] if s != d]:
        return 0
    table = distances(
        len(topology.vertices), topology.link_src, topology.link_dst,
        topology.link_latency + topology.link_overhead, sources,
    )[:, destinations]  # fmt: skip
    missing = np.argwhere(table < 0)
    if len(missing):
        row, column = missing[0]
        raise DisconnectedError(
            f"nothing leads from {topology.vertices[sources[row]].name} "
            f"to {topology.vertices[destinations[column]].name}",
            where=f"topology {topology.name}",
            expected="a path of links between them",
        )
    return int(table.max(initial=0))
