"""Two ways in which a racy program may run, with different results."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import InputError
from ..program import Op, Program
from .memory import Goal, Layout, cell_name, collective_of, goal_of, layout_of
from .report import Finding
from .structure import Structure, build_structure
from .symbolic import Cell, Execution, describe

_READ_AND_STORE = frozenset(int(o) for o in (Op.COPY, Op.REDUCE, Op.RECV_REDUCE_COPY, Op.RECV_REDUCE_COPY_SEND))
#: Place of a step: rank, threadblock, step.
Place = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Witness:
    """Two interleavings that a racy program allows.

    Attributes:
        first, second: every step, in the order in which it takes effect.  The two steps that race come in one
            order in `first` and in the other in `second`; or one of them comes twice, around the other, because it
            reads before the other writes and stores its sum after that.
        in_place: the mode in which both ran.
        bounded: whether both keep to the protocol's FIFO depth.  If not, only the room in a FIFO keeps the
            steps apart, which a program must not rely on.
        differences: cells that hold different data at the end, in words; empty when both orders happen to leave the
            same data.
    """

    first: tuple[Place, ...]
    second: tuple[Place, ...]
    in_place: bool
    bounded: bool
    differences: tuple[str, ...]


def race_witness(program: Program, finding: Finding, *, flags: list[bool] | None = None) -> Witness:
    """Two interleavings of a program that order a race's two steps differently.

    Args:
        program: a two-sided program that `verify` found to race.
        finding: one of its E-RACE findings.
        flags: whether each row publishes its index (MSCCL's hasdep); None: every row that is waited for does.

    Returns:
        A pair that leaves different data in the outputs if one is found among those that run one of the steps as
        early, or as late, as can be; else one that leaves different data anywhere; else any.

    Raises:
        InputError: the finding is no race of this program.
    """
    structure = build_structure(program, flags)
    rows: dict[object, int] = {tuple(structure.table.at(row).values()): row for row in range(program.nrows)}
    one, two = rows.get((finding.rank, finding.threadblock, finding.step)), rows.get(finding.other)
    if finding.code != "E-RACE" or one is None or two is None or not structure.sound:
        raise InputError(
            f"{finding.code} is no race of program {program.name!r}", expected="one of its E-RACE findings"
        )
    best: tuple[int, Witness] | None = None
    for bounded in (True, False):
        orders = _orders(structure, one, two, bounded)
        relation = [_relation(order, one, two) for order in orders]
        for in_place in _modes(program, finding):
            layout = layout_of(program, in_place=in_place)
            ends_of = [_run(structure, layout, order, which) for order, which in zip(orders, relation, strict=True)]
            for i, first in enumerate(orders):
                for j, second in enumerate(orders[:i]):
                    if relation[i] == relation[j]:
                        continue
                    outputs, texts = _differences(layout, program, ends_of[i], ends_of[j])
                    rank = 2 if outputs else 1 if texts else 0
                    if best is None or rank > best[0]:
                        witness = Witness(
                            _places(structure, first), _places(structure, second), in_place, bounded, tuple(texts)
                        )
                        best = (rank, witness)
        if best is not None and best[0] == 2:
            break
    if best is None:
        raise InputError(f"the two steps of {finding.message!r} are ordered", expected="a race of this program")
    return best[1]


def _modes(program: Program, finding: Finding) -> list[bool]:
    told = [
        mode for mode, label in ((True, "in place: "), (False, "out of place: ")) if finding.message.startswith(label)
    ]
    return told or [mode for mode, on in ((True, program.in_place), (False, program.out_of_place)) if on] or [False]


def _places(structure: Structure, order: list[int]) -> tuple[Place, ...]:
    places = (structure.table.at(row) for row in order)
    return tuple((place["rank"], place["threadblock"], place["step"]) for place in places)


def _orders(structure: Structure, one: int, two: int, bounded: bool) -> list[list[int]]:
    """Orders in which one of two steps comes as late as can be, or the two meet, or one comes inside the other."""
    before = [[p for p, _ in structure.predecessors(row, bounded)] for row in range(structure.table.program.nrows)]
    found: list[list[int]] = []
    for last in ([one], [two], [one, two], [two, one]):
        order = _order(before, last)
        if order is not None and order not in found:
            found.append(order)
    for outer, inner in ((one, two), (two, one)):
        order = _order(before, [outer, inner])
        if order is None or structure.table.op[outer] not in _READ_AND_STORE:
            continue
        place = order.index(outer)
        if order[place + 1 : place + 2] == [inner]:
            found.append([*order[: place + 2], outer, *order[place + 2 :]])
    return found


def _relation(order: list[int], one: int, two: int) -> int:
    """The row that stands around the other one; else -1 or -2 for the one that comes first."""
    for row in (one, two):
        if order.count(row) > 1:
            return row
    return -1 if order.index(one) < order.index(two) else -2


def _order(before: list[list[int]], last: list[int]) -> list[int] | None:
    """An order that runs the rows of `last` when nothing else can, one after the other."""
    after: list[list[int]] = [[] for _ in before]
    missing = [len(rows) for rows in before]
    for row, rows in enumerate(before):
        for other in rows:
            after[other].append(row)
    ready = [row for row, count in enumerate(missing) if not count]
    order: list[int] = []
    kept: set[int] = set()
    while ready or kept:
        now = [row for row in last if row in kept]
        if ready:
            row = ready.pop()
            if row in last and row not in kept:
                kept.add(row)
                continue
            now = [row]
        kept.difference_update(now)
        for row in now:
            order.append(row)
            for other in after[row]:
                missing[other] -= 1
                if not missing[other]:
                    ready.append(other)
    return order if len(order) == len(before) else None


def _run(structure: Structure, layout: Layout, order: list[int], relation: int) -> list[list[Cell]]:
    torn = relation if relation >= 0 else None
    goal = _goal(structure.table.program)
    return Execution(replace(structure, order=order), layout, goal, torn=torn).run().cells


def _goal(program: Program) -> Goal:
    try:
        return goal_of(program, collective_of(program))
    except InputError:
        return goal_of(program, None)


def _differences(
    layout: Layout, program: Program, one: list[list[Cell]], two: list[list[Cell]]
) -> tuple[bool, list[str]]:
    """Whether outputs differ, and all cells that do, in words (outputs first)."""
    goal = _goal(program)
    texts: list[tuple[bool, str]] = []
    for rank, (cells, others) in enumerate(zip(one, two, strict=True)):
        for cell, (value, other) in enumerate(zip(cells, others, strict=True)):
            said = describe(value, goal), describe(other, goal)
            if value is not other and said[0] != said[1]:
                name = cell_name(layout, rank, cell)
                texts.append((not name.startswith("output"), f"rank {rank} {name}: {said[0]}, or {said[1]}"))
    texts.sort(key=lambda entry: entry[0])
    return any(not inner for inner, _ in texts), [text for _, text in texts]
