"""Event simulation of a Program on a topology: threadblocks, FIFO connections, shared links.

A threadblock runs its instructions in order.  A sending instruction starts when its dependencies are
done and its connection has a free slot (`Protocol.fifo_depth`); it occupies the threadblock until its
last byte has left the first link.  A receiving one starts when the message has been delivered.  Messages
cross their route cut-through, links serve messages in order of arrival at each link (ties: lower rank,
threadblock, step).  Local copies and reductions take no time: the model is of the wires.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from fractions import Fraction

from ..errors import InputError, RefusedError
from ..program import RECEIVING, SENDING, TWO_SIDED, Op, Program
from ..topology import Topology
from .clock import Clock
from .result import Hop, SimResult
from .routes import Router

Connection = tuple[int, int, int]  # (src rank, dst rank, channel)

_ASSUMPTIONS = (
    "local copies and reductions take no time",
    "the program names peers only: each message takes the lowest-latency path that avoids other ranks",
)


@dataclass(slots=True)
class _Service:
    """One link serving one message, and the earlier service that it waited for.

    A chain of services is acyclic, since each is made after its cause; messages are not: two messages
    that cross two links may each wait for the other, on different links.
    """

    message: _Message
    cause: _Service | None


@dataclass(slots=True)
class _Message:
    """A message under way; times are ticks."""

    connection: Connection
    units: int
    route: tuple[int, ...]
    sender: tuple[int, int]  # threadblock index, row
    ready: int
    start: int = 0
    end: int = 0
    previous_latency: int = 0
    service: _Service | None = None  # the last one, or what its sender waited for


@dataclass(slots=True)
class _Pipe:
    """One connection: messages delivered but not consumed, and how many slots are taken."""

    delivered: deque[_Message] = field(default_factory=deque)
    in_flight: int = 0


class _Machine:
    """The state of one simulation."""

    def __init__(self, program: Program, topology: Topology, size: int, latency: bool) -> None:
        if program.nranks != topology.nranks:
            raise InputError(
                f"the program has {program.nranks} ranks, topology {topology.name} has {topology.nranks}",
                expected="equal numbers",
            )
        unsupported = sorted({Op(int(o)).name for o in set(program.op.tolist())} - {op.name for op in TWO_SIDED})
        if unsupported:
            raise InputError(f"the simulator does not know {', '.join(unsupported)}", where=f"program {program.name}")
        peers = [*program.tb_send.tolist(), *program.tb_recv.tolist()]
        if peers and not -1 <= min(peers) <= max(peers) < program.nranks:
            stranger = next(p for p in peers if not -1 <= p < program.nranks)
            raise InputError(
                f"a threadblock's peer is rank {stranger} of {program.nranks}", where=f"program {program.name}",
                expected=f"peers 0..{program.nranks - 1}", hint="collsynth verify, which names the place",
            )  # fmt: skip
        self.program, self.topology = program, topology
        self.clock = Clock.of(topology, program.nunits, size)
        ps = self.clock.ticks_per_picosecond if latency else 0
        self.latency = [int(x) * ps for x in topology.link_latency]
        self.overhead = [int(x) * ps for x in topology.link_overhead]
        self.groups: list[list[int]] = [[i] for i in range(topology.nlinks)]
        for index, (_, members) in enumerate(topology.capacity_groups()):
            if index >= topology.nlinks:
                for link in members:
                    self.groups[int(link)].append(index)
        self.free = [0] * len(self.clock.ticks_per_unit)
        self.last_user: list[_Service | None] = [None] * len(self.free)
        self.busy = [0] * topology.nlinks
        self.units = [0] * topology.nlinks
        self.router = Router(topology)
        self.pipes: dict[Connection, _Pipe] = {}
        self.depth = program.protocol.fifo_depth
        # Threadblock state.
        self.first = program.tb_ptr.tolist()
        self.pc = self.first[:-1].copy()
        self.idle = [True] * program.ntbs
        self.done_row = [False] * program.nrows
        self.cause: list[_Service | None] = [None] * program.ntbs
        self.index_of = {
            (r, i): t for t, (r, i) in enumerate(zip(program.tb_rank.tolist(), program.tb_id.tolist(), strict=True))
        }
        self.waiting: dict[int, list[int]] = {}  # row -> threadblocks that wait for it
        self.receiver: dict[Connection, int] = {}
        self.sender: dict[Connection, int] = {}
        for t in range(program.ntbs):
            rank, channel = int(program.tb_rank[t]), int(program.tb_channel[t])
            if program.tb_send[t] >= 0:
                self.sender[(rank, int(program.tb_send[t]), channel)] = t
            if program.tb_recv[t] >= 0:
                self.receiver[(int(program.tb_recv[t]), rank, channel)] = t
        self.events: list[tuple[int, int, int, str, object]] = []
        self.sequence = 0
        self.last: _Message | None = None
        self.finish = 0

    def push(self, time: int, priority: int, kind: str, what: object) -> None:
        self.sequence += 1
        heapq.heappush(self.events, (time, priority, self.sequence, kind, what))

    def run(self) -> None:
        for t in range(self.program.ntbs):
            self.push(0, t, "try", t)
        while self.events:
            time, _, _, kind, what = heapq.heappop(self.events)
            if kind == "try":
                assert isinstance(what, int)
                self.try_issue(what, time)
            elif kind == "hop":
                assert isinstance(what, tuple)
                self.hop(what[0], what[1], time)
            elif kind == "deliver":
                assert isinstance(what, _Message)
                self.deliver(what, time)
            else:
                assert isinstance(what, tuple)
                self.complete(what[0], what[1], time)
        stuck = [t for t in range(self.program.ntbs) if self.pc[t] < self.first[t + 1]]
        if stuck:
            t = stuck[0]
            raise RefusedError(
                f"the program deadlocks: rank {int(self.program.tb_rank[t])} threadblock {int(self.program.tb_id[t])} "
                f"never passes step {self.pc[t] - self.first[t]} ({len(stuck)} threadblocks are stuck); "
                "try collsynth verify, which shows the cycle"
            )

    def try_issue(self, t: int, now: int) -> None:
        """Start the next instruction of threadblock t if nothing holds it back any more."""
        program = self.program
        if not self.idle[t] or self.pc[t] >= self.first[t + 1]:
            return
        row = self.pc[t]
        rank = int(program.tb_rank[t])
        for d in range(int(program.dep_ptr[row]), int(program.dep_ptr[row + 1])):
            other = self.index_of.get((rank, int(program.dep_tb[d])))
            target = None if other is None else self.first[other] + int(program.dep_step[d])
            if target is None or other is None or target >= self.first[other + 1]:
                return  # waits for ever: reported as a deadlock
            if not self.done_row[target]:
                self.waiting.setdefault(target, []).append(t)
                return
        op = Op(int(program.op[row]))
        channel = int(program.tb_channel[t])
        incoming = (int(program.tb_recv[t]), rank, channel)
        outgoing = (rank, int(program.tb_send[t]), channel)
        if op in RECEIVING and not self.pipes.setdefault(incoming, _Pipe()).delivered:
            return
        if op in SENDING and self.pipes.setdefault(outgoing, _Pipe()).in_flight >= self.depth:
            return
        self.idle[t] = False
        if op in RECEIVING:
            self.cause[t] = self.pipes[incoming].delivered[0].service
        if op not in SENDING:
            self.push(now, t, "done", (t, row))
            return
        self.pipes[outgoing].in_flight += 1
        units = int(program.count[row])
        message = _Message(outgoing, units, self.router.route(rank, outgoing[1]), (t, row), now, service=self.cause[t])
        self.push(now, t, "hop", (message, 0))

    def hop(self, message: _Message, position: int, now: int) -> None:
        """The message's head has reached link `position` of its route."""
        link = message.route[position]
        start = now
        cause = message.service
        for group in self.groups[link]:
            if self.free[group] > start:
                start = self.free[group]
                cause = self.last_user[group]
        message.service = _Service(message, cause)
        per_unit = self.clock.ticks_per_unit
        occupied = 0
        for group in self.groups[link]:
            self.last_user[group] = message.service
            self.free[group] = start + self.overhead[link] + message.units * per_unit[group]
            occupied = max(occupied, self.free[group] - start)
        self.busy[link] += self.overhead[link] + message.units * per_unit[link]
        self.units[link] += message.units
        t, row = message.sender
        if position == 0:
            message.start, message.end = start, start + occupied
            self.push(message.end, t, "done", (t, row))
        else:
            message.end = max(start + occupied, message.end + message.previous_latency)
        message.previous_latency = self.latency[link]
        if position + 1 < len(message.route):
            self.push(start + self.latency[link], t, "hop", (message, position + 1))
        else:
            self.push(message.end + self.latency[link], t, "deliver", message)

    def deliver(self, message: _Message, now: int) -> None:
        message.end = now
        self.pipes[message.connection].delivered.append(message)
        if now >= self.finish:
            self.finish, self.last = now, message
        if message.connection in self.receiver:
            self.try_issue(self.receiver[message.connection], now)

    def complete(self, t: int, row: int, now: int) -> None:
        """The instruction is over: free what it held and wake who waits for it."""
        program = self.program
        self.finish = max(self.finish, now)
        self.done_row[row] = True
        self.idle[t] = True
        self.pc[t] += 1
        if Op(int(program.op[row])) in RECEIVING:
            incoming = (int(program.tb_recv[t]), int(program.tb_rank[t]), int(program.tb_channel[t]))
            self.pipes[incoming].delivered.popleft()
            self.pipes[incoming].in_flight -= 1
            if incoming in self.sender:
                self.push(now, self.sender[incoming], "try", self.sender[incoming])
        for waiter in self.waiting.pop(row, ()):
            self.cause[waiter] = self.cause[t]
            self.push(now, waiter, "try", waiter)
        self.push(now, t, "try", t)


def _before(service: _Service) -> _Service | None:
    """The nearest earlier service of another message."""
    earlier = service.cause
    while earlier is not None and earlier.message is service.message:
        earlier = earlier.cause
    return earlier


def simulate_program(program: Program, topology: Topology, size: int, *, latency: bool = True) -> SimResult:
    """Simulate `size` payload bytes of a program.

    Raises:
        InputError: rank counts differ or an operation is not two-sided.
        DisconnectedError: two peers have no path that avoids other ranks.
        RefusedError: the program deadlocks.
        UnknownSpeedError: a bandwidth is not known.
    """
    machine = _Machine(program, topology, size, latency)
    machine.run()
    tick_ps = machine.clock.seconds_per_tick * 10**12
    path: list[Hop] = []
    service = machine.last.service if machine.last else None
    while service is not None:
        message, service = service.message, _before(service)
        src, dst, _ = message.connection
        t, row = message.sender
        text = (
            f"rank {src} threadblock {int(program.tb_id[t])} step {row - machine.first[t]} -> rank {dst}, "
            f"{message.units} units"
        )
        path.append(Hop(None, src, dst, message.ready * tick_ps, message.start * tick_ps, message.end * tick_ps, text))
    payload = Fraction(size, program.nunits)
    return SimResult(
        program.collective, program.nranks, size, machine.finish * tick_ps,
        tuple(u * payload for u in machine.units), tuple(b * tick_ps for b in machine.busy),
        tuple(reversed(path)), _ASSUMPTIONS,
    )  # fmt: skip
