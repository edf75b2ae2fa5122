"""Regular graphs: ring, torus, mesh, hypercube, complete graph, one switch.

All links are 50 GB/s per direction with 0.5 us unless the name says otherwise, the defaults of TACOS
(https://github.com/astra-sim/tacos, there 50 GiB/s), so that figures can be put side by side.
"""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.typing import NDArray

from collsynth.errors import InputError
from collsynth.parameters import Bandwidth, Count, Shape, Time, check_extent
from collsynth.topology import LinkState, Topology, Vertex, VertexKind
from collsynth.units import gigabytes_per_second, microseconds

LINK_BANDWIDTH = 50 * 10**9
LINK_LATENCY = 500_000

IntArray = NDArray[np.int64]


def _machine(
    name: str,
    nranks: int,
    pairs: list[tuple[IntArray, IntArray]],
    bandwidth: int,
    latency: int,
    *,
    extra: tuple[Vertex, ...] = (),
    symmetry: tuple[IntArray, ...] = (),
    provenance: str,
) -> Topology:
    """Ranks `gpu:0..` (and `extra` vertices) with equal links between `pairs`, columns made in one go."""
    vertices = (*(Vertex(f"gpu:{r}", rank=r, node=0) for r in range(nranks)), *extra)
    empty = np.zeros(0, dtype=np.int64)
    src = np.concatenate([empty, *(p[0] for p in pairs)]).astype(np.int64)
    dst = np.concatenate([empty, *(p[1] for p in pairs)]).astype(np.int64)
    order = np.lexsort((dst, src))
    src, dst = src[order], dst[order]
    nlinks = len(src)
    return Topology(
        name=name,
        vertices=vertices,
        link_src=src,
        link_dst=dst,
        link_bandwidth=np.full(nlinks, bandwidth, dtype=np.int64),
        link_latency=np.full(nlinks, latency, dtype=np.int64),
        link_overhead=np.zeros(nlinks, dtype=np.int64),
        link_count=np.ones(nlinks, dtype=np.int64),
        link_kind=("link",) * nlinks,
        link_provenance=(provenance,) * nlinks,
        link_state=(LinkState.OK,) * nlinks,
        symmetry=symmetry,
    )


def _full_name(kind: str, extent: str, bw: int, lat: int) -> str:
    """The name that gives this machine again; checks the figures on the way."""
    name = f"{kind}:{extent}"
    if bw <= 0 or lat < 0:
        raise InputError(f"bandwidth {bw} B/s and latency {lat} ps", where=name, expected="bw > 0 and lat >= 0")
    if bw != LINK_BANDWIDTH:
        name += f":bw={bw}B/s" if bw % 10**6 else f":bw={gigabytes_per_second(bw):g}GB/s"
    if lat != LINK_LATENCY:
        name += f":lat={lat}ps" if lat % 1000 else f":lat={microseconds(lat):g}us"
    return name


def _grid(kind: str, shape: tuple[int, ...], bw: int, lat: int, *, wrap: bool) -> Topology:
    name = _full_name(kind, "x".join(map(str, shape)), bw, lat)
    nranks = prod(shape)
    if not shape or min(shape) < 1 or nranks < 2:
        raise InputError("there are fewer than two ranks", where=name, expected="sides of 1 or more, at least one of 2")
    check_extent(nranks, 2 * len(shape) * nranks, name)
    ids = np.arange(nranks, dtype=np.int64).reshape(shape)
    pairs: list[tuple[IntArray, IntArray]] = []
    symmetry: list[IntArray] = []
    for axis, side in enumerate(shape):
        if side == 1:
            continue
        # A ring of two would join the pair twice; it is one link a pair and direction.
        if wrap and side > 2:
            a, b = ids.ravel(), np.roll(ids, -1, axis=axis).ravel()
        else:
            a = np.delete(ids, side - 1, axis=axis).ravel()
            b = np.delete(ids, 0, axis=axis).ravel()
        pairs += [(a, b), (b, a)]
        if wrap or side == 2:
            symmetry.append(np.roll(ids, -1, axis=axis).ravel())
    return _machine(name, nranks, pairs, bw, lat, symmetry=tuple(symmetry), provenance=f"built-in {kind}")


def ring(ranks: Count, bw: Bandwidth = LINK_BANDWIDTH, lat: Time = LINK_LATENCY) -> Topology:
    """`ring:N`: rank i linked with i+1 modulo N, both directions.  Symmetry: rotation.

    Args:
        ranks: N, 2 or more (a ring of two has one link a direction).
        bw: bytes/s of each link and direction.
        lat: picoseconds of each link.

    Raises:
        InputError: fewer than two ranks, or too many.
    """
    return _grid("ring", (ranks,), bw, lat, wrap=True)


def torus(shape: Shape, bw: Bandwidth = LINK_BANDWIDTH, lat: Time = LINK_LATENCY) -> Topology:
    """`torus:AxBx...`: a ring along every side; rank = row-major index.  Symmetry: one rotation a side.

    A side of 2 has one link a pair and direction, not two; a side of 1 has none.

    Args:
        shape: sides.
        bw: bytes/s of each link and direction.
        lat: picoseconds of each link.

    Raises:
        InputError: fewer than two ranks, or too many.
    """
    return _grid("torus", tuple(shape), bw, lat, wrap=True)


def mesh(shape: Shape, bw: Bandwidth = LINK_BANDWIDTH, lat: Time = LINK_LATENCY) -> Topology:
    """`mesh:AxBx...`: a line along every side; rank = row-major index.

    Args:
        shape: sides.
        bw: bytes/s of each link and direction.
        lat: picoseconds of each link.

    Raises:
        InputError: fewer than two ranks, or too many.
    """
    return _grid("mesh", tuple(shape), bw, lat, wrap=False)


def hypercube(dimension: Count, bw: Bandwidth = LINK_BANDWIDTH, lat: Time = LINK_LATENCY) -> Topology:
    """`hypercube:D`: 2^D ranks, linked when their numbers differ in one bit.  Symmetry: xor with a bit.

    Args:
        dimension: D.
        bw: bytes/s of each link and direction.
        lat: picoseconds of each link.

    Raises:
        InputError: D is below 1 or the cube is too large.
    """
    name = _full_name("hypercube", str(dimension), bw, lat)
    if not 1 <= dimension <= 62:
        raise InputError(f"{dimension} dimensions", where=name, expected="1 to 17 dimensions")
    nranks = 1 << dimension
    check_extent(nranks, nranks * dimension, name)
    ids = np.arange(nranks, dtype=np.int64)
    flips = tuple(ids ^ (1 << bit) for bit in range(dimension))
    return _machine(
        name, nranks, [(ids, flip) for flip in flips], bw, lat, symmetry=flips, provenance="built-in hypercube"
    )


def fully_connected(ranks: Count, bw: Bandwidth = LINK_BANDWIDTH, lat: Time = LINK_LATENCY) -> Topology:
    """`fully-connected:N`: a link between every two ranks, both directions.  Symmetry: rotation.

    Args:
        ranks: N, 2 or more.
        bw: bytes/s of each link and direction.
        lat: picoseconds of each link.

    Raises:
        InputError: fewer than two ranks, or too many.
    """
    name = _full_name("fully-connected", str(ranks), bw, lat)
    if ranks < 2:
        raise InputError("there are fewer than two ranks", where=name, expected="2 or more")
    check_extent(ranks, ranks * (ranks - 1), name)
    src, dst = np.divmod(np.arange(ranks * ranks, dtype=np.int64), ranks)
    apart = src != dst
    rotation = (np.arange(ranks, dtype=np.int64) + 1) % ranks
    return _machine(
        name, ranks, [(src[apart], dst[apart])], bw, lat, symmetry=(rotation,), provenance="built-in fully-connected"
    )


def switch(ranks: Count, bw: Bandwidth = LINK_BANDWIDTH, lat: Time = LINK_LATENCY) -> Topology:
    """`switch:N`: N ranks on one switch that only forwards; latency is a side, so twice end to end.

    Args:
        ranks: N, 2 or more.
        bw: bytes/s of each port and direction.
        lat: picoseconds of each side.

    Raises:
        InputError: fewer than two ranks, or too many.
    """
    name = _full_name("switch", str(ranks), bw, lat)
    if ranks < 2:
        raise InputError("there are fewer than two ranks", where=name, expected="2 or more")
    check_extent(ranks + 1, 2 * ranks, name)
    ids = np.arange(ranks, dtype=np.int64)
    hub = np.full(ranks, ranks, dtype=np.int64)
    rotation = np.append((ids + 1) % ranks, ranks)
    return _machine(
        name,
        ranks,
        [(ids, hub), (hub, ids)],
        bw,
        lat,
        extra=(Vertex("switch:0", VertexKind.SWITCH, node=0),),
        symmetry=(rotation,),
        provenance="built-in switch",
    )
