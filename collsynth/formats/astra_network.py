"""A topology as a network file of ASTRA-sim's analytical backend, where it can be expressed.

That format knows products of dimensions: every rank has a place in each, dimension 0 counts fastest, and each is
a `Ring`, `FullyConnected` or a `Switch`, with one bandwidth (in 2^30 bytes/s) and latency (ns) for all of its
links.  Here the ranks' numbers are split into dimensions in every way until the links fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ..errors import RefusedError
from ..topology import Topology

IntArray = NDArray[np.int64]

_GIB = 1 << 30
#: More dimensions than that are beyond any machine, and beyond the search.
_MAX_DIMENSIONS = 12


@dataclass(frozen=True, slots=True)
class Dimension:
    """One dimension: its kind, ranks along it, bytes/s and picoseconds of each link and direction."""

    kind: str
    ranks: int
    bandwidth: int
    latency: int


def dimensions(topology: Topology) -> list[Dimension]:
    """The dimensions of a topology, the fastest counting one first.

    Raises:
        RefusedError: it is no such product, or has something that the format has no word for; the message says what.
    """

    def refuse(why: str) -> RefusedError:
        return RefusedError(
            f"ASTRA-sim's network file cannot express {topology.name}: {why}; "
            "it knows products of Ring, FullyConnected and Switch; --to chakra writes the traces alone"
        )

    nranks = topology.nranks
    if nranks < 2:
        raise refuse("there are fewer than two ranks")
    if topology.unknown_speeds():
        raise refuse(f"the speed of {topology.link_name(topology.unknown_speeds()[0])} is not known")
    if topology.link_overhead.any():
        raise refuse("a link has an overhead a message")
    for vertex in topology.vertices:
        if (vertex.in_capacity, vertex.out_capacity, vertex.total_capacity) != (None, None, None):
            raise refuse(f"{vertex.name} has a capacity of its own")
    pairs, figures = np.stack((topology.link_src, topology.link_dst), axis=1), _figures(topology)
    if len(np.unique(pairs, axis=0)) != len(pairs):
        raise refuse("two links join the same pair")
    switches = _switches(topology)
    if isinstance(switches, str):
        raise refuse(switches)
    direct = (pairs < nranks).all(axis=1)
    for shape in _shapes(nranks):
        found = _fit(shape, pairs[direct], figures[direct], switches, figures)
        if found is not None:
            return found
    raise refuse("its links are not those of a product of dimensions in the order of the ranks' numbers")


def _figures(topology: Topology) -> IntArray:
    return np.stack((topology.link_bandwidth, topology.link_latency), axis=1)


def _switches(topology: Topology) -> list[tuple[list[int], list[int]]] | str:
    """(ranks, link ids) of each switch; or why one is no star of ranks."""
    nranks = topology.nranks
    stars = []
    for vertex in range(nranks, len(topology.vertices)):
        into = np.flatnonzero(topology.link_dst == vertex)
        out = np.flatnonzero(topology.link_src == vertex)
        below = sorted(topology.link_src[into].tolist())
        name = topology.vertices[vertex].name
        if not len(into) and not len(out):
            continue
        if below != sorted(topology.link_dst[out].tolist()):
            return f"{name} has links of one direction only"
        if below[-1] >= nranks:
            return f"{name} is linked with {topology.vertices[below[-1]].name}, which is no rank"
        stars.append((below, [*into.tolist(), *out.tolist()]))
    return stars


def _shapes(nranks: int) -> Iterator[tuple[int, ...]]:
    """All ways to write a number as a product of factors of 2 or more, few factors first."""

    def split(number: int, parts: int) -> Iterator[tuple[int, ...]]:
        if parts == 1:
            yield (number,)
            return
        for factor in range(2, number // 2 + 1):
            if number % factor == 0:
                yield from ((factor, *rest) for rest in split(number // factor, parts - 1) if min(rest) >= 2)

    for parts in range(1, min(_MAX_DIMENSIONS, nranks.bit_length()) + 1):
        if 1 << parts <= nranks:
            yield from split(nranks, parts)


def _fit(
    shape: tuple[int, ...], pairs: IntArray, figures: IntArray, switches: list[tuple[list[int], list[int]]],
    all_figures: IntArray,
) -> list[Dimension] | None:  # fmt: skip
    """The dimensions if the links are those of a product of this shape; `pairs` are links between ranks."""
    strides = np.concatenate(([1], np.cumprod(shape[:-1]))).astype(np.int64)
    sides = np.array(shape, dtype=np.int64)
    nranks = int(np.prod(sides))
    place_src, place_dst = pairs[:, :1] // strides % sides, pairs[:, 1:] // strides % sides
    differs = place_src != place_dst
    if (differs.sum(axis=1) != 1).any():
        return None
    along = differs.argmax(axis=1)
    by_dimension: dict[int, list[tuple[list[int], list[int]]]] = {}
    for ranks, links in switches:
        places = np.array(ranks)[:, None] // strides % sides
        varying = np.flatnonzero((places != places[0]).any(axis=0))
        if len(varying) != 1 or len(ranks) != sides[varying[0]]:
            return None
        by_dimension.setdefault(int(varying[0]), []).append((ranks, links))
    result = []
    for axis, side in enumerate(shape):
        own = along == axis
        stars = by_dimension.get(axis, [])
        if stars:
            if own.any() or len(stars) != nranks // side or len({r for ranks, _ in stars for r in ranks}) != nranks:
                return None
            used = all_figures[[link for _, links in stars for link in links]]
            kind = "Switch"
        else:
            step = (place_dst[own, axis] - place_src[own, axis]) % side
            used = figures[own]
            near = (step == 1) | (step == side - 1)
            # a ring of two would need two links a pair; one pair is fully connected
            if side > 2 and near.all() and len(step) == 2 * nranks:
                kind = "Ring"
            elif len(step) == (side - 1) * nranks:
                kind = "FullyConnected"
            else:
                return None
        if len(used) == 0 or (used != used[0]).any():
            return None
        result.append(Dimension(kind, side, int(used[0, 0]), int(used[0, 1])))
    return result


def render(topology: Topology) -> str:
    """The network file (YAML) of a topology.

    Raises:
        RefusedError: see `dimensions`.
    """
    parts = dimensions(topology)
    columns = {
        "topology": [part.kind for part in parts],
        "npus_count": [str(part.ranks) for part in parts],
        "bandwidth": [_number(Fraction(part.bandwidth, _GIB)) for part in parts],
        "latency": [_number(Fraction(part.latency, 1000)) for part in parts],
    }
    units = {"bandwidth": "  # 2^30 bytes/s", "latency": "  # ns"}
    return "".join(f"{name}: [ {', '.join(values)} ]{units.get(name, '')}\n" for name, values in columns.items())


def _number(value: Fraction) -> str:
    return repr(float(value))
