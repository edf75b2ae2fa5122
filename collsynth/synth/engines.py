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
from .mirror import reversed_in_time
from .problem import DEFAULT_PIECES, Problem
from .regions import regions_of
from .reinsert import Reinsertion
from .tasks import forest_tasks

#: collectives whose chunks travel along trees that reach all ranks
TREES = ("allgather", "reducescatter", "allreduce", "broadcast", "reduce")

#: work of one search, in tasks placed, so that results do not depend on the clock
_GREEDY_WORK = 10_000
_LIST_WORK = 20_000


def variants(name: str) -> list[dict[str, Any]]:
    """Options under which `auto` tries a closed form of the registry."""
    if name == "ring":
        return [{}, {"both": True}, {"channels": 4}]
    return [{}]


def _schedule(problem: Problem, collective: Collective, plan: Plan, timing: Timing, method: str) -> Schedule:
    return schedule_of(problem.topology, collective, plan.rows(timing), method, in_order=True)


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


def _turned(problem: Problem, owners: Sequence[int], floor: int) -> Found:
    """Reductions: the greedy of the turned-around machine in reversed time."""
    machine = problem.machine
    twins = machine.twins()
    found = _greedy(problem, problem.reversed_machine if twins is None else machine, owners, floor)
    return reversed_in_time(machine, found, twins, floor)


def greedy_schedules(problem: Problem) -> Iterator[Schedule]:
    """AllGather and Broadcast by the greedy; ReduceScatter and Reduce mirrored."""
    for collective in problem.promising():
        if problem.out_of_time:
            return
        owners = collective.owner.tolist()
        floor = problem.floor(collective.payload_units)
        if problem.nranks == 1:
            yield schedule_of(problem.topology, collective, [], "greedy")
            return
        if problem.name in ("allgather", "broadcast"):
            found = _greedy(problem, problem.machine, owners, floor)
        else:
            found = _turned(problem, owners, floor)
        yield _schedule(problem, collective, found.plan, found.timing, "greedy")


# --- forest -------------------------------------------------------------------------------------


def forest_schedules(problem: Problem) -> Iterator[Schedule]:
    """Packed trees, list-scheduled; with `exact`, as many pieces as the exact rate needs."""
    if problem.spec.exact:
        yield from _exact(problem)
        return
    for wanted in problem.promising():
        if problem.out_of_time:
            return
        whole = problem.name in ("allreduce", "broadcast", "reduce")
        shares = sum(problem.weights) if problem.weights else problem.nranks
        pieces = wanted.payload_units if whole else wanted.payload_units // shares
        packed = pack_forest(problem.topology, problem.name, root=problem.root, weights=problem.weights, pieces=pieces)
        yield _packed(problem, packed)


def _exact(problem: Problem) -> Iterator[Schedule]:
    """The forest of the exact rate, first with as few pieces as that takes, then each piece cut further
    (the rate stays, the pipeline fills sooner)."""
    most = problem.spec.max_units
    packed = pack_forest(
        problem.topology, problem.name, root=problem.root, weights=problem.weights, exact=True, max_pieces=most
    )  # fmt: skip
    yield _packed(problem, packed)
    total = sum(packed.pieces_per_root)
    copies = -(-max(DEFAULT_PIECES) * problem.nranks // max(1, total))
    if copies > 1 and (most is None or copies * total <= most):
        yield _packed(problem, packed, copies)


def _packed(problem: Problem, packed: PackedForest, copies: int = 1) -> Schedule:
    """The forest's trees as tasks, each piece cut into `copies`, with the best timing found."""
    per_root = [copies * count for count in packed.pieces_per_root]
    owners = [rank for rank, count in enumerate(per_root) for _ in range(count)]
    total = len(owners)
    if problem.name in ("allgather", "reducescatter"):
        from .. import collective as collectives

        build = collectives.allgather if problem.name == "allgather" else collectives.reduce_scatter
        even = len(set(per_root)) == 1
        collective = build(problem.nranks, per_root[0]) if even else build(problem.nranks, weights=per_root)
    else:
        collective = problem.cut_into(total, per_root if problem.name == "allreduce" else None)
    tasks = forest_tasks(packed.forest, owners, problem.machine, copies)
    return _listed(problem, collective, tasks, "forest")


def _listed(problem: Problem, collective: Collective, tasks: Sequence[Task], method: str) -> Schedule:
    plan = Plan(tasks, len(problem.machine.ticks))
    timing = _timed(problem, plan, collective.owner.tolist(), problem.floor(collective.payload_units))
    return _schedule(problem, collective, plan, timing, method)


def _timed(problem: Problem, plan: Plan, owners: Sequence[int], floor: int) -> Timing:
    """The plan's best timing within the work of one search."""
    return improve(
        plan,
        wave=waves(owners),
        floor=floor,
        seed=problem.spec.seed,
        deadline=problem.deadline,
        attempts=_attempts(_LIST_WORK, len(plan.tasks)),
    )


# --- reinsertion --------------------------------------------------------------------------------


def regrown(problem: Problem, schedule: Schedule) -> Iterator[Schedule]:
    """The schedule with its trees grown anew where that makes it shorter; nothing when it is not made of trees
    or is close to the bound already."""
    floor = problem.floor(schedule.collective.payload_units)
    try:
        search = Reinsertion(problem.machine, schedule, floor=floor, exact=problem.spec.exact, seed=problem.spec.seed)
    except ValueError:
        return
    chunks = search.run(problem.deadline)
    plan, timing, roots = search.plan(chunks)
    collective = schedule.collective
    if problem.name == "allreduce":
        collective = problem.cut_into(len(roots), [roots.count(rank) for rank in range(problem.nranks)])
    yield _schedule(problem, collective, plan, timing, f"{schedule.method}+regrown")


# --- paths --------------------------------------------------------------------------------------


def path_schedules(problem: Problem) -> Iterator[Schedule]:
    """AllToAll, Gather and Scatter over paths of balanced load."""
    for collective in problem.promising():
        if problem.out_of_time:
            return
        ends = list(zip(collective.sources.ranks.tolist(), collective.destinations.ranks.tolist(), strict=True))
        chunks = [c for c, (src, dst) in enumerate(ends) if src != dst]
        pairs = [ends[c] for c in chunks]
        floor = problem.floor(collective.payload_units)
        paths = spread_paths(problem.machine, pairs, floor=floor, seed=problem.spec.seed)
        yield _listed(problem, collective, path_tasks(chunks, paths), "paths")
