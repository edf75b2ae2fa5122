"""One-sided programs on real data: all ranks in one process, one row at a time, in a seeded random order.

What a port does later is a thread of its own for each channel, so it may happen right away or long after other
ranks' steps; a put's data is taken when it happens.  So a source that is overwritten too early, or a signal that
says less than it should, shows as wrong data in some order.  (Memory is one here: what is ordered is visible.)
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collsynth.errors import RunError
from collsynth.program import ChannelKind, Op, Program, Space

from .layout import Buffers

Array = NDArray[Any]

_SIGNALS = frozenset({Op.SIGNAL, Op.RELAXED_SIGNAL})
_WAITS = frozenset({Op.WAIT, Op.RELAXED_WAIT})
_ADDING = frozenset({Op.REDUCE, Op.READ_REDUCE, Op.READ_PACKET_REDUCE})
_FROM_PACKETS = frozenset({Op.READ_PACKET, Op.READ_PACKET_REDUCE, Op.FORWARD_PACKET})
_INTO_PACKETS = frozenset({Op.PUT_PACKET, Op.FORWARD_PACKET})
_MOVING = frozenset({
    Op.COPY, Op.PUT, Op.GET, Op.PUT_PACKET, Op.READ_PACKET, Op.MULTICAST_STORE, Op.MULTICAST_REDUCE, Op.FORWARD_PACKET,
}) | _ADDING  # fmt: skip
_SYNCHRONISING = _SIGNALS | _WAITS | {Op.FLUSH, Op.BARRIER, Op.ACQUIRE, Op.RELEASE, Op.NOP}
#: Rows that a port does later.
_LATER = frozenset({Op.PUT, Op.FORWARD_PACKET}) | _SIGNALS
#: Most stuck threadblocks that a message lists.
_SHOWN = 8

#: (from, to, kind, number)
Connection = tuple[int, int, int, int]
#: A threadblock, or a port's channel.
Thread = int | Connection
#: (reason, what it is about)
Obstacle = tuple[str, Any]


def runs(program: Program) -> bool:
    """Whether every operation of the program is one of these."""
    return set(program.op.tolist()) <= {int(op) for op in _MOVING | _SYNCHRONISING}


class OneSidedRun:
    """One execution of a one-sided program.

    Args:
        program: one that `runs`.
        memory: the buffers of every rank; packets have a scratch of their own here.
        unit: elements of a unit.
        combine: the reduction, `numpy.add` or alike.
        rng: picks who goes on; None: everybody as far as possible, in order.
    """

    def __init__(
        self, program: Program, memory: list[Buffers], unit: int, combine: Any, rng: random.Random | None
    ) -> None:
        self.program, self.memory, self.unit, self.combine, self.rng = program, memory, unit, combine, rng
        for name in ("op", "count", "src_space", "src_buffer", "src_index", "dst_space", "dst_buffer", "dst_index",
                     "peer", "sync", "dep_ptr", "dep_tb", "dep_step", "tb_rank", "tb_id", "tb_ptr"):  # fmt: skip
            setattr(self, f"_{name}", getattr(program, name).tolist())
        self._kind: list[int] = program.kinds.tolist()
        self.at: list[int] = self._tb_ptr[:-1]
        self.index = {(r, i): t for t, (r, i) in enumerate(zip(self._tb_rank, self._tb_id, strict=True))}
        self.signals: dict[Connection, int] = defaultdict(int)
        self.ports: dict[Connection, deque[tuple[int, int]]] = {}  # (row, threadblock) that are still to be done
        starts = program.semaphore_init or ((),) * program.nranks
        self.semaphores = {(r, s): value for r, values in enumerate(starts) for s, value in enumerate(values)}
        self.arrived: dict[tuple[int, int], int] = defaultdict(int)  # threadblocks that came to a barrier, ever
        self.passing: dict[int, int] = {}  # threadblock at a barrier -> arrivals with which it opens
        self.packets: dict[tuple[int, int], Array] = {}  # (rank, scratch unit) -> packet
        self.awake: list[Thread] = []
        self.sleepers: dict[Obstacle, list[int]] = defaultdict(list)

    _op: list[int]
    _count: list[int]
    _src_space: list[int]
    _src_buffer: list[int]
    _src_index: list[int]
    _dst_space: list[int]
    _dst_buffer: list[int]
    _dst_index: list[int]
    _peer: list[int]
    _sync: list[int]
    _dep_ptr: list[int]
    _dep_tb: list[int]
    _dep_step: list[int]
    _tb_rank: list[int]
    _tb_id: list[int]
    _tb_ptr: list[int]

    def run(self) -> None:
        """Run every threadblock and every port to its end.

        Raises:
            RunError: stuck, signals left over, or an operand outside its buffer.
        """
        awake: list[Thread] = [t for t in range(self.program.ntbs) if not self._over(t)]
        if self.rng is None:
            awake.reverse()
        self.awake = awake
        while awake:
            position = len(awake) - 1 if self.rng is None else self.rng.randrange(len(awake))
            thread = awake[position]
            obstacle = None if isinstance(thread, tuple) else self._obstacle(thread)
            if obstacle is None:
                self._port_step(thread) if isinstance(thread, tuple) else self._step(thread)
                if not self._over(thread):
                    continue
            else:
                assert isinstance(thread, int)
                self.sleepers[obstacle].append(thread)
            # others may have been appended: the place is still this thread's
            awake[position] = awake[-1]
            awake.pop()
        self._check_end()

    def _over(self, thread: Thread) -> bool:
        if isinstance(thread, tuple):
            return not self.ports[thread]
        return self.at[thread] >= self._tb_ptr[thread + 1]

    def _wake(self, reason: Obstacle) -> None:
        self.awake += self.sleepers.pop(reason, [])

    # --- waiting -------------------------------------------------------------------------------------

    def _obstacle(self, tb: int) -> Obstacle | None:
        """What the next row of a threadblock waits for; None when it can be done."""
        row, rank = self.at[tb], self._tb_rank[tb]
        for dep in range(self._dep_ptr[row], self._dep_ptr[row + 1]):
            other = self.index.get((rank, self._dep_tb[dep]))
            if other is None:
                raise RunError(f"{self._name(tb)} waits for tb {self._dep_tb[dep]}, which does not exist")
            if self.at[other] - self._tb_ptr[other] <= self._dep_step[dep]:
                return "progress", other
        op = self._op[row]
        if op in _WAITS:
            connection = (self._member(tb, self._peer[row]), rank, self._kind[row], self._sync[row])
            return None if self.signals[connection] > 0 else ("signal", connection)
        if op == Op.FLUSH:
            connection = (rank, self._peer[row], self._kind[row], self._sync[row])
            return ("port", connection) if self.ports.get(connection) else None
        if op == Op.ACQUIRE:
            semaphore = (rank, self._sync[row])
            return None if self._semaphore(tb, semaphore) > 0 else ("semaphore", semaphore)
        if op == Op.BARRIER:
            return self._barrier(tb, row, rank)
        if op in _FROM_PACKETS:
            begin = self._src_index[row]
            for unit in range(begin, begin + self._count[row]):
                if (rank, unit) not in self.packets:
                    return "packet", rank
        return None

    def _barrier(self, tb: int, row: int, rank: int) -> Obstacle | None:
        """Come to a barrier (once), and see whether it is open."""
        barrier, size = (rank, self._sync[row]), max(1, self._count[row])
        if tb not in self.passing:
            self.arrived[barrier] += 1
            self.passing[tb] = -(-self.arrived[barrier] // size) * size
            if self.arrived[barrier] == self.passing[tb]:
                self._wake(("barrier", barrier))
        return None if self.arrived[barrier] >= self.passing[tb] else ("barrier", barrier)

    def _semaphore(self, tb: int, semaphore: tuple[int, int]) -> int:
        if semaphore not in self.semaphores:
            raise RunError(f"{self._name(tb)} uses semaphore {semaphore[1]}, which rank {semaphore[0]} does not have")
        return self.semaphores[semaphore]

    # --- doing ---------------------------------------------------------------------------------------

    def _step(self, tb: int) -> None:
        """Do the next row of a threadblock, or hand it to a port."""
        row, rank = self.at[tb], self._tb_rank[tb]
        op, connection = self._op[row], (rank, self._peer[row], self._kind[row], self._sync[row])
        if op in _LATER and self._kind[row] == ChannelKind.PORT:
            queue = self.ports.setdefault(connection, deque())
            if not queue:
                self.awake.append(connection)
            queue.append((row, tb))
        elif op in _SIGNALS:
            self._signal(connection)
        elif op in _WAITS:
            self.signals[connection[1], rank, connection[2], connection[3]] -= 1
        elif op == Op.ACQUIRE:
            self.semaphores[rank, connection[3]] -= 1
        elif op == Op.RELEASE:
            semaphore = (rank, connection[3])
            self.semaphores[semaphore] = self._semaphore(tb, semaphore) + 1
            self._wake(("semaphore", semaphore))
        elif op == Op.BARRIER:
            del self.passing[tb]
        elif op in _MOVING:
            self._move(tb, row)
        self.at[tb] = row + 1
        self._wake(("progress", tb))

    def _port_step(self, connection: Connection) -> None:
        """Do the oldest thing that a port was asked for."""
        queue = self.ports[connection]
        row, tb = queue.popleft()
        if self._op[row] in _SIGNALS:
            self._signal(connection)
        else:
            self._move(tb, row)
        if not queue:
            self._wake(("port", connection))

    def _signal(self, connection: Connection) -> None:
        self.signals[connection] += 1
        self._wake(("signal", connection))

    def _move(self, tb: int, row: int) -> None:
        op, values = self._op[row], None
        from_packets, into_packets = op in _FROM_PACKETS, op in _INTO_PACKETS
        for rank in self._members(tb, row, self._src_space[row]):
            term = self._load(tb, row, rank, self._src_buffer[row], self._src_index[row], from_packets)
            values = term if values is None else self.combine(values, term)
        assert values is not None
        # members of a group may lie over the source: it is taken first
        values = values.copy() if self._dst_space[row] == Space.MULTICAST else values
        for rank in self._members(tb, row, self._dst_space[row]):
            begin = self._dst_index[row]
            if into_packets:
                for number in range(self._count[row]):
                    part = values[number * self.unit : (number + 1) * self.unit]
                    self.packets[rank, begin + number] = part.copy()
                self._wake(("packet", rank))
                continue
            place = self._load(tb, row, rank, self._dst_buffer[row], begin, False)
            place[...] = self.combine(place, values) if op in _ADDING else values

    def _members(self, tb: int, row: int, space: int) -> tuple[int, ...]:
        """Ranks whose memory an operand of that space names."""
        if space == Space.LOCAL:
            return (self._tb_rank[tb],)
        if space == Space.REMOTE:
            return (self._member(tb, self._peer[row]),)
        if not 0 <= self._sync[row] < len(self.program.groups):
            raise RunError(f"{self._name(tb)} names group {self._sync[row]}, which does not exist")
        return self.program.groups[self._sync[row]]

    def _member(self, tb: int, rank: int) -> int:
        if not 0 <= rank < self.program.nranks:
            raise RunError(f"{self._name(tb)} names peer {rank}, which does not exist")
        return rank

    def _load(self, tb: int, row: int, rank: int, buffer: int, index: int, packets: bool) -> Array:
        """The units of an operand: a view of plain data, a copy of packets."""
        count = self._count[row]
        if packets:
            parts = [self.packets[rank, unit] for unit in range(index, index + count)]
            return np.concatenate(parts) if parts else self.memory[rank][buffer][:0]
        if buffer < 0:
            raise RunError(f"{self._name(tb)} lacks an operand")
        part: Array = self.memory[rank][buffer][index * self.unit : (index + count) * self.unit]
        if index < 0 or len(part) != count * self.unit:
            raise RunError(
                f"{self._name(tb)} uses units {index}..{index + count - 1} of rank {rank}, outside its buffer"
            )
        return part

    # --- the end -------------------------------------------------------------------------------------

    def _name(self, tb: int) -> str:
        row = self.at[tb]
        step = f" step {row - self._tb_ptr[tb]} ({Op(self._op[row]).name})" if not self._over(tb) else ""
        return f"rank {self._tb_rank[tb]} tb {self._tb_id[tb]}{step}"

    def _check_end(self) -> None:
        stuck = [tb for tb in range(self.program.ntbs) if not self._over(tb)]
        if stuck:
            lines = []
            for tb in stuck[:_SHOWN]:
                reason, what = self._obstacle(tb) or ("nothing", 0)
                lines.append(f"{self._name(tb)} waits for {self._words(reason, what)}")
            more = f"\n  and {len(stuck) - _SHOWN} more" if len(stuck) > _SHOWN else ""
            raise RunError("the run is stuck:\n  " + "\n  ".join(lines) + more)
        left = next((key for key, number in self.signals.items() if number), None)
        if left is not None:
            kind = ChannelKind(left[2]).name.lower()
            raise RunError(
                f"{self.signals[left]} signals from rank {left[0]} to rank {left[1]} on {kind} channel {left[3]} "
                "were never waited for"
            )

    def _words(self, reason: str, what: Any) -> str:
        if reason == "progress":
            return self._name(what)
        if reason in ("signal", "port"):
            verb = "a signal of" if reason == "signal" else "the port to"
            return f"{verb} rank {what[0] if reason == 'signal' else what[1]}"
        return "packets" if reason == "packet" else f"{reason} {what[1] if isinstance(what, tuple) else what}"
