"""The machine: one directed graph of ranks, switches, NICs and links.

A `Topology` is a value: operations return new topologies.  Ranks come first: vertex `r` is rank `r`
for `0 <= r < nranks`; every other vertex (switch, NIC, PCIe switch, host memory, a GPU that only
relays) follows.  Links are held as columns, so that a topology of 10^5 links stays small and quick;
`Topology.link(i)` is the typed view of one.

Bandwidths are bytes per second in one direction, times are picoseconds.  A bandwidth of 0 in the
column means "not known" (see `Topology.unknown_speeds`); it is `None` in the views.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from .errors import InputError, UnknownSpeedError

IntArray = NDArray[np.int64]


class VertexKind(StrEnum):
    """What a vertex is made of."""

    GPU = "gpu"
    SWITCH = "switch"
    NIC = "nic"
    PCIE_SWITCH = "pcie_switch"
    HOST = "host"


class Capability(StrEnum):
    """What a vertex that is no rank can do with the data that crosses it (architecture: switches)."""

    NONE = "none"
    MULTICAST = "multicast"
    REDUCE_TO_REQUESTER = "reduce_to_requester"
    REDUCE_AND_MULTICAST = "reduce_and_multicast"


class LinkState(StrEnum):
    """How sure we are of a link: `degraded` is slower than built, `assumed` was not in the input."""

    OK = "ok"
    DEGRADED = "degraded"
    ASSUMED = "assumed"


@dataclass(frozen=True, slots=True)
class Vertex:
    """A rank or a device that forwards.

    Attributes:
        name: unique in the topology, e.g. `node1/gpu:3`, `nvswitch:0`, `rail:2`.
        kind: what it is made of.
        rank: the rank that lives here, None for a vertex that only forwards.
        node: index of the host machine, None when outside every node (a network switch).
        rail: rail number of a NIC or rail switch, or of the rail that a GPU uses; None otherwise.
        in_capacity, out_capacity, total_capacity: bytes/s that may enter, leave, or cross (in + out
            counted once each) the vertex, None when only its links limit it.
        capability: what the vertex can do with crossing data.
    """

    name: str
    kind: VertexKind = VertexKind.GPU
    rank: int | None = None
    node: int | None = None
    rail: int | None = None
    in_capacity: int | None = None
    out_capacity: int | None = None
    total_capacity: int | None = None
    capability: Capability = Capability.NONE


@dataclass(frozen=True, slots=True)
class Link:
    """One directed link, or a bundle of `count` parallel ones.

    Attributes:
        src, dst: vertex ids.
        bandwidth: bytes/s of the whole bundle, None when not known.
        latency: propagation in picoseconds; does not occupy the link.
        overhead: picoseconds that each message occupies the link beyond its bytes.
        count: parallel links in the bundle.
        kind: `nvlink`, `xgmi`, `pcie`, `ib`, `socket`, `link` ...
        provenance: where the figures come from (file:line, table row, built-in name).
        state: ok, degraded or assumed.
    """

    src: int
    dst: int
    bandwidth: int | None
    latency: int = 0
    overhead: int = 0
    count: int = 1
    kind: str = "link"
    provenance: str = ""
    state: LinkState = LinkState.OK


def _column(values: Iterable[int]) -> IntArray:
    array = np.array(list(values), dtype=np.int64)
    array.setflags(write=False)
    return array


@dataclass(frozen=True, eq=False)
class Topology:
    """A directed graph of ranks and forwarding vertices.

    Attributes:
        name: for people and file names.
        vertices: ranks first (vertex id == rank), then the rest.
        link_src, link_dst: int64 columns of vertex ids.
        link_bandwidth: int64 bytes/s (0: not known); link_latency, link_overhead: int64 ps;
            link_count: int64.
        link_kind, link_provenance, link_state: tuples aligned with the columns.
        symmetry: declared automorphisms, each an int64 permutation of vertex ids, checked at
            construction to map links onto equal links and ranks onto ranks.
        assumptions: what was assumed while reading; warnings: what looks odd.

    Raises:
        InputError: an id is out of range, a number is negative, a link is a self loop, names repeat,
            or a declared symmetry does not map links to links.
    """

    name: str
    vertices: tuple[Vertex, ...]
    link_src: IntArray
    link_dst: IntArray
    link_bandwidth: IntArray
    link_latency: IntArray
    link_overhead: IntArray
    link_count: IntArray
    link_kind: tuple[str, ...]
    link_provenance: tuple[str, ...]
    link_state: tuple[LinkState, ...]
    symmetry: tuple[IntArray, ...] = ()
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    nranks: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "nranks", sum(v.rank is not None for v in self.vertices))
        self._check_vertices()
        self._check_links()
        for generator in self.symmetry:
            generator.setflags(write=False)
            self._check_symmetry(generator)

    @staticmethod
    def build(
        name: str,
        vertices: Sequence[Vertex],
        links: Iterable[Link],
        *,
        symmetry: Iterable[Sequence[int]] = (),
        assumptions: Iterable[str] = (),
        warnings: Iterable[str] = (),
    ) -> Topology:
        """A topology from typed rows (columns are made here)."""
        rows = list(links)
        return Topology(
            name=name,
            vertices=tuple(vertices),
            link_src=_column(row.src for row in rows),
            link_dst=_column(row.dst for row in rows),
            link_bandwidth=_column(0 if row.bandwidth is None else row.bandwidth for row in rows),
            link_latency=_column(row.latency for row in rows),
            link_overhead=_column(row.overhead for row in rows),
            link_count=_column(row.count for row in rows),
            link_kind=tuple(row.kind for row in rows),
            link_provenance=tuple(row.provenance for row in rows),
            link_state=tuple(row.state for row in rows),
            symmetry=tuple(_column(g) for g in symmetry),
            assumptions=tuple(assumptions),
            warnings=tuple(warnings),
        )

    # --- checks at construction -------------------------------------------------------------

    def _check_vertices(self) -> None:
        names: set[str] = set()
        for index, vertex in enumerate(self.vertices):
            where = f"topology {self.name}, vertex {vertex.name}"
            if vertex.name in names:
                raise InputError("two vertices have this name", where=where, expected="unique names")
            names.add(vertex.name)
            if vertex.rank != (index if index < self.nranks else None):
                raise InputError(
                    f"vertex {index} carries rank {vertex.rank}", where=where, expected="ranks 0..n-1 first, in order"
                )
            for label in ("in_capacity", "out_capacity", "total_capacity"):
                capacity = getattr(vertex, label)
                if capacity is not None and capacity <= 0:
                    raise InputError(f"{label} {capacity} is not positive", where=where)
        if self.nranks == 0:
            raise InputError("there are no ranks", where=f"topology {self.name}", expected="at least one GPU")

    def _check_links(self) -> None:
        where = f"topology {self.name}"
        nlinks = len(self.link_src)
        columns = (self.link_dst, self.link_bandwidth, self.link_latency, self.link_overhead, self.link_count)
        if any(len(c) != nlinks for c in columns) or any(
            len(t) != nlinks for t in (self.link_kind, self.link_provenance, self.link_state)
        ):
            raise InputError("link columns differ in length", where=where)
        for column in (self.link_src, *columns):
            column.setflags(write=False)
        for column in (self.link_src, self.link_dst):
            if nlinks and (column.min() < 0 or column.max() >= len(self.vertices)):
                raise InputError("a link names a vertex that does not exist", where=where)
        loops = np.flatnonzero(self.link_src == self.link_dst)
        if len(loops):
            vertex = self.vertices[int(self.link_src[loops[0]])].name
            raise InputError(f"{vertex} has a link to itself", where=where, expected="links between two vertices")
        negative = (self.link_bandwidth < 0) | (self.link_latency < 0) | (self.link_overhead < 0)
        if negative.any() or (self.link_count < 1).any():
            index = int(np.flatnonzero(negative | (self.link_count < 1))[0])
            raise InputError(f"{self.link_name(index)} has a negative number", where=where)

    def _check_symmetry(self, generator: IntArray) -> None:
        where = f"topology {self.name}, symmetry"
        nvertices = len(self.vertices)
        if len(generator) != nvertices or not np.array_equal(np.sort(generator), np.arange(nvertices)):
            raise InputError("a declared symmetry is not a permutation of the vertices", where=where)
        if (generator[: self.nranks] >= self.nranks).any():
            raise InputError("a declared symmetry maps a rank to no rank", where=where)
        figures = (self.link_bandwidth, self.link_latency, self.link_overhead, self.link_count)

        def sorted_rows(src: IntArray, dst: IntArray) -> NDArray[np.int64]:
            rows = np.stack((src, dst, *figures), axis=1)
            return rows[np.lexsort(rows.T[::-1])]

        if not np.array_equal(
            sorted_rows(self.link_src, self.link_dst), sorted_rows(generator[self.link_src], generator[self.link_dst])
        ):
            raise InputError("a declared symmetry does not map links onto equal links", where=where)
        for index, vertex in enumerate(self.vertices):
            image = self.vertices[int(generator[index])]
            if (vertex.kind, vertex.capability, vertex.in_capacity, vertex.out_capacity, vertex.total_capacity) != (
                image.kind, image.capability, image.in_capacity, image.out_capacity, image.total_capacity,
            ):  # fmt: skip
                raise InputError(f"a declared symmetry maps {vertex.name} to the unlike {image.name}", where=where)

    # --- views --------------------------------------------------------------------------------

    @property
    def nlinks(self) -> int:
        """Number of directed links (bundles)."""
        return len(self.link_src)

    @property
    def nnodes(self) -> int:
        """Number of host machines that hold a rank (1 when nothing is said)."""
        return len({v.node for v in self.vertices[: self.nranks]})

    def link(self, index: int) -> Link:
        """The typed view of link `index`."""
        bandwidth = int(self.link_bandwidth[index])
        return Link(
            src=int(self.link_src[index]),
            dst=int(self.link_dst[index]),
            bandwidth=bandwidth or None,
            latency=int(self.link_latency[index]),
            overhead=int(self.link_overhead[index]),
            count=int(self.link_count[index]),
            kind=self.link_kind[index],
            provenance=self.link_provenance[index],
            state=self.link_state[index],
        )

    def links(self) -> list[Link]:
        """All links as typed views, in id order."""
        return [self.link(i) for i in range(self.nlinks)]

    def link_name(self, index: int) -> str:
        """`src->dst` by vertex names."""
        return f"{self.vertices[int(self.link_src[index])].name}->{self.vertices[int(self.link_dst[index])].name}"

    def vertex_id(self, name: str) -> int:
        """The id of the vertex called `name`.

        Raises:
            InputError: there is none.
        """
        for index, vertex in enumerate(self.vertices):
            if vertex.name == name:
                return index
        raise InputError(f"no vertex {name!r} in topology {self.name}")

    def unknown_speeds(self) -> list[int]:
        """Ids of the links whose bandwidth is not known."""
        return [int(i) for i in np.flatnonzero(self.link_bandwidth == 0)]

    def require_speeds(self) -> None:
        """Do nothing if every bandwidth is known.

        Raises:
            UnknownSpeedError: lists the links without a bandwidth.
        """
        unknown = self.unknown_speeds()
        if unknown:
            names = [self.link_name(i) for i in unknown]
            listed = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
            raise UnknownSpeedError(
                f"the bandwidth of {len(unknown)} links is not known: {listed}",
                where=f"topology {self.name}",
                hint="--gpu-model (for example --gpu-model H100-SXM) for a matrix, a bandwidth for each link in a file",
            )

    def content_hash(self) -> str:
        """SHA-256 of everything that a schedule can depend on (names and notes excluded)."""
        digest = hashlib.sha256()
        for column in (
            self.link_src, self.link_dst, self.link_bandwidth, self.link_latency, self.link_overhead, self.link_count,
        ):  # fmt: skip
            digest.update(np.ascontiguousarray(column).tobytes())
        for v in self.vertices:
            digest.update(
                repr((v.kind.value, v.rank, v.node, v.in_capacity, v.out_capacity, v.total_capacity,
                      v.capability.value)).encode()
            )  # fmt: skip
        return digest.hexdigest()

    # --- operations ---------------------------------------------------------------------------

    def reverse(self) -> Topology:
        """The same machine with every link, and every vertex's in- and out-capacity, turned around.

        Link ids are kept: link i of the result is link i turned around.
        """
        vertices = tuple(replace(v, in_capacity=v.out_capacity, out_capacity=v.in_capacity) for v in self.vertices)
        return replace_topology(self, vertices=vertices, link_src=self.link_dst, link_dst=self.link_src)

    def without_vertex_capacities(self) -> Topology:
        """An equivalent machine whose only limits are links.

        A vertex with a capacity gets an internal link: `v.in -> v` carries what enters (in_capacity),
        `v -> v.out` what leaves (out_capacity).  A switch's `total_capacity` c allows c/2 to cross it; a
        rank's allows c in and c out (an outer estimate: in and out together are not limited).  Links keep
        their ids (internal ones follow, see `nlinks` of the original), vertices keep theirs.
        """
        vertices = [replace(v, in_capacity=None, out_capacity=None, total_capacity=None) for v in self.vertices]
        links = self.links()
        internal: list[Link] = []
        for index, vertex in enumerate(self.vertices):
            crossing = vertex.total_capacity
            if crossing is not None and vertex.rank is None:
                crossing = max(1, crossing // 2)
            limits = {
                side: min((c for c in (own, crossing) if c is not None), default=None)
                for side, own in (("in", vertex.in_capacity), ("out", vertex.out_capacity))
            }
            for side, limit in limits.items():
                if limit is None:
                    continue
                gate = len(vertices)
                vertices.append(Vertex(f"{vertex.name}.{side}", vertex.kind, node=vertex.node, rail=vertex.rail))
                links = [
                    replace(k, dst=gate)
                    if side == "in" and k.dst == index
                    else replace(k, src=gate)
                    if side == "out" and k.src == index
                    else k
                    for k in links
                ]
                ends = (gate, index) if side == "in" else (index, gate)
                internal.append(Link(*ends, limit, kind="internal", provenance=f"{side} capacity of {vertex.name}"))
        if not internal:
            return self
        return Topology.build(
            self.name, vertices, [*links, *internal], assumptions=self.assumptions, warnings=self.warnings
        )

    def capacity_groups(self) -> list[tuple[int, IntArray]]:
        """Everything that is shared: (bytes/s, link ids that use it), links first in id order, then vertices.

        A vertex's in-capacity is used by the links that enter it, its out-capacity by those that leave,
        its total capacity by both.
        """
        groups: list[tuple[int, IntArray]] = [
            (int(b), np.array([i], dtype=np.int64)) for i, b in enumerate(self.link_bandwidth)
        ]
        for index, vertex in enumerate(self.vertices):
            entering = np.flatnonzero(self.link_dst == index).astype(np.int64)
            leaving = np.flatnonzero(self.link_src == index).astype(np.int64)
            for capacity, members in (
                (vertex.in_capacity, entering),
                (vertex.out_capacity, leaving),
                (vertex.total_capacity, np.concatenate((entering, leaving))),
            ):
                if capacity is not None:
                    groups.append((capacity, members))
        return groups

    def subset(self, ranks: Sequence[int], *, relay: bool = False) -> Topology:
        """The machine as a communicator of `ranks` sees it; new rank i is `ranks[i]`.

        Args:
            ranks: distinct ranks of this topology, in their new order.
            relay: keep the other ranks' devices as vertices that forward (but are no ranks).

        Raises:
            InputError: a rank is out of range or repeated, or the list is empty.
        """
        where = f"ranks of {self.name}"
        if not ranks:
            raise InputError("the list of ranks is empty", where=where)
        for rank in ranks:
            if not 0 <= rank < self.nranks:
                raise InputError(f"rank {rank} is out of range", where=where, expected=f"0..{self.nranks - 1}")
        if len(set(ranks)) != len(ranks):
            twice = next(rank for rank in ranks if list(ranks).count(rank) > 1)
            raise InputError(f"rank {twice} is named twice", where=where, expected="different ranks")
        outsiders = [r for r in range(self.nranks) if r not in set(ranks)]
        kept = [*ranks, *(outsiders if relay else ()), *range(self.nranks, len(self.vertices))]
        new_id = {old: new for new, old in enumerate(kept)}
        vertices = [replace(self.vertices[old], rank=new if new < len(ranks) else None) for new, old in enumerate(kept)]
        links = [
            replace(link, src=new_id[link.src], dst=new_id[link.dst])
            for link in self.links()
            if link.src in new_id and link.dst in new_id
        ]
        listed = ",".join(map(str, ranks))
        note = f"only ranks {listed} take part" + (
            "; the other GPUs relay" if relay and outsiders else "; the other GPUs carry nothing" if outsiders else ""
        )
        return Topology.build(
            f"{self.name}[{listed}]",
            vertices,
            links,
            assumptions=(*self.assumptions, note),
            warnings=self.warnings,
        )


def replace_topology(topology: Topology, **changes: object) -> Topology:
    """`dataclasses.replace` for topologies; declared symmetry is dropped unless it is given anew."""
    changes.setdefault("symmetry", ())
    return replace(topology, **changes)  # type: ignore[arg-type]
