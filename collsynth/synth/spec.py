"""What a synthesizer is asked for, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from ..bounds.types import Bound
from ..program import TARGETS, Target
from ..schedule import Schedule


class Status(StrEnum):
    """`optimal` and `found` come with a schedule; `infeasible` is proven; `unknown` is neither."""

    OPTIMAL = "optimal"
    FOUND = "found"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class SynthSpec:
    """Limits and wishes.

    Attributes:
        size: payload bytes to choose for (None: large, only bytes over bandwidth count).
        chunks: pieces of one rank's shard (for rooted collectives: the root's buffer / nranks; for
            AllToAll: one pair's slice); None: the engine chooses among 1, 2, 4, 8.
        exact: reach the exact rate, whatever number of pieces that takes.
        root: root rank of a rooted collective.
        max_units: most units into which the payload may be cut (None: no limit but `chunks`).
        target: what the program must fit, used to choose piece counts that the target selects.
        element_size: bytes of one element, for the target's divisibility rule.
        time_limit: seconds, None for no limit.
        seed: for engines that use random numbers.
    """

    size: int | None = None
    chunks: int | None = None
    exact: bool = False
    root: int | None = None
    max_units: int | None = None
    target: Target = TARGETS["any"]
    element_size: int = 4
    time_limit: float | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class SynthResult:
    """An honest answer.

    Attributes:
        status: see `Status`.  A schedule is present iff optimal or found, and then it carries
            verify's stamp.
        optimal_in: `rate`, `makespan` or `steps` when optimal, None otherwise.
        schedule: the schedule or None.
        method: the engine that made it.
        bound: the bound it is measured against.
        bandwidth_ratio: busiest link's time over the bound's, exact.
        makespan_ratio: simulated time with the actual chunks at latency 0 over the bound's, exact.
        chunks_per_rank: K.
        seconds: synthesis time; jit_seconds of it went into one-time compilation and is not counted.
        seed: the seed used.
        message: why not, when there is no schedule; what was assumed otherwise.
    """

    status: Status
    method: str
    bound: Bound
    schedule: Schedule | None = None
    optimal_in: str | None = None
    bandwidth_ratio: Fraction | None = None
    makespan_ratio: Fraction | None = None
    chunks_per_rank: Fraction | None = None
    seconds: float = 0.0
    jit_seconds: float = 0.0
    seed: int = 0
    message: str = ""
