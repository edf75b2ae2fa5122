"""Arc-disjoint spanning trees with given roots, by the constructive proof of Edmonds' theorem.

Edmonds (1973): a directed multigraph holds arc-disjoint trees, `m[r]` of them rooted at `r`, that each
reach all vertices, iff every set X of vertices is entered by at least as many arcs as there are trees
rooted outside X.  The proof grows one tree arc by arc, keeping that condition for what is left.  Here
equal trees are grown together as a *class* (vertices reached, multiplicity) and a class is split when
an arc can serve only a part of it, so the work does not depend on how large the multiplicities are
(Schrijver, Combinatorial Optimization, section 53.3; Zhao et al., ForestColl, arXiv 2402.06787).

How much of a class may be extended by the arc (x, y) is one max-flow from x to y in the arcs left, where
every other unfinished class adds a helper vertex with an arc from x to the helper (its multiplicity) and
from the helper to each vertex that the class has reached.  Sets of vertices found tight by such a flow
(no arc into them to spare) stay tight for the rest of the run, so they are remembered and most useless
flows are never run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..bounds.maxflow import FlowNetwork


@dataclass(frozen=True, slots=True)
class LogicalTree:
    """A tree over ranks, used `multiplicity` times.

    Attributes:
        root: where it starts.
        multiplicity: how many equal trees.
        edges: (parent, child), parents first, breadth first.
    """

    root: int
    multiplicity: int
    edges: tuple[tuple[int, int], ...]

    def height(self) -> int:
        """Edges on the longest path from the root."""
        depth = {self.root: 0}
        for parent, child in self.edges:
            depth[child] = depth[parent] + 1
        return max(depth.values())


@dataclass(slots=True)
class _Class:
    """Equal trees that are not finished: `mask` has a bit for every vertex reached."""

    root: int
    multiplicity: int
    mask: int
    depth: dict[int, int]
    edges: list[tuple[int, int]]

    def split(self, amount: int) -> _Class:
        """Keep `amount` trees here; the others as a new class."""
        rest = _Class(self.root, self.multiplicity - amount, self.mask, dict(self.depth), self.edges[:])
        self.multiplicity = amount
        return rest


class _TightSets:
    """Vertex sets with no arc to spare; a class that has reached one may not enter it again."""

    def __init__(self) -> None:
        self._sets: dict[int, None] = {}

    def add(self, mask: int) -> None:
        self._sets[mask] = None

    def blocked(self, reached: int, x: int) -> int:
        """Vertices that a class which has reached `reached` may not enter from x (those reached included)."""
        result = reached
        for mask in self._sets:
            if mask & reached and not mask >> x & 1:
                result |= mask
        return result


class _Packer:
    """The state of one run: arcs left, unfinished classes, tight sets, and the network over them.

    Arcs of the network: the arcs left; source -> v for every vertex v (open only at the tail of the arc
    that is tried); source -> helper of each class; helper -> v for every vertex v (open when reached).
    """

    def __init__(self, n: int, src: Sequence[int], dst: Sequence[int], capacity: Sequence[int]) -> None:
        self.n = n
        self.src, self.dst, self.left = list(src), list(dst), list(capacity)
        self.leaving: list[list[int]] = [[] for _ in range(n)]
        for arc, vertex in enumerate(self.src):
            self.leaving[vertex].append(arc)
        self.tight = _TightSets()
        self.infinite = sum(self.left) + 1
        self.classes: list[_Class] = []

    def run(self, multiplicity: Sequence[int]) -> list[LogicalTree]:
        """Grow all trees level by level, in turns of one arc, so that none takes the short ways alone."""
        full = (1 << self.n) - 1
        self.classes = [_Class(r, int(m), 1 << r, {r: 0}, []) for r, m in enumerate(multiplicity) if m]
        finished: list[_Class] = []
        self._rebuild()
        level = 0
        while self.classes:
            turn, waiting = self.classes[:], []
            progress = False
            while turn:
                for current in turn:
                    rest = self._extend(current, level)
                    if rest is current:
                        continue
                    progress = True
                    waiting.append(current)
                    if rest is not None:
                        self.classes.append(rest)
                        waiting.append(rest)
                    if current.mask == full:
                        self.classes.remove(current)
                        finished.append(current)
                        waiting.remove(current)
                    if rest is not None:
                        self._rebuild()
                turn, waiting = waiting, []
            level += 1
            assert progress or level < self.n, "packing: the cut condition does not hold"
        finished.sort(key=lambda c: c.root)
        return [LogicalTree(c.root, c.multiplicity, tuple(c.edges)) for c in finished]

    def _rebuild(self) -> None:
        count, narcs, n = len(self.classes), len(self.src), self.n
        helpers = np.arange(n + 1, n + 1 + count, dtype=np.int64)
        vertices = np.arange(n, dtype=np.int64)
        src = np.concatenate((self.src, np.full(n + count, n), np.repeat(helpers, n)))
        dst = np.concatenate((self.dst, vertices, helpers, np.tile(vertices, count)))
        capacity = np.zeros(len(src), dtype=np.int64)
        capacity[:narcs] = self.left
        capacity[narcs + n : narcs + n + count] = [c.multiplicity for c in self.classes]
        reached = np.array([[c.mask >> v & 1 for v in range(n)] for c in self.classes], dtype=np.int64)
        capacity[narcs + n + count :] = reached.ravel() * self.infinite
        self.network = FlowNetwork(n + 1 + count, src, dst, capacity.tolist())
        self.slot = {id(c): i for i, c in enumerate(self.classes)}
        self.slots = count
        self.total = sum(c.multiplicity for c in self.classes)

    def _extend(self, current: _Class, level: int) -> _Class | None:
        """Extend `current` by one arc from its vertices at `level`.

        Returns:
            `current` itself when there is no such arc, the part that could not follow, or None.
        """
        narcs, network = len(self.src), self.network
        helper = narcs + self.n + self.slot[id(current)]
        network.set_capacity(helper, 0)
        reserved = self.total - current.multiplicity
        for x in [v for v, d in current.depth.items() if d == level]:
            blocked = self.tight.blocked(current.mask, x)
            candidates = [a for a in self.leaving[x] if self.left[a] and not blocked >> self.dst[a] & 1]
            # Arcs with the most to spare first: they split classes least; then those that lead on best.
            candidates.sort(key=lambda a: (-min(self.left[a], current.multiplicity), -self._onward(a, current), a))
            if candidates:
                network.set_capacity(narcs + x, self.infinite)
            for arc in candidates:
                y = self.dst[arc]
                if blocked >> y & 1:
                    continue
                wanted = min(self.left[arc], current.multiplicity)
                room = network.solve(self.n, y) - reserved
                if room < wanted:
                    # Once `room` trees have used the arc, this cut has nothing to spare.
                    mask = _mask(~network.source_side()[: self.n])
                    self.tight.add(mask)
                    if room <= 0:
                        blocked |= mask
                        continue
                network.set_capacity(narcs + x, 0)
                return self._take(current, arc, min(room, wanted), helper)
            if candidates:
                network.set_capacity(narcs + x, 0)
        network.set_capacity(helper, current.multiplicity)
        return current

    def _onward(self, arc: int, current: _Class) -> int:
        """Arcs left from the head of `arc` to vertices that the class has not reached."""
        return sum(1 for a in self.leaving[self.dst[arc]] if self.left[a] and not current.mask >> self.dst[a] & 1)

    def _take(self, current: _Class, arc: int, amount: int, helper: int) -> _Class | None:
        x, y = self.src[arc], self.dst[arc]
        rest = current.split(amount) if amount < current.multiplicity else None
        self.left[arc] -= amount
        current.mask |= 1 << y
        current.depth[y] = current.depth[x] + 1
        current.edges.append((x, y))
        full = (1 << self.n) - 1
        self.network.set_capacity(arc, self.left[arc])
        slot = self.slot[id(current)]
        self.network.set_capacity(len(self.src) + self.n + self.slots + slot * self.n + y, self.infinite)
        if current.mask == full:
            self.total -= current.multiplicity
            self.network.set_capacity(helper, 0)
        else:
            self.network.set_capacity(helper, current.multiplicity)
        return rest


def _mask(side: NDArray[np.bool_]) -> int:
    """The vertices of `side` as bits."""
    return sum(1 << int(v) for v in np.flatnonzero(side))


def pack_trees(
    n: int, src: Sequence[int], dst: Sequence[int], capacity: Sequence[int], multiplicity: Sequence[int]
) -> list[LogicalTree]:
    """Spanning trees of vertices 0..n-1, `multiplicity[r]` of them rooted at r, that share arcs by capacity.

    Args:
        n: number of vertices.
        src, dst, capacity: arcs and how many trees may use each (parallel arcs allowed).
        multiplicity: trees wanted per root.

    Returns:
        Trees with multiplicities; equal ones are merged where they grew together.

    Raises:
        AssertionError: the cut condition does not hold (the caller checks it, see `rates`).
    """
    return _Packer(n, src, dst, capacity).run(multiplicity)
