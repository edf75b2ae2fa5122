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
from dataclasses import dataclass, replace

from .flow import FlowNetwork


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

    mask: int
    multiplicity: int
    order: list[int]
    edges: list[tuple[int, int]]


class _TightSets:
    """Vertex sets with no arc to spare; a class that has reached one may not enter it again."""

    def __init__(self) -> None:
        self._sets: set[int] = set()
        self._list: list[int] = []

    def add(self, mask: int) -> None:
        if mask not in self._sets:
            self._sets.add(mask)
            self._list.append(mask)

    def touching(self, reached: int) -> list[int]:
        """Tight sets that a class has reached in part."""
        return [mask for mask in self._list if mask & reached and mask & ~reached]


class _Packer:
    """The state of one run: arcs left, roots not started, tight sets."""

    def __init__(self, n: int, src: Sequence[int], dst: Sequence[int], capacity: Sequence[int]) -> None:
        self.n = n
        self.src, self.dst, self.left = list(src), list(dst), list(capacity)
        self.leaving: list[list[int]] = [[] for _ in range(n)]
        for arc, vertex in enumerate(self.src):
            self.leaving[vertex].append(arc)
        self.tight = _TightSets()
        self.infinite = sum(self.left) + 1

    def grow_root(self, root: int, multiplicity: int, unstarted: list[int]) -> list[LogicalTree]:
        """All trees of one root; `unstarted[r]` trees of every other root must stay possible."""
        full = (1 << self.n) - 1
        classes = [_Class(1 << root, multiplicity, [root], [])]
        finished: list[LogicalTree] = []
        while classes:
            current = classes.pop(0)
            network = self._network(unstarted, classes)
            while current.mask != full:
                rest = self._extend(current, network, unstarted, classes)
                if rest is not None:
                    classes.append(rest)
                    network = self._network(unstarted, classes)
            finished.append(LogicalTree(root, current.multiplicity, tuple(current.edges)))
        return finished

    def _network(self, unstarted: list[int], others: list[_Class]) -> FlowNetwork:
        """Arcs left, then an arc from the source to each vertex, then the helpers of other classes."""
        source = self.n
        src = self.src + [source] * self.n
        dst = self.dst + list(range(self.n))
        capacity = self.left + unstarted
        for helper, other in enumerate(others, source + 1):
            src.append(source)
            dst.append(helper)
            capacity.append(other.multiplicity)
            for vertex in other.order:
                src.append(helper)
                dst.append(vertex)
                capacity.append(self.infinite)
        network = FlowNetwork(src, dst)
        network.set_capacities(capacity)
        return network

    def _extend(
        self, current: _Class, network: FlowNetwork, unstarted: list[int], others: list[_Class]
    ) -> _Class | None:
        """Extend `current` by one arc in place; returns the part that could not follow."""
        reserved = sum(unstarted) + sum(other.multiplicity for other in others)
        blocking = self.tight.touching(current.mask)
        narcs = len(self.src)
        for x in current.order:
            blocked = current.mask
            for mask in blocking:
                if not mask >> x & 1:
                    blocked |= mask
            candidates = [a for a in self.leaving[x] if self.left[a] and not blocked >> self.dst[a] & 1]
            if not candidates:
                continue
            # Arcs with the most to spare first: they split classes least.
            candidates.sort(key=lambda a: -min(self.left[a], current.multiplicity))
            network.set_capacity(narcs + x, self.infinite)
            for arc in candidates:
                y = self.dst[arc]
                if blocked >> y & 1:
                    continue
                wanted = min(self.left[arc], current.multiplicity)
                room = network.solve(self.n, y) - reserved
                if room < wanted:
                    # Once `room` trees have used the arc, this cut has nothing to spare.
                    mask = sum(1 << v for v in network.sink_side() if v < self.n)
                    self.tight.add(mask)
                    if mask & current.mask and room <= 0:
                        blocking.append(mask)
                        if not mask >> x & 1:
                            blocked |= mask
                if room <= 0:
                    continue
                network.set_capacity(narcs + x, unstarted[x])
                return self._take(current, network, arc, min(room, wanted))
            network.set_capacity(narcs + x, unstarted[x])
        raise AssertionError("packing: the cut condition does not hold")

    def _take(self, current: _Class, network: FlowNetwork, arc: int, amount: int) -> _Class | None:
        x, y = self.src[arc], self.dst[arc]
        rest = None
        if amount < current.multiplicity:
            rest = replace(
                current, multiplicity=current.multiplicity - amount, order=current.order[:], edges=current.edges[:]
            )
            current.multiplicity = amount
        self.left[arc] -= amount
        network.set_capacity(arc, self.left[arc])
        current.mask |= 1 << y
        current.order.append(y)
        current.edges.append((x, y))
        return rest


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
    packer = _Packer(n, src, dst, capacity)
    unstarted = [int(m) for m in multiplicity]
    trees: list[LogicalTree] = []
    for root in range(n):
        wanted, unstarted[root] = unstarted[root], 0
        if wanted:
            trees.extend(packer.grow_root(root, wanted, unstarted))
    return trees
