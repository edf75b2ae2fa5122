"""A schedule: which chunk crosses which route, in which order.

Rows are columns of one table; a row moves one chunk from one rank to another along a route of
links.  Its meaning depends on `reduce`: a copy overwrites what the receiver has of the chunk, a
reduction adds the sender's partial sum to the receiver's.

Order.  Rows carry a start level.  A row that sends chunk c from rank u starts after every row of a
lower level that brings c to u (all of them: a partial sum is sent when its terms have arrived).
Rows that cross the same link do so in (level, row) order.  Levels are not barriers.

Orbit form.  `generators` name permutations under which the full set of rows is closed; the rows
held are then one representative of each orbit, and `expand()` writes them all out.  An explicit
schedule has no generators.

A wrong schedule can be held, inspected and printed; only `collsynth.verifier` says that it is right.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .collective import Collective
from .errors import InputError
from .topology import Topology

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Transfer:
    """The typed view of one row; `route` are link ids in order from src to dst."""

    chunk: int
    src: int
    dst: int
    reduce: bool
    level: int
    route: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class SymmetryElement:
    """One generator: a permutation of vertices with the permutation of chunks that goes with it."""

    vertices: IntArray
    chunks: IntArray


@dataclass(frozen=True, eq=False)
class Schedule:
    """Transfers for one collective on one topology.

    Attributes:
        topology, collective: what the rows refer to.
        chunk, src, dst: int64[nrows]; src and dst are ranks.
        reduce: bool[nrows], add (True) or overwrite (False).
        level: int64[nrows] start level, 0 or more.
        route_ptr, route_links: CSR of link ids, `route_links[route_ptr[i]:route_ptr[i+1]]` is row i's.
        generators: of the group that makes all rows out of these (empty: the rows are all).
        method: the engine or algorithm that made it, for people.
        group: int64[nrows] or None; rows with the same non-negative number are one multicast (or,
            when reducing, one in-network reduction) at a switch that can; -1 is a plain row.
        epoch: int64[nrows] or None; link-set epoch in which the row runs.

    Raises:
        InputError: columns differ in length or an id is out of range.
    """

    topology: Topology
    collective: Collective
    chunk: IntArray
    src: IntArray
    dst: IntArray
    reduce: NDArray[np.bool_]
    level: IntArray
    route_ptr: IntArray
    route_links: IntArray
    generators: tuple[SymmetryElement, ...] = ()
    method: str = ""
    group: IntArray | None = None
    epoch: IntArray | None = None

    def __post_init__(self) -> None:
        where = f"schedule {self.method or 'without a name'}"
        n = self.nrows
        for label in ("chunk", "src", "dst", "reduce", "level", "group", "epoch"):
            column = getattr(self, label)
            if column is None:
                continue
            if len(column) != n:
                raise InputError(f"column {label} has {len(column)} rows", where=where, expected=str(n))
            column.setflags(write=False)
        if len(self.route_ptr) != n + 1 or (n and (np.diff(self.route_ptr) < 0).any()) or self.route_ptr[0] != 0:
            raise InputError("routes do not fit the rows", where=where)
        if len(self.route_links) != self.route_ptr[-1]:
            raise InputError("route links do not fit the routes", where=where)
        limits = (
            ("chunk", self.chunk, self.collective.nchunks),
            ("src", self.src, self.topology.nranks),
            ("dst", self.dst, self.topology.nranks),
            ("route", self.route_links, self.topology.nlinks),
        )
        for label, column, limit in limits:
            if len(column) and (column.min() < 0 or column.max() >= limit):
                raise InputError(f"a {label} is out of range", where=where, expected=f"0..{limit - 1}")
        if n and self.level.min() < 0:
            raise InputError("a level is negative", where=where)
        if self.collective.nranks != self.topology.nranks:
            raise InputError(
                f"the collective has {self.collective.nranks} ranks, the topology {self.topology.nranks}", where=where
            )
        self.route_ptr.setflags(write=False)
        self.route_links.setflags(write=False)

    @staticmethod
    def build(topology: Topology, collective: Collective, rows: Iterable[Transfer], *, method: str = "") -> Schedule:
        """An explicit schedule from typed rows, sorted by (level, given order)."""
        ordered = sorted(rows, key=lambda row: row.level)
        lengths = [len(row.route) for row in ordered]
        return Schedule(
            topology,
            collective,
            chunk=np.array([row.chunk for row in ordered], dtype=np.int64),
            src=np.array([row.src for row in ordered], dtype=np.int64),
            dst=np.array([row.dst for row in ordered], dtype=np.int64),
            reduce=np.array([row.reduce for row in ordered], dtype=bool),
            level=np.array([row.level for row in ordered], dtype=np.int64),
            route_ptr=np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
            route_links=np.array([link for row in ordered for link in row.route], dtype=np.int64),
            method=method,
        )

    @property
    def nrows(self) -> int:
        """Number of rows held (base rows in orbit form)."""
        return len(self.chunk)

    def row(self, index: int) -> Transfer:
        """The typed view of row `index`."""
        return Transfer(
            chunk=int(self.chunk[index]),
            src=int(self.src[index]),
            dst=int(self.dst[index]),
            reduce=bool(self.reduce[index]),
            level=int(self.level[index]),
            route=tuple(int(x) for x in self.route_links[self.route_ptr[index] : self.route_ptr[index + 1]]),
        )

    def rows(self) -> list[Transfer]:
        """All rows as typed views."""
        return [self.row(i) for i in range(self.nrows)]

    def order(self) -> IntArray:
        """Row indices in (level, row) order: the order in which links serve them."""
        return np.argsort(self.level, kind="stable").astype(np.int64)

    def content_hash(self) -> str:
        """SHA-256 of topology, collective and all columns; `verify`'s stamp is keyed by it."""
        digest = hashlib.sha256((self.topology.content_hash() + self.collective.content_hash()).encode())
        for column in (self.chunk, self.src, self.dst, self.reduce, self.level, self.route_ptr, self.route_links,
                       self.group, self.epoch):  # fmt: skip
            digest.update(b"-" if column is None else np.ascontiguousarray(column).tobytes())
        for generator in self.generators:
            digest.update(generator.vertices.tobytes() + generator.chunks.tobytes())
        return digest.hexdigest()

    def expand(self) -> Schedule:
        """The explicit schedule: every image of every base row under the generated group, each once.

        Raises:
            InputError: a generator does not map a route onto links, or maps one row onto another
                held row (the group must act freely on the rows).
        """
        if not self.generators:
            return self
        elements = _group_elements(self.generators)
        link_of = {
            (int(s), int(d)): i
            for i, (s, d) in enumerate(zip(self.topology.link_src, self.topology.link_dst, strict=True))
        }
        endpoints = np.stack((self.topology.link_src, self.topology.link_dst), axis=1)
        parts: dict[str, list[NDArray[np.int64]]] = {"chunk": [], "src": [], "dst": [], "links": []}
        for element in elements:
            parts["chunk"].append(element.chunks[self.chunk])
            parts["src"].append(element.vertices[self.src])
            parts["dst"].append(element.vertices[self.dst])
            link_map = np.full(self.topology.nlinks, -1, dtype=np.int64)
            for used in np.unique(self.route_links):
                image = element.vertices[endpoints[used]]
                found = link_of.get((int(image[0]), int(image[1])))
                if found is None:
                    raise InputError(f"a generator maps {self.topology.link_name(int(used))} onto no link")
                link_map[used] = found
            parts["links"].append(link_map[self.route_links])
        copies = len(elements)
        lengths = np.tile(np.diff(self.route_ptr), copies)
        full = Schedule(
            self.topology,
            self.collective,
            chunk=np.concatenate(parts["chunk"]),
            src=np.concatenate(parts["src"]),
            dst=np.concatenate(parts["dst"]),
            reduce=np.tile(self.reduce, copies),
            level=np.tile(self.level, copies),
            route_ptr=np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
            route_links=np.concatenate(parts["links"]),
            method=self.method,
            epoch=None if self.epoch is None else np.tile(self.epoch, copies),
        )
        keys = np.stack((full.chunk, full.src, full.dst, full.level, full.reduce.astype(np.int64)), axis=1)
        if len(np.unique(keys, axis=0)) != len(keys):
            raise InputError("two elements of the symmetry group give the same row", expected="a free action")
        return full


def _group_elements(generators: Sequence[SymmetryElement]) -> list[SymmetryElement]:
    """All elements of the generated group, identity first (breadth first over products)."""
    identity = SymmetryElement(
        np.arange(len(generators[0].vertices), dtype=np.int64), np.arange(len(generators[0].chunks), dtype=np.int64)
    )
    seen = {identity.vertices.tobytes() + identity.chunks.tobytes()}
    elements = [identity]
    for element in elements:
        for generator in generators:
            product = SymmetryElement(generator.vertices[element.vertices], generator.chunks[element.chunks])
            key = product.vertices.tobytes() + product.chunks.tobytes()
            if key not in seen:
                seen.add(key)
                elements.append(product)
    return elements
