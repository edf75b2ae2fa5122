"""Pass 2: where every value lives; and, last of all, scratch slots with reuse.

A rank's value of a chunk starts in the input.  What arrives goes straight to its place in the output
when the rank must end with the chunk, and to a scratch slot otherwise (relays, partial sums of
others).  The first term that arrives is added to the rank's own term in the input and the sum lands in
output or scratch, so that the input is never written: it is intact when called out of place.  When
called in place the own term and the sum are the same memory, which is just right.

Two cases need a detour through scratch with a copy at the end:

* a message would overwrite (in place) a slice of the input that a later message still sends, as in an
  AllToAll exchange;
* a message arrives in the very level in which the rank still sends the old value (both partners of
  a recursive-doubling exchange).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from ..collective import COLLECTIVES
from ..errors import VerificationError
from ..program import Buffer, Op
from ..schedule import Schedule
from .instances import Atom
from .ir import Aliases, Message, Place, Plan, Step

_NEVER = (-1, -1)


@dataclass(slots=True)
class _Move:
    """Atoms that travel as one message: same route and level, side by side at both ends."""

    src: int
    dst: int
    reduce: bool
    atoms: list[Atom]
    where: Place
    rank_in_level: int


class _Placer:
    """State while the schedule's rows are turned into steps, level by level."""

    def __init__(
        self, schedule: Schedule, atoms: list[list[Atom]], instances: int, in_place: bool, out_of_place: bool,
        fused_receive: bool, max_count: int | None,
    ) -> None:  # fmt: skip
        collective = schedule.collective
        self.schedule, self.collective, self.atoms = schedule, collective, atoms
        self.fused_receive, self.max_count = fused_receive, max_count
        self.aliases = Aliases(collective, instances, in_place)
        self.is_source, self.is_destination = collective.sources.matrix(), collective.destinations.matrix()
        self.place: dict[tuple[int, Atom], Place] = {}
        self.writer: dict[tuple[int, Atom], Step] = {}
        self.next_virtual = [0] * collective.nranks
        self.plan = Plan(
            collective, instances, in_place, out_of_place, [], [[] for _ in range(collective.nranks)]
        )  # fmt: skip
        # (rank, chunk) -> (level, number within the level) of the last row that sends it
        self.last_read: dict[tuple[int, int], tuple[int, int]] = {}
        level = number = -1
        for row in schedule.order().tolist():
            number = number + 1 if schedule.level[row] == level else 0
            level = int(schedule.level[row])
            self.last_read[int(schedule.src[row]), int(schedule.chunk[row])] = (level, number)
        moves = collective.name == "alltoall" or collective.name not in COLLECTIVES
        self.overlaid = self._overlaid() if in_place and moves else {}

    def _overlaid(self) -> dict[tuple[int, int], tuple[int, int]]:
        """(rank, output unit) -> last row that sends the input memory under it (another chunk's, in place)."""
        last: dict[tuple[int, int], tuple[int, int]] = {}
        for (rank, chunk), row in self.last_read.items():
            if not self.is_source[chunk, rank]:
                continue
            for atom in self.atoms[chunk]:
                for unit in range(atom.input, atom.input + atom.count):
                    last[rank, unit] = max(last.get((rank, unit), _NEVER), row)
        return last

    def locate(self, rank: int, atom: Atom) -> Place | None:
        """Where the rank's value is now, None when it has none."""
        found = self.place.get((rank, atom))
        if found is None and self.is_source[atom.chunk, rank]:
            return Buffer.INPUT, atom.input
        return found

    def fresh(self, rank: int, count: int) -> Place:
        """A new virtual scratch slot."""
        start = self.next_virtual[rank]
        self.next_virtual[rank] = start + count + 1  # the gap keeps separate slots from looking like neighbours
        return Buffer.SCRATCH, start

    # --- one level ---

    def level(self, rows: list[int], level: int) -> None:
        """The steps of all rows of one level: they read what was there when the level began."""
        schedule = self.schedule
        still_read: dict[tuple[int, int], int] = {}
        for number, row in enumerate(rows):
            still_read[int(schedule.src[row]), int(schedule.chunk[row])] = number
        for move in self.moves(rows, level):
            self.message(move, level, still_read)

    def moves(self, rows: list[int], level: int) -> list[_Move]:
        """The level's messages.  Chunks that the sender has from the start and the receiver does not
        pass on are joined when they lie side by side: for others it would spoil pipelining."""
        schedule = self.schedule
        single: list[_Move] = []
        joinable: dict[tuple[object, ...], list[_Move]] = defaultdict(list)
        for number, row in enumerate(rows):
            chunk, src, dst = int(schedule.chunk[row]), int(schedule.src[row]), int(schedule.dst[row])
            leaf = self.last_read.get((dst, chunk), _NEVER)[0] < level
            route = schedule.route_links[schedule.route_ptr[row] : schedule.route_ptr[row + 1]].tobytes()
            for atom in self.atoms[chunk]:
                where = self.locate(src, atom)
                if where is None:
                    raise VerificationError(f"level {level}: rank {src} sends chunk {chunk}, which it does not have")
                move = _Move(src, dst, bool(schedule.reduce[row]), [atom], where, number)
                if leaf and where[0] == Buffer.INPUT:
                    joinable[src, dst, move.reduce, route, atom.instance].append(move)
                else:
                    single.append(move)
        for group in joinable.values():
            group.sort(key=lambda m: m.where)
            joined: list[_Move] = []
            for move in group:
                if joined and self.adjacent(joined[-1], move):
                    joined[-1].atoms.append(move.atoms[0])
                    joined[-1].rank_in_level = min(joined[-1].rank_in_level, move.rank_in_level)
                else:
                    joined.append(move)
            single.extend(joined)
        single.sort(key=lambda m: (m.rank_in_level, m.atoms[0].instance, m.atoms[0].input))
        return single

    def adjacent(self, left: _Move, right: _Move) -> bool:
        """Whether `right` may be appended to `left`: neighbours at the sender and at the receiver."""
        last, atom = left.atoms[-1], right.atoms[0]
        total = sum(a.count for a in left.atoms) + atom.count
        ends = [bool(self.is_destination[a.chunk, left.dst]) for a in (last, atom)]
        return (
            atom.input == last.input + last.count
            and ends[0] == ends[1]
            and (not ends[0] or atom.output == last.output + last.count)
            and (self.max_count is None or total <= self.max_count)
        )

    def message(self, move: _Move, level: int, still_read: dict[tuple[int, int], int]) -> None:
        """Send, receive and local steps of one move; a group whose values differ in place is split."""
        old = [self.locate(move.dst, atom) if move.reduce else None for atom in move.atoms]
        detour = [self.must_detour(move, atom, level, still_read) for atom in move.atoms]
        if len(move.atoms) > 1 and not (_run(old, move.atoms) and len(set(detour)) == 1):
            start = move.where[1] - move.atoms[0].input
            for atom in move.atoms:
                where = (move.where[0], start + atom.input)
                part = _Move(move.src, move.dst, move.reduce, [atom], where, move.rank_in_level)
                self.message(part, level, still_read)
            return
        count = sum(atom.count for atom in move.atoms)
        first = move.atoms[0]
        target = self.target(move.dst, first, count, old[0], detour[0])
        message = Message(
            len(self.plan.messages), move.src, move.dst, count, level, first.instance, first.color
        )  # fmt: skip
        self.plan.messages.append(message)
        order = 4 * message.position
        producer = self.writer.get((move.src, first))
        self.plan.steps[move.src].append(
            Step(move.src, Op.SEND, count, move.where, None, order, level, send=message, producer=producer)
        )
        received = receive_steps(self.plan, self.aliases, message, old[0], target, self.fused_receive, self.fresh)
        self.plan.steps[move.dst].extend(received)
        offset = 0
        for atom in move.atoms:
            self.place[move.dst, atom] = (target[0], target[1] + offset)
            self.writer[move.dst, atom] = received[-1]
            offset += atom.count

    def must_detour(self, move: _Move, atom: Atom, level: int, still_read: dict[tuple[int, int], int]) -> bool:
        """Whether the message may not go where the old value, or another chunk's input, still is."""
        if still_read.get((move.dst, atom.chunk), -1) > move.rank_in_level:
            return True
        if not self.overlaid or not self.is_destination[atom.chunk, move.dst]:
            return False
        units = range(atom.output, atom.output + atom.count)
        return max(self.overlaid.get((move.dst, unit), _NEVER) for unit in units) > (level, move.rank_in_level)

    def target(self, rank: int, atom: Atom, count: int, old: Place | None, detour: bool) -> Place:
        """Where a value that arrives at `rank` goes."""
        if detour:
            return self.fresh(rank, count)
        if self.is_destination[atom.chunk, rank]:
            return Buffer.OUTPUT, atom.output
        if old is not None and old[0] == Buffer.SCRATCH:
            return old
        return self.fresh(rank, count)

    # --- the end ---

    def final_copies(self) -> None:
        """Copies into the output of what did not arrive there (own shards, detours), joined into runs."""
        order, level = 4 * len(self.plan.messages), int(self.schedule.level.max(initial=-1)) + 1
        pending: dict[int, list[tuple[Place, Atom, Step | None]]] = defaultdict(list)
        for chunk, parts in enumerate(self.atoms):
            for rank in np.flatnonzero(self.is_destination[chunk]).tolist():
                for atom in parts:
                    where = self.locate(rank, atom)
                    if where is None:
                        raise VerificationError(f"rank {rank} never gets chunk {chunk}")
                    same = self.aliases.address(rank, where) == self.aliases.address(rank, (Buffer.OUTPUT, atom.output))
                    if where[0] != Buffer.OUTPUT and not (same and not self.plan.out_of_place):
                        pending[rank].append((where, atom, self.writer.get((rank, atom))))
        for rank, entries in pending.items():
            entries.sort(key=lambda e: (e[0], e[1].output))
            run: Step | None = None
            source: Step | None = None
            for where, atom, writer in entries:
                if (
                    run is not None and run.src is not None and run.dst is not None and source is writer
                    and where == (run.src[0], run.src[1] + run.count) and atom.output == run.dst[1] + run.count
                    and (self.max_count is None or run.count + atom.count <= self.max_count)
                ):  # fmt: skip
                    run.count += atom.count
                    continue
                home = None if writer is None else writer.recv or writer.home
                run = Step(rank, Op.COPY, atom.count, where, (Buffer.OUTPUT, atom.output), order, level, home=home)
                source = writer
                order += 1
                self.plan.steps[rank].append(run)


def receive_steps(
    plan: Plan, aliases: Aliases, message: Message, old: Place | None, target: Place, fused_receive: bool,
    fresh: Callable[[int, int], Place],
) -> list[Step]:  # fmt: skip
    """The receiver's steps of a message; they take places 1 to 3 of its four in the linear order.

    Args:
        plan: which modes the program must be right in.
        aliases: where places are one memory.
        message: what arrives.
        old: the value to add to, None to overwrite.
        target: where the result goes.
        fused_receive: whether the target machine receives and adds in one step.
        fresh: gives a new scratch slot of a rank, of so many units.
    """
    rank, order, count, level = message.dst, 4 * message.position + 1, message.count, message.level
    if old is None:
        return [Step(rank, Op.RECV, count, None, target, order, level, recv=message)]
    if fused_receive:
        return [Step(rank, Op.RECV_REDUCE_COPY, count, old, target, order, level, recv=message)]
    if aliases.address(rank, old) != aliases.address(rank, target):
        add = Step(rank, Op.REDUCE, count, old, target, order + 1, level, home=message)
        return [Step(rank, Op.RECV, count, None, target, order, level, recv=message), add]
    # the sum goes where the old value is (in place at least): the message needs a place of its own
    term = fresh(rank, count)
    steps = [Step(rank, Op.RECV, count, None, term, order, level, recv=message)]
    if old != target and plan.out_of_place:
        steps.append(Step(rank, Op.COPY, count, old, target, order + 1, level, home=message))
    steps.append(Step(rank, Op.REDUCE, count, term, target, order + 2, level, home=message))
    return steps


def _run(places: list[Place | None], atoms: list[Atom]) -> bool:
    """Whether the old values of the atoms lie side by side (or none of them exists)."""
    first = places[0]
    offset = 0
    for place, atom in zip(places, atoms, strict=True):
        if (place is None) != (first is None):
            return False
        if first is not None and place != (first[0], first[1] + offset):
            return False
        offset += atom.count
    return True


def place(
    schedule: Schedule, atoms: list[list[Atom]], instances: int, *, in_place: bool, out_of_place: bool,
    fused_receive: bool, max_count: int | None,
) -> Plan:  # fmt: skip
    """Messages and steps of an explicit schedule, scratch in virtual units.

    Args:
        schedule: explicit (expanded) and correct.
        atoms: from `instances.atoms`.
        in_place, out_of_place: modes to be right in.
        fused_receive: whether the target runs receive-and-reduce; else a receive into scratch and a
            local reduction.
        max_count: largest number of units in one instruction.

    Raises:
        VerificationError: the schedule sends what a rank does not have, or forgets a rank.
    """
    placer = _Placer(schedule, atoms, instances, in_place, out_of_place, fused_receive, max_count)
    order = schedule.order()
    levels = schedule.level[order]
    bounds = np.flatnonzero(np.diff(levels, prepend=-1, append=np.iinfo(np.int64).max))
    for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        placer.level(order[begin:end].tolist(), int(levels[begin]))
    placer.final_copies()
    for steps in placer.plan.steps:
        steps.sort(key=lambda step: step.order)
    return placer.plan


def allocate_scratch(plan: Plan, *, reuse: bool = True) -> list[list[tuple[Place | None, Place | None]]]:
    """Replace virtual scratch units by real ones; returns the places as they were, for `restore_scratch`.

    With `reuse` a slot is used again once all its readers ran, but only in a later level than theirs,
    so that reuse seldom makes anybody wait; `dependencies` orders what is left.  Pinned units stay.
    """
    plan.scratch_units = []
    before = [[(step.src, step.dst) for step in steps] for steps in plan.steps]
    for rank, steps in enumerate(plan.steps):
        pinned = plan.pinned_scratch[rank] if plan.pinned_scratch else 0
        first: dict[int, tuple[int, int, int]] = {}  # virtual start -> order, level, units
        last: dict[int, int] = {}  # virtual start -> level of the last access
        starts: dict[int, int] = {}  # virtual unit -> start of its slot
        for step in steps:
            for place in (step.dst, step.src):
                if place is None or place[0] != Buffer.SCRATCH or place[1] < pinned:
                    continue
                start = starts.get(place[1])
                if start is None:
                    start = place[1]
                    first[start] = (step.order, step.level, step.count)
                    for unit in range(start, start + step.count):
                        starts[unit] = start
                last[start] = max(last.get(start, -1), step.level)
        real: dict[int, int] = {}
        free: dict[int, list[tuple[int, int]]] = defaultdict(list)  # units -> heap of (last level, real start)
        total = pinned
        for start, (_, level, units) in sorted(first.items(), key=lambda item: item[1]):
            slots = free[units]
            if reuse and slots and slots[0][0] < level:
                real[start] = heappop(slots)[1]
            else:
                real[start] = total
                total += units
            heappush(slots, (last[start], real[start]))
        for step in steps:
            step.src = _moved(step.src, starts, real)
            step.dst = _moved(step.dst, starts, real)
        plan.scratch_units.append(total)
    return before


def restore_scratch(plan: Plan, before: list[list[tuple[Place | None, Place | None]]]) -> None:
    """Undo `allocate_scratch`."""
    for steps, places in zip(plan.steps, before, strict=True):
        for step, (src, dst) in zip(steps, places, strict=True):
            step.src, step.dst = src, dst


def _moved(place: Place | None, starts: dict[int, int], real: dict[int, int]) -> Place | None:
    if place is None or place[0] != Buffer.SCRATCH or place[1] not in starts:
        return place
    start = starts[place[1]]
    return place[0], real[start] + place[1] - start
