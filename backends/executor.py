"""The interpreter of one rank's part of a program, over any array module and any transport.

Each threadblock is a small state machine; `Executor.run` polls them round robin until all are done.
A threadblock goes on with its next instruction when its dependencies are done, its receive
connection holds a message (if the instruction takes one) and its send connection has a free slot (if
it puts one).  That is the rule of the GPU runtimes, fused instructions included: they need the
message and the free slot at once.

A large payload is run as several iterations over the same instructions, each on a slice of every
unit (`widths`), so that messages stay below `Transport.message_bytes`.  Iterations use different
elements of every buffer, hence share nothing but the order of messages on a connection.

What a transport must do is in `Transport`, `SendEnd` and `RecvEnd`; what an array module must do is
in `Arrays`.  Nothing here imports MPI, CuPy or NCCL.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from collsynth.errors import InputError, RunError
from collsynth.program import READING, RECEIVING, SENDING, TWO_SIDED, WRITING, Buffer, Op, Program, Space

from .layout import Buffers

#: A numpy or CuPy array.
Array = Any

#: Reduction name -> name of the binary function in the array module.
OPERATIONS = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum"}

#: Polls without progress before the rank starts to sleep between polls (where every rank has a core,
#: and where it has not: then who spins keeps the one that is waited for from running), and how long.
_SPINS = 200
_CROWDED_SPINS = 2
_NAP_S = 50e-6
#: How often, in idle polls, the clock and the other ranks' state are looked at.
_CHECK_EVERY = 64


class SendEnd(ABC):
    """The sending end of a connection: a FIFO of messages to one peer on one channel."""

    peer: int
    channel: int

    @abstractmethod
    def reserve(self, count: int, width: int) -> Array | None:
        """A free message of shape (count, width) in the call's dtype to be filled, or None when the FIFO is full.

        Asking again before `commit` gives the same message.
        """

    @abstractmethod
    def commit(self) -> None:
        """Send the message that `reserve` gave; the array must not be used afterwards."""


class RecvEnd(ABC):
    """The receiving end of a connection."""

    peer: int
    channel: int

    @abstractmethod
    def peek(self, count: int, width: int) -> Array | None:
        """The oldest message, of shape (count, width), or None when there is none yet.

        Raises:
            RunError: the message there has another size (the peer runs another program or count).
        """

    @abstractmethod
    def release(self) -> None:
        """Drop the message that `peek` gave; the array must not be used afterwards."""


class Transport(ABC):
    """All connections of one rank.

    Attributes:
        message_bytes: largest message in bytes; None when there is no limit.
        crowded: whether there are more ranks than cores here.
    """

    message_bytes: int | None = None
    crowded: bool = False

    @abstractmethod
    def send_end(self, peer: int, channel: int) -> SendEnd:
        """The sending end of connection (this rank, peer, channel); the same object every time."""

    @abstractmethod
    def recv_end(self, peer: int, channel: int) -> RecvEnd:
        """The receiving end of connection (peer, this rank, channel); the same object every time."""

    def begin(self, dtype: np.dtype[Any], widths: Sequence[int]) -> None:  # noqa: B027, an optional hook
        """A run starts: elements have this dtype, iteration i moves `widths[i]` elements of every unit."""

    def progress(self) -> bool:
        """Called once a polling round, after all threadblocks; whether it moved something."""
        return False

    def check(self) -> None:  # noqa: B027, an optional hook
        """Called now and then while nothing moves.

        Raises:
            RunError: another rank has failed or died.
        """

    def end(self) -> bool:
        """Called until true after the last instruction: whether all sent messages have left."""
        return True

    def fail(self, reason: str) -> None:  # noqa: B027, an optional hook
        """Tell the other ranks that this one cannot go on (best effort, must not raise)."""

    def close(self) -> None:  # noqa: B027, an optional hook
        """Free everything; calling it again does nothing."""


class Arrays:
    """What instructions do to arrays when messages live where the buffers live.

    `xp` is numpy, CuPy or a module that looks like them.  Operations on messages are apart from those
    between buffers so that a subclass can stage messages through other memory.
    """

    def __init__(self, xp: Any) -> None:
        self.xp = xp

    def function(self, op: str) -> Callable[..., Any]:
        """The binary function of a reduction.

        Raises:
            InputError: no such reduction.
        """
        if op not in OPERATIONS:
            raise InputError(f"reduction {op!r} is not known", expected="one of " + ", ".join(OPERATIONS))
        function: Callable[..., Any] = getattr(self.xp, OPERATIONS[op])
        return function

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """A new array."""
        return self.xp.empty(shape, dtype=dtype)

    def from_host(self, array: np.ndarray) -> Array:
        """A numpy array's content where the buffers live (possibly the array itself)."""
        return self.xp.asarray(array)

    def to_host(self, array: Array) -> np.ndarray:
        """An array's content as a numpy array (possibly the array itself)."""
        return np.asarray(array)

    def copy(self, dst: Array, src: Array) -> None:
        """dst = src, both buffers."""
        dst[...] = src

    def reduce(self, function: Callable[..., Any], dst: Array, src: Array) -> None:
        """dst = dst op src, both buffers."""
        function(dst, src, out=dst)

    def put(self, message: Array, src: Array) -> None:
        """message = src."""
        message[...] = src

    def take(self, dst: Array, message: Array) -> None:
        """dst = message."""
        dst[...] = message

    def forward(self, out: Array, message: Array) -> None:
        """out = message, both messages."""
        out[...] = message

    def combine(self, function: Callable[..., Any], dst: Array, message: Array, src: Array) -> None:
        """dst = message op src."""
        function(message, src, out=dst)

    def combine_out(self, function: Callable[..., Any], out: Array, message: Array, src: Array) -> None:
        """out = message op src, out a message."""
        function(message, src, out=out)

    def complete(self) -> None:
        """Wait until all of the above have happened; called before a message is sent or released."""


@dataclass(frozen=True, slots=True)
class _Row:
    """One decoded instruction: operands as (buffer, first unit, end unit), dependencies as (block, step)."""

    op: Op
    count: int
    receives: bool
    sends: bool
    src: tuple[int, int, int] | None
    dst: tuple[int, int, int] | None
    depends: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class _Block:
    """One threadblock: its decoded rows, its ends, and how far it is."""

    id: int
    send: SendEnd | None
    recv: RecvEnd | None
    rows: tuple[_Row, ...]
    iteration: int = 0
    step: int = 0


def largest_count(program: Program) -> int:
    """Units of the program's largest message; equal on all ranks, since it looks at all of them."""
    moving = np.isin(program.op, [int(op) for op in RECEIVING | SENDING])
    return int(program.count[moving].max()) if moving.any() else 1


def check_connections(program: Program) -> None:
    """Check that every connection has one sending and one receiving threadblock.

    Raises:
        InputError: it has not; the message names the connection.
    """
    ends: dict[str, set[tuple[int, int, int]]] = {}
    for label, peers in (("sends to", program.tb_send), ("receives from", program.tb_recv)):
        has = peers >= 0
        triples = zip(program.tb_rank[has].tolist(), peers[has].tolist(), program.tb_channel[has].tolist(), strict=True)
        ends[label] = set()
        for rank, peer, channel in triples:
            if peer >= program.nranks or peer == rank:
                raise InputError(f"rank {rank} {label} rank {peer}", where=f"program {program.name}")
            key = (rank, peer, channel) if label == "sends to" else (peer, rank, channel)
            if key in ends[label]:
                raise InputError(f"two threadblocks of rank {rank} {label} rank {peer} on channel {channel}")
            ends[label].add(key)
    lonely = sorted(ends["sends to"] ^ ends["receives from"])
    if lonely:
        source, target, channel = lonely[0]
        missing = "receives" if lonely[0] in ends["sends to"] else "sends"
        raise InputError(
            f"no threadblock {missing} on connection {source} -> {target}, channel {channel}",
            where=f"program {program.name}",
        )


def slice_widths(unit_elements: int, itemsize: int, max_count: int, message_bytes: int | None) -> list[int]:
    """Elements of every unit that each iteration moves: as few and as equal iterations as the limit allows.

    Args:
        unit_elements: elements of a unit.
        itemsize: bytes of an element.
        max_count: units of the largest message.
        message_bytes: largest message, None for no limit.
    """
    if unit_elements == 0:
        return []
    if message_bytes is None:
        return [unit_elements]
    widest = max(1, message_bytes // (max_count * itemsize))
    iterations = -(-unit_elements // widest)
    base, longer = divmod(unit_elements, iterations)
    return [base + (i < longer) for i in range(iterations)]


def decode(program: Program, rank: int) -> list[tuple[int, int | None, int | None, int, tuple[_Row, ...]]]:
    """The rank's threadblocks as (id, send peer, receive peer, channel, rows).

    Raises:
        InputError: the program does something that this interpreter does not run, or an operand or
            dependency is out of range; the message names rank, threadblock and step.
    """
    sizes = (program.input_units[rank], program.output_units[rank], program.scratch_units[rank])
    blocks = program.threadblocks(rank)
    lengths = {block.id: len(block.instructions) for block in blocks}
    decoded = []
    for block in blocks:
        rows = []
        for step, row in enumerate(block.instructions):
            where = f"rank {rank}, threadblock {block.id}, step {step}"
            if row.op not in TWO_SIDED:
                raise InputError(f"{row.op.name} is not run by this backend", where=where)
            operands: list[tuple[int, int, int] | None] = []
            for operand, needed in ((row.src, row.op in READING), (row.dst, row.op in WRITING)):
                if not needed:
                    operands.append(None)
                    continue
                if operand is None or operand.space is not Space.LOCAL:
                    raise InputError("an operand is missing or not local", where=where)
                end = operand.index + row.count
                if operand.index < 0 or end > sizes[operand.buffer]:
                    raise InputError(
                        f"units {operand.index}..{end - 1} of {Buffer(operand.buffer).name.lower()} do not exist",
                        where=where,
                        expected=f"below {sizes[operand.buffer]}",
                    )
                operands.append((int(operand.buffer), operand.index, end))
            lonely = (row.op in RECEIVING and block.recv_peer is None) or (
                row.op in SENDING and block.send_peer is None
            )
            if lonely:
                raise InputError(f"{row.op.name} in a threadblock without that peer", where=where)
            for other, other_step in row.depends:
                if not 0 <= other_step < lengths.get(other, 0):
                    raise InputError(f"waits for threadblock {other} step {other_step}, which is not", where=where)
            # Zero units make no message, on both sides alike (the runtimes split messages into groups
            # of units, of which there is none).
            moves = row.count > 0
            rows.append(
                _Row(row.op if moves else Op.NOP, row.count, moves and row.op in RECEIVING,
                     moves and row.op in SENDING, operands[0], operands[1], row.depends)
            )  # fmt: skip
        decoded.append((block.id, block.send_peer, block.recv_peer, block.channel, tuple(rows)))
    return decoded


class Executor:
    """Runs one rank's threadblocks, again and again.

    Attributes:
        bytes_sent, messages_sent: peer -> payload bytes (padding included) and messages of the last run.
    """

    def __init__(self, program: Program, rank: int, transport: Transport, arrays: Arrays) -> None:
        self.rank, self.transport, self.arrays = rank, transport, arrays
        self.bytes_sent: dict[int, int] = {}
        self.messages_sent: dict[int, int] = {}
        self._blocks = [
            _Block(
                id_,
                None if send is None else transport.send_end(send, channel),
                None if recv is None else transport.recv_end(recv, channel),
                rows,
            )
            for id_, send, recv, channel, rows in decode(program, rank)
        ]
        self._lengths = {block.id: len(block.rows) for block in self._blocks}
        self._peers = sorted({block.send.peer for block in self._blocks if block.send is not None})

    def run(self, buffers: Buffers, op: str, *, widths: Sequence[int], timeout: float) -> None:
        """Run all threadblocks to their end.

        Args:
            buffers: the rank's buffers, flat, sum(widths) elements a unit.
            op: reduction name.
            widths: elements of every unit in each iteration (`slice_widths`).
            timeout: seconds without any progress on this rank after which it gives up.

        Raises:
            RunError: nothing moved for `timeout` seconds, or another rank failed.
        """
        try:
            self._run(buffers, self.arrays.function(op), widths, timeout)
        except BaseException as error:
            self.transport.fail(str(error) or type(error).__name__)
            raise

    def _run(self, buffers: Buffers, function: Callable[..., Any], widths: Sequence[int], timeout: float) -> None:
        self.bytes_sent = dict.fromkeys(self._peers, 0)
        self.messages_sent = dict.fromkeys(self._peers, 0)
        dtype, unit = buffers.output.dtype, sum(widths)
        # As (units, elements of a unit): a slice of every unit is then a column range.
        memory = tuple(buffers[i].reshape(-1, unit) if unit else None for i in Buffer)
        bounds = [0]
        for width in widths:
            bounds.append(bounds[-1] + width)
        # Rows that each block has completed, over all iterations: what dependencies look at.
        done = {block.id: 0 for block in self._blocks}
        for block in self._blocks:
            block.iteration = block.step = 0
        self.transport.begin(dtype, widths)
        active = [block for block in self._blocks if block.rows and len(widths)]
        spins = _CROWDED_SPINS if self.transport.crowded else _SPINS
        idle = 0
        moved_at = time.monotonic()
        while True:
            moved = False
            for block in active:
                if self._advance(block, memory, function, bounds, done):
                    moved = True
            if self.transport.progress():
                moved = True
            if moved:
                active = [block for block in active if block.iteration < len(widths)]
                idle = 0
            if not active and self.transport.end():
                break
            if moved:
                continue
            idle += 1
            if idle == 1:
                moved_at = time.monotonic()
            if idle < spins:
                os.sched_yield()
            else:
                time.sleep(_NAP_S)
            if idle % _CHECK_EVERY == 0:
                self.transport.check()
                if time.monotonic() - moved_at > timeout:
                    raise RunError(self._explain(active, bounds, done, timeout))
        self.arrays.complete()

    def _ready(self, block: _Block, row: _Row, done: dict[int, int]) -> tuple[int, int] | None:
        """The first dependency that is not done, or None."""
        for other, step in row.depends:
            if done[other] <= block.iteration * self._lengths[other] + step:
                return other, step
        return None

    def _advance(
        self,
        block: _Block,
        memory: tuple[Array, ...],
        function: Callable[..., Any],
        bounds: list[int],
        done: dict[int, int],
    ) -> bool:
        """Run the block's instructions until one cannot go on; whether any ran."""
        moved = False
        rows = block.rows
        last = len(bounds) - 1
        while block.iteration < last:
            row = rows[block.step]
            if row.depends and self._ready(block, row, done) is not None:
                return moved
            begin, end = bounds[block.iteration], bounds[block.iteration + 1]
            message = out = None
            if row.receives:
                assert block.recv is not None
                message = block.recv.peek(row.count, end - begin)
                if message is None:
                    return moved
            if row.sends:
                assert block.send is not None
                out = block.send.reserve(row.count, end - begin)
                if out is None:
                    return moved
            src = None if row.src is None else memory[row.src[0]][row.src[1] : row.src[2], begin:end]
            dst = None if row.dst is None else memory[row.dst[0]][row.dst[1] : row.dst[2], begin:end]
            self._execute(row.op, function, message, out, src, dst)
            if row.receives or row.sends:
                self.arrays.complete()
            if row.sends:
                assert block.send is not None and out is not None
                nbytes = int(out.nbytes)
                block.send.commit()
                self.bytes_sent[block.send.peer] += nbytes
                self.messages_sent[block.send.peer] += 1
            if row.receives:
                assert block.recv is not None
                block.recv.release()
            done[block.id] += 1
            block.step += 1
            if block.step == len(rows):
                block.step = 0
                block.iteration += 1
            moved = True
        return moved

    def _execute(
        self,
        op: Op,
        function: Callable[..., Any],
        message: Array | None,
        out: Array | None,
        src: Array | None,
        dst: Array | None,
    ) -> None:
        """The effect of one instruction on arrays; what each needs is there (`decode` has checked)."""
        arrays = self.arrays
        if op is Op.SEND:
            arrays.put(out, src)
        elif op is Op.RECV:
            arrays.take(dst, message)
        elif op is Op.RECV_REDUCE_COPY:
            arrays.combine(function, dst, message, src)
        elif op is Op.RECV_REDUCE_SEND:
            arrays.combine_out(function, out, message, src)
        elif op is Op.RECV_COPY_SEND:
            arrays.take(dst, message)
            arrays.forward(out, message)
        elif op is Op.RECV_REDUCE_COPY_SEND:
            arrays.combine(function, dst, message, src)
            arrays.put(out, dst)
        elif op is Op.COPY:
            arrays.copy(dst, src)
        elif op is Op.REDUCE:
            arrays.reduce(function, dst, src)

    def _explain(self, active: list[_Block], bounds: list[int], done: dict[int, int], timeout: float) -> str:
        """Who waits for what: threadblocks that wait for a peer first, at most three."""
        peers, local = [], []
        for block in active:
            row = block.rows[block.step]
            width = bounds[block.iteration + 1] - bounds[block.iteration]
            where = f"threadblock {block.id}, step {block.step} ({row.op.name.lower()})"
            pending = self._ready(block, row, done)
            if pending is not None:
                local.append(f"{where} for threadblock {pending[0]}, step {pending[1]} of its own rank")
            elif row.receives and block.recv is not None and block.recv.peek(row.count, width) is None:
                peers.append(f"{where} for a message from rank {block.recv.peer} on channel {block.recv.channel}")
            elif block.send is not None:
                peers.append(f"{where} for rank {block.send.peer} to take a message on channel {block.send.channel}")
        waits = peers + local or ["the transport, to send its last messages"]
        more = f" (and {len(waits) - 3} more)" if len(waits) > 3 else ""
        return f"rank {self.rank} waited {timeout:g} s in vain: " + "; ".join(waits[:3]) + more
