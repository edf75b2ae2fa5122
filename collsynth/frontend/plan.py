"""Recorded operations to a `Plan`: an order that keeps connections busy, and parts that cannot race.

**Order.**  A script may write chunk by chunk what is meant to run at the same time.  Operations are put in
the order in which they would run if every connection carried one at a time, at one unit a tick, as soon as
what they read is there and what they overwrite has been read.  Of two that could go, the one that was
written first does.  In each tick all sends come before all receives, so that what arrives in one tick can
leave in the next with nothing sent in between: a ring fuses on every rank.  A connection carries one
operation at a time, so a send still comes after the receives of all earlier messages of its connection,
and every conflicting pair keeps its order, which is what the linear order of `lowering.ir` needs.

**Parts.**  With `instances` every unit is cut n times finer.  Copy j of a run of units (those that lie side
by side in every buffer that holds them) takes the j-th n-th of the run, as in `lowering.instances`: what a
copy reads only it has written.  An operation over several runs becomes one message a run, because one that
renumbers them into one range reads other copies' units (as MSCCLang's replication does).
`Recording.parallel` cuts each operation's own range instead.  Waits are derived from the units that steps
touch, whichever copy they belong to, so that neither can race.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from math import lcm

from ..collective import Collective
from ..lowering.buffers import receive_steps
from ..lowering.instances import runs
from ..lowering.ir import Aliases, Message, Place, Plan, Step
from ..program import Buffer, Op, Target
from .operations import Operation, Span, Threadblocks

#: A connection: (source rank, destination rank, channel).
_Connection = tuple[int, int, int]

#: More than a program's parts: spaces out the positions of ticks.
_MANY = 1 << 40


def make_plan(
    collective: Collective, operations: Sequence[Operation], threadblocks: Threadblocks, scratch_units: Sequence[int],
    *, instances: int, in_place: bool, out_of_place: bool, target: Target,
) -> Plan:  # fmt: skip
    """The plan of recorded operations.

    Args:
        collective: what it computes.
        operations: as recorded.
        threadblocks: what the hints fixed.
        scratch_units: used by each rank.
        instances: parallel copies.
        in_place, out_of_place: modes to be right in.
        target: its `fused_receive` and `max_count` are kept.
    """
    cut = lcm(*(operation.ways for operation in operations))
    plan = Plan(
        collective, cut * instances, in_place, out_of_place, [], [[] for _ in range(collective.nranks)],
        pinned_scratch=[units * cut * instances for units in scratch_units],
    )  # fmt: skip
    emitter = _Emitter(plan, target.fused_receive)
    aliases = Aliases(collective, 1, in_place)
    division = _Division(aliases, collective, scratch_units, cut, instances, target.max_count)
    channels = 1 + max((operation.hints.channel for operation in operations), default=0)
    ways = max((operation.ways for operation in operations), default=1)
    lanes = instances * channels * ways

    def lane_of(instance: int, channel: int, way: int) -> int:
        return (instance * channels + channel) * ways + way

    def block_of(name: int | None, lane: int) -> int | None:
        return None if name is None else name * lanes + lane

    for number, tick in run_order(operations, aliases):
        operation = operations[number]
        hints = operation.hints
        channel = hints.channel if hints.tb is None else threadblocks.channel(operation.target.rank, hints.tb)
        for instance in range(instances):
            for way in range(operation.ways):
                lane = lane_of(instance, channel, way)
                blocks = (block_of(hints.send_tb, lane), block_of(hints.recv_tb, lane), block_of(hints.tb, lane))
                for part, (places, count) in enumerate(division.parts(operation, instance, way)):
                    emitter.emit(operation, places, count, tick, part, lane, blocks)
    plan.messages.sort(key=lambda message: message.position)
    for steps in plan.steps:
        steps.sort(key=lambda step: step.order)
    return plan


def run_order(operations: Sequence[Operation], aliases: Aliases) -> list[tuple[int, int]]:
    """(operation, tick at which it starts) in the order of the module's docstring."""
    later, waits = _conflicts(operations, aliases)
    ready_at = [0] * len(operations)
    # events: (tick, 0, connection that is free again) or (tick, 1, operation that may go)
    events: list[tuple[int, int, tuple[int, ...]]] = [(0, 1, (n,)) for n, count in enumerate(waits) if count == 0]
    free_at: dict[_Connection, int] = defaultdict(int)
    queued: dict[_Connection, list[int]] = defaultdict(list)
    order: list[tuple[int, int]] = []

    def connection(number: int) -> _Connection:
        operation = operations[number]
        return operation.source.rank, operation.target.rank, operation.hints.channel

    def start(number: int, tick: int) -> None:
        order.append((number, tick))
        done = tick
        if operations[number].remote:
            done += operations[number].source.count
            free_at[connection(number)] = done
            heappush(events, (done, 0, connection(number)))
        for other in later[number]:
            waits[other] -= 1
            ready_at[other] = max(ready_at[other], done)
            if waits[other] == 0:
                heappush(events, (ready_at[other], 1, (other,)))

    while events:
        tick, kind, key = heappop(events)
        if kind == 0:
            waiting = queued[key[0], key[1], key[2]]
            if waiting and free_at[key[0], key[1], key[2]] <= tick:
                start(heappop(waiting), tick)
        elif operations[key[0]].remote and free_at[connection(key[0])] > tick:
            heappush(queued[connection(key[0])], key[0])
        else:
            start(key[0], tick)
    return order


def _conflicts(operations: Sequence[Operation], aliases: Aliases) -> tuple[list[list[int]], list[int]]:
    """For each operation the later ones that must wait for it, and for how many it waits itself."""
    writer: dict[tuple[int, int, int], int] = {}
    readers: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    later: list[list[int]] = [[] for _ in operations]
    waits = [0] * len(operations)

    def cells(span: Span) -> Iterator[tuple[int, int, int]]:
        memory, unit = aliases.address(span.rank, (span.buffer, span.index))
        return ((span.rank, memory, unit + offset) for offset in range(span.count))

    for number, operation in enumerate(operations):
        before: set[int] = set()
        for span in (operation.source,) if operation.own is None else (operation.source, operation.own):
            for cell in cells(span):
                if cell in writer:
                    before.add(writer[cell])
                readers[cell].append(number)
        for cell in cells(operation.target):
            if cell in writer:
                before.add(writer[cell])
            before.update(readers.pop(cell, ()))
            writer[cell] = number
        before.discard(number)
        waits[number] = len(before)
        for other in sorted(before):
            later[other].append(number)
    return later, waits


class _Division:
    """Which fine units each part of an operation moves."""

    def __init__(
        self, aliases: Aliases, collective: Collective, scratch_units: Sequence[int], cut: int, instances: int,
        max_count: int | None,
    ) -> None:  # fmt: skip
        self.aliases = aliases
        self.cut, self.instances, self.max_count = cut, instances, max_count
        self.scratch_units = scratch_units
        self.runs = _unit_runs(collective, aliases) if instances > 1 else {}

    def run(self, span: Span, unit: int) -> tuple[int, int]:
        """(first unit, units) of the run that a unit of the span's buffer is in."""
        if span.buffer == Buffer.SCRATCH:
            return 0, self.scratch_units[span.rank]
        before, units = self.runs.get((span.rank, *self.aliases.address(span.rank, (span.buffer, unit))), (0, 1))
        return unit - before, units

    def parts(self, operation: Operation, instance: int, way: int) -> Iterator[tuple[list[Place], int]]:
        """Places of source, target and (reduction) own, and the count, of the parts of one lane."""
        spans = [operation.source, operation.target, *([] if operation.own is None else [operation.own])]
        size = self.cut * operation.source.count // operation.ways
        at, end = way * size, (way + 1) * size
        while at < end:
            count = end - at if self.max_count is None else min(end - at, self.max_count)
            places: list[Place] = []
            for span in spans:
                fine = self.cut * span.index + at
                if self.instances > 1:
                    start, units = self.run(span, fine // self.cut)
                    count = min(count, self.cut * (start + units) - fine)
                    fine += self.cut * (start * (self.instances - 1) + instance * units)
                places.append((span.buffer, fine))
            yield places, count
            at += count


def _unit_runs(collective: Collective, aliases: Aliases) -> dict[tuple[int, int, int], tuple[int, int]]:
    """(rank, memory, unit) -> (units of its run before it, units of the run).

    Empty, which makes every unit its own run, when chunks of a custom collective share memory differently:
    a unit must be divided in the same way by all who use it.
    """
    found: dict[tuple[int, int, int], tuple[int, int]] = {}
    first, units = runs(collective)
    for chunk, run in enumerate(first):
        for buffer, sets, offset in (
            (Buffer.INPUT, collective.sources, collective.input_offset),
            (Buffer.OUTPUT, collective.destinations, collective.output_offset),
        ):
            begin = int(offset[chunk])
            before = begin - int(offset[run])
            for rank in sets.of(chunk).tolist():
                memory, address = aliases.address(rank, (buffer, begin))
                for unit in range(int(collective.weight[chunk])):
                    place = (before + unit, units[run])
                    if found.setdefault((rank, memory, address + unit), place) != place:
                        return {}
    return found


class _Emitter:
    """Appends the messages and steps of parts to a plan, in linear order."""

    def __init__(self, plan: Plan, fused_receive: bool) -> None:
        self.plan, self.fused_receive = plan, fused_receive
        self.aliases = Aliases(plan.collective, plan.instances, plan.in_place)
        self.emitted = 0
        self.next_virtual = list(plan.pinned_scratch)
        self.writer: dict[tuple[int, Place], Step] = {}  # by first unit
        # only in place: one name for each memory, so that passes see that a place is the same
        self.one_name = plan.in_place and not plan.out_of_place

    def emit(
        self, operation: Operation, places: list[Place], count: int, tick: int, part: int, lane: int,
        blocks: tuple[int | None, int | None, int | None],
    ) -> None:  # fmt: skip
        """The part of that number within its lane.

        `places` are those of source, target and own, `blocks` the threadblocks wanted (send, receive, local).
        """
        src, dst = operation.source.rank, operation.target.rank
        source = self.named(src, places[0], count)
        target = self.named(dst, places[1], count)
        own = self.named(dst, places[2], count) if len(places) > 2 else None
        # positions of a tick: first sends and local steps, then receives; later parts of a message go one by one
        early, late = (2 * tick * _MANY + self.emitted, (2 * tick + 1) * _MANY + self.emitted)
        if operation.remote:
            message = Message(late, src, dst, count, tick, lane, operation.color,
                              send_block=blocks[0], recv_block=blocks[1])  # fmt: skip
            self.plan.messages.append(message)
            order = 4 * (early if part == 0 else late)
            send = Step(src, Op.SEND, count, source, None, order, tick, send=message)
            send.producer = self.writer.get((src, source))
            self.plan.steps[src].append(send)
            steps = receive_steps(self.plan, self.aliases, message, own, target, self.fused_receive, self.fresh)
        else:
            steps = self.local(dst, source, own, target, count, tick, 4 * early, blocks[2])
        self.plan.steps[dst].extend(steps)
        if steps:
            self.writer[dst, target] = steps[-1]
        self.emitted += 1

    def local(
        self, rank: int, source: Place, own: Place | None, target: Place, count: int, tick: int, order: int,
        block: int | None,
    ) -> list[Step]:  # fmt: skip
        """Steps within a rank: target = source, or target = own + source."""
        start, added = source, None
        if own is not None:
            # what is in the target already, in place at least, must not be overwritten before it is added
            kept = self.aliases.address(rank, source) == self.aliases.address(rank, target)
            start, added = (source, own) if kept else (own, source)
        writer = self.writer.get((rank, start if added is None else added))
        home = None if writer is None or block is not None else writer.recv or writer.home
        steps: list[Step] = []

        def append(op: Op, src: Place) -> None:
            steps.append(Step(rank, op, count, src, target, order + len(steps), tick, home=home, block=block))

        same = self.aliases.address(rank, start) == self.aliases.address(rank, target)
        if start != target and not (same and not self.plan.out_of_place):
            append(Op.COPY, start)
        if added is not None:
            append(Op.REDUCE, added)
        return steps

    def named(self, rank: int, place: Place, count: int) -> Place:
        """The place by the name that is used for its memory."""
        if not self.one_name or place[0] == Buffer.SCRATCH:
            return place
        memory, unit = self.aliases.address(rank, place)
        collective = self.plan.collective
        if memory == int(Buffer.INPUT):
            return place
        inside = collective.name in ("reducescatter", "scatter")
        buffer, sizes = (
            (Buffer.INPUT, collective.input_units) if inside else (Buffer.OUTPUT, collective.output_units)
        )  # fmt: skip
        fits = unit + count <= int(sizes[rank]) * self.plan.instances
        return (buffer, unit) if fits else place

    def fresh(self, rank: int, count: int) -> Place:
        """A new virtual scratch slot."""
        start = self.next_virtual[rank]
        self.next_virtual[rank] = start + count + 1  # the gap keeps separate slots from looking like neighbours
        return Buffer.SCRATCH, start
