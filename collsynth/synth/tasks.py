"""Tasks from trees: AllGather's, their mirror images, and the two joined for AllReduce."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .flatten import flattened
from .forest import Forest, Tree
from .list_schedule import Task
from .machine import Machine, Route

#: exchanges weighed to make a forest shallower
_FLATTEN_WORK = 60_000


def mirrored(tasks: Sequence[Task], machine: Machine, twins: Sequence[int] | None = None) -> list[Task]:
    """The tasks in reversed time: copies along trees from a root become reductions towards it.

    Args:
        tasks: of the turned-around machine, or of the machine itself if `twins` are given.
        machine: the machine itself (`Topology.reverse` keeps link ids).
        twins: see `Machine.twins`.
    """
    waits: list[list[int]] = [[] for _ in tasks]
    for index, task in enumerate(tasks):
        for before in task.after:
            waits[before].append(index)
    return [
        replace(
            task,
            route=machine.route(tuple(link if twins is None else twins[link] for link in reversed(task.route.links))),
            reduce=True,
            after=tuple(after),
        )
        for task, after in zip(tasks, waits, strict=True)
    ]


def joined(reduce: Sequence[Task], copy: Sequence[Task]) -> list[Task]:
    """Reduce trees followed by broadcast trees: a chunk leaves its root when its sum is complete there."""
    into: dict[tuple[int, int], list[int]] = {}
    for index, task in enumerate(reduce):
        into.setdefault((task.chunk, task.route.dst), []).append(index)
    shift = len(reduce)
    result = list(reduce)
    for task in copy:
        after = [a + shift for a in task.after] if task.after else into.get((task.chunk, task.route.src), [])
        result.append(replace(task, after=tuple(after)))
    return result


def ordered_tasks(rows: Sequence[tuple[int, Route, bool]]) -> list[Task]:
    """Rows (chunk, route, reduce) in an order in which they can run, as tasks in the same order.

    A reduction waits for all reductions into its rank, a copy for everything that its rank has got.
    """
    brought: dict[tuple[int, int], list[int]] = {}
    for index, (chunk, route, _) in enumerate(rows):
        brought.setdefault((chunk, route.dst), []).append(index)
    return [
        Task(chunk, route, reduce, tuple(b for b in brought.get((chunk, route.src), ()) if rows[b][2] or not reduce))
        for chunk, route, reduce in rows
    ]


def _tree_tasks(tree: Tree, chunk: int, machine: Machine, first: int) -> list[Task]:
    """One chunk over one tree; indices start at `first`."""
    brings: dict[int, int] = {}
    tasks: list[Task] = []
    if not tree.reduce:
        for edge in tree.edges:
            after = (brings[edge.parent],) if edge.parent in brings else ()
            brings[edge.child] = first + len(tasks)
            tasks.append(Task(chunk, machine.route(edge.route), False, after))
        return tasks
    waits: dict[int, list[int]] = {}
    for edge in reversed(tree.edges):
        waits.setdefault(edge.parent, []).append(first + len(tasks))
        tasks.append(Task(chunk, machine.route(edge.route), True, tuple(waits.get(edge.child, ()))))
    return tasks


def _one_way(trees: Sequence[Tree], owners: Sequence[int], machine: Machine, copies: int) -> list[Task]:
    """Each chunk, in order, takes the next free place in a tree of its owner; trees take turns, so
    that the first pieces of an owner leave over different links."""
    places: dict[int, list[Tree]] = {}
    for owner in set(owners):
        mine = [tree for tree in trees if tree.root == owner]
        turns = copies * max((tree.multiplicity for tree in mine), default=0)
        places[owner] = [tree for turn in range(turns) for tree in mine if turn < copies * tree.multiplicity]
    used = dict.fromkeys(places, 0)
    units: list[Tree] = []
    for owner in owners:
        units.append(places[owner][used[owner]])
        used[owner] += 1
    tasks: list[Task] = []
    for chunk, tree in enumerate(flattened(units, machine.nranks, work=_FLATTEN_WORK)):
        tasks += _tree_tasks(tree, chunk, machine, len(tasks))
    return tasks


def forest_tasks(forest: Forest, owners: Sequence[int], machine: Machine, copies: int = 1) -> list[Task]:
    """The tasks of a forest.

    Args:
        owners: chunk c belongs to rank `owners[c]`, whose trees have as many places as it has chunks.
        copies: how often each tree is used beyond its multiplicity.
    """
    reduce = _one_way(forest.reduce, owners, machine, copies) if forest.reduce else []
    copy = _one_way(forest.broadcast, owners, machine, copies) if forest.broadcast else []
    return joined(reduce, copy)
