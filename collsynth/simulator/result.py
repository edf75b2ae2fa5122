"""What a simulation tells."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from ..collective import busbw_factor


@dataclass(frozen=True, slots=True)
class Hop:
    """One message of the critical path: it was ready, started and was delivered at these ps."""

    chunk: int | None
    src: int
    dst: int
    ready: Fraction
    start: Fraction
    delivered: Fraction
    text: str


@dataclass(frozen=True, slots=True)
class SimResult:
    """Predicted time of one collective of `size` bytes.

    Attributes:
        collective, nranks, size: what ran.
        time: picoseconds until the last message is delivered, exact.
        link_bytes: payload bytes that crossed each link.
        link_busy: picoseconds that each link was occupied.
        critical_path: messages from the first to the last on the longest chain.
        assumptions: what the model leaves out.
    """

    collective: str
    nranks: int
    size: int
    time: Fraction
    link_bytes: tuple[Fraction, ...]
    link_busy: tuple[Fraction, ...]
    critical_path: tuple[Hop, ...]
    assumptions: tuple[str, ...] = ()

    @property
    def algbw(self) -> float:
        """Bytes per second of payload."""
        return float(self.size * 10**12 / self.time) if self.time else 0.0

    @property
    def busbw(self) -> float:
        """algbw times the collective's factor (nccl-tests)."""
        return self.algbw * (busbw_factor(self.collective, self.nranks) if self.collective else 1.0)

    @property
    def max_link_utilisation(self) -> float:
        """Largest share of the time that a link was busy."""
        return float(max(self.link_busy, default=Fraction(0)) / self.time) if self.time else 0.0
