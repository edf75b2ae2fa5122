"""Pass 4: a threadblock for every connection, and which of them share one.

Sending and receiving run in separate threadblocks, so that neither waits for the other, except where

* most messages of a receive connection leave at once on one send connection (a ring): sharing allows
  fused instructions, one trip through memory less;
* the rank would have more threadblocks than wanted: then pairs with the same peer share first;
* the author named one threadblock for both (hand-written programs): that is done, and nothing joins them.

Any choice is free of deadlock by the linear order (see `ir`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import cycle

from ..errors import RefusedError
from ..program import Target
from .ir import Block, Message, Plan, Step

#: Threadblocks a rank without asking: what NCCL itself takes at most of a GPU's SMs by default.
DEFAULT_THREADBLOCKS = 32

_Connection = tuple[int, int]  # (peer, channel)


def assign_threadblocks(
    plan: Plan, target: Target, *, max_messages: int | None, max_threadblocks: int | None, fuse: bool
) -> None:
    """Fill `plan.blocks`, each with its steps in linear order.

    Args:
        plan: messages have channels.
        target: its `max_threadblocks` and `max_steps` are kept.
        max_messages: most local steps of a threadblock that has nothing else, None: no limit.
        max_threadblocks: the user's own limit.
        fuse: whether sharing for fusion is wanted.

    Raises:
        RefusedError: a rank needs more threadblocks than allowed.
    """
    limits = [limit for limit in (max_threadblocks, target.max_threadblocks) if limit is not None]
    allowed = min(limits, default=None)
    wanted = min([DEFAULT_THREADBLOCKS, *limits])
    plan.blocks = []
    for rank, steps in enumerate(plan.steps):
        blocks = _blocks_of_rank(rank, steps, target, max_messages, wanted, fuse)
        if allowed is not None and len(blocks) > allowed:
            source = "--max-threadblocks" if allowed == max_threadblocks else f"target {target.name}"
            raise RefusedError(f"rank {rank} needs {len(blocks)} threadblocks, {source} allows {allowed}")
        plan.blocks.append(blocks)


def _blocks_of_rank(
    rank: int, steps: list[Step], target: Target, max_messages: int | None, wanted: int, fuse: bool
) -> list[Block]:
    sends: Counter[_Connection] = Counter()
    receives: Counter[_Connection] = Counter()
    local: set[int] = set()  # names of the threadblocks of local steps
    nameless = 0  # local steps that any threadblock may run
    named = _named(steps)
    for step in steps:
        if step.send is not None:
            sends[step.send.dst, step.send.channel] += 1
        message = step.recv or step.home
        if message is not None:
            receives[message.src, message.channel] += 1
        elif step.send is None and step.block is None:
            nameless += 1
        elif step.send is None and step.block is not None:
            local.add(step.block)
    apart = local - {name for name, _ in named}  # local steps that need a threadblock of their own
    partner = {pair.receive: pair.send for pair in named.values() if pair.receive and pair.send}
    taken = set(partner.values())
    fixed = [{pair.receive for pair in named.values()}, {pair.send for pair in named.values()}]

    def join(receive: _Connection, send: _Connection, saved: int) -> bool:
        length = receives[receive] + sends[send] - saved
        if receive in partner or send in taken or (target.max_steps is not None and length > target.max_steps):
            return False
        if receive in fixed[0] or send in fixed[1]:
            return False
        partner[receive] = send
        taken.add(send)
        return True

    if fuse:
        chances = _fusible(steps)
        for (receive, send), saved in sorted(chances.items(), key=lambda item: (-item[1], item[0])):
            if 2 * saved >= max(receives[receive], sends[send]):
                join(receive, send, saved)
    spread = [Block(rank, None, None, 0) for _ in range(-(-nameless // (max_messages or max(nameless, 1))))]
    total = len(sends) + len(receives) - len(partner) + len(apart) + len(spread)
    if total > wanted:
        choices = [
            (receive[0] != send[0], receive, send) for receive in receives for send in sends if receive[1] == send[1]
        ]
        for _, receive, send in sorted(choices):
            if total <= wanted:
                break
            total -= join(receive, send, 0)
    own = {name: Block(rank, None, None, 0) for name in sorted(apart)}
    blocks = spread + list(own.values())
    blocks += [Block(rank, partner[r][0] if r in partner else None, r[0], r[1]) for r in receives]
    blocks += [Block(rank, s[0], None, s[1]) for s in sends if s not in taken]
    blocks.sort(key=lambda b: (-1 if b.send is None else b.send, -1 if b.recv is None else b.recv, b.channel))
    sender = {(b.send, b.channel): b for b in blocks if b.send is not None}
    receiver = {(b.recv, b.channel): b for b in blocks if b.recv is not None}
    for (name, _), pair in sorted(named.items()):
        own.setdefault(name, receiver[pair.receive] if pair.receive else sender[pair.send or (-1, -1)])
    turn = cycle(spread)
    for step in steps:
        home = step.recv or step.home
        if step.send is not None:
            block = sender[step.send.dst, step.send.channel]
        elif home is not None:
            block = receiver[home.src, home.channel]
        else:
            block = next(turn) if step.block is None else own[step.block]
        block.steps.append(step)
    # The schedule starts each rank at another peer; threadblocks numbered by peer would all start at rank 0,
    # and whoever issues them in this order (the simulator, a single copy engine) would queue there.
    blocks.sort(key=lambda b: b.steps[0].order if b.steps else ())
    return blocks


@dataclass(slots=True)
class _Pair:
    """What the author wants on one threadblock: at most one receive and one send connection."""

    receive: _Connection | None = None
    send: _Connection | None = None


def _named(steps: list[Step]) -> dict[tuple[int, int], _Pair]:
    """(name, channel) -> connections whose messages name that threadblock."""
    pairs: dict[tuple[int, int], _Pair] = defaultdict(_Pair)
    for step in steps:
        if step.send is not None and step.send.send_block is not None:
            pairs[step.send.send_block, step.send.channel].send = (step.send.dst, step.send.channel)
        if step.recv is not None and step.recv.recv_block is not None:
            pairs[step.recv.recv_block, step.recv.channel].receive = (step.recv.src, step.recv.channel)
    return dict(pairs)


def _fusible(steps: list[Step]) -> Counter[tuple[_Connection, _Connection]]:
    """How many messages of each receive connection could leave at once on each send connection."""
    chances: Counter[tuple[_Connection, _Connection]] = Counter()
    seen: dict[Message, set[_Connection]] = defaultdict(set)
    for step in steps:
        producer = step.producer
        if step.send is None or producer is None or producer.recv is None:
            continue
        received, sent = producer.recv, step.send
        send = (sent.dst, sent.channel)
        if received.channel == sent.channel and producer.dst == step.src and send not in seen[received]:
            seen[received].add(send)
            chances[(received.src, received.channel), send] += 1
    return chances
