"""Pass 5: receive and send in one instruction (rcs, rrs, rrcs), where that cannot hang.

A receive and the send of the same value by the same threadblock become one instruction at the place of
the receive, when the send may move there: nothing else is sent in between, and everything that the send
waits for comes before the receive.  A fused sum that nobody else reads is not stored at all (rrs).

A fused instruction holds a message while it waits for room in the next FIFO, which the linear order
does not cover; `deadlock` therefore builds the full graph with the real FIFO depth and every fused
instruction that takes part in a cycle is taken apart again.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from ..program import Buffer, Op
from .dependencies import assign_dependencies, conflicts, order_steps
from .ir import Aliases, Message, Plan, Step


def _chances(plan: Plan) -> dict[Step, tuple[Step, bool]]:
    """Sends that could leave with their receive: send -> (receive, whether the sum must be stored)."""
    aliases = Aliases(plan.collective, plan.instances, plan.in_place)
    found: dict[Step, tuple[Step, bool]] = {}
    for blocks in plan.blocks:
        steps = order_steps(blocks)
        readers = _readers(steps, aliases)
        for step, earlier in zip(steps, conflicts(steps, aliases), strict=True):
            receive = step.producer
            if (
                step.send is not None and receive is not None and receive.recv is not None
                and receive.threadblock == step.threadblock
                and receive.dst == step.src and receive.count == step.count
                and receive.op in (Op.RECV, Op.RECV_REDUCE_COPY)
                and all(other is receive or other.order < receive.order for other in earlier)
            ):  # fmt: skip
                found[step] = (receive, readers[receive] != {step})
    return found


def _select(
    threadblock: list[Step], chances: dict[Step, tuple[Step, bool]], refused: set[Step]
) -> dict[Step, tuple[Step, bool]]:
    """Receives of a threadblock that take their send along: receive -> (send, stored).

    The order in which a connection's messages are sent must stay: a send may move up to its receive only
    past receives, never past another send.
    """
    chosen: dict[Step, tuple[Step, bool]] = {}
    last_send = -1  # where the last send stands now
    for step in threadblock:
        if step.send is None:
            continue
        receive, stored = chances.get(step, (None, True))
        if receive is not None and receive not in chosen and receive not in refused and receive.index > last_send:
            chosen[receive] = (step, stored)
            last_send = receive.index
        else:
            last_send = step.index
    return chosen


def _readers(steps: list[Step], aliases: Aliases) -> dict[Step, set[Step | None]]:
    """Who reads what each step wrote; None stands for the caller, who reads what is left in the output."""
    writer: dict[tuple[int, int], Step] = {}
    readers: dict[Step, set[Step | None]] = defaultdict(set)
    for step in steps:
        for place, writes in ((step.src, False), (step.dst, True)):
            if place is None:
                continue
            memory, unit = aliases.address(step.rank, place)
            for cell in range(unit, unit + step.count):
                if writes:
                    writer[memory, cell] = step
                elif (memory, cell) in writer:
                    readers[writer[memory, cell]].add(step)
    for (memory, _), step in writer.items():
        if memory != int(Buffer.SCRATCH):
            readers[step].add(None)
    return readers


def fuse(plan: Plan, depth: int) -> int:
    """Fuse where it is safe at this FIFO depth; returns the number of fused instructions.

    Dependencies are left set for the final steps, scratch still virtual.
    """
    chances = _chances(plan)
    original = [[list(block.steps) for block in blocks] for blocks in plan.blocks]
    places = {step: (step.threadblock, step.index) for lists in original for steps in lists for step in steps}
    refused: set[Step] = set()
    while True:
        for step, place in places.items():
            step.threadblock, step.index = place
        fused: dict[Step, Step] = {}
        for blocks, lists in zip(plan.blocks, original, strict=True):
            for block, steps in zip(blocks, lists, strict=True):
                chosen = _select(steps, chances, refused)
                gone = {send for send, _ in chosen.values()}
                here = {receive: _fused(receive, send, stored) for receive, (send, stored) in chosen.items()}
                block.steps = [here.get(step, step) for step in steps if step not in gone]
                fused |= here
        plan.steps = [order_steps(blocks) for blocks in plan.blocks]
        assign_dependencies(plan)
        if not fused:
            return 0
        blamed = deadlock(plan, depth)
        if not blamed:
            return len(fused)
        refused |= {receive for receive, step in fused.items() if step in blamed}


def _fused(receive: Step, send: Step, stored: bool) -> Step:
    op = Op.RECV_COPY_SEND if receive.op == Op.RECV else Op.RECV_REDUCE_COPY_SEND if stored else Op.RECV_REDUCE_SEND
    return Step(
        receive.rank, op, receive.count, receive.src, None if op == Op.RECV_REDUCE_SEND else receive.dst,
        receive.order, receive.level, send=send.send, recv=receive.recv,
    )  # fmt: skip


def deadlock(plan: Plan, depth: int) -> set[Step]:
    """Fused steps to take apart so that the program always ends; empty when it does as it is.

    The graph: program order, waits, k-th send before k-th receive of a connection, and k-th receive
    before (k + depth)-th send.  A fused step is two nodes, receiving and done; both wait for room in
    the next FIFO.  It is run in topological order; when nothing can run, the lowest fused step that
    lacks nothing but room receives without room, as it would when taken apart.
    """
    steps = [step for blocks in plan.blocks for block in blocks for step in block.steps]
    done = {step: number for number, step in enumerate(steps)}
    fused = [step for step in steps if step.recv is not None and step.send is not None]
    receiving = done | {step: len(steps) + number for number, step in enumerate(fused)}
    after: list[list[int]] = [[] for _ in range(len(steps) + len(fused))]
    waits = [0] * len(after)
    room: dict[int, list[int]] = defaultdict(list)  # receiving node -> nodes that make room

    def edge(first: int, second: int) -> None:
        after[first].append(second)
        waits[second] += 1

    receiver: dict[Message, Step] = {step.recv: step for step in steps if step.recv is not None}
    for step in fused:
        edge(receiving[step], done[step])
    connections: dict[tuple[int, int, int], list[tuple[Step, Step]]] = defaultdict(list)
    for blocks in plan.blocks:
        for block in blocks:
            for first, second in pairwise(block.steps):
                edge(done[first], receiving[second])
            for step in block.steps:
                for other in step.depends:
                    edge(done[other], receiving[step])
                if step.send is not None:
                    connections[step.rank, step.send.dst, step.send.channel].append((step, receiver[step.send]))
    for messages in connections.values():
        for number, (sender, taker) in enumerate(messages):
            edge(done[sender], receiving[taker])
            if number >= depth:
                before = receiving[messages[number - depth][1]]
                edge(before, done[sender])
                if receiving[sender] != done[sender]:
                    edge(before, receiving[sender])
                    room[receiving[sender]].append(before)
    ready = [node for node, count in enumerate(waits) if count == 0]
    ran = [False] * len(after)
    blamed: set[Step] = set()
    lowest = sorted(fused, key=lambda step: step.order)
    while True:
        while ready:
            node = ready.pop()
            if ran[node]:
                continue
            ran[node] = True
            for later in after[node]:
                waits[later] -= 1
                if waits[later] == 0:
                    ready.append(later)
        lowest = [step for step in lowest if not ran[receiving[step]]]
        if all(ran) or (blamed and not lowest):
            return blamed
        assert lowest, "without fused steps the linear order holds"
        for step in lowest:
            node = receiving[step]
            if waits[node] == sum(not ran[before] for before in room[node]):
                blamed.add(step)
                ready.append(node)
                break
        else:  # what is left waits for the send halves of the blamed, which will move when taken apart
            return blamed | {lowest[0]}
