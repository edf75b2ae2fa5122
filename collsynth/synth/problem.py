"""One synthesis problem: machine, collective, bound, wishes, and the numbers of pieces to try."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from time import perf_counter

from .. import collective as collectives
from ..bounds.types import Bound
from ..collective import Collective
from ..errors import InputError, RefusedError
from ..simulator.clock import Clock
from ..topology import Topology
from ..units import format_size
from .machine import Machine, machine_of
from .spec import SynthSpec

#: pieces a rank that are tried unless the caller names one
DEFAULT_PIECES = (1, 2, 4, 8)

#: machines of more ranks than this are large
_LARGE = 24

#: up to this many latencies of transfer time, coarse pieces may be the best
_LATENCY_COUNTS = 20


@dataclass(frozen=True)
class Problem:
    """What the engines see.

    Attributes:
        topology: all bandwidths known.
        name: canonical collective name.
        root: of a rooted collective, else None.
        spec: the caller's wishes.
        bound: the bound to reach.
        weights: shares of the ranks in units, None for even ones (AllGatherv, ReduceScatterv).
        deadline: `time.perf_counter()` value after which no new attempt begins.
    """

    topology: Topology
    name: str
    root: int | None
    spec: SynthSpec
    bound: Bound
    weights: tuple[int, ...] | None
    deadline: float

    @cached_property
    def machine(self) -> Machine:
        """Routes and times of the topology."""
        return machine_of(self.topology)

    @cached_property
    def reversed_machine(self) -> Machine:
        """Routes and times of the turned-around topology."""
        return Machine(self.topology.reverse())

    @property
    def nranks(self) -> int:
        """Number of ranks."""
        return self.topology.nranks

    @property
    def out_of_time(self) -> bool:
        """Whether the caller's time limit has passed."""
        return perf_counter() > self.deadline

    @property
    def least(self) -> Fraction:
        """Seconds per byte that no schedule of trees can beat (the engines make no others)."""
        return self.bound.tree_seconds_per_byte or self.bound.seconds_per_byte

    def floor(self, units: int) -> int:
        """`least` in whole ticks for a payload of `units` unit pieces."""
        tick = Clock.of(self.topology, 1, None).seconds_per_tick
        ticks = self.least * units / tick
        return -(-ticks.numerator // ticks.denominator)

    # --- numbers of pieces ----------------------------------------------------------------------

    def collectives(self) -> list[Collective]:
        """The collective cut into each admissible number of pieces, coarse first.

        Raises:
            RefusedError: the target would select none of them at the asked size.
        """
        if self.name in ("allreduce", "broadcast", "reduce"):
            found = [self.cut_into(total) for total in self._totals()]
        else:
            wanted = [self.spec.chunks] if self.spec.chunks else list(DEFAULT_PIECES)
            found = [self._even(k) for k in wanted if self._fits(self._even(k).payload_units)]
        if not found:
            size = "" if self.spec.size is None else f" at {format_size(self.spec.size)}"
            raise RefusedError(
                f"no admissible number of pieces{size}: {self.spec.target.name} wants the payload's elements to be a "
                f"multiple of the unit total, which would be {self._asked_total()}"
            )
        return found

    def promising(self) -> list[Collective]:
        """The cuts that an engine of some cost should try: all of them while latency counts, else the
        two finest (one of them on large machines, where searches take long)."""
        cuts = self.collectives()
        if self.latency_counts:
            return cuts
        if self.nranks <= _LARGE:
            return cuts[-2:]
        # AllToAll has so many pieces that the finest cut gains nothing.
        return cuts[-2:][:1] if self.name == "alltoall" else cuts[-1:]

    @property
    def latency_counts(self) -> bool:
        """Whether the asked size is so small that coarse pieces may be the best."""
        size = self.spec.size
        return size is not None and self.bound.seconds_per_byte * size * 10**12 < _LATENCY_COUNTS * self.bound.latency

    def _even(self, pieces: int) -> Collective:
        if self.weights is not None:
            build = {"allgather": collectives.allgather, "reducescatter": collectives.reduce_scatter}[self.name]
            return build(self.nranks, weights=[w * pieces for w in self.weights])
        return collectives.make(self.name, self.nranks, pieces, root=self.root)

    def cut_into(self, total: int, weights: Sequence[int] | None = None) -> Collective:
        """AllReduce, Broadcast or Reduce in `total` units; AllReduce's belong to ranks by `weights`
        (default: as even as possible)."""
        if self.name != "allreduce":
            return collectives.make(self.name, self.nranks, total, root=self.root)
        n = self.nranks
        shares = weights or [total * (r + 1) // n - total * r // n for r in range(n)]
        return collectives.allreduce(n, weights=shares)

    def _asked_total(self) -> int:
        pieces = self.spec.chunks or 1
        return pieces * (sum(self.weights) if self.weights else self.nranks)

    def _totals(self) -> list[int]:
        """Unit totals: nranks * K where that is admissible, else powers of two of that order."""
        wanted = [self.spec.chunks] if self.spec.chunks else list(DEFAULT_PIECES)
        totals: list[int] = []
        for k in wanted:
            total = self.nranks * k
            if not self._fits(total):
                total = 1 << (total.bit_length() - 1)
                while total > 1 and not self._fits(total):
                    total //= 2
            if self._fits(total) and total not in totals:
                totals.append(total)
        return sorted(totals)

    def _fits(self, total: int) -> bool:
        """Whether this many units are within `max_units` and selectable at the asked size."""
        spec = self.spec
        if spec.max_units is not None and total > spec.max_units:
            return False
        if not spec.target.divisible or spec.size is None:
            return True
        payload = collectives.call_payload(self.name, self.nranks, spec.size, spec.element_size)
        return payload // spec.element_size % total == 0


def make_problem(
    topology: Topology, collective: str | Collective, spec: SynthSpec, bound: Bound, deadline: float
) -> Problem:
    """The problem that a caller of `synthesize` poses.

    A `Collective` of one unit a rank (or in all, if rooted) leaves the number of pieces open; a finer
    one fixes it.

    Raises:
        InputError: a collective whose chunks no builder makes, or ranks that differ.
    """
    weights: tuple[int, ...] | None = None
    if isinstance(collective, str):
        name, root = collectives.canonical_name(collective), spec.root
        if name in ("broadcast", "reduce", "gather", "scatter"):
            root = root or 0
    else:
        name, root = collective.name, collective.root
        if collective.nranks != topology.nranks:
            raise InputError(f"the collective has {collective.nranks} ranks, the topology {topology.nranks}")
        spec, weights = _pieces_of(collective, spec)
    return Problem(topology, name, root, spec, bound, weights, deadline)


def _pieces_of(collective: Collective, spec: SynthSpec) -> tuple[SynthSpec, tuple[int, ...] | None]:
    from dataclasses import replace

    if collective.nchunks and (collective.weight != 1).any():
        raise InputError("chunks of unequal weight", where=f"collective {collective.name}", expected="unit chunks")
    n = collective.nranks
    if collective.name in ("allgather", "reducescatter"):
        shares = [0] * n
        for owner in collective.owner.tolist():
            shares[owner] += 1
        if len(set(shares)) > 1:
            return spec, tuple(shares)
    pieces = Fraction(collective.payload_units, n)
    if collective.name in ("broadcast", "reduce") and collective.payload_units == 1:
        return spec, None
    if pieces > 1 and spec.chunks is None and pieces.denominator == 1:
        return replace(spec, chunks=int(pieces)), None
    return spec, None
