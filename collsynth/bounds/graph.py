"""The machine as bounds see it: links only, capacities divided by their greatest common divisor."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ..topology import Capability, Topology

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A directed graph whose only limits are links (`Topology.without_vertex_capacities`).

    Attributes:
        topology: the machine after vertex capacities became links; vertex and link ids below are its
            ids, and those of the original machine come first.
        nranks, nvertices: vertex r is rank r for r < nranks.
        tail, head: int64[nlinks].
        capacity: int64[nlinks] in multiples of `unit`, all > 0.
        unit: bytes/s of one capacity unit.
        reversed: whether links are turned around against `topology`.
    """

    topology: Topology
    nranks: int
    nvertices: int
    tail: IntArray
    head: IntArray
    capacity: IntArray
    unit: int
    reversed: bool = False

    @staticmethod
    def of(topology: Topology) -> Graph:
        """The graph of a machine.

        Raises:
            UnknownSpeedError: a bandwidth is not known.
        """
        topology.require_speeds()
        flat = topology.without_vertex_capacities()
        unit = int(np.gcd.reduce(flat.link_bandwidth)) if flat.nlinks else 1
        return Graph(
            topology=flat,
            nranks=flat.nranks,
            nvertices=len(flat.vertices),
            tail=flat.link_src,
            head=flat.link_dst,
            capacity=flat.link_bandwidth // unit,
            unit=unit,
        )

    def turned_around(self) -> Graph:
        """The same graph with every link reversed; link ids are kept."""
        return Graph(
            topology=self.topology,
            nranks=self.nranks,
            nvertices=self.nvertices,
            tail=self.head,
            head=self.tail,
            capacity=self.capacity,
            unit=self.unit,
            reversed=not self.reversed,
        )

    def mask(self, vertices: Iterable[int]) -> BoolArray:
        """bool[nvertices], true at `vertices`."""
        side = np.zeros(self.nvertices, dtype=bool)
        side[list(vertices)] = True
        return side

    def exit_links(self, side: BoolArray) -> IntArray:
        """Ids of the links that leave the vertices of `side`."""
        return np.flatnonzero(side[self.tail] & ~side[self.head]).astype(np.int64)

    def exit(self, side: BoolArray) -> int:
        """Capacity, in units, of the links that leave `side`."""
        return exact_sum(self.capacity[self.exit_links(side)])

    def ranks_in(self, side: BoolArray) -> list[int]:
        """The ranks inside `side`, ascending."""
        return [int(r) for r in np.flatnonzero(side[: self.nranks])]

    def bytes_per_second(self, capacity: int) -> int:
        """Bytes/s of a capacity in units."""
        return capacity * self.unit

    def seconds_per_byte(self, load: int | Fraction, capacity: int) -> Fraction:
        """Time to carry `load` payloads (a share of the payload) over `capacity` units."""
        return Fraction(load) / (capacity * self.unit)

    def can_copy_or_reduce(self) -> list[int]:
        """Ids of the vertices that are no ranks but copy or reduce what crosses them."""
        return [
            index
            for index, vertex in enumerate(self.topology.vertices)
            if vertex.rank is None and vertex.capability is not Capability.NONE
        ]


def exact_sum(values: IntArray) -> int:
    """The sum as a Python integer, exact also where int64 would wrap."""
    if len(values) == 0:
        return 0
    if int(values.max()) < (1 << 62) // len(values):
        return int(values.sum())
    return sum(int(v) for v in values)


def multicast_text(topology: Topology) -> str:
    """What the switches may do with data that crosses them, in words."""
    found: dict[Capability, int] = {}
    for vertex in topology.vertices:
        if vertex.rank is None and vertex.capability is not Capability.NONE:
            found[vertex.capability] = found.get(vertex.capability, 0) + 1
    words = {
        Capability.MULTICAST: "copy to several ports",
        Capability.REDUCE_TO_REQUESTER: "copy to several ports and reduce for the rank that asks (NVLS)",
        Capability.REDUCE_AND_MULTICAST: "reduce and copy the sum to several ports (SHARP)",
    }
    if not found:
        return "none"
    return "; ".join(f"{n} switch{'es' if n > 1 else ''} may {words[c]}" for c, n in sorted(found.items()))
