"""Shallower trees of the same load: two trees exchange the routes by which they reach one rank.

A packing that uses every link to the full leaves no room to re-hang a rank, but if tree A reaches
rank v over route p and tree B over route q, they may swap: no link's load changes.  A swap is taken
when it lowers the sum of squared depths, so that deep trees gain first; it is allowed when neither new
parent lies below v.
"""

from __future__ import annotations

from collections.abc import Sequence

from .forest import Tree, TreeEdge

#: sweeps over all trees and ranks at most
_SWEEPS = 4


class _Unit:
    """A tree that can be changed."""

    def __init__(self, tree: Tree, nranks: int) -> None:
        self.tree = tree
        self.parent = [-1] * nranks
        self.route: list[tuple[int, ...]] = [()] * nranks
        self.depth = [0] * nranks
        self.children: list[list[int]] = [[] for _ in range(nranks)]
        for edge in tree.edges:
            self.parent[edge.child] = edge.parent
            self.route[edge.child] = edge.route
            self.depth[edge.child] = self.depth[edge.parent] + 1
            self.children[edge.parent].append(edge.child)

    def below(self, rank: int) -> list[int]:
        """The rank and everything that hangs on it."""
        found = [rank]
        for vertex in found:
            found.extend(self.children[vertex])
        return found

    def cost_of_shift(self, ranks: Sequence[int], shift: int) -> int:
        """Change of the sum of squared depths when these ranks move by `shift`."""
        return sum(shift * (2 * self.depth[v] + shift) for v in ranks)

    def hang(self, rank: int, parent: int, route: tuple[int, ...], ranks: Sequence[int], shift: int) -> None:
        """Move `rank` with everything on it below `parent`."""
        self.children[self.parent[rank]].remove(rank)
        self.children[parent].append(rank)
        self.parent[rank], self.route[rank] = parent, route
        for vertex in ranks:
            self.depth[vertex] += shift

    def result(self) -> Tree:
        """The tree, edges breadth first."""
        order = self.below(self.tree.root)[1:]
        edges = tuple(TreeEdge(self.parent[v], v, self.route[v]) for v in order)
        return Tree(self.tree.root, 1, edges, reduce=self.tree.reduce)


def flattened(trees: Sequence[Tree], nranks: int, *, work: int) -> list[Tree]:
    """Trees of multiplicity 1, in the same order with the same roots and link loads, but shallower.

    Args:
        trees: all copying, or all reducing.
        work: exchanges weighed at most.
    """
    units = [_Unit(tree, nranks) for tree in trees]
    for _ in range(_SWEEPS):
        changed = False
        for rank in range(nranks):
            # The deepest first: they have the most to gain.
            order = sorted((u for u in units if u.parent[rank] >= 0), key=lambda u: -u.depth[rank])
            for first in order:
                mine = first.below(rank)
                for second in reversed(order):
                    p, q = first.parent[rank], second.parent[rank]
                    shift = first.depth[q] - first.depth[p]
                    if shift >= 0 or q in mine or second is first:
                        continue
                    work -= 1
                    other = second.depth[p] - second.depth[q]
                    theirs = second.below(rank)
                    if p in theirs:
                        continue
                    if first.cost_of_shift(mine, shift) + second.cost_of_shift(theirs, other) >= 0:
                        continue
                    ways = first.route[rank], second.route[rank]
                    first.hang(rank, q, ways[1], mine, shift)
                    second.hang(rank, p, ways[0], theirs, other)
                    changed = True
                if work <= 0:
                    return [unit.result() for unit in units]
        if not changed:
            break
    return [unit.result() for unit in units]
