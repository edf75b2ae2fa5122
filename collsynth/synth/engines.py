"""The engines: from a problem to schedules, coarse pieces first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..collective import Collective
from ..schedule import Schedule
from .alltoall import path_tasks, spread_paths
from .assemble import schedule_of
from .forests import PackedForest, pack_forest
from .greedy import Found, search
from .list_schedule import Plan, Task, Timing, improve, waves
from .machine import Machine
from .problem import Problem
from .regions import regions_of
from .tasks import forest_tasks, joined, mirrored

#: work of one search, in tasks placed, so that results do not depend on the clock
_GREEDY_WORK = 24_000
_LIST_WORK = 60_000


def variants(name: str) -> list[dict[str, Any]]:
    """Options under which `auto` tries a closed form of the registry."""
    if name == "ring":
        return [{}, {"both": True}, {"channels": 4}]
    return [{}]


def _schedule(problem: Problem, collective: Collective, plan: Plan, timing: Timing, method: str) -> Schedule:
    return schedule_of(problem.topology, collective, plan.rows(timing), method)


def _attempts(work: int, tasks: int) -> int:
    return max(6, min(60, work // max(1, tasks)))


# --- greedy -----------------------------------------------------------------------------------


def _greedy(problem: Problem, machine: Machine, owners: Sequence[int], floor: int) -> Found:
    found = search(
        machine, owners, regions_of(machine, owners), floor=floor, seed=problem.spec.seed, deadline=problem.deadline,
        attempts=_attempts(_GREEDY_WORK, len(owners) * (machine.nranks - 1)),
    )  # fmt: skip
    assert found is not None
    return found


def _turned(problem: Problem, found: Found, floor: int) -> Found:
    """A greedy result of the turned-around machine as reductions on the machine itself."""
    tasks = mirrored(found.plan.tasks, problem.machine)
    plan = Plan(tasks, len(problem.machine.ticks))
    end = found.timing.end
    first = plan.serial(sorted(range(len(tasks)), key=lambda i: -end[i]))
    return Found(plan, plan.polish(first, floor=floor))


def greedy_schedules(problem: Problem) -> Iterator[Schedule]:
    """AllGather and Broadcast by the greedy; ReduceScatter and Reduce mirrored; AllReduce both in turn."""
    problem.machine.hops()
    for collective in problem.promising():
        if problem.out_of_time:
            return
        owners = collective.owner.tolist()
        floor = problem.floor(collective.payload_units)
        if problem.nranks == 1:
            yield schedule_of(problem.topology, collective, [], "greedy")
            return
        half = floor // 2 if problem.name == "allreduce" else floor
        if problem.name in ("allgather", "broadcast"):
            found = _greedy(problem, problem.machine, owners, floor)
        else:
            found = _turned(problem, _greedy(problem, problem.reversed_machine, owners, half), half)
        if problem.name == "allreduce":
            copies = _greedy(problem, problem.machine, owners, half)
            plan = Plan(joined(found.plan.tasks, copies.plan.tasks), len(problem.machine.ticks))
            last = found.timing.makespan
            start = [*found.timing.start, *(s + last for s in copies.timing.start)]
            first = plan.serial(sorted(range(len(start)), key=start.__getitem__))
            found = Found(plan, plan.polish(first, floor=floor))
        yield _schedule(problem, collective, found.plan, found.timing, "greedy")


# --- forest -------------------------------------------------------------------------------------


def forest_schedules(problem: Problem) -> Iterator[Schedule]:
    """Packed trees, list-scheduled; with `exact`, as many pieces as the exact rate needs."""
    problem.machine.hops()
    if problem.spec.exact:
        packed = pack_forest(
            problem.topology, problem.name, root=problem.root, weights=problem.weights, exact=True,
            max_pieces=problem.spec.max_units,
        )  # fmt: skip
        yield _packed(problem, packed)
        return
    for wanted in problem.promising():
        if problem.out_of_time:
            return
        whole = problem.name in ("allreduce", "broadcast", "reduce")
        shares = sum(problem.weights) if problem.weights else problem.nranks
        pieces = wanted.payload_units if whole else wanted.payload_units // shares
        packed = pack_forest(problem.topology, problem.name, root=problem.root, weights=problem.weights, pieces=pieces)
        yield _packed(problem, packed)


def _packed(problem: Problem, packed: PackedForest) -> Schedule:
    """The forest's trees as tasks, with the best timing found."""
    per_root = packed.pieces_per_root
    owners = [rank for rank, count in enumerate(per_root) for _ in range(count)]
    total = len(owners)
    if problem.name in ("allgather", "reducescatter"):
        from .. import collective as collectives

        build = collectives.allgather if problem.name == "allgather" else collectives.reduce_scatter
        even = len(set(per_root)) == 1
        collective = build(problem.nranks, per_root[0]) if even else build(problem.nranks, weights=per_root)
    else:
        collective = problem.cut_into(total, per_root if problem.name == "allreduce" else None)
    tasks = forest_tasks(packed.forest, owners, problem.machine)
    return _listed(problem, collective, tasks, "forest")


def _listed(problem: Problem, collective: Collective, tasks: Sequence[Task], method: str) -> Schedule:
    plan = Plan(tasks, len(problem.machine.ticks))
    timing = improve(
        plan, wave=waves(collective.owner.tolist()), floor=problem.floor(collective.payload_units),
        seed=problem.spec.seed, deadline=problem.deadline, attempts=_attempts(_LIST_WORK, len(tasks)),
    )  # fmt: skip
    return _schedule(problem, collective, plan, timing, method)


# --- paths --------------------------------------------------------------------------------------


def path_schedules(problem: Problem) -> Iterator[Schedule]:
    """AllToAll over paths of balanced load."""
    for collective in problem.promising():
        if problem.out_of_time:
            return
        ends = collective.destinations.ranks.tolist()
        chunks = [c for c, (s, d) in enumerate(zip(collective.owner.tolist(), ends, strict=True)) if s != d]
        pairs = [(int(collective.owner[c]), ends[c]) for c in chunks]
        floor = problem.floor(collective.payload_units)
        paths = spread_paths(problem.machine, pairs, floor=floor, seed=problem.spec.seed)
        yield _listed(problem, collective, path_tasks(chunks, paths), "paths")
