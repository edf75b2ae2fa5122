"""What the passes work on: steps of ranks, the messages between them, and where they run.

**The linear order.**  Every step has a place in one global order.  A send comes before its receive and
after the receives of all earlier messages of its connection; local steps follow the message that brought
their data.  (From a schedule, messages go by level and row, each send right before its receive.)
All later passes keep each threadblock's steps in this order.  That makes a program free of deadlock
whatever connections share a threadblock, at any FIFO depth of 1 or more: look at the unfinished step
of the lowest position.  The steps before it in its threadblock, and all that it depends on, have lower
positions, so they are done.  If it receives, its message was sent (the send is lower).  If it sends,
the FIFO has room: the receives of all earlier messages of the connection are lower.  So it can run; by
induction everything runs.  Only fusion moves a send away from its position, and `fusion.deadlock`
re-checks that with the real depth.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..collective import Collective
from ..program import Buffer, Op

#: A place of a rank: (buffer, unit).  Scratch units are virtual until `buffers.allocate_scratch`.
Place = tuple[Buffer, int]


@dataclass(slots=True, eq=False)
class Message:
    """One transfer of `count` consecutive units from rank `src` to rank `dst`.

    Attributes:
        position: where its receive is in the linear order.
        instance: parallel copy it belongs to.
        color: number of its chunk within the owner's shard; spreads a pair over channels.
        channel: set by the channels pass.
        send_block, recv_block: names of the threadblocks that the author wants to send and to receive it;
            equal names of a rank are one threadblock.  None: the threadblocks pass chooses.
    """

    position: int
    src: int
    dst: int
    count: int
    level: int
    instance: int
    color: int
    channel: int = -1
    send_block: int | None = None
    recv_block: int | None = None


@dataclass(slots=True, eq=False)
class Step:
    """One instruction of a rank.

    Attributes:
        order: place in the linear order; of a receive 4 * position of its message + 1, the steps that go with
            it follow.
        send, recv: messages put on / taken from a connection.
        home: message whose receiving threadblock runs a local step; None: the local threadblock.
        block: name of the threadblock that the author wants to run a local step (as in `Message`).
        producer: for a send, the step that wrote what it reads, None for original data.
        threadblock, index: set when the step has its place.
        depends: steps of other threadblocks of the rank that must be done before.
    """

    rank: int
    op: Op
    count: int
    src: Place | None
    dst: Place | None
    order: int
    level: int
    send: Message | None = None
    recv: Message | None = None
    home: Message | None = None
    block: int | None = None
    producer: Step | None = None
    threadblock: int = -1
    index: int = -1
    depends: list[Step] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Block:
    """A threadblock: at most one send and one receive peer (None: none) on one channel."""

    rank: int
    send: int | None
    recv: int | None
    channel: int
    steps: list[Step] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Plan:
    """The program in the making.

    Attributes:
        collective: what it computes; buffer sizes and offsets in its units, times `instances`.
        in_place, out_of_place: modes it must be right in.
        messages: in linear order.
        steps: per rank, in linear order.
        blocks: per rank; position in the list is the threadblock id.
        scratch_units: per rank.
        pinned_scratch: per rank, scratch units from 0 that are where the author put them; the virtual ones
            of the passes come after these.  Empty: none.
    """

    collective: Collective
    instances: int
    in_place: bool
    out_of_place: bool
    messages: list[Message]
    steps: list[list[Step]]
    blocks: list[list[Block]] = field(default_factory=list)
    scratch_units: list[int] = field(default_factory=list)
    pinned_scratch: list[int] = field(default_factory=list)


class Aliases:
    """Addresses of places, such that places that are one memory when called in place are one address.

    Two accesses that meet out of place also meet in place, so ordering all that meet by these
    addresses is enough for both modes.  Of a collective without a rule of its own (a custom one) the
    output is the input.
    """

    def __init__(self, collective: Collective, instances: int, in_place: bool) -> None:
        name = collective.name
        self.in_place = in_place
        self.kind = name
        self.root = collective.root
        inputs, outputs = collective.input_units * instances, collective.output_units * instances
        self.input_start = [0, *(int(x) for x in inputs.cumsum())]
        self.output_start = [0, *(int(x) for x in outputs.cumsum())]

    def address(self, rank: int, place: Place) -> tuple[int, int]:
        """(memory, unit): memory 0 and 1 are input and output, 2 scratch; in place all but scratch is 1."""
        buffer, unit = place
        if buffer == Buffer.SCRATCH or not self.in_place:
            return int(buffer), unit
        if buffer == Buffer.INPUT:
            if self.kind == "allgather" or (self.kind == "gather" and rank == self.root):
                return 1, unit + self.input_start[rank]
            if self.kind == "gather":
                return 0, unit
            return 1, unit
        if self.kind == "reducescatter" or (self.kind == "scatter" and rank == self.root):
            return 1, unit + self.output_start[rank]
        return 1, unit
