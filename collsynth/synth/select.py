"""`synthesize`: run the engines that accept a problem, keep the best schedule, prove it.

The table `ENGINES` is all there is to know: each engine says whom it accepts and yields schedules,
coarse ones first.  `auto` asks all of them and picks by simulated time at the asked size (without a
size: by makespan, latency 0).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from time import perf_counter
from typing import Any

from ..bounds import bound as bound_of
from ..collective import Collective
from ..errors import InputError, RefusedError, TimeLimitError
from ..registry import load as load_entry
from ..registry import names as entry_names
from ..schedule import Schedule
from ..simulator import height, makespan, rate, simulate, steps
from ..topology import Topology
from ..verifier import require_verified
from . import engines, mirror
from .problem import Problem, make_problem
from .spec import Status, SynthResult, SynthSpec

#: methods that serve `exact`
_EXACT = ("auto", "mirror", "forest", "paths")

#: a schedule this close to the bound is not searched any further; the mirror image of the best one need not be
#: as close, and AllReduce's even less
_CLOSE, _GOOD, _FAIR = Fraction(102, 100), Fraction(108, 100), Fraction(110, 100)
#: Times that differ by less than this part of the bound are taken as equal.
_GRAINS = 256


@dataclass(frozen=True, slots=True)
class Engine:
    """A way to make schedules.

    Attributes:
        summary: what it accepts, in words.
        accepts: why it cannot serve a problem, None when it can.
        schedules: yields candidates, coarse pieces first.
    """

    summary: str
    accepts: Callable[[Problem], str | None]
    schedules: Callable[[Problem], Iterator[Schedule]]


def _knows(*names: str) -> Callable[[Problem], str | None]:
    def accepts(problem: Problem) -> str | None:
        return None if problem.name in names else f"knows {', '.join(names)}, not {problem.name}"

    return accepts


def _mirror_accepts(problem: Problem) -> str | None:
    """Why there is no image of this problem."""
    spec = problem.spec
    if problem.name not in ("reducescatter", "reduce", "allreduce"):
        return f"knows reducescatter, reduce, allreduce, not {problem.name}"
    if problem.name == "reduce" and (spec.size is not None or spec.chunks or spec.max_units):
        return "knows no reduce in given pieces"
    in_turn = problem.machine.twins() is not None and _in_turn_is_optimal(problem)
    if problem.name == "allreduce" and spec.exact and not in_turn:
        return "knows no exact allreduce where ReduceScatter and AllGather in turn are not optimal"
    return None


def _mirror_schedules(problem: Problem) -> Iterator[Schedule]:
    """ReduceScatter and Reduce from the best AllGather and Broadcast, AllReduce from both in turn."""
    spec, own_twin = problem.spec, problem.machine.twins() is not None
    both = problem.name == "allreduce"
    free = spec.size is None and spec.chunks is None and spec.max_units is None and (own_twin or not both)
    cuts: Sequence[Collective | None] = [None] if spec.exact or free else problem.promising()
    for cut in cuts:
        if problem.out_of_time:
            return
        name = "broadcast" if problem.name == "reduce" else "allgather"
        original = mirror.part_of(problem, name, cut, turned=True)
        found = _best(original, "auto")
        image = found.schedule
        # The image has as many chunks as it likes unless `cut` says how many.
        part = mirror.part_of(problem, "reducescatter", image.collective) if both else problem
        sums = _judge(part, mirror.reflected(part, image))
        if _ratio(part, sums) > max(_GOOD, _CLOSE * _ratio(original, found)) and not problem.latency_counts:
            sums = min(sums, *(_judge(part, s) for s in engines.regrown(part, sums.schedule)), key=lambda c: c.merit)
        if not both:
            yield sums.schedule
            continue
        copies = image if own_twin else _best(mirror.part_of(problem, name, cut), "auto").schedule
        yield mirror.in_turn(problem, sums.schedule, copies)


ENGINES: dict[str, Engine] = {
    "mirror": Engine(
        "ReduceScatter, Reduce, AllReduce on any connected machine: the best AllGather or Broadcast in reversed "
        "time; AllReduce both in turn",
        _mirror_accepts,
        _mirror_schedules,
    ),
    "greedy": Engine(
        "AllGather, ReduceScatter, Broadcast, Reduce on any connected machine: earliest arrival, region-aware, "
        "then list scheduling",
        _knows("allgather", "reducescatter", "broadcast", "reduce"),
        engines.greedy_schedules,
    ),
    "forest": Engine(
        "AllGather, ReduceScatter, AllReduce, Broadcast, Reduce: rate-optimal tree packing, list-scheduled; the "
        "engine of --exact",
        _knows(*engines.TREES),
        engines.forest_schedules,
    ),
    "paths": Engine(
        "AllToAll, Gather, Scatter on any connected machine: paths of balanced load, list-scheduled",
        _knows("alltoall", "gather", "scatter"),
        engines.path_schedules,
    ),
}


def _algorithm(name: str) -> Engine:
    """A closed form of the registry as an engine: its function refuses what it does not know."""
    function: Any = load_entry("algorithms", name)

    def schedules(problem: Problem) -> Iterator[Schedule]:
        if problem.weights is not None:
            return
        cuts = problem.collectives()
        # Coarse pieces serve small sizes, fine ones large sizes; between them nothing is gained.
        for collective in (cuts[0], cuts[-1])[: len(cuts)]:
            for options in engines.variants(name):
                if problem.out_of_time:
                    return
                yield function(problem.topology, collective, **options)

    summary = (function.__doc__ or "").strip().partition("\n")[0]
    return Engine(summary, lambda problem: None, schedules)


def methods() -> dict[str, str]:
    """Every method and what it accepts."""
    table = {"auto": "every collective: the best of all methods that accept, by simulated time at the size"}
    table.update({name: engine.summary for name, engine in ENGINES.items()})
    table.update({name: _algorithm(name).summary for name in entry_names("algorithms")})
    return table


def _engine(name: str) -> Engine:
    if name in ENGINES:
        return ENGINES[name]
    if name in entry_names("algorithms"):
        return _algorithm(name)
    raise InputError(f"unknown method {name!r}", where="--method", expected="one of " + ", ".join(methods()))


def synthesize(
    topology: Topology,
    collective: str | Collective,
    spec: SynthSpec | None = None,
    *,
    method: str = "auto",
    **fields: Any,
) -> SynthResult:
    """One verified schedule.

    Args:
        topology: the machine.
        collective: a name, or a `Collective`; one of a single unit a rank leaves the pieces open.
        spec: limits and wishes; `fields` replace single ones (`size=1 << 26`, `exact=True` ...).
        method: an engine, a closed form of the registry, or `auto`.

    Returns:
        The result; its schedule carries verify's stamp.

    Raises:
        InputError: bad input; UnknownSpeedError, DisconnectedError among them.
        RefusedError: no method accepts, or the target selects no number of pieces at the size.
        TimeLimitError: the time limit passed before there was a schedule.
    """
    started = perf_counter()
    spec = replace(spec or SynthSpec(), **fields)
    topology.require_speeds()
    root = spec.root if isinstance(collective, str) else None
    limit = bound_of(topology, collective, root=root)
    deadline = started + spec.time_limit if spec.time_limit is not None else float("inf")
    problem = make_problem(topology, collective, spec, limit, deadline)
    best = _best(problem, method)
    require_verified(best.schedule)
    return _result(problem, best, perf_counter() - started)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A schedule with its merit: simulated time, then height, steps and units (all: less is better)."""

    schedule: Schedule
    merit: tuple[Fraction, int, int, int]

    @property
    def fineness(self) -> tuple[int, Fraction]:
        """Number of units, then speed (more is better)."""
        return self.merit[3], -self.merit[0]


def _judge(problem: Problem, schedule: Schedule) -> _Candidate:
    size = problem.spec.size
    if size is None:
        time = makespan(schedule)
    else:
        # Times within a grain are equal: then the schedule whose messages depend on fewer others is more
        # robust, since a program's messages meet on shared links in order of arrival.
        time, grain = simulate(schedule, size=size).time, problem.bound.picoseconds(size) / _GRAINS
        time = -(-time // grain) * grain if grain else time
    return _Candidate(schedule, (time, height(schedule), steps(schedule), schedule.collective.payload_units))


def _best(problem: Problem, method: str) -> _Candidate:
    """The best candidate of the method, or of all methods that accept."""
    auto = method == "auto"
    if problem.spec.exact and method not in _EXACT:
        raise RefusedError(f"{method} cannot promise the exact rate")
    best: _Candidate | None = None
    finest: _Candidate | None = None
    reasons: list[str] = []
    for name in _order(problem, method):
        engine = _engine(name)
        reason = engine.accepts(problem)
        if reason is not None:
            if not auto:
                raise RefusedError(f"{name} {reason}")
            continue
        if name == "mirror" and best is not None and _pointless(problem, best):
            continue
        try:
            for schedule in engine.schedules(problem):
                candidate = _judge(problem, schedule)
                if best is None or candidate.merit < best.merit:
                    best = candidate
                if finest is None or candidate.fineness > finest.fineness:
                    finest = candidate
                if _done(problem, best, name):
                    break
        except RefusedError as error:
            if not auto:
                raise
            reasons.append(f"{name}: {error}")
        if best is not None and _done(problem, best, name):
            break
    if auto and best is not None and finest is not None and _improvable(problem, best, finest):
        for schedule in engines.regrown(problem, finest.schedule):
            best = min(best, _judge(problem, schedule), key=lambda candidate: candidate.merit)
    if best is None:
        if problem.out_of_time:
            raise TimeLimitError(f"the time limit of {problem.spec.time_limit:g} s passed before there was a schedule")
        # Methods that refuse for one reason say it once.
        alike = {reason.partition(": ")[2] for reason in reasons}
        text = alike.pop() if len(alike) == 1 else "; ".join(reasons)
        raise RefusedError(text or f"no method gives {problem.name} on {problem.topology.name}")
    return best


def _ratio(problem: Problem, candidate: _Candidate) -> Fraction:
    """Makespan over the least that trees can do."""
    return makespan(candidate.schedule) / problem.least if problem.least else Fraction(1)


def _done(problem: Problem, best: _Candidate, name: str) -> bool:
    """Whether no other engine is asked after `name`."""
    if problem.out_of_time:
        return True
    if problem.latency_counts or (problem.spec.size is not None and name not in ENGINES):
        return False
    if name == "mirror" and (problem.name != "allreduce" or _in_turn_is_optimal(problem)):
        return True
    return _ratio(problem, best) <= (1 if problem.spec.exact or problem.name not in engines.TREES else _CLOSE)


def _improvable(problem: Problem, best: _Candidate, finest: _Candidate) -> bool:
    """Whether trees are worth another search: bandwidth counts, and there is a gap."""
    if problem.out_of_time or problem.latency_counts or problem.name not in engines.TREES:
        return False
    # Behind the mirror image of copies such a search has been.
    if finest.schedule.method.startswith("mirror"):
        return problem.name == "allreduce" and _ratio(problem, best) > _FAIR
    return _ratio(problem, best) > _CLOSE


def _pointless(problem: Problem, best: _Candidate) -> bool:
    """Whether ReduceScatter and AllGather in turn cannot beat this."""
    bandwidth = problem.name == "allreduce" and not problem.latency_counts
    return bandwidth and not problem.spec.exact and _ratio(problem, best) <= _in_turn_ratio(problem)


def _in_turn_is_optimal(problem: Problem) -> bool:
    """Whether ReduceScatter and AllGather one after the other are (nearly) the best AllReduce."""
    return _in_turn_ratio(problem) <= (1 if problem.spec.exact else _CLOSE)


def _in_turn_ratio(problem: Problem) -> Fraction:
    """ReduceScatter and AllGather one after the other over the least that trees can do."""
    return (problem.bound.rs_ag_seconds_per_byte or 0) / problem.least if problem.least else Fraction(1)


def _order(problem: Problem, method: str) -> list[str]:
    """The engines to ask, those first that may spare the others."""
    if problem.spec.exact:
        return [name for name in _EXACT[1:] if method in ("auto", name)]
    if method != "auto":
        return [method]
    order = list(ENGINES)
    if problem.name == "allreduce" and _in_turn_ratio(problem) > _FAIR:
        order.sort(key="mirror".__eq__)
    return [*entry_names("algorithms"), *order]


def _result(problem: Problem, best: _Candidate, seconds: float) -> SynthResult:
    schedule, limit = best.schedule, problem.bound.seconds_per_byte
    units = schedule.collective.payload_units
    rate_ratio = rate(schedule) / limit if limit else Fraction(1)
    time_ratio = makespan(schedule) / limit if limit else Fraction(1)
    optimal_in, message = None, ""
    if time_ratio == 1:
        optimal_in = "makespan"
    elif rate_ratio == 1:
        optimal_in = "rate"
    elif problem.bound.tree_seconds_per_byte and rate(schedule) == problem.bound.tree_seconds_per_byte:
        optimal_in, message = "rate", "optimal among tree schedules; the bound holds for any schedule"
    return SynthResult(
        Status.OPTIMAL if optimal_in else Status.FOUND, schedule.method, problem.bound, schedule, optimal_in,
        rate_ratio, time_ratio, Fraction(units, problem.nranks), seconds, 0.0, problem.spec.seed, message,
    )  # fmt: skip


__all__ = ["ENGINES", "Engine", "methods", "synthesize"]
