"""Connections between processes: shared memory inside a host, MPI point-to-point between hosts.

A connection is a FIFO of as many messages as the program's protocol holds (`Protocol.fifo_depth`).

**Inside a host** each rank owns one inbox: an anonymous memory file (memfd, it has no name, so nothing
stays behind however the process ends) that holds a ring of slots for every connection into the rank.
Senders map it through /proc/<pid>/fd/<n> and check a random token, so a wrong guess about who shares a
host or a process namespace shows at set-up; such pairs then use MPI.  A ring has one producer and one
consumer.  Two counters order them: `tail`, written by the sender after the data, and `head`, written
by the receiver after it has read them, each alone in a cache line.

Memory-order assumption: a store to a counter becomes visible after the stores of the data before it,
and loads of data do not move before the load of the counter.  x86 guarantees both for ordinary
memory (the C library's non-temporal copies end with a fence), and the counters are aligned 8-byte
words, so they are never torn.  On other processors the rings are not used: all pairs go through MPI.

**Between hosts** every message is an Isend/Irecv pair with one tag a channel.  Receives are posted
ahead, up to the depth; every depth-th send is synchronous, so that at most twice the depth of
messages can be underway however small they are.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import platform
import secrets
import select
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from collsynth.errors import InputError, RunError
from collsynth.program import RECEIVING, Program

from .control import DATA_TAG, MAX_CHANNELS, Control
from .executor import Array, RecvEnd, SendEnd, Transport, check_connections, largest_count

#: Bytes of the ring of one connection, shared by its slots; larger where one slot must hold more.
FIFO_BYTES = 1 << 20

#: Largest element (complex and long double are not reduced here).
_MAX_ITEMSIZE = 8

#: Ring header: tail, head and the slots' sizes lie in cache lines of their own.
_LINE = 64
_PAGE = 4096

#: Seconds between looks at whether the ranks of this host still live.
_PULSE_S = 0.25

_ORDERED_MACHINES = frozenset({"x86_64", "amd64", "i686", "i386"})


def host_name() -> str:
    """What tells this host from others: its name and the kernel's boot id."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{platform.node()}/{boot.read_text().strip() if boot.exists() else ''}"


def pretend_host(rank: int, nranks: int, hosts: int | None) -> str:
    """The pretend host of a rank when the ranks are split into `hosts` blocks; "" for no pretence.

    Raises:
        InputError: not between 1 and the number of ranks.
    """
    if hosts is None:
        return ""
    if not 1 <= hosts <= nranks:
        raise InputError(f"{hosts} hosts for {nranks} ranks", where="--assume-hosts", expected=f"1..{nranks}")
    return f"#{rank * hosts // nranks}"


@dataclass(frozen=True, slots=True)
class Ring:
    """Place of one connection's ring in the receiver's inbox."""

    offset: int
    depth: int
    slot_bytes: int

    @property
    def header_bytes(self) -> int:
        return 2 * _LINE + -(-8 * self.depth // _LINE) * _LINE

    @property
    def nbytes(self) -> int:
        return -(-(self.header_bytes + self.depth * self.slot_bytes) // _PAGE) * _PAGE


class Slots:
    """A mapped ring: counters and slots."""

    def __init__(self, memory: mmap.mmap, ring: Ring) -> None:
        view = memoryview(memory)
        self.tail = view[ring.offset : ring.offset + 8].cast("q")
        self.head = view[ring.offset + _LINE : ring.offset + _LINE + 8].cast("q")
        sizes = ring.offset + 2 * _LINE
        self.sizes = view[sizes : sizes + 8 * ring.depth].cast("q")
        first = ring.offset + ring.header_bytes
        self.slots = [
            np.frombuffer(memory, np.uint8, ring.slot_bytes, first + i * ring.slot_bytes) for i in range(ring.depth)
        ]


class SharedSend(SendEnd):
    """Producer of a ring."""

    def __init__(self, peer: int, channel: int, slots: Slots) -> None:
        self.peer, self.channel, self._slots = peer, channel, slots
        self._depth = len(slots.slots)
        self._sent, self._freed = slots.tail[0], slots.head[0]
        self._nbytes = 0
        self.dtype = np.dtype(np.uint8)

    def reserve(self, count: int, width: int) -> Array | None:
        if self._sent - self._freed >= self._depth:
            self._freed = self._slots.head[0]
            if self._sent - self._freed >= self._depth:
                return None
        self._nbytes = count * width * self.dtype.itemsize
        slot = self._slots.slots[self._sent % self._depth]
        return slot[: self._nbytes].view(self.dtype).reshape(count, width)

    def commit(self) -> None:
        self._slots.sizes[self._sent % self._depth] = self._nbytes
        self._sent += 1
        self._slots.tail[0] = self._sent


class SharedRecv(RecvEnd):
    """Consumer of a ring."""

    def __init__(self, peer: int, channel: int, slots: Slots) -> None:
        self.peer, self.channel, self._slots = peer, channel, slots
        self._depth = len(slots.slots)
        self._taken, self._seen = slots.head[0], slots.tail[0]
        self.dtype = np.dtype(np.uint8)

    def peek(self, count: int, width: int) -> Array | None:
        if self._taken >= self._seen:
            self._seen = self._slots.tail[0]
            if self._taken >= self._seen:
                return None
        place = self._taken % self._depth
        nbytes = count * width * self.dtype.itemsize
        _same_size(self, nbytes, self._slots.sizes[place])
        return self._slots.slots[place][:nbytes].view(self.dtype).reshape(count, width)

    def release(self) -> None:
        self._taken += 1
        self._slots.head[0] = self._taken


class MpiSend(SendEnd):
    """Sender of MPI messages out of `depth` buffers in turn."""

    def __init__(self, peer: int, channel: int, control: Control, depth: int, slot_bytes: int) -> None:
        self.peer, self.channel, self._control = peer, channel, control
        self._buffers = [np.empty(slot_bytes, np.uint8) for _ in range(depth)]
        self._requests: list[Any] = [None] * depth
        self._sent = self._nbytes = 0
        self.dtype = np.dtype(np.uint8)

    def reserve(self, count: int, width: int) -> Array | None:
        place = self._sent % len(self._buffers)
        if not self._left(place):
            return None
        self._nbytes = count * width * self.dtype.itemsize
        return self._buffers[place][: self._nbytes].view(self.dtype).reshape(count, width)

    def commit(self) -> None:
        place = self._sent % len(self._buffers)
        comm = self._control.comm
        send = comm.Issend if place == len(self._buffers) - 1 else comm.Isend
        message = [self._buffers[place][: self._nbytes], self._control.mpi.BYTE]
        self._requests[place] = send(message, dest=self.peer, tag=DATA_TAG + self.channel)
        self._sent += 1

    def _left(self, place: int) -> bool:
        request = self._requests[place]
        if request is not None and request.Test():
            self._requests[place] = request = None
        return request is None

    def empty(self) -> bool:
        """Whether all messages have left; asking drives the library."""
        left = [self._left(place) for place in range(len(self._buffers))]
        return all(left)


class MpiRecv(RecvEnd):
    """Receiver of MPI messages into `depth` buffers in turn, posted ahead."""

    def __init__(self, peer: int, channel: int, control: Control, depth: int, slot_bytes: int, messages: int) -> None:
        self.peer, self.channel, self._control = peer, channel, control
        self._buffers = [np.empty(slot_bytes, np.uint8) for _ in range(depth)]
        self._requests: list[Any] = [None] * depth
        self._sizes = [0] * depth
        self._posted = self._taken = 0
        self._messages, self._total = messages, 0
        self.dtype = np.dtype(np.uint8)

    def expect(self, iterations: int) -> None:
        """A run of so many iterations starts: post what the buffers hold of its messages."""
        self._total += self._messages * iterations
        while self._posted < min(self._total, self._taken + len(self._buffers)):
            self._post()

    def _post(self) -> None:
        place = self._posted % len(self._buffers)
        message = [self._buffers[place], self._control.mpi.BYTE]
        self._requests[place] = self._control.comm.Irecv(message, source=self.peer, tag=DATA_TAG + self.channel)
        self._posted += 1

    def peek(self, count: int, width: int) -> Array | None:
        place = self._taken % len(self._buffers)
        request = self._requests[place]
        if request is not None:
            status = self._control.mpi.Status()
            if not request.Test(status):
                return None
            self._requests[place] = None
            self._sizes[place] = status.Get_count(self._control.mpi.BYTE)
        elif self._taken >= self._posted:
            return None
        nbytes = count * width * self.dtype.itemsize
        _same_size(self, nbytes, self._sizes[place])
        return self._buffers[place][:nbytes].view(self.dtype).reshape(count, width)

    def release(self) -> None:
        self._taken += 1
        if self._posted < self._total:
            self._post()


def _same_size(end: RecvEnd, expected: int, got: int) -> None:
    if expected != got:
        raise RunError(
            f"rank {end.peer} sent a message of {got} bytes on channel {end.channel} where {expected} were expected: "
            "the ranks were called with different counts, types or programs"
        )


class MixedTransport(Transport):
    """All connections of this rank in one program.

    Set-up is two exchanges over the control plane; every rank of the communicator must take part.

    Args:
        program: the same on all ranks (they agree by its hash here).
        control: the control plane; its communicator has `program.nranks` processes.
        assume_hosts: split the ranks into so many pretend hosts; None: the real ones.
        fifo_bytes: bytes of one connection's ring.

    Attributes:
        hosts: the host of every rank, as small numbers.
        shared_peers: peers reached through shared memory (as this rank sends); the others by MPI.

    Raises:
        InputError: the ranks hold different programs or options, or the program does not fit.
        RunError: another rank did not come.
    """

    def __init__(
        self, program: Program, control: Control, *, assume_hosts: int | None = None, fifo_bytes: int = FIFO_BYTES
    ) -> None:
        self._control, self._program = control, program
        self._depth = program.protocol.fifo_depth
        slot = max(fifo_bytes // self._depth, largest_count(program) * _MAX_ITEMSIZE)
        self.message_bytes: int = -(-slot // _LINE) * _LINE
        self._inbox: mmap.mmap | None = None
        self._maps: dict[int, mmap.mmap] = {}
        self._pulses: dict[int, int] = {}
        self._next_pulse = 0.0
        self._sends: dict[tuple[int, int], SharedSend | MpiSend] = {}
        self._recvs: dict[tuple[int, int], SharedRecv | MpiRecv] = {}
        self._fd = -1
        try:
            self._set_up(assume_hosts)
        except BaseException:
            self.close()
            raise

    def _set_up(self, assume_hosts: int | None) -> None:
        control, program, rank = self._control, self._program, self._control.rank
        pretended = pretend_host(rank, control.size, assume_hosts)
        mine = self._make_inbox() if control.size == program.nranks else None
        cards = control.exchange(
            {
                "program": program.content_hash(), "options": (self.message_bytes, assume_hosts),
                "machine": host_name(), "host": host_name() + pretended, "inbox": mine,
            }
        )  # fmt: skip
        agree(control, [card["program"] for card in cards], "programs (by content hash)")
        agree(control, [card["options"] for card in cards], "options")
        if control.size != program.nranks:
            raise InputError(
                f"{control.size} processes for a program of {program.nranks} ranks",
                hint=f"collsynth launch -n {program.nranks} ...",
            )
        check_connections(program)
        here = [card["machine"] for card in cards].count(cards[rank]["machine"])
        # Not the affinity: launchers bind each of few ranks to a core of its own.
        self.crowded = here > (os.cpu_count() or 1)
        names = [card["host"] for card in cards]
        self.hosts = [sorted(set(names)).index(name) for name in names]
        strangers = self._map_peers(cards)
        # The second exchange tells receivers which senders could not map their inbox; once it is over,
        # all maps are made and the file descriptor can go.
        unmapped = control.exchange(strangers)
        os.close(self._fd)
        self._fd = -1
        self.shared_peers = frozenset(self._maps)
        self._connect(unmapped)

    def _rings(self, rank: int) -> tuple[dict[tuple[int, int], Ring], int]:
        """Rings of `rank`'s inbox by (sender, channel), and its size; all ranks compute the same."""
        program = self._program
        mine = (program.tb_rank == rank) & (program.tb_recv >= 0)
        keys = sorted(set(zip(program.tb_recv[mine].tolist(), program.tb_channel[mine].tolist(), strict=True)))
        rings = {}
        offset = _PAGE
        for key in keys:
            rings[key] = Ring(offset, self._depth, self.message_bytes)
            offset += rings[key].nbytes
        return rings, offset

    def _make_inbox(self) -> tuple[int, int, bytes] | None:
        """Create this rank's inbox; (process id, file descriptor, token), or None where rings cannot be used."""
        if platform.machine().lower() not in _ORDERED_MACHINES or not hasattr(os, "memfd_create"):
            return None
        _, size = self._rings(self._control.rank)
        self._fd = os.memfd_create("collsynth-inbox", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, size)
        self._inbox = mmap.mmap(self._fd, size)
        token = secrets.token_bytes(16)
        self._inbox[:16] = token
        return os.getpid(), self._fd, token

    def _map_peers(self, cards: list[dict[str, Any]]) -> set[int]:
        """Map the inboxes of this host's ranks that this one sends to; the peers that could not be mapped."""
        rank, program = self._control.rank, self._program
        sends = set(program.tb_send[(program.tb_rank == rank) & (program.tb_send >= 0)].tolist())
        strangers = set()
        for peer in range(program.nranks):
            if peer == rank or self.hosts[peer] != self.hosts[rank] or cards[peer]["inbox"] is None:
                if peer in sends:
                    strangers.add(peer)
                continue
            pid, fd, token = cards[peer]["inbox"]
            try:
                memory = _open_inbox(pid, fd, token)
            except OSError:
                strangers.add(peer)
                continue
            if peer in sends:
                self._maps[peer] = memory
            with contextlib.suppress(OSError, AttributeError):
                self._pulses[peer] = os.pidfd_open(pid)
        return strangers

    def _connect(self, unmapped: list[set[int]]) -> None:
        """Make the ends of all connections."""
        control, program, rank = self._control, self._program, self._control.rank
        if program.ntbs and int(program.tb_channel.max()) >= MAX_CHANNELS:
            raise InputError(f"channel {int(program.tb_channel.max())}", expected=f"below {MAX_CHANNELS}")
        rings = {peer: self._rings(peer)[0] for peer in (rank, *self._maps)}
        receiving = np.isin(program.op, [int(op) for op in RECEIVING]) & (program.count > 0)
        for tb in np.flatnonzero(program.tb_rank == rank).tolist():
            channel = int(program.tb_channel[tb])
            peer = int(program.tb_send[tb])
            if peer >= 0 and (peer, channel) not in self._sends:
                if peer in self._maps:
                    slots = Slots(self._maps[peer], rings[peer][rank, channel])
                    self._sends[peer, channel] = SharedSend(peer, channel, slots)
                else:
                    self._sends[peer, channel] = MpiSend(peer, channel, control, self._depth, self.message_bytes)
            peer = int(program.tb_recv[tb])
            if peer >= 0 and (peer, channel) not in self._recvs:
                if rank not in unmapped[peer] and self._inbox is not None:
                    self._recvs[peer, channel] = SharedRecv(
                        peer, channel, Slots(self._inbox, rings[rank][peer, channel])
                    )
                else:
                    messages = int(receiving[program.tb_ptr[tb] : program.tb_ptr[tb + 1]].sum())
                    self._recvs[peer, channel] = MpiRecv(
                        peer, channel, control, self._depth, self.message_bytes, messages
                    )

    def send_end(self, peer: int, channel: int) -> SendEnd:
        return self._sends[peer, channel]

    def recv_end(self, peer: int, channel: int) -> RecvEnd:
        return self._recvs[peer, channel]

    def begin(self, dtype: np.dtype[Any], widths: Sequence[int]) -> None:
        if self._control.broken is not None:
            raise RunError(f"this program cannot be run any more: {self._control.broken}")
        for end in (*self._sends.values(), *self._recvs.values()):
            end.dtype = dtype
        for recv in self._recvs.values():
            if isinstance(recv, MpiRecv):
                recv.expect(len(widths))

    def progress(self) -> bool:
        self.end()
        return False

    def end(self) -> bool:
        left = [end.empty() for end in self._sends.values() if isinstance(end, MpiSend)]
        return all(left)

    def check(self) -> None:
        self._control.check()
        now = time.monotonic()
        if now < self._next_pulse or not self._pulses:
            return
        self._next_pulse = now + _PULSE_S
        poll = select.poll()
        for fd in self._pulses.values():
            poll.register(fd, select.POLLIN)
        dead = {fd for fd, _ in poll.poll(0)}
        for peer, fd in self._pulses.items():
            if fd in dead:
                # It may have said why before it ended.
                self._control.check()
                raise RunError(f"the process of rank {peer} has ended")

    def fail(self, reason: str) -> None:
        self._control.fail(reason)

    def close(self) -> None:
        for fd in self._pulses.values():
            os.close(fd)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._pulses = {}
        # The maps go when their last array goes.
        self._sends, self._recvs, self._maps, self._inbox = {}, {}, {}, None


def _open_inbox(pid: int, fd: int, token: bytes) -> mmap.mmap:
    """Map another process's inbox.

    Raises:
        OSError: not this process namespace, not allowed, or another file.
    """
    handle = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
    try:
        memory = mmap.mmap(handle, os.fstat(handle).st_size)
    except ValueError as error:
        raise OSError("not an inbox") from error
    finally:
        os.close(handle)
    if memory[:16] != token:
        raise OSError("not the inbox that was meant")
    return memory


def agree(control: Control, values: list[Any], what: str) -> None:
    """Check that all ranks gave the same value; `values[r]` is rank r's, known to everybody.

    Raises:
        InputError: they differ (every rank raises the same message).
    """
    different = [rank for rank in range(control.size) if values[rank] != values[0]]
    if different:
        some = ", ".join(str(rank) for rank in different[:8]) + (", ..." if len(different) > 8 else "")
        raise InputError(
            f"the ranks hold different {what}: rank 0 has {str(values[0])[:16]}, "
            f"rank {different[0]} has {str(values[different[0]])[:16]} (differing from rank 0: {some})",
            expected="the same on all ranks",
        )
