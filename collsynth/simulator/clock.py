"""Exact integer time.

Every duration is a weight times a fixed fraction of a second, so one common denominator turns all
of them into integers; sums and maxima are then exact and quick, and a Fraction appears only in the
answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm

from ..topology import Topology
from ..units import PICOSECONDS_PER_SECOND


@dataclass(frozen=True, slots=True)
class Clock:
    """Ticks for one topology, payload size and unit count.

    Attributes:
        ticks_per_unit: for each capacity group (`Topology.capacity_groups` order), ticks that one unit
            of data occupies it.
        ticks_per_picosecond: how many ticks a picosecond has (for latency and overhead).
        seconds_per_tick: exact length of a tick.
    """

    ticks_per_unit: tuple[int, ...]
    ticks_per_picosecond: int
    seconds_per_tick: Fraction

    @staticmethod
    def of(topology: Topology, payload_units: int, size: int | None) -> Clock:
        """The clock for `size` payload bytes cut into `payload_units`; None: one byte, no latency.

        Raises:
            UnknownSpeedError: a bandwidth is not known.
        """
        topology.require_speeds()
        capacities = [capacity for capacity, _ in topology.capacity_groups()]
        if not capacities:
            return Clock((), 1, Fraction(1, PICOSECONDS_PER_SECOND))
        common = gcd(*capacities)
        multiple = lcm(*(c // common for c in capacities))
        # One unit on capacity c lasts size / (units * c) seconds = (multiple / (c / common)) atoms.
        atom = Fraction(1 if size is None else size, payload_units * common * multiple)
        picoseconds = atom * PICOSECONDS_PER_SECOND
        return Clock(
            tuple(multiple // (c // common) * picoseconds.numerator for c in capacities),
            picoseconds.denominator,
            Fraction(1, PICOSECONDS_PER_SECOND * picoseconds.denominator),
        )
