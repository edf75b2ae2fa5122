"""Reductions as copies in reversed time: ReduceScatter from AllGather, Reduce from Broadcast, AllReduce from both.

A schedule that copies from roots, run backwards over turned-around links, adds towards the roots.  So
whatever is found for AllGather serves ReduceScatter, and the two in turn are an AllReduce, which
overlaps where links are free early.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .. import collective as collectives
from ..bounds import bound as bound_of
from ..collective import Collective
from ..program import TARGETS
from ..schedule import Schedule
from .assemble import schedule_of
from .greedy import Found
from .list_schedule import Plan, Timing
from .machine import Machine, machine_of
from .problem import Problem
from .tasks import joined, mirrored, ordered_tasks

#: work to make an image as short as its original, in tasks placed
_SHAKE_WORK = 150_000


def part_of(problem: Problem, name: str, collective: Collective | None, *, turned: bool = False) -> Problem:
    """The AllGather, Broadcast or ReduceScatter behind a reduction, where bandwidth alone counts.

    Args:
        collective: the reduction in certain pieces; None: their number is open.
        turned: on the machine turned around (the machine itself where the two are equal).
    """
    topology = problem.topology
    if turned and problem.machine.twins() is None:
        topology = problem.reversed_machine.topology
    spec, weights = replace(problem.spec, size=None, target=TARGETS["any"]), problem.weights
    if collective is not None:
        shares = shares_of(collective)
        even = len(set(shares)) == 1
        spec, weights = replace(spec, chunks=shares[0] if even else 1), None if even else tuple(shares)
    return Problem(topology, name, problem.root, spec, bound_of(topology, name, root=problem.root), weights,
                   problem.deadline)  # fmt: skip


def shares_of(collective: Collective) -> list[int]:
    """Chunks of every rank."""
    owners = collective.owner.tolist()
    return [owners.count(rank) for rank in range(collective.nranks)]


def reversed_in_time(machine: Machine, found: Found, twins: Sequence[int] | None, floor: int) -> Found:
    """Copies of the turned-around machine (of the machine itself if `twins` are given) as reductions."""
    plan = Plan(mirrored(found.plan.tasks, machine, twins), len(machine.ticks))
    best: Timing | None = None
    # What takes longest on its way is served too early by one order or too late by the other.
    for times in (found.timing.end, found.timing.start):
        first = plan.serial(sorted(plan.topological, key=lambda i: -times[i]))
        timing = plan.polish(first, floor=floor)
        if best is None or timing.makespan < best.makespan:
            best = timing
    assert best is not None
    # The image should last no longer than what it is the image of.
    floor = max(floor, found.timing.makespan)
    return Found(plan, plan.shaken(best, floor=floor, seed=0, attempts=_SHAKE_WORK // max(1, len(plan.tasks))))


def reflected(problem: Problem, image: Schedule) -> Schedule:
    """The ReduceScatter or Reduce behind `image`, a schedule of the turned machine's AllGather or Broadcast."""
    machine = problem.machine
    floor = problem.floor(image.collective.payload_units)
    found = reversed_in_time(machine, _found(image), machine.twins(), floor)
    shares = shares_of(image.collective)
    if problem.name == "reduce":
        collective = problem.cut_into(sum(shares))
    else:
        uneven = shares if len(set(shares)) > 1 else None
        collective = collectives.reduce_scatter(problem.nranks, shares[0], weights=uneven)
    return schedule_of(problem.topology, collective, found.plan.rows(found.timing), "mirror", in_order=True)


def in_turn(problem: Problem, sums: Schedule, copies: Schedule) -> Schedule:
    """AllReduce from a ReduceScatter and an AllGather of the same chunks: each is copied as soon as its own sum
    is complete."""
    first, second = _found(sums), _found(copies)
    plan = Plan(joined(first.plan.tasks, second.plan.tasks), len(problem.machine.ticks))
    shares = shares_of(copies.collective)
    timing = plan.polish(plan.serial(range(len(plan.tasks))), floor=problem.floor(sum(shares)))
    rows = plan.rows(timing)
    return schedule_of(problem.topology, problem.cut_into(sum(shares), shares), rows, "mirror", in_order=True)


def _found(schedule: Schedule) -> Found:
    """A schedule's transfers as tasks with their times."""
    machine = machine_of(schedule.topology)
    full = schedule.expand()
    ptr, links = full.route_ptr.tolist(), full.route_links.tolist()
    chunk, reduce = full.chunk.tolist(), full.reduce.tolist()
    rows = [
        (chunk[row], machine.route(tuple(links[ptr[row] : ptr[row + 1]])), reduce[row]) for row in full.order().tolist()
    ]
    plan = Plan(ordered_tasks(rows), len(machine.ticks))
    return Found(plan, plan.serial(range(len(rows))))
