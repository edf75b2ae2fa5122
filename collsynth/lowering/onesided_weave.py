"""The rows of one-sided threadblocks, woven level by level (see `onesided` for the rules)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from ..collective import Collective
from ..errors import VerificationError
from ..program import Buffer, ChannelKind, Instruction, Op, Operand, Program, Space, Threadblock
from .ir import Aliases, Place

#: Channels or operands that one operation of the executor holds at least.
_TOGETHER = 8
_SYNC = frozenset({Op.SIGNAL, Op.WAIT, Op.RELAXED_SIGNAL, Op.RELAXED_WAIT, Op.FLUSH, Op.BARRIER})

#: (peer, kind): one channel of a threadblock; both ends number it alike.
Channel = tuple[int, ChannelKind]


@dataclass(slots=True, eq=False)
class Piece:
    """`count` consecutive units that travel together: places in input and output, who has and who wants them."""

    input: int
    output: int
    count: int
    sources: frozenset[int]
    wanted: frozenset[int]


@dataclass(slots=True, eq=False)
class Transfer:
    """One row of the schedule, of one piece; `color` numbers the threadblock that runs it at both ends."""

    piece: int
    level: int
    order: int
    src: int
    dst: int
    reduce: bool
    color: int = -1


@dataclass(slots=True, eq=False)
class Flow:
    """Transfers that share a threadblock on every rank."""

    transfers: list[Transfer]


@dataclass(slots=True, eq=False)
class Arrival:
    """What a transfer brings: `place` is at the receiver, or at the sender when it is to be read there."""

    transfer: Transfer
    kind: ChannelKind
    place: Place
    read: bool
    ordinal: int = 0  # of its signal on the channel


@dataclass(slots=True, eq=False)
class Block:
    """A threadblock while it is woven.  Rows carry no channel numbers yet.

    Attributes:
        rows: so far.
        unsent: channels whose signal is due, with what it announces.
        signals, waits: so far, on each channel.
        puts: channels through which it puts.  readers: channels by which others read from it.
        told: row after the last signal of each channel.  reads: row after the last read through it.
        unflushed: port channels with puts since the last flush.
    """

    rows: list[Instruction] = field(default_factory=list)
    unsent: dict[Channel, list[Arrival]] = field(default_factory=dict)
    signals: dict[Channel, int] = field(default_factory=lambda: defaultdict(int))
    waits: dict[Channel, int] = field(default_factory=lambda: defaultdict(int))
    puts: dict[Channel, None] = field(default_factory=dict)
    told: dict[Channel, int] = field(default_factory=dict)
    reads: dict[Channel, int] = field(default_factory=dict)
    unflushed: dict[Channel, None] = field(default_factory=dict)

    def sync(self, op: Op, channel: Channel) -> None:
        """Append a signal, wait or flush."""
        self.rows.append(_sync(op, channel))

    def announce(self) -> None:
        """Send the signals that are due."""
        for channel, arrivals in self.unsent.items():
            self.sync(Op.SIGNAL, channel)
            self.signals[channel] += 1
            self.told[channel] = len(self.rows)
            for arrival in arrivals:
                arrival.ordinal = self.signals[channel]
        self.unsent.clear()

    def await_signal(self, channel: Channel, ordinal: int) -> None:
        """Wait for that signal of a channel, unless that is done."""
        if self.waits[channel] < ordinal:
            self.announce()
        while self.waits[channel] < ordinal:
            self.waits[channel] += 1
            self.sync(Op.WAIT, channel)

    def flush(self) -> None:
        """Wait until all that its ports move has been moved."""
        if self.unflushed:
            self.announce()
        for channel in self.unflushed:
            self.sync(Op.FLUSH, channel)
        self.unflushed.clear()

    def channels(self) -> dict[ChannelKind, int]:
        """Channels of each kind that it uses."""
        used: dict[ChannelKind, set[int]] = defaultdict(set)
        for row in self.rows:
            if row.op in _SYNC and row.peer is not None:
                used[row.kind].add(row.peer)
        return {kind: len(peers) for kind, peers in used.items()}


def _sync(op: Op, channel: Channel) -> Instruction:
    return Instruction(op, 0, peer=channel[0], kind=channel[1])


class Weaver:
    """Makes the threadblocks of all ranks from colored transfers.

    Args:
        collective: what the schedule does, in its own units.
        instances: how much finer the program's units are.
        pieces, transfers: transfers in linear order.
        node: host machine of each rank.
        in_place: mode.
    """

    def __init__(
        self, collective: Collective, instances: int, pieces: list[Piece], transfers: list[Transfer],
        node: list[int], in_place: bool,
    ) -> None:  # fmt: skip
        self.collective, self.instances, self.in_place = collective, instances, in_place
        self.pieces, self.transfers, self.node = pieces, transfers, node
        self.aliases = Aliases(collective, instances, in_place)
        #: outputs lie over inputs of other pieces: they are written when all sends are over
        self.overlaid = in_place and collective.name == "alltoall"
        adds: dict[tuple[int, int], list[int]] = defaultdict(list)
        sent: dict[tuple[int, int], int] = defaultdict(int)
        copies: dict[tuple[int, int], list[int]] = defaultdict(list)
        for t in transfers:
            (adds if t.reduce else copies)[t.piece, t.dst].append(t.level)
            sent[t.piece, t.src] += t.reduce
        self._adds, self._copies, self._sent = adds, copies, sent

    def weave(self) -> dict[tuple[int, int], Block]:
        """The threadblocks, by (rank, color)."""
        self.blocks: dict[tuple[int, int], Block] = defaultdict(Block)
        self.place: dict[tuple[int, int], Place] = {}
        self.arrivals: dict[tuple[int, int], list[Arrival]] = defaultdict(list)
        self.home: dict[tuple[int, int], int] = {}  # (piece, rank) -> color of what arrived last
        self.scratch = [0] * self.collective.nranks
        self.port_sources: set[tuple[int, Place]] = set()
        begin = 0
        while begin < len(self.transfers):
            end = begin
            while end < len(self.transfers) and self.transfers[end].level == self.transfers[begin].level:
                end += 1
            coming = [self._send(t) for t in self.transfers[begin:end]]
            for block in list(self.blocks.values()):
                block.announce()
            for arrival in coming:
                t = arrival.transfer
                self.arrivals[t.piece, t.dst].append(arrival)
                self.home[t.piece, t.dst] = t.color
            begin = end
        self._finish()
        return dict(sorted(self.blocks.items()))

    # --- one transfer ---

    def _kind(self, one: int, two: int) -> ChannelKind:
        return ChannelKind.MEMORY if self.node[one] == self.node[two] else ChannelKind.PORT

    def _fresh(self, rank: int, count: int) -> Place:
        self.scratch[rank] += count
        return Buffer.SCRATCH, self.scratch[rank] - count

    def _locate(self, piece: int, rank: int) -> Place:
        found = self.place.get((piece, rank))
        if found is None:
            if rank not in self.pieces[piece].sources:
                raise VerificationError(f"rank {rank} sends piece {piece}, which it does not have")
            return Buffer.INPUT, self.pieces[piece].input
        return found

    def _readable(self, t: Transfer) -> bool:
        """Whether the receiver may read the term where it is: it changes only after the receiver's sum is known."""
        here = (t.piece, t.src)
        return (
            self._kind(t.src, t.dst) is ChannelKind.MEMORY and t.dst in self.pieces[t.piece].sources
            and self._sent[here] == 1 and all(level < t.level for level in self._adds[here])
            and all(level > t.level for level in self._copies[here])
        )  # fmt: skip

    def _send(self, t: Transfer) -> Arrival:
        block, piece = self.blocks[t.src, t.color], self.pieces[t.piece]
        self._settle(t.piece, t.src, block)
        where, kind = self._locate(t.piece, t.src), self._kind(t.src, t.dst)
        channel = (t.dst, kind)
        if t.reduce and self._readable(t):
            arrival = Arrival(t, kind, where, True)
        else:
            again = not t.reduce and (t.piece, t.dst) in self.home and not self.collective.combining
            straight = not (t.reduce or again or self.overlaid) and t.dst in piece.wanted
            place = (Buffer.OUTPUT, piece.output) if straight else self._fresh(t.dst, piece.count)
            arrival = Arrival(t, kind, place, False)
            source, there = _operand(where, piece.count), _operand(place, piece.count, Space.REMOTE)
            block.rows.append(Instruction(Op.PUT, piece.count, source, there, peer=t.dst, kind=kind))
            block.puts[channel] = None
            if kind is ChannelKind.PORT:
                block.unflushed[channel] = None
                self.port_sources.add((t.src, where))
        block.unsent.setdefault(channel, []).append(arrival)
        return arrival

    def _settle(self, number: int, rank: int, block: Block) -> None:
        """Make what has arrived of a piece the rank's value: wait for copies, add up terms."""
        arrivals = self.arrivals.pop((number, rank), [])
        for arrival in arrivals:
            block.await_signal((arrival.transfer.src, arrival.kind), arrival.ordinal)
        terms: list[Arrival] = []
        for arrival in arrivals:
            if arrival.transfer.reduce:
                terms.append(arrival)
                continue
            self._add(number, rank, block, terms)
            terms = []
            self.place[number, rank] = arrival.place
        self._add(number, rank, block, terms)

    def _add(self, number: int, rank: int, block: Block, terms: list[Arrival]) -> None:
        if not terms:
            return
        piece = self.pieces[number]
        terms = sorted(terms, key=lambda a: not a.read)
        own = self.place.get((number, rank))
        if own is None and rank in piece.sources:
            own = Buffer.INPUT, piece.input
        if own is None:  # a relay starts with the first term
            own, terms = terms[0].place, terms[1:]
        target = own
        if rank in piece.wanted:
            target = Buffer.OUTPUT, piece.output
        elif own[0] != Buffer.SCRATCH:
            target = self._fresh(rank, piece.count)
        if (rank, target) in self.port_sources:
            block.flush()
        if self.aliases.address(rank, own) != self.aliases.address(rank, target):
            block.rows.append(_local(Op.COPY, own, target, piece.count))
        for term in terms:
            if not term.read:
                block.rows.append(_local(Op.REDUCE, term.place, target, piece.count))
                continue
            source = _operand(term.place, piece.count, Space.REMOTE)
            peer = term.transfer.src
            block.rows.append(
                Instruction(
                    Op.READ_REDUCE, piece.count, source, _operand(target, piece.count), peer=peer, kind=term.kind
                )
            )
            block.reads[peer, term.kind] = len(block.rows)
        self.place[number, rank] = target

    # --- the end ---

    def _finish(self) -> None:
        """What nobody has waited for yet, copies into outputs, and the handshakes of beginning and end."""
        if self.overlaid:
            self._meet()
        for (number, rank), color in sorted(self.home.items()):
            self._settle(number, rank, self.blocks[rank, color])
        self._copy_out()
        for block in self.blocks.values():
            block.flush()
        starts: dict[tuple[int, int], tuple[list[Channel], list[Channel]]] = defaultdict(lambda: ([], []))
        ends: dict[tuple[int, int], list[Channel]] = defaultdict(list)
        for (rank, color), block in sorted(self.blocks.items()):
            for peer, kind in block.puts:
                starts[rank, color][1].append((peer, kind))
                starts[peer, color][0].append((rank, kind))
            for channel, row in block.reads.items():
                if block.told.get(channel, -1) < row:
                    block.sync(Op.RELAXED_SIGNAL, channel)
                    ends[channel[0], color].append((rank, channel[1]))
        for key, (signals, waits) in starts.items():
            begun = [(Op.RELAXED_SIGNAL, c) for c in sorted(signals, key=_by_kind)]
            begun += [(Op.RELAXED_WAIT, c) for c in sorted(waits, key=_by_kind)]
            # a port has no relaxed signals that save anything
            self.blocks[key].rows[:0] = [_sync(_full(op) if c[1] is ChannelKind.PORT else op, c) for op, c in begun]
        for key, channels in ends.items():
            for channel in channels:
                self.blocks[key].sync(Op.RELAXED_WAIT, channel)

    def _meet(self) -> None:
        """All sends of a rank are over before it overwrites its input."""
        for rank in range(self.collective.nranks):
            mine = [block for (r, _), block in sorted(self.blocks.items()) if r == rank]
            coming = {c for (_, r), c in self.home.items() if r == rank}
            mine += [self.blocks[rank, c] for c in sorted(coming) if (rank, c) not in self.blocks]
            for block in mine:
                block.flush()
                if len(mine) > 1:
                    block.rows.append(Instruction(Op.BARRIER, len(mine), sync=0))

    def _copy_out(self) -> None:
        """Values that are not yet in the output; neighbours in one step."""
        runs: dict[tuple[int, int], list[tuple[Place, int, int]]] = defaultdict(list)
        for number, piece in enumerate(self.pieces):
            for rank in sorted(piece.wanted):
                where = self._locate(number, rank)
                if self.aliases.address(rank, where) == self.aliases.address(rank, (Buffer.OUTPUT, piece.output)):
                    continue
                color = self.home.get((number, rank), -1)
                parts = runs[rank, color]
                if parts:
                    (buffer, start), output, count = parts[-1]
                    if where == (buffer, start + count) and piece.output == output + count:
                        parts[-1] = ((buffer, start), output, count + piece.count)
                        continue
                parts.append((where, piece.output, piece.count))
        for (rank, color), parts in sorted(runs.items()):
            if color < 0:  # the rank's own data: whoever has least to do
                color = min(
                    (c for r, c in self.blocks if r == rank), key=lambda c: len(self.blocks[rank, c].rows), default=0
                )
            for where, output, count in parts:
                self.blocks[rank, color].rows.append(_local(Op.COPY, where, (Buffer.OUTPUT, output), count))

    def program(self, blocks: dict[tuple[int, int], Block], name: str, max_bytes: int | None) -> Program:
        """The program of woven threadblocks, channels numbered."""
        collective, factor = self.collective, self.instances
        numbers: dict[tuple[int, int, ChannelKind], dict[int, int]] = defaultdict(dict)
        for (rank, color), block in blocks.items():
            for row in block.rows:
                if row.peer is not None and (row.op in _SYNC or row.kind is ChannelKind.PORT):
                    of_pair = numbers[min(rank, row.peer), max(rank, row.peer), row.kind]
                    of_pair.setdefault(color, len(of_pair))
        made: list[Threadblock] = []
        ids: dict[int, int] = defaultdict(int)
        for (rank, color), block in blocks.items():
            rows = []
            for row in block.rows:
                sync = row.sync
                if row.peer is not None and (row.op in _SYNC or row.kind is ChannelKind.PORT):
                    sync = numbers[min(rank, row.peer), max(rank, row.peer), row.kind][color]
                rows.append(Instruction(row.op, row.count, row.src, row.dst, (), row.peer, sync, row.kind))
            made.append(Threadblock(rank, ids[rank], None, None, 0, tuple(rows)))
            ids[rank] += 1
        return Program.build(
            made, name=name, collective=collective.name, nranks=collective.nranks, root=collective.root,
            nunits=collective.payload_units * factor, nchannels=max(map(len, numbers.values()), default=0),
            input_units=(collective.input_units * factor).tolist(),
            output_units=(collective.output_units * factor).tolist(), scratch_units=self.scratch,
            in_place=self.in_place, out_of_place=not self.in_place, max_bytes=max_bytes,
        )  # fmt: skip


def _by_kind(channel: Channel) -> tuple[int, int]:
    return int(channel[1]), channel[0]


def _full(op: Op) -> Op:
    return Op.SIGNAL if op is Op.RELAXED_SIGNAL else Op.WAIT


def _operand(place: Place, count: int, space: Space = Space.LOCAL) -> Operand:
    return Operand(place[0], place[1], count, space)


def _local(op: Op, source: Place, target: Place, count: int) -> Instruction:
    return Instruction(op, count, _operand(source, count), _operand(target, count))


def operations(rows: list[Instruction]) -> int:
    """Operations of a threadblock at most, meeting points of its threads included.

    Rows that the executor does together (signals on several channels, terms of one sum) count once; a meeting
    point is counted before every transfer, and before signals that follow a transfer or a wait.
    """
    total = together = 0
    loose = False  # whether the threads have not met since a transfer or a wait
    last: Instruction | None = None
    peers: set[int | None] = set()
    for row in rows:
        if last is not None and together < _TOGETHER and _joined(last, row) and row.peer not in peers:
            together += 1
        else:
            signals = row.op in (Op.SIGNAL, Op.RELAXED_SIGNAL)
            total += 1 + (loose if signals else row.op not in _SYNC)
            together, loose = 1, not signals
            peers.clear()
        # terms of a sum may come from one peer, a signal is one a channel
        if row.op in _SYNC:
            peers.add(row.peer)
        last = row
    return total


def _joined(last: Instruction, row: Instruction) -> bool:
    """Whether the executor may do a row in one operation with the one before."""
    if row.op in _SYNC:
        return (row.op, row.kind) == (last.op, last.kind)
    return row.op in (Op.REDUCE, Op.READ_REDUCE) and row.dst == last.dst and last.op in (row.op, Op.COPY)
