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
        kind: `cut`, `partition` (hold for any schedule) or `lp-dual` (AllReduce: tree schedules;
            flows: any routing).
        data: JSON-ready content: cut {vertices, capacity, demand}, partition {parts, egress},
            lp-dual {lengths (link id -> "p/q"), ...}.
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

    def picoseconds(self, size: int) -> Fraction:
        """max(latency, bandwidth) for `size` payload bytes, in picoseconds."""
        return max(Fraction(self.latency), self.seconds_per_byte * size * 10**12)
