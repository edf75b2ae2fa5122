"""Calendars and reinsertion: no overlap, no worse than before, within the exact rate, the same by seed."""

from __future__ import annotations

import random

import cases
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collsynth.bounds import bound as bound_of
from collsynth.formats import load_topology
from collsynth.schedule import Schedule
from collsynth.simulator import makespan, rate
from collsynth.synth import synthesize
from collsynth.synth.engines import regrown
from collsynth.synth.problem import Problem, make_problem
from collsynth.synth.reinsert import Reinsertion, length
from collsynth.synth.slots import Slots, Way
from collsynth.synth.spec import SynthSpec
from collsynth.topology import Topology
from collsynth.verifier import verify


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=3), st.integers(0, 10_000))
def test_calendars_are_a_table_of_busy_slots(durations: list[int], seed: int) -> None:
    rng = random.Random(seed)
    slots, busy = Slots(durations), [set[int]() for _ in durations]
    taken: list[tuple[Way, int]] = []

    def fits(way: Way, start: int) -> bool:
        return all(not busy[s] & set(range(start + o, start + o + durations[s])) for s, o in way.uses)

    def mark(way: Way, start: int) -> None:
        for s, o in way.uses:
            busy[s] ^= set(range(start + o, start + o + durations[s]))

    for _ in range(25):
        chosen = rng.sample(range(len(durations)), rng.randint(1, len(durations)))
        longest = max(durations[s] for s in chosen)
        way = Way(0, 1, (0,), longest, tuple((s, rng.choice((0, longest - durations[s]))) for s in chosen))
        time = rng.randrange(60)
        first = next(t for t in range(time, 10_000) if fits(way, t))
        last = next((t for t in range(time - longest, -1, -1) if fits(way, t)), -1)
        assert slots.earliest(way, time) == first and slots.latest(way, time) == last
        state = slots.save()
        assert slots.take(way, first) and not slots.take(way, first)
        if rng.random() < 0.3:
            slots.restore(state)
            continue
        mark(way, first)
        taken.append((way, first))
        if rng.random() < 0.3:
            gone = taken.pop(rng.randrange(len(taken)))
            slots.free(*gone)
            mark(*gone)


def _problem(machine: Topology, name: str, **wishes: object) -> Problem:
    return make_problem(machine, name, SynthSpec(**wishes), bound_of(machine, name), float("inf"))  # type: ignore[arg-type]


def _regrown(problem: Problem, schedule: Schedule) -> Schedule:
    return next(iter(regrown(problem, schedule)))


@pytest.mark.parametrize("name", ["allgather", "reducescatter", "allreduce", "broadcast", "reduce"])
@pytest.mark.parametrize("machine", [cases.boxes(2, 3), cases.switch(5, capacity=60)], ids=lambda m: m.name)
def test_regrown_schedules_are_right_and_keep_the_chunks(machine: Topology, name: str) -> None:
    start = synthesize(machine, name, method="forest", chunks=2).schedule
    assert start is not None
    again = _regrown(_problem(machine, name), start)
    assert verify(again).ok, verify(again).findings[:3]
    assert again.collective.payload_units == start.collective.payload_units
    assert again.content_hash() == _regrown(_problem(machine, name), start).content_hash()


@pytest.mark.parametrize("name", ["allgather", "allreduce"])
def test_exact_loads_no_server_beyond_the_bound(name: str) -> None:
    machine = load_topology("dgx-v100").subset([0, 1, 2, 3, 7])
    start = synthesize(machine, name, method="forest", exact=True).schedule
    assert start is not None
    again = _regrown(_problem(machine, name, exact=True), start)
    assert verify(again).ok and rate(again) == bound_of(machine, name).seconds_per_byte


def test_search_never_ends_longer_than_it_began() -> None:
    machine = load_topology("mesh:3x3")
    start = synthesize(machine, "allreduce", method="forest").schedule
    assert start is not None
    problem = _problem(machine, "allreduce")
    floor = problem.floor(start.collective.payload_units)
    search = Reinsertion(problem.machine, start, floor=floor, exact=False, seed=3)
    began = length(search.chunks)
    best = search.run(float("inf"))
    assert search.floor <= length(best) <= began and not any(chunk.missing for chunk in best)


def test_what_is_no_tree_is_refused() -> None:
    machine = cases.direct("line", 3, cases.both_ways({(0, 1): 50, (1, 2): 50}))
    whole = synthesize(machine, "allgather", method="forest", chunks=1).schedule
    assert whole is not None
    from dataclasses import replace

    part = replace(
        whole, chunk=whole.chunk[:-1], src=whole.src[:-1], dst=whole.dst[:-1], reduce=whole.reduce[:-1],
        level=whole.level[:-1], route_ptr=whole.route_ptr[:-1], route_links=whole.route_links[: whole.route_ptr[-2]],
    )  # fmt: skip
    assert not list(regrown(_problem(machine, "allgather"), part))


@pytest.mark.parametrize(
    "machine", [cases.boxes(2, 3), cases.direct("ring", 5, {(i, (i + 1) % 5): 50 for i in range(5)})]
)
def test_reductions_last_about_as_long_as_the_copies_behind_them(machine: Topology) -> None:
    """On machines that equal themselves turned around, and on a one-way ring, which does not."""
    gather = synthesize(machine, "allgather").schedule
    scatter = synthesize(machine, "reducescatter").schedule
    both = synthesize(machine, "allreduce", method="mirror").schedule
    assert gather is not None and scatter is not None and both is not None
    assert makespan(scatter) <= makespan(gather) * 11 / 10
    assert makespan(both) <= makespan(scatter) + makespan(gather) + makespan(gather) / 10


def test_mesh_allreduce_in_eight_pieces_is_within_a_tenth() -> None:
    result = synthesize(load_topology("mesh:4x4"), "allreduce")
    assert result.schedule is not None and verify(result.schedule).ok
    assert result.makespan_ratio is not None and result.makespan_ratio * 10 <= 11
