"""What a bound says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """Why no schedule can be faster, in ranks, links and words."""

    ranks: tuple[int, ...]
    links: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Certificate:
    """A proof that can be checked by itself.

    Attributes:
        kind: `cut`, `partition` (hold for any schedule), `lp-dual` (flows: any routing), or `none`
            (nothing has to move).
        data: JSON-ready content.  Vertex and link ids are those of
            `Topology.without_vertex_capacities()`, whose first ones are the machine's own.
            cut: vertices, direction (`exit` or `enter`: which way the data crosses), capacity_bytes_per_s,
            demand (share of the payload that must cross, as "p/q"), weights (uneven shards only).
            partition: parts (vertex ids), egress_bytes_per_s (one a part).
            lp-dual: lengths (link id as text -> whole number), payload_units, demand (units a pair, only
            when uneven).
        scope: for what schedules it holds, in words.
    """

    kind: str
    data: Mapping[str, Any]
    scope: str


@dataclass(frozen=True, slots=True)
class Bound:
    """A provable lower bound on the time of a collective.

    Attributes:
        collective: canonical name.  nranks: number of ranks.  root: of a rooted collective.
        seconds_per_byte: exact bandwidth bound, seconds per byte of payload.
        latency: ps, the longest of the shortest paths that any contribution must travel.
        bottleneck: why, for people.  certificate: why, for machines.
        rs_ag_seconds_per_byte: AllReduce only, the rate of the best ReduceScatter + AllGather.
        tree_seconds_per_byte: AllReduce only, the optimum over tree schedules where it is above the
            bound (then "optimal" means among tree schedules); None where it equals the bound or is not
            computed.
        multicast: what the switches may do, in words.
        notes: why the bound may be out of reach, or not the best that could be proven; empty when
            nothing is known to stand in the way.
    """

    collective: str
    nranks: int
    root: int | None
    seconds_per_byte: Fraction
    latency: int
    bottleneck: Bottleneck
    certificate: Certificate
    rs_ag_seconds_per_byte: Fraction | None = None
    tree_seconds_per_byte: Fraction | None = None
    multicast: str = "none"
    notes: tuple[str, ...] = ()

    @property
    def algbw(self) -> Fraction | None:
        """Payload bytes per second at the bandwidth bound, None when nothing has to move."""
        return 1 / self.seconds_per_byte if self.seconds_per_byte else None

    def picoseconds(self, size: int) -> Fraction:
        """max(latency, bandwidth) for `size` payload bytes, in picoseconds."""
        return max(Fraction(self.latency), self.seconds_per_byte * size * 10**12)
