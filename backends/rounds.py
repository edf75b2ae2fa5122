"""A program as rounds of grouped sends and receives: what a library without tags needs.

NCCL matches the sends and receives between two ranks by their order alone, and starts only what is in
one group together.  So all ranks must agree, without talking, on which messages share a group and in
which order they stand there.  `rounds` computes that from the program, the same on every rank:

- A message leaves in the first round whose inputs are complete: one after the last round in which
  something that happens before its send still wrote.
- It arrives in that round.  Where nothing that happens before the receive is still busy, it lands in
  its destination, otherwise in a staging slot, from where it is copied when its turn comes.  Receives
  never hold a sender up, so a program that is free of deadlock with FIFO connections stays so.
- Local copies and reductions run after the group of their round, in a topological order.

"Happens before" is program order within a threadblock, dependencies, the k-th send of a connection
before its k-th receive, and the k-th receive before the (k + depth)-th send: exactly what the
verifier proves race-freedom with, so any race-free program gives the same data here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from collsynth.errors import InputError, RefusedError
from collsynth.program import RECEIVING, SENDING, TWO_SIDED, Op, Program

#: Buffer code of the staging area, after input, output and scratch.
STAGING = 3


@dataclass(frozen=True, slots=True)
class Slice:
    """Units begin..end of a buffer (0 input, 1 output, 2 scratch, 3 staging) of the rank itself."""

    buffer: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Move:
    """One message: from or into `place`, to or from rank `peer`, for an instruction (threadblock, step)."""

    peer: int
    place: Slice
    threadblock: int
    step: int


@dataclass(frozen=True, slots=True)
class Work:
    """`target = left`, or `target = left op right` when there is a right."""

    target: Slice
    left: Slice
    right: Slice | None = None


@dataclass(slots=True)
class Round:
    """One group of messages, then local work in order."""

    sends: list[Move] = field(default_factory=list)
    recvs: list[Move] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RankRounds:
    """What one rank does.

    Attributes:
        rounds: in order; the first has local work only.  All ranks have equally many.
        staging_units: size of the staging area in units.
    """

    rounds: tuple[Round, ...]
    staging_units: int


class _Staging:
    """Slots of the staging area: a slot freed in round t can be filled in round t + 1."""

    def __init__(self) -> None:
        self.units = 0
        self._free: dict[int, list[tuple[int, int]]] = {}

    def take(self, count: int, begin_round: int, end_round: int) -> Slice:
        """A slot of `count` units that is in use in rounds begin_round..end_round.

        Calls must come in the order of `begin_round`.
        """
        free = self._free.setdefault(count, [])
        for i, (end, start) in enumerate(free):
            if end < begin_round:
                free[i] = (end_round, start)
                return Slice(STAGING, start, start + count)
        start = self.units
        self.units += count
        free.append((end_round, start))
        return Slice(STAGING, start, start + count)


def _connections(program: Program, ops: frozenset[Op], peers: np.ndarray, sending: bool) -> dict[
    tuple[int, int, int], list[int]
]:  # fmt: skip
    """(source, destination, channel) -> its sending (or receiving) rows in order."""
    rows_of: dict[tuple[int, int, int], list[int]] = {}
    codes = np.array(sorted(int(op) for op in ops))
    blocks = np.repeat(np.arange(program.ntbs), np.diff(program.tb_ptr))
    for row in np.flatnonzero(np.isin(program.op, codes) & (program.count > 0)).tolist():
        block = blocks[row]
        rank, peer, channel = int(program.tb_rank[block]), int(peers[block]), int(program.tb_channel[block])
        key = (rank, peer, channel) if sending else (peer, rank, channel)
        rows_of.setdefault(key, []).append(row)
    return rows_of


@dataclass(frozen=True, slots=True)
class _Times:
    """Per row: round in which its message leaves (0: none), in which the message it takes arrives, after
    whose group its local effect happens, whether what it takes lands in place; and a topological order."""

    leaves: list[int]
    arrives: list[int]
    effect: list[int]
    direct: list[bool]
    order: list[int]


def _schedule(program: Program, pairs: list[tuple[int, int]], back: list[tuple[int, int]]) -> _Times:
    """Place every row of all ranks in rounds (Kahn's algorithm over the happens-before graph).

    `written` is the round after which all writes at or before a row are complete, `busy` the same for
    reads and writes; sends wait for writes only, whatever writes waits for both.
    """
    nrows = program.nrows
    successors: list[list[int]] = [[] for _ in range(nrows)]
    waiting = [0] * nrows
    receiver: dict[int, int] = dict(pairs)

    def edge(first: int, then: int) -> None:
        successors[first].append(then)
        waiting[then] += 1

    block_of: dict[tuple[int, int], int] = {
        (int(rank), int(id_)): t for t, (rank, id_) in enumerate(zip(program.tb_rank, program.tb_id, strict=True))
    }
    starts = program.tb_ptr.tolist()
    for t in range(program.ntbs):
        rank = int(program.tb_rank[t])
        for row in range(starts[t], starts[t + 1]):
            if row > starts[t]:
                edge(row - 1, row)
            for d in range(int(program.dep_ptr[row]), int(program.dep_ptr[row + 1])):
                other = block_of[(rank, int(program.dep_tb[d]))]
                edge(starts[other] + int(program.dep_step[d]), row)
    for first, then in (*pairs, *back):
        edge(first, then)

    ops, counts = program.op.tolist(), program.count.tolist()
    receiving, sending = {int(op) for op in RECEIVING}, {int(op) for op in SENDING}
    in_place = {int(Op.RECV), int(Op.RECV_COPY_SEND)}
    written, busy = [0] * nrows, [0] * nrows
    leaves, arrives, effect = [0] * nrows, [0] * nrows, [0] * nrows
    direct = [False] * nrows
    order: list[int] = []
    ready = deque(row for row in range(nrows) if waiting[row] == 0)
    while ready:
        row = ready.popleft()
        order.append(row)
        op = ops[row] if counts[row] else int(Op.NOP)
        wrote, used = written[row], busy[row]
        if op == Op.SEND:
            leaves[row] = wrote + 1
            used = max(used, wrote + 1)
        elif op != Op.NOP:
            if op in receiving:
                arrival = arrives[row]
                direct[row] = op in in_place and used < arrival
                at = max(wrote if op == Op.RECV_REDUCE_SEND else used, arrival)
            else:
                at = used
            effect[row] = wrote = at
            used = max(used, at)
            if op in sending:
                leaves[row] = at + 1
                # What rrs forwards lies in its own staging slot, nobody else's business.
                used = used if op == Op.RECV_REDUCE_SEND else at + 1
        if row in receiver:
            arrives[receiver[row]] = leaves[row]
        for then in successors[row]:
            # A message carries the sender's data, not its rounds: only the arrival counts on the other
            # side, and that is one round after everything which the sender had to wait for.
            written[then] = max(written[then], wrote)
            busy[then] = max(busy[then], wrote if receiver.get(row) == then else used)
            waiting[then] -= 1
            if waiting[then] == 0:
                ready.append(then)
    if len(order) < nrows:
        raise RefusedError(f"program {program.name} deadlocks: {nrows - len(order)} instructions wait in a cycle")
    return _Times(leaves, arrives, effect, direct, order)


def rounds(program: Program, rank: int) -> RankRounds:
    """What `rank` does, round by round.

    Args:
        program: a verified program of two-sided instructions.
        rank: whose part.

    Raises:
        InputError: an instruction is one-sided, or a connection's two ends differ in their messages.
        RefusedError: the program deadlocks.
    """
    if not np.isin(program.op, [int(op) for op in TWO_SIDED]).all():
        raise InputError(f"program {program.name} has one-sided instructions", expected="sends and receives only")
    sends = _connections(program, SENDING, program.tb_send, True)
    recvs = _connections(program, RECEIVING, program.tb_recv, False)
    depth = program.protocol.fifo_depth
    pairs: list[tuple[int, int]] = []
    back: list[tuple[int, int]] = []
    for key in sorted(sends.keys() | recvs.keys()):
        out, into = sends.get(key, []), recvs.get(key, [])
        if len(out) != len(into) or any(program.count[a] != program.count[b] for a, b in zip(out, into, strict=False)):
            raise InputError(
                f"rank {key[0]} sends {len(out)} messages to rank {key[1]} on channel {key[2]}, "
                f"which receives {len(into)} there, or their sizes differ",
                where=f"program {program.name}",
            )
        pairs += zip(out, into, strict=True)
        back += zip(into, out[depth:], strict=False)
    times = _schedule(program, pairs, back)
    return _for_rank(program, rank, times, sends, recvs)


def _for_rank(
    program: Program,
    rank: int,
    times: _Times,
    sends: dict[tuple[int, int, int], list[int]],
    recvs: dict[tuple[int, int, int], list[int]],
) -> RankRounds:
    """One rank's part of the schedule, with its staging slots."""
    result = [Round() for _ in range(max([0, *times.leaves, *times.effect]) + 1)]
    blocks = np.repeat(np.arange(program.ntbs), np.diff(program.tb_ptr))
    mine = program.tb_rank[blocks] == rank if program.nrows else np.zeros(0, bool)

    def operand(row: int, source: bool) -> Slice:
        buffer = program.src_buffer[row] if source else program.dst_buffer[row]
        index = int(program.src_index[row] if source else program.dst_index[row])
        return Slice(int(buffer), index, index + int(program.count[row]))

    def move(row: int, peer: int, place: Slice) -> Move:
        block = int(blocks[row])
        return Move(peer, place, int(program.tb_id[block]), row - int(program.tb_ptr[block]))

    staging = _Staging()
    slot: dict[int, Slice] = {}
    staged = [
        row for row in np.flatnonzero(mine).tolist() if times.arrives[row] and not times.direct[row]
    ]  # fmt: skip
    for row in sorted(staged, key=lambda r: (times.arrives[r], r)):
        last = times.leaves[row] if program.op[row] == Op.RECV_REDUCE_SEND else times.effect[row]
        slot[row] = staging.take(int(program.count[row]), times.arrives[row], last)

    # The order of the connections (peer, channel) and within each is the same on both sides.
    for key, rows in sorted(sends.items()):
        if key[0] == rank:
            for row in rows:
                op = program.op[row]
                place = slot[row] if op == Op.RECV_REDUCE_SEND else operand(row, op == Op.SEND)
                result[times.leaves[row]].sends.append(move(row, key[1], place))
    for key, rows in sorted(recvs.items()):
        if key[1] == rank:
            for row in rows:
                place = operand(row, False) if times.direct[row] else slot[row]
                result[times.arrives[row]].recvs.append(move(row, key[0], place))
    for row in times.order:
        if mine[row] and program.count[row]:
            work = _work(Op(int(program.op[row])), row, slot.get(row), operand)
            if work is not None:
                result[times.effect[row]].work.append(work)
    return RankRounds(tuple(result), staging.units)


def _work(op: Op, row: int, message: Slice | None, operand: Callable[[int, bool], Slice]) -> Work | None:
    """The local effect of a row; None when it has none (a send, or a message that lands in place)."""
    if op is Op.COPY:
        return Work(operand(row, False), operand(row, True))
    if op is Op.REDUCE:
        return Work(operand(row, False), operand(row, False), operand(row, True))
    if message is None:
        return None
    if op in (Op.RECV, Op.RECV_COPY_SEND):
        return Work(operand(row, False), message)
    target = message if op is Op.RECV_REDUCE_SEND else operand(row, False)
    return Work(target, message, operand(row, True))
