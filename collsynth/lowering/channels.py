"""Pass 3: a channel for every message.

A connection is a (source, destination, channel).  A pair of ranks gets more than one channel only when
one threadblock could not hold all its messages (the target's step limit); then chunks are dealt by
their number within the owner's shard, so that a chunk keeps its channel along its path and can be
fused.  Parallel instances have channels of their own.  Where a rank would have more sending or
receiving threadblocks on a channel than the target allows (32), pairs move to further channels.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from ..errors import RefusedError
from ..program import Target
from .ir import Message, Plan


def assign_channels(plan: Plan, target: Target, *, max_messages: int | None, max_channels: int | None) -> int:
    """Set `Message.channel`; returns the number of channels.

    Args:
        plan: messages in linear order.
        target: its `max_channels` and `max_tbs_per_channel` are kept.
        max_messages: most messages of one connection, None: no limit.
        max_channels: the user's own limit.

    Raises:
        RefusedError: more channels are needed than allowed.
    """
    pairs: dict[tuple[int, int, int], list[Message]] = defaultdict(list)
    for message in plan.messages:
        pairs[message.instance, message.src, message.dst].append(message)
    # lane: (instance, share of the pair's messages); lanes of one number lie on the same channels
    lanes: dict[tuple[int, int], dict[tuple[int, int], list[Message]]] = defaultdict(dict)
    for (instance, src, dst), messages in pairs.items():
        for share, part in enumerate(_deal(messages, max_messages)):
            lanes[instance, share][src, dst] = part
    channels = 0
    for lane in sorted(lanes):
        channels += _place_lane(lanes[lane], channels, target.max_tbs_per_channel)
    allowed = min((limit for limit in (max_channels, target.max_channels) if limit is not None), default=None)
    if allowed is not None and channels > allowed:
        source = "--max-channels" if allowed == max_channels else f"target {target.name}"
        raise RefusedError(
            f"{channels} channels are needed, {source} allows {allowed}"
            + (f" (a threadblock holds {target.max_steps} steps)" if target.max_steps else "")
        )
    return max(channels, 1)


def _deal(messages: list[Message], most: int | None) -> list[list[Message]]:
    """The messages of one pair in as few shares as hold at most `most` each."""
    if most is None or len(messages) <= most:
        return [messages]
    count = 1
    while count < -(-len(messages) // most):
        count *= 2
    for shares in (count, 2 * count):
        if max(Counter(m.color % shares for m in messages).values()) <= most:
            dealt: dict[int, list[Message]] = defaultdict(list)
            for message in messages:
                dealt[message.color % shares].append(message)
            return [dealt[key] for key in sorted(dealt)]
    shares = -(-len(messages) // most)
    return [messages[share::shares] for share in range(shares)]


def _place_lane(connections: dict[tuple[int, int], list[Message]], first: int, most: int | None) -> int:
    """Channels from `first` for one lane, at most `most` connections out of and into a rank on each."""
    used: list[tuple[Counter[int], Counter[int]]] = []
    for (src, dst), messages in sorted(connections.items(), key=lambda item: item[1][0].position):
        for number in range(len(used) + 1):
            if number == len(used):
                used.append((Counter(), Counter()))
            out, into = used[number]
            if most is None or (out[src] < most and into[dst] < most):
                break
        out[src] += 1
        into[dst] += 1
        for message in messages:
            message.channel = first + number
    return len(used)
