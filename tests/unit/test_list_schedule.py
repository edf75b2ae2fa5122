"""List scheduling: orders respect data, plans are the simulator's times, improvement never loses."""

from __future__ import annotations

import random

import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from collsynth import collective as collectives
from collsynth.simulator import simulate
from collsynth.synth.alltoall import path_tasks, spread_paths
from collsynth.synth.assemble import schedule_of
from collsynth.synth.list_schedule import Plan, improve, waves
from collsynth.synth.machine import Machine
from collsynth.topology import Topology
from collsynth.verifier import verify

MACHINES = [machine for machine in cases.machines() if machine.nranks > 2]


def _plan(machine: Topology, pieces: int, seed: int) -> tuple[Plan, Machine, collectives.Collective]:
    served = Machine(machine)
    wanted = collectives.alltoall(machine.nranks, pieces)
    ends = list(zip(wanted.sources.ranks.tolist(), wanted.destinations.ranks.tolist(), strict=True))
    chunks = [c for c, (src, dst) in enumerate(ends) if src != dst]
    paths = spread_paths(served, [ends[c] for c in chunks], floor=1, seed=seed)
    return Plan(path_tasks(chunks, paths), len(served.ticks)), served, wanted


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(MACHINES), st.integers(1, 2), st.integers(0, 1000))
def test_plans_are_the_simulators_times(machine: Topology, pieces: int, seed: int) -> None:
    plan, served, wanted = _plan(machine, pieces, seed)
    rng = random.Random(seed)
    order = plan.parallel([rng.random() for _ in plan.tasks])
    place = {task: i for i, task in enumerate(order)}
    assert len(place) == len(plan.tasks)
    assert all(place[before] < place[task] for task in place for before in plan.after[task])
    timing = plan.polish(plan.serial(order))
    assert timing.makespan <= plan.serial(order).makespan
    schedule = schedule_of(machine, wanted, plan.rows(timing), "test", in_order=True)
    assert verify(schedule).ok
    # One unit is one byte here, so that a tick is the machine's own.
    tick = served.topology.capacity_groups()[0][0] * served.ticks[0]
    time = simulate(schedule, size=wanted.payload_units, latency=False).time
    assert time * tick <= timing.makespan * 10**12


def test_improve_reaches_the_busiest_server() -> None:
    plan, served, wanted = _plan(cases.switch(4), 2, 0)
    load = max(served.load(task.route for task in plan.tasks))
    timing = improve(plan, wave=waves(wanted.owner.tolist()), floor=load, seed=0, deadline=float("inf"), attempts=50)
    assert timing.makespan == load


def test_waves() -> None:
    assert waves([0, 0, 1, 0, 1]) == [0, 1 / 3, 0, 2 / 3, 1 / 2]
