"""Proof of a schedule in orbit form without writing its rows out.

The rows held are one of each orbit under the group that the generators make.  When the group commutes, keeps
links with their figures, vertices with theirs, and what the collective asks, and when no element but the identity
fixes a chunk, then every orbit of chunks looks alike: all rows of one chunk of each orbit are found by moving each
row held so that its chunk becomes that one, and what holds for that chunk holds for all.  So nranks rows stand for
nranks squared.  Where one of these does not hold, the schedule is written out and proven row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..collective import Collective, RankSets
from ..schedule import Schedule
from ..topology import Topology

IntArray = NDArray[np.int64]

#: Rows that a schedule outside of this routine's reach may have when it is written out.
MAX_EXPANDED_ROWS = 1 << 26


class Powers:
    """A permutation's powers of two, by which any power is applied to many points at once."""

    def __init__(self, permutation: IntArray, highest: int) -> None:
        self.tables = [permutation]
        while highest >> len(self.tables):
            self.tables.append(self.tables[-1][self.tables[-1]])

    def apply(self, exponents: IntArray, points: IntArray) -> IntArray:
        """points[i] moved exponents[i] times."""
        moved = points.copy()
        for bit, table in enumerate(self.tables):
            here = (exponents >> bit) & 1 == 1
            moved[here] = table[moved[here]]
        return moved


@dataclass(frozen=True, slots=True)
class Orbits:
    """Orbits of points under commuting permutations.

    Attributes:
        root: int64[npoints], the first point of each point's orbit.
        exponents: int64[ngenerators, npoints]: root moved by so many of each generator is the point.
    """

    root: IntArray
    exponents: IntArray

    @staticmethod
    def of(permutations: Sequence[IntArray]) -> Orbits:
        """Breadth first from the lowest point of each orbit."""
        npoints, count = len(permutations[0]), len(permutations)
        images = [permutation.tolist() for permutation in permutations]
        root = [-1] * npoints
        exponents = [[0] * npoints for _ in range(count)]
        for first in range(npoints):
            if root[first] >= 0:
                continue
            root[first] = first
            reached = [first]
            for point in reached:
                for number, image in enumerate(images):
                    other = image[point]
                    if root[other] < 0:
                        root[other] = first
                        for which in range(count):
                            exponents[which][other] = exponents[which][point]
                        exponents[number][other] += 1
                        reached.append(other)
        return Orbits(np.array(root, dtype=np.int64), np.array(exponents, dtype=np.int64).reshape(count, npoints))


def link_permutation(topology: Topology, vertices: IntArray) -> IntArray | None:
    """Where a permutation of vertices takes each link, or None when it does not keep links with their figures.

    Parallel links keep their order among equals (by figures, then by number), so that maps of links compose as
    those of vertices do.
    """
    figures = (topology.link_bandwidth, topology.link_latency, topology.link_overhead, topology.link_count)
    src, dst = topology.link_src, topology.link_dst
    before = np.lexsort((np.arange(len(src)), *figures, dst, src))
    after = np.lexsort((np.arange(len(src)), *figures, vertices[dst], vertices[src]))
    same = (src[before] == vertices[src[after]]).all() and (dst[before] == vertices[dst[after]]).all()
    if not same or any((column[before] != column[after]).any() for column in figures):
        return None
    image = np.empty(len(src), dtype=np.int64)
    image[after] = before
    return image


def _is_permutation(column: IntArray, length: int) -> bool:
    if len(column) != length or (length and (column.min() < 0 or column.max() >= length)):
        return False
    return len(np.unique(column)) == length


def _keeps_vertices(topology: Topology, vertices: IntArray) -> bool:
    if (vertices[: topology.nranks] >= topology.nranks).any():
        return False
    kinds: dict[tuple[object, ...], int] = {}
    label = np.array(
        [
            kinds.setdefault((v.kind, v.capability, v.in_capacity, v.out_capacity, v.total_capacity), len(kinds))
            for v in topology.vertices
        ]
    )
    return bool((label == label[vertices]).all())


def _keeps_sets(sets: RankSets, vertices: IntArray, chunks: IntArray) -> bool:
    if sets.ptr is None:
        return True
    chunk = np.repeat(np.arange(sets.nchunks), np.diff(sets.ptr))
    keys = chunk * sets.nranks + sets.ranks
    return np.array_equal(np.sort(keys), np.sort(chunks[chunk] * sets.nranks + vertices[sets.ranks]))


@dataclass(frozen=True, slots=True)
class Symmetry:
    """A commuting group that acts freely on the chunks of a schedule.

    Attributes:
        links, vertices: the generators' permutations.  chunks: orbits of chunks.
        order: elements of the group.
    """

    vertices: list[IntArray]
    links: list[IntArray]
    chunks: Orbits
    order: int

    @staticmethod
    def of(schedule: Schedule) -> Symmetry | None:
        """The symmetry that a schedule's generators declare, or None where it cannot be used."""
        topology, collective = schedule.topology, schedule.collective
        vertices = [np.asarray(g.vertices, dtype=np.int64) for g in schedule.generators]
        chunks = [np.asarray(g.chunks, dtype=np.int64) for g in schedule.generators]
        links = []
        for moved, renamed in zip(vertices, chunks, strict=True):
            if not (
                _is_permutation(moved, len(topology.vertices)) and _is_permutation(renamed, collective.nchunks)
                and _keeps_vertices(topology, moved)
                and (collective.weight == collective.weight[renamed]).all()
                and _keeps_sets(collective.sources, moved, renamed)
                and _keeps_sets(collective.destinations, moved, renamed)
            ):  # fmt: skip
                return None
            image = link_permutation(topology, moved)
            if image is None:
                return None
            links.append(image)
        points = [np.concatenate((r, m + collective.nchunks)) for r, m in zip(chunks, vertices, strict=True)]
        for number, one in enumerate(points):
            if any((one[two] != two[one]).any() for two in points[:number]):
                return None
        every = Orbits.of(points)
        free = _order_if_free(points, every, collective.nchunks)
        if free is None:
            return None
        of_chunks = Orbits(every.root[: collective.nchunks], every.exponents[:, : collective.nchunks])
        return Symmetry(vertices, links, of_chunks, free)


def _order_if_free(points: list[IntArray], every: Orbits, nchunks: int) -> int | None:
    """The order of the group if it acts freely on chunks (points below nchunks), else None.

    An element that fixes a chunk fixes, because the group commutes, the chunk's whole orbit.  It fixes another
    orbit iff moving both orbits' roots along is a map from the first onto the second.
    """
    sizes = np.bincount(every.root, minlength=len(every.root))
    order = int(sizes[0])
    if not nchunks or (sizes[every.root[:nchunks]] != order).any():
        return None
    first = np.flatnonzero(every.root == 0)
    place = np.full(len(every.root), -1, dtype=np.int64)
    place[first] = np.arange(len(first))
    powers = [Powers(p, int(e.max(initial=0))) for p, e in zip(points, every.exponents, strict=True)]
    for root in np.unique(every.root).tolist():
        image = np.full(len(first), root, dtype=np.int64)
        for power, exponents in zip(powers, every.exponents, strict=True):
            image = power.apply(exponents[first], image)
        if any((permutation[image] != image[place[permutation[first]]]).any() for permutation in points):
            return None
    return order


def representative(schedule: Schedule, symmetry: Symmetry) -> Schedule:
    """All rows of the first chunk of each orbit, on the collective cut down to these chunks (in order of number).

    Rows that are held twice, or are images of each other, come twice.
    """
    exponents = symmetry.chunks.exponents[:, schedule.chunk]
    src, dst, links = schedule.src, schedule.dst, schedule.route_links
    lengths = np.diff(schedule.route_ptr)
    for moved, routed, times in zip(symmetry.vertices, symmetry.links, exponents, strict=True):
        highest = int(times.max(initial=0))
        back = Powers(np.argsort(moved), highest)
        src, dst = back.apply(times, src), back.apply(times, dst)
        links = Powers(np.argsort(routed), highest).apply(np.repeat(times, lengths), links)
    roots, chunk = np.unique(symmetry.chunks.root, return_inverse=True)
    return Schedule(
        schedule.topology, _cut_down(schedule.collective, roots), chunk[schedule.chunk], src, dst,
        schedule.reduce.copy(), schedule.level.copy(), schedule.route_ptr.copy(), links, method=schedule.method,
    )  # fmt: skip


def _cut_down(collective: Collective, chunks: IntArray) -> Collective:
    """The collective with these chunks only (for proofs: buffers are as before)."""

    def some(sets: RankSets) -> RankSets:
        if sets.ptr is None:
            return RankSets.everyone(len(chunks), sets.nranks)
        lengths = np.diff(sets.ptr)[chunks]
        ends = np.cumsum(lengths)
        inside = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - lengths, lengths)
        ptr = np.concatenate(([0], ends)).astype(np.int64)
        return RankSets(len(chunks), sets.nranks, ptr, sets.ranks[np.repeat(sets.ptr[chunks], lengths) + inside])

    return Collective(
        collective.name, collective.nranks, collective.root, collective.combining, collective.weight[chunks],
        collective.payload_units, some(collective.sources), some(collective.destinations), collective.owner[chunks],
        collective.input_offset[chunks], collective.output_offset[chunks], collective.input_units.copy(),
        collective.output_units.copy(),
    )  # fmt: skip


def same_rows(schedule: Schedule) -> IntArray:
    """Rows that repeat an earlier one (same chunk, ends, level and kind)."""
    columns = (schedule.reduce, schedule.level, schedule.dst, schedule.src, schedule.chunk)
    order = np.lexsort(columns)
    again = np.ones(max(0, len(order) - 1), dtype=bool)
    for column in columns:
        again &= column[order[1:]] == column[order[:-1]]
    return order[1:][again]


def link_units(schedule: Schedule) -> IntArray:
    """Units that each link carries in all rows, without writing them out.

    A link carries, over the group, what the rows held put on its orbit, shared equally among the orbit's links.

    Returns:
        int64[nlinks].
    """
    weight = np.repeat(schedule.collective.weight[schedule.chunk], np.diff(schedule.route_ptr))
    held = np.zeros(schedule.topology.nlinks, dtype=np.int64)
    symmetry = Symmetry.of(schedule) if schedule.generators else None
    if symmetry is None:
        full = schedule.expand()
        weight = np.repeat(full.collective.weight[full.chunk], np.diff(full.route_ptr))
        np.add.at(held, full.route_links, weight)
        return held
    np.add.at(held, schedule.route_links, weight)
    root = Orbits.of(symmetry.links).root
    onto = np.bincount(root, weights=held, minlength=len(held)).astype(np.int64)
    size = np.bincount(root, minlength=len(held))
    return (onto[root] * symmetry.order) // size[root]
