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


def candidates(plan: Plan) -> dict[Step, tuple[Step, bool]]:
    """Receives that can take their send along: receive -> (send, whether the sum must be stored)."""
    aliases = Aliases(plan.collective, plan.instances, plan.in_place)
    found: dict[Step, tuple[Step, bool]] = {}
    for blocks in plan.blocks:
        steps = order_steps(blocks)
        earlier = dict(zip(steps, conflicts(steps, aliases), strict=True))
        readers = _readers(steps, aliases)
        for block in blocks:
            if block.send is None or block.recv is None:
                continue
            last_send = -1  # effective index of the last send so far
            for step in block.steps:
                if step.send is None:
                    continue
                receive = step.producer
                if (
                    receive is not None and receive.recv is not None and receive.threadblock == step.threadblock
                    and receive.dst == step.src and receive.count == step.count and receive not in found
                    and receive.index > last_send and receive.op in (Op.RECV, Op.RECV_REDUCE_COPY)
                    and all(other is receive or other.order < receive.order for other in earlier[step])
                ):  # fmt: skip
                    found[receive] = (step, readers[receive] != {step})
                    last_send = receive.index
                else:
                    last_send = step.index
    return found


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
    chosen = candidates(plan)
    original = [[list(block.steps) for block in blocks] for blocks in plan.blocks]
    while True:
        fused = {receive: _fused(receive, send, stored) for receive, (send, stored) in chosen.items()}
        gone = {send for send, _ in chosen.values()}
        for blocks, lists in zip(plan.blocks, original, strict=True):
            for block, steps in zip(blocks, lists, strict=True):
                block.steps = [fused.get(step, step) for step in steps if step not in gone]
        plan.steps = [order_steps(blocks) for blocks in plan.blocks]
        assign_dependencies(plan)
        if not fused:
            return 0
        stuck = deadlock(plan, depth)
        if not stuck:
            return len(fused)
        blamed = [receive for receive, step in fused.items() if step in stuck]
        assert blamed, "without fused instructions the linear order holds"
        for receive in blamed:
            del chosen[receive]


def _fused(receive: Step, send: Step, stored: bool) -> Step:
    op = Op.RECV_COPY_SEND if receive.op == Op.RECV else Op.RECV_REDUCE_COPY_SEND if stored else Op.RECV_REDUCE_SEND
    return Step(
        receive.rank, op, receive.count, receive.src, None if op == Op.RECV_REDUCE_SEND else receive.dst,
        receive.order, receive.level, send=send.send, recv=receive.recv,
    )  # fmt: skip


def deadlock(plan: Plan, depth: int) -> set[Step]:
    """Steps that can never run, or only after such: empty when the program always ends.

    The graph: program order, waits, k-th send before k-th receive of a connection, and k-th receive
    before (k + depth)-th send.
    """
    steps = [step for blocks in plan.blocks for block in blocks for step in block.steps]
    after: dict[Step, list[Step]] = defaultdict(list)
    waits = dict.fromkeys(steps, 0)

    def edge(first: Step, second: Step) -> None:
        after[first].append(second)
        waits[second] += 1

    sender: dict[Message, Step] = {}
    receiver: dict[Message, Step] = {}
    connections: dict[tuple[int, int, int], list[Message]] = defaultdict(list)
    for step in steps:
        for other in step.depends:
            edge(other, step)
        if step.send is not None:
            sender[step.send] = step
        if step.recv is not None:
            receiver[step.recv] = step
    for blocks in plan.blocks:
        for block in blocks:
            for first, second in pairwise(block.steps):
                edge(first, second)
            for step in block.steps:
                if step.send is not None:
                    connections[step.rank, step.send.dst, step.send.channel].append(step.send)
    for messages in connections.values():
        for number, message in enumerate(messages):
            edge(sender[message], receiver[message])
            if number >= depth:
                edge(receiver[messages[number - depth]], sender[message])
    ready = [step for step, count in waits.items() if count == 0]
    while ready:
        step = ready.pop()
        del waits[step]
        for later in after[step]:
            waits[later] -= 1
            if waits[later] == 0:
                ready.append(later)
    return set(waits)
