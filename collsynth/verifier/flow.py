"""The graph of a sound program in columns: who sends to whom, who waits for what, and levels in which to run.

Same meaning as `structure`, without words: where anything is wrong there is no flow, and `structure` says what.
All rows of one level are independent of each other; each has all its predecessors in lower levels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..program import READING, RECEIVING, SENDING, TWO_SIDED, WRITING, Op, Program

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

_CODES = max(Op) + 1
#: Above this many channels connection keys could overflow.
_MAX_CHANNELS = 1 << 20


def _table(ops: frozenset[Op]) -> BoolArray:
    table = np.zeros(_CODES, dtype=bool)
    table[[int(op) for op in ops]] = True
    return table


#: By operation code: takes a message, sends one, reads its source operand, writes its destination.
RECEIVES, SENDS, READS, WRITES = _table(RECEIVING), _table(SENDING), _table(READING), _table(WRITING)
_TWO_SIDED = _table(TWO_SIDED)


@dataclass(frozen=True, slots=True)
class Flow:
    """Edges and levels of a program whose shape is sound and that ends.

    Attributes:
        program: the program.
        row_tb, row_rank: int64[nrows], table index of a row's threadblock, and its rank.
        sender: int64[nrows], the row whose message a receiving row takes, else -1.
        wait_row, wait_on: int64[nwaits], a row and the row whose end it waits for.
        level: int64[nrows].
    """

    program: Program
    row_tb: IntArray
    row_rank: IntArray
    sender: IntArray
    wait_row: IntArray
    wait_on: IntArray
    level: IntArray


def flow_of(program: Program, flags: BoolArray | None = None) -> Flow | None:
    """The flow of a program, or None when its shape is not sound, it has idle steps, or it does not end.

    Args:
        program: any program.
        flags: whether each row publishes its index (MSCCL's hasdep); None: every row that is waited for does.
    """
    op, count = program.op, program.count
    if not program.nrows or not _TWO_SIDED[op].all() or ((count < 1) & (op != Op.NOP)).any() or (count < 0).any():
        return None
    row_tb = np.repeat(np.arange(program.ntbs), np.diff(program.tb_ptr))
    paired = _pair(program, row_tb)
    waits = _waits(program, row_tb, flags)
    if paired is None or waits is None or not _in_range(program, program.tb_rank[row_tb]):
        return None
    sends, receives, room = paired
    level = _levels(program, row_tb, sends, receives, room, *waits)
    if level is None:
        return None
    sender = np.full(program.nrows, -1, dtype=np.int64)
    sender[receives] = sends
    return Flow(program, row_tb, program.tb_rank[row_tb], sender, *waits, level)


def _in_range(program: Program, rank: IntArray) -> bool:
    """Whether every operand that is used exists and lies in its buffer."""
    sizes = np.stack((program.input_units, program.output_units, program.scratch_units), axis=1)
    for used, buffer, index in (
        (READS[program.op], program.src_buffer, program.src_index),
        (WRITES[program.op], program.dst_buffer, program.dst_index),
    ):
        if (buffer[used] < 0).any() or (index[used] < 0).any():
            return False
        if (index[used] + program.count[used] > sizes[rank[used], buffer[used]]).any():
            return False
    return True


def _pair(program: Program, row_tb: IntArray) -> tuple[IntArray, IntArray, tuple[IntArray, IntArray]] | None:
    """Sending rows with the receiving row of each, and (receiving row, later sending row) pairs for the room."""
    nranks, rank = program.nranks, program.tb_rank
    send, receive, channel = program.tb_send, program.tb_recv, program.tb_channel
    for peer in (send, receive):
        if (peer == rank).any() or (peer >= nranks).any():
            return None
    local = (send < 0) & (receive < 0)
    if program.nchannels > _MAX_CHANNELS or (~local & ((channel < 0) | (channel >= program.nchannels))).any():
        return None
    sides = []
    for peer, ends, table in ((send, (rank, send), SENDS), (receive, (receive, rank), RECEIVES)):
        key = (ends[0] * nranks + ends[1]) * max(1, program.nchannels) + channel
        owners = key[peer >= 0]
        if len(np.unique(owners)) != len(owners):
            return None
        rows = np.flatnonzero(table[program.op])
        if (peer[row_tb[rows]] < 0).any():
            return None
        keys = key[row_tb[rows]]
        order = np.argsort(keys, kind="stable")
        sides.append((rows[order], keys[order]))
    (sends, send_keys), (receives, receive_keys) = sides
    if len(sends) != len(receives) or (send_keys != receive_keys).any():
        return None
    if (program.count[sends] != program.count[receives]).any():
        return None
    depth = program.protocol.fifo_depth
    same = send_keys[depth:] == send_keys[:-depth]
    return sends, receives, (receives[:-depth][same], sends[depth:][same])


def _waits(program: Program, row_tb: IntArray, flags: BoolArray | None) -> tuple[IntArray, IntArray] | None:
    """(rows that wait, rows that end the wait)."""
    wait_row = np.repeat(np.arange(program.nrows), np.diff(program.dep_ptr))
    if not len(wait_row):
        return wait_row, wait_row.copy()
    span = int(program.tb_id.max()) + 2
    if int(program.tb_id.min()) < 0 or span > 1 << 30:
        return None
    key = program.tb_rank * span + program.tb_id
    order = np.argsort(key)
    sorted_key = key[order]
    if (np.diff(sorted_key) == 0).any() or (program.dep_tb < 0).any() or (program.dep_tb >= span).any():
        return None
    wanted = program.tb_rank[row_tb[wait_row]] * span + program.dep_tb
    place = np.searchsorted(sorted_key, wanted)
    if (place == len(order)).any() or (sorted_key[place] != wanted).any():
        return None
    tb = order[place]
    begin, end = program.tb_ptr[tb], program.tb_ptr[tb + 1]
    if (program.dep_step < 0).any() or (begin + program.dep_step >= end).any():
        return None
    waited = begin + program.dep_step
    if flags is not None:
        # a threadblock publishes its index only after flagged steps, and a flag on a nop is lost
        rows = np.arange(program.nrows)
        publishing = np.where(flags & (program.op != Op.NOP), rows, program.nrows)
        waited = np.minimum.accumulate(publishing[::-1])[::-1][waited]
        if (waited >= end).any():
            return None
    return wait_row, waited


def _levels(
    program: Program, row_tb: IntArray, sends: IntArray, receives: IntArray, room: tuple[IntArray, IntArray],
    wait_row: IntArray, wait_on: IntArray,
) -> IntArray | None:  # fmt: skip
    """Level of each row (longest chain of predecessors, FIFO room included), or None on a circle."""
    nrows = program.nrows
    nothing = np.full(nrows + 1, -1, dtype=np.int64)  # the last entry absorbs what has no successor
    after_send, after_take = nothing.copy(), nothing.copy()
    after_send[sends] = receives
    after_take[room[0]] = room[1]
    following = np.arange(1, nrows + 1)
    following[program.tb_ptr[1:][np.diff(program.tb_ptr) > 0] - 1] = -1
    missing = np.zeros(nrows + 1, dtype=np.int32)
    missing[following[following >= 0]] += 1
    missing[receives] += 1
    missing[room[1]] += 1
    np.add.at(missing, wait_row, 1)
    by_waited = np.argsort(wait_on, kind="stable")
    waiters, waiter_ptr = wait_row[by_waited], np.searchsorted(wait_on[by_waited], np.arange(nrows + 1))
    awaited = np.diff(waiter_ptr)
    any_waits = bool(len(wait_row))
    level = np.full(nrows, -1, dtype=np.int64)
    front = np.flatnonzero(missing[:-1] == 0)
    done = number = 0
    while len(front):
        level[front] = number
        done += len(front)
        number += 1
        # each of these three edges has one target a source and one source a target
        touched = []
        for edge in (following, after_send, after_take):
            targets = edge[front]
            targets = targets[targets >= 0]
            missing[targets] -= 1
            touched.append(targets)
        if any_waits:
            lengths = awaited[front]
            if lengths.any():
                inside = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
                targets = waiters[np.repeat(waiter_ptr[front], lengths) + inside]
                np.subtract.at(missing, targets, 1)
                touched.append(targets)
        reached = np.concatenate(touched)
        reached = reached[missing[reached] == 0]
        front = np.unique(reached) if len(reached) > 1 else reached
    return level if done == nrows else None
