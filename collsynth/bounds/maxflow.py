"""Maximum flow with exact integers: the only place that knows which solver computes it.

A `FlowNetwork` is built once and solved many times with changed capacities.  Capacities whose sum
fits in 62 bits go to OR-tools (push-relabel, C++); larger ones, or a machine without OR-tools, to a
plain Dinic on Python integers.  Both return the same value and the same (smallest) source side.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SAFE_TOTAL = 1 << 62


class FlowNetwork:
    """A directed graph with changeable integer capacities.

    Args:
        nvertices: number of vertices.
        tail, head: vertex ids of each arc; parallel arcs are allowed, loops are not.
        capacity: capacity >= 0 of each arc.
    """

    def __init__(
        self,
        nvertices: int,
        tail: Sequence[int] | NDArray[np.int64],
        head: Sequence[int] | NDArray[np.int64],
        capacity: Sequence[int],
    ) -> None:
        self.nvertices = nvertices
        self._tail = np.asarray(tail, dtype=np.int32)
        self._head = np.asarray(head, dtype=np.int32)
        self._capacity = [int(c) for c in capacity]
        self._total = sum(self._capacity)
        self._native: Any = None
        self._dirty: set[int] = set()
        self._big: _BigFlow | None = None
        self._side: NDArray[np.bool_] | None = None

    def set_capacity(self, arc: int, capacity: int) -> None:
        """Change the capacity of one arc (counts from the next `solve` on)."""
        old = self._capacity[arc]
        if old != capacity:
            self._capacity[arc] = capacity
            self._total += capacity - old
            self._dirty.add(arc)

    def set_capacities(self, capacities: Iterable[int]) -> None:
        """Change the capacities of all arcs, in order (count from the next `solve` on)."""
        for arc, capacity in enumerate(capacities):
            self.set_capacity(arc, int(capacity))

    def solve(self, source: int, sink: int) -> int:
        """Value of the maximum flow from `source` to `sink`."""
        self._side = None
        solver = self._native_solver() if self._total < _SAFE_TOTAL else None
        if solver is None:
            self._big = _BigFlow(self.nvertices, self._tail.tolist(), self._head.tolist(), self._capacity)
            return self._big.solve(source, sink)
        self._big = None
        status = solver.solve(source, sink)
        if status != solver.OPTIMAL:
            raise AssertionError(f"max-flow ended with {status}")
        return int(solver.optimal_flow())

    def source_side(self) -> NDArray[np.bool_]:
        """bool[nvertices]: the smallest source side of a minimum cut of the last `solve`."""
        if self._side is None:
            side = np.zeros(self.nvertices, dtype=bool)
            side[self._big.source_side() if self._big else self._native.get_source_side_min_cut()] = True
            self._side = side
        return self._side

    def _native_solver(self) -> Any:
        """OR-tools' solver holding the current capacities, None when it is not installed."""
        if self._native is None:
            try:
                from ortools.graph.python.max_flow import SimpleMaxFlow
            except ImportError:
                return None
            self._native = SimpleMaxFlow()
            # Makes every vertex known to the solver, also one that no arc touches.
            anchor = np.array([self.nvertices - 1], dtype=np.int32)
            self._native.add_arcs_with_capacity(
                np.concatenate((self._tail, anchor)),
                np.concatenate((self._head, np.zeros(1, np.int32))),
                np.array([*self._capacity, 0], dtype=np.int64),
            )
        elif self._dirty:
            arcs = np.fromiter(self._dirty, dtype=np.int32, count=len(self._dirty))
            self._native.set_arcs_capacity(arcs, np.array([self._capacity[a] for a in arcs], dtype=np.int64))
        self._dirty.clear()
        return self._native


class _BigFlow:
    """Dinic's algorithm on Python integers: slow, and exact at any magnitude."""

    def __init__(self, nvertices: int, tail: Sequence[int], head: Sequence[int], capacity: Sequence[int]) -> None:
        self._head: list[int] = []
        self._rest: list[int] = []
        self._arcs: list[list[int]] = [[] for _ in range(nvertices)]
        for u, v, c in zip(tail, head, capacity, strict=True):
            self._arcs[u].append(len(self._head))
            self._arcs[v].append(len(self._head) + 1)
            self._head += (v, u)
            self._rest += (c, 0)
        self._source = 0

    def _levels(self) -> list[int]:
        level = [-1] * len(self._arcs)
        level[self._source] = 0
        queue = deque([self._source])
        while queue:
            u = queue.popleft()
            for arc in self._arcs[u]:
                if self._rest[arc] and level[self._head[arc]] < 0:
                    level[self._head[arc]] = level[u] + 1
                    queue.append(self._head[arc])
        return level

    def solve(self, source: int, sink: int) -> int:
        self._source = source
        value = 0
        while (level := self._levels())[sink] >= 0:
            pointer = [0] * len(self._arcs)
            path: list[int] = []
            u = source
            while True:
                if u == sink:
                    amount = min(self._rest[a] for a in path)
                    value += amount
                    for a in path:
                        self._rest[a] -= amount
                        self._rest[a ^ 1] += amount
                    path, u = [], source
                    continue
                arcs = self._arcs[u]
                while pointer[u] < len(arcs):
                    arc = arcs[pointer[u]]
                    if self._rest[arc] and level[self._head[arc]] == level[u] + 1:
                        break
                    pointer[u] += 1
                else:
                    if not path:
                        break
                    # A dead end: step back and never enter it again in this phase.
                    u = self._head[path.pop() ^ 1]
                    pointer[u] += 1
                    continue
                path.append(arc)
                u = self._head[arc]
        return value

    def source_side(self) -> list[int]:
        return [v for v, level in enumerate(self._levels()) if level >= 0]
