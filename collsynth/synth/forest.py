"""Trees that carry pieces: the meeting point of packing and scheduling."""

from __future__ import annotations

from dataclasses import dataclass

from ..topology import Topology


@dataclass(frozen=True, slots=True)
class TreeEdge:
    """One edge of a tree: `parent` and `child` are ranks, `route` the links that carry it.

    In a broadcast tree the route runs from parent to child, in a reduce tree from child to parent.
    """

    parent: int
    child: int
    route: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tree:
    """A spanning tree of the ranks used by `multiplicity` unit pieces of the root's data.

    Edges are listed so that a parent is reached before its children (breadth first from the root).
    """

    root: int
    multiplicity: int
    edges: tuple[TreeEdge, ...]
    reduce: bool = False

    def height(self) -> int:
        """Edges on the longest path from the root."""
        depth = {self.root: 0}
        for edge in self.edges:
            depth[edge.child] = depth[edge.parent] + 1
        return max(depth.values())

    def reversed(self) -> Tree:
        """The same routes used the other way: needs the topology whose links are turned around
        (`Topology.reverse` keeps link ids, so each route is read backwards)."""
        edges = tuple(TreeEdge(e.parent, e.child, tuple(reversed(e.route))) for e in self.edges)
        return Tree(self.root, self.multiplicity, edges, reduce=not self.reduce)


@dataclass(frozen=True, slots=True)
class Forest:
    """Broadcast trees, reduce trees, or both, that a collective's pieces follow.

    Attributes:
        topology: the links that the routes name.
        broadcast: trees from roots to everyone (empty for ReduceScatter and Reduce).
        reduce: trees from everyone to roots (empty for AllGather and Broadcast).  For AllReduce the
            multiplicities of reduce and broadcast trees agree root by root.
    """

    topology: Topology
    broadcast: tuple[Tree, ...] = ()
    reduce: tuple[Tree, ...] = ()
