"""A program: what each rank's threadblocks do, instruction by instruction.

Columns of one instruction table, grouped by threadblock, threadblocks grouped by rank.  The table
can hold more than any one target runs: two-sided instructions through FIFO connections (MSCCL),
one-sided ones with explicit synchronisation, packets and multicast (MSCCL++), or plain sends and
receives (Chakra).  What a target accepts is a predicate on programs, checked by its writer and by
`verify --target`, not the shape of this type.

Operands are counted in units: the whole payload is cut into `nunits` equal units, `index` and
`count` of an operand are units of its buffer.

A wrong program can be held, inspected and printed; only `collsynth.verifier` says that it is right.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum

import numpy as np
from numpy.typing import NDArray

from .errors import InputError

IntArray = NDArray[np.int64]


class Buffer(IntEnum):
    """The three buffers of a rank; the letters of MSCCL XML in brackets: i, o, s."""

    INPUT = 0
    OUTPUT = 1
    SCRATCH = 2


class Space(IntEnum):
    """Whose memory an operand names: the rank's own, one peer's, or a multicast group's."""

    LOCAL = 0
    REMOTE = 1
    MULTICAST = 2


class ChannelKind(IntEnum):
    """How a one-sided instruction reaches its peer.

    MEMORY: the threads load and store the peer's mapped memory.  PORT: a proxy or NIC moves the data later
    (asynchronously, in the order of issue on one channel).  SWITCH: a multicast group of the NVLink switch.
    """

    NONE = 0
    MEMORY = 1
    PORT = 2
    SWITCH = 3


class Op(IntEnum):
    """Operation codes.

    Two-sided, through the threadblock's FIFO connections (m is the next message from the receive
    peer): SEND src; RECV dst = m; RECV_COPY_SEND dst = m, forward m; RECV_REDUCE_COPY dst = m + src;
    RECV_REDUCE_SEND forward m + src; RECV_REDUCE_COPY_SEND dst = m + src, forward the sum.
    Local: COPY dst = src; REDUCE dst = dst + src; NOP carries dependencies only.
    One-sided (MSCCL++ style; + is the collective's reduction, every operand has `count` units):

        PUT                 peer.dst = src            src LOCAL, dst REMOTE
        GET                 dst = peer.src            src REMOTE, dst LOCAL
        READ_REDUCE         dst = dst + peer.src      src REMOTE, dst LOCAL
        PUT_PACKET          packets(dst) = src        src LOCAL data, dst scratch LOCAL, REMOTE or MULTICAST
        FORWARD_PACKET      packets(dst) = packets(src)   src LOCAL scratch, dst scratch REMOTE or MULTICAST
        READ_PACKET         dst = packets(src)        src LOCAL scratch, dst LOCAL data
        READ_PACKET_REDUCE  dst = dst + packets(src)  src LOCAL scratch, dst LOCAL data
        MULTICAST_STORE     every member: dst = src   src LOCAL, dst MULTICAST
        MULTICAST_REDUCE    dst = sum over members of src   src MULTICAST, dst LOCAL or MULTICAST
        SIGNAL, WAIT        the k-th WAIT of a channel ends after its k-th SIGNAL; count 0
        RELAXED_SIGNAL, RELAXED_WAIT   the same (they count together), but they only order; count 0
        FLUSH               ends when all earlier transfers on the PORT channel are done; count 0
        BARRIER             ends when `count` threadblocks of the rank have come to barrier `sync`
        ACQUIRE, RELEASE    take one from, add one to semaphore `sync` of the rank; count 0

    `channel_kind`, `peer` and `sync` by where the other operand is: LOCAL: NONE, -1, -1.  REMOTE: `peer`
    with MEMORY and sync -1, or (PUT and FORWARD_PACKET only) with PORT and sync the channel's number.
    MULTICAST: SWITCH, peer -1, sync an index into `Program.groups`.  SIGNAL, WAIT and their relaxed forms:
    MEMORY or PORT, peer, sync the channel's number; FLUSH alike with PORT.  BARRIER, ACQUIRE, RELEASE: NONE.

    A channel is (pair of ranks, MEMORY or PORT, number): both ends use the same number, each direction
    counts its own signals, and at one end one threadblock signals and one waits.  Transfers through MEMORY
    need no channel number, because they are loads and stores of the issuing threads.  A MULTICAST operand
    is the same buffer and index on every member.  What a runtime does in one operation with several channels
    or operands (MSCCL++'s `signal` on three channels, `put` to two peers, `re` of three sources, `res`,
    `respkt`) is one row each, in order: the local result first, then what is sent from it.
    Put-with-signal is PUT, SIGNAL; put-with-signal-and-flush is PUT, SIGNAL, FLUSH.

    What orders two one-sided instructions, and what makes data visible:

    * Program order inside a threadblock orders and makes visible everything except what PORT moves;
      so do dependencies between threadblocks of a rank (which MSCCL++ plans cannot carry).
    * SIGNAL -> WAIT, RELEASE -> ACQUIRE and BARRIER order and make all earlier writes visible, those of
      other threadblocks and ranks that came before the SIGNAL included.  An ACQUIRE is only known to follow
      those RELEASEs without which it could not have ended.
    * RELAXED_SIGNAL -> RELAXED_WAIT and packet written -> packet read only order: an earlier read is over,
      but an earlier write (other than the packets themselves) need not be visible.
      At the end of a rank its output must be visible to it; of what a SWITCH does the order is enough.
    * PUT, FORWARD_PACKET and SIGNAL through PORT are done some time after they are issued, in the order of
      issue on their channel.  The data is visible at the peer after the WAIT for a later SIGNAL of that
      channel; the source may be overwritten after a FLUSH of that channel, or after anything that
      follows that WAIT.
    * A packet carries its flag: a unit of scratch that holds packets is written once in a program, read
      by any number of packet reads, which wait for it, and never used for plain data.
    """

    NOP = 0
    SEND = 1
    RECV = 2
    COPY = 3
    REDUCE = 4
    RECV_COPY_SEND = 5
    RECV_REDUCE_COPY = 6
    RECV_REDUCE_SEND = 7
    RECV_REDUCE_COPY_SEND = 8
    PUT = 16
    GET = 17
    PUT_PACKET = 18
    READ_PACKET = 19
    READ_REDUCE = 20
    MULTICAST_STORE = 21
    MULTICAST_REDUCE = 22
    SIGNAL = 23
    WAIT = 24
    FLUSH = 25
    BARRIER = 26
    ACQUIRE = 27
    RELEASE = 28
    READ_PACKET_REDUCE = 29
    FORWARD_PACKET = 30
    RELAXED_SIGNAL = 31
    RELAXED_WAIT = 32


#: Operations that take a message from the receive connection / put one on the send connection,
#: read the local source operand / write the destination operand.
RECEIVING = frozenset({Op.RECV, Op.RECV_COPY_SEND, Op.RECV_REDUCE_COPY, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND})
SENDING = frozenset({Op.SEND, Op.RECV_COPY_SEND, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND})
READING = frozenset({Op.SEND, Op.COPY, Op.REDUCE, Op.RECV_REDUCE_COPY, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND})
WRITING = frozenset({Op.RECV, Op.COPY, Op.REDUCE, Op.RECV_COPY_SEND, Op.RECV_REDUCE_COPY, Op.RECV_REDUCE_COPY_SEND})
TWO_SIDED = frozenset(op for op in Op if op < Op.PUT)
ONE_SIDED = frozenset(Op) - TWO_SIDED


class Protocol(StrEnum):
    """NCCL's wire protocols; they differ in how many messages a connection holds."""

    SIMPLE = "Simple"
    LL = "LL"
    LL128 = "LL128"

    @property
    def fifo_depth(self) -> int:
        """Messages in flight on one connection: 8 slots, of which Simple uses 4 a message."""
        return 2 if self is Protocol.SIMPLE else 8


@dataclass(frozen=True, slots=True)
class Operand:
    """A run of units: `count` units of `buffer` from `index`, in `space`."""

    buffer: Buffer
    index: int
    count: int
    space: Space = Space.LOCAL


@dataclass(frozen=True, slots=True)
class Instruction:
    """The typed view of one row.

    Attributes:
        op: what it does.
        src, dst: operands; None when the operation has no such operand.
        count: units moved.
        depends: (threadblock id, step) pairs of the same rank that must be done before.
        peer, sync: for one-sided operations, None otherwise.
        kind: the channel of a one-sided operation.
    """

    op: Op
    count: int
    src: Operand | None = None
    dst: Operand | None = None
    depends: tuple[tuple[int, int], ...] = ()
    peer: int | None = None
    sync: int | None = None
    kind: ChannelKind = ChannelKind.NONE


@dataclass(frozen=True, slots=True)
class Threadblock:
    """The typed view of one threadblock: at most one send and one receive peer, on one channel."""

    rank: int
    id: int
    send_peer: int | None
    recv_peer: int | None
    channel: int
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True, eq=False)
class Program:
    """A lowered schedule.

    Attributes:
        name: label for people.
        collective: canonical collective name, or "" when not known ("custom" programs).
        nranks: communicator size.
        root: root rank of a rooted collective, None otherwise.
        nunits: N, the equal units into which the payload is cut.
        nchannels: number of channels.
        protocol: NCCL wire protocol.
        in_place, out_of_place: modes for which the program is meant (both may hold).
        min_bytes, max_bytes: payload window, inclusive, for which it should be chosen; None: no limit.
        input_units, output_units, scratch_units: int64[nranks] buffer sizes in units.
        tb_rank, tb_id: int64[ntbs]; threadblocks are grouped by rank with ids 0.. in order.
        tb_send, tb_recv: int64[ntbs] peer rank, or -1 for none.  tb_channel: int64[ntbs].
        tb_ptr: int64[ntbs + 1], rows of threadblock t are tb_ptr[t]..tb_ptr[t+1].
        op: int64[nrows] (`Op`).  src_space, src_buffer, src_index, dst_space, dst_buffer, dst_index:
            int64[nrows]; buffer -1 means the row has no such operand.  count: int64[nrows].
        peer, sync: int64[nrows], -1 for none.
        dep_ptr, dep_tb, dep_step: CSR of dependencies: threadblock id (within the rank) and step.
        notes: what a reader or pass wants to tell (ignored elements, assumptions).
        channel_kind: int64[nrows] (`ChannelKind`), or None: NONE everywhere (programs without channels).
        groups: multicast groups, each the sorted ranks of its members.
        semaphore_init: for each rank, the value that each of its semaphores starts with; () when there are
            none.

    Raises:
        InputError: columns differ in length, or an enumeration, rank or pointer is out of range.
    """

    name: str
    collective: str
    nranks: int
    root: int | None
    nunits: int
    nchannels: int
    protocol: Protocol
    in_place: bool
    out_of_place: bool
    min_bytes: int | None
    max_bytes: int | None
    input_units: IntArray
    output_units: IntArray
    scratch_units: IntArray
    tb_rank: IntArray
    tb_id: IntArray
    tb_send: IntArray
    tb_recv: IntArray
    tb_channel: IntArray
    tb_ptr: IntArray
    op: IntArray
    src_space: IntArray
    src_buffer: IntArray
    src_index: IntArray
    dst_space: IntArray
    dst_buffer: IntArray
    dst_index: IntArray
    count: IntArray
    peer: IntArray
    sync: IntArray
    dep_ptr: IntArray
    dep_tb: IntArray
    dep_step: IntArray
    notes: tuple[str, ...] = ()
    channel_kind: IntArray | None = None
    groups: tuple[tuple[int, ...], ...] = ()
    semaphore_init: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        where = f"program {self.name}"
        ntbs, nrows = self.ntbs, self.nrows
        groups: tuple[tuple[int, tuple[str, ...]], ...] = (
            (self.nranks, ("input_units", "output_units", "scratch_units")),
            (ntbs, ("tb_id", "tb_send", "tb_recv", "tb_channel")),
            (nrows, ("src_space", "src_buffer", "src_index", "dst_space", "dst_buffer", "dst_index", "count",
                     "peer", "sync")),
        )  # fmt: skip
        for length, labels in groups:
            for label in labels:
                column = getattr(self, label)
                if len(column) != length:
                    raise InputError(f"column {label} has {len(column)} rows", where=where, expected=str(length))
                column.setflags(write=False)
        for label, ptr, rows, total in (
            ("tb_ptr", self.tb_ptr, ntbs, nrows), ("dep_ptr", self.dep_ptr, nrows, len(self.dep_tb)),
        ):  # fmt: skip
            if len(ptr) != rows + 1 or ptr[0] != 0 or ptr[-1] != total or (np.diff(ptr) < 0).any():
                raise InputError(f"{label} does not fit", where=where)
            ptr.setflags(write=False)
        if self.nranks < 1 or self.nunits < 1 or self.nchannels < 0:
            raise InputError("nranks and nunits must be 1 or more", where=where)
        if ntbs and (self.tb_rank.min() < 0 or self.tb_rank.max() >= self.nranks or (np.diff(self.tb_rank) < 0).any()):
            raise InputError("threadblocks are not grouped by rank", where=where)
        if self.root is not None and not 0 <= self.root < self.nranks:
            raise InputError(f"root {self.root} is out of range", where=where, expected=f"0..{self.nranks - 1}")
        if len(self.dep_step) != len(self.dep_tb):
            raise InputError("dependencies lack a step or a threadblock", where=where)
        for label, codes, allowed in (
            ("operation", self.op, [int(o) for o in Op]),
            ("space", self.src_space, [int(s) for s in Space]), ("space", self.dst_space, [int(s) for s in Space]),
            ("buffer", self.src_buffer, [-1, *map(int, Buffer)]), ("buffer", self.dst_buffer, [-1, *map(int, Buffer)]),
        ):  # fmt: skip
            if nrows and not np.isin(codes, allowed).all():
                raise InputError(f"unknown {label} code", where=where)
        for label in ("input_units", "output_units", "scratch_units", "count"):
            column = getattr(self, label)
            if len(column) and (column.min() < 0 or column.max() >= 1 << 40):
                raise InputError(f"{label} is out of range", where=where, expected="0 or more units")
        for column in (self.tb_rank, self.op, self.dep_tb, self.dep_step):
            column.setflags(write=False)
        self._check_one_sided(where)

    def _check_one_sided(self, where: str) -> None:
        """Check the fields that only one-sided programs have."""
        if self.channel_kind is not None:
            if len(self.channel_kind) != self.nrows:
                raise InputError(f"column channel_kind has {len(self.channel_kind)} rows", where=where,
                                 expected=str(self.nrows))  # fmt: skip
            if self.nrows and not np.isin(self.channel_kind, [int(k) for k in ChannelKind]).all():
                raise InputError("unknown channel kind code", where=where)
            self.channel_kind.setflags(write=False)
        for group in self.groups:
            if not group or list(group) != sorted(set(group)) or group[0] < 0 or group[-1] >= self.nranks:
                raise InputError(f"multicast group {list(group)[:8]} is no set of ranks in order", where=where)
        if self.semaphore_init and len(self.semaphore_init) != self.nranks:
            raise InputError(f"semaphores of {len(self.semaphore_init)} ranks", where=where, expected=str(self.nranks))
        if any(value < 0 for values in self.semaphore_init for value in values):
            raise InputError("a semaphore starts below 0", where=where)

    @staticmethod
    def build(
        threadblocks: Sequence[Threadblock],
        *,
        name: str,
        collective: str,
        nranks: int,
        nunits: int,
        nchannels: int,
        input_units: Sequence[int],
        output_units: Sequence[int],
        scratch_units: Sequence[int],
        root: int | None = None,
        protocol: Protocol = Protocol.SIMPLE,
        in_place: bool = False,
        out_of_place: bool = True,
        min_bytes: int | None = None,
        max_bytes: int | None = None,
        notes: Sequence[str] = (),
        groups: Sequence[Sequence[int]] = (),
        semaphore_init: Sequence[Sequence[int]] = (),
    ) -> Program:
        """A program from typed threadblocks (columns are made here; order is kept, grouped by rank)."""
        blocks = sorted(threadblocks, key=lambda tb: tb.rank)
        rows = [row for block in blocks for row in block.instructions]

        def column(values: Sequence[int]) -> IntArray:
            return np.array(values, dtype=np.int64)

        def operand(which: str, attribute: str, absent: int) -> IntArray:
            operands = [getattr(row, which) for row in rows]
            return column([absent if o is None else int(getattr(o, attribute)) for o in operands])

        return Program(
            name=name, collective=collective, nranks=nranks, root=root, nunits=nunits, nchannels=nchannels,
            protocol=protocol, in_place=in_place, out_of_place=out_of_place, min_bytes=min_bytes, max_bytes=max_bytes,
            input_units=column(input_units), output_units=column(output_units), scratch_units=column(scratch_units),
            tb_rank=column([b.rank for b in blocks]), tb_id=column([b.id for b in blocks]),
            tb_send=column([-1 if b.send_peer is None else b.send_peer for b in blocks]),
            tb_recv=column([-1 if b.recv_peer is None else b.recv_peer for b in blocks]),
            tb_channel=column([b.channel for b in blocks]),
            tb_ptr=column([0, *np.cumsum([len(b.instructions) for b in blocks])]),
            op=column([int(r.op) for r in rows]),
            src_space=operand("src", "space", 0), src_buffer=operand("src", "buffer", -1),
            src_index=operand("src", "index", -1),
            dst_space=operand("dst", "space", 0), dst_buffer=operand("dst", "buffer", -1),
            dst_index=operand("dst", "index", -1),
            count=column([r.count for r in rows]),
            peer=column([-1 if r.peer is None else r.peer for r in rows]),
            sync=column([-1 if r.sync is None else r.sync for r in rows]),
            dep_ptr=column([0, *np.cumsum([len(r.depends) for r in rows])]),
            dep_tb=column([d[0] for r in rows for d in r.depends]),
            dep_step=column([d[1] for r in rows for d in r.depends]),
            notes=tuple(notes),
            channel_kind=column([int(r.kind) for r in rows]) if any(r.kind for r in rows) else None,
            groups=tuple(tuple(group) for group in groups),
            semaphore_init=tuple(tuple(values) for values in semaphore_init) if any(semaphore_init) else (),
        )  # fmt: skip

    @property
    def ntbs(self) -> int:
        """Number of threadblocks over all ranks."""
        return len(self.tb_rank)

    @property
    def nrows(self) -> int:
        """Number of instructions over all ranks."""
        return len(self.op)

    @property
    def one_sided(self) -> bool:
        """Whether any instruction is one-sided or synchronises without a FIFO."""
        return bool(self.nrows) and int(self.op.max()) >= Op.PUT

    @property
    def kinds(self) -> IntArray:
        """`channel_kind`, as zeros when it is None."""
        return np.zeros(self.nrows, np.int64) if self.channel_kind is None else self.channel_kind

    def instruction(self, row: int) -> Instruction:
        """The typed view of row `row`."""

        def operand(space: IntArray, buffer: IntArray, index: IntArray) -> Operand | None:
            if buffer[row] < 0:
                return None
            return Operand(Buffer(int(buffer[row])), int(index[row]), int(self.count[row]), Space(int(space[row])))

        deps = range(int(self.dep_ptr[row]), int(self.dep_ptr[row + 1]))
        return Instruction(
            op=Op(int(self.op[row])),
            count=int(self.count[row]),
            src=operand(self.src_space, self.src_buffer, self.src_index),
            dst=operand(self.dst_space, self.dst_buffer, self.dst_index),
            depends=tuple((int(self.dep_tb[d]), int(self.dep_step[d])) for d in deps),
            peer=None if self.peer[row] < 0 else int(self.peer[row]),
            sync=None if self.sync[row] < 0 else int(self.sync[row]),
            kind=ChannelKind.NONE if self.channel_kind is None else ChannelKind(int(self.channel_kind[row])),
        )

    def threadblock(self, index: int) -> Threadblock:
        """The typed view of threadblock `index` (position in the table, not the id within the rank)."""
        return Threadblock(
            rank=int(self.tb_rank[index]),
            id=int(self.tb_id[index]),
            send_peer=None if self.tb_send[index] < 0 else int(self.tb_send[index]),
            recv_peer=None if self.tb_recv[index] < 0 else int(self.tb_recv[index]),
            channel=int(self.tb_channel[index]),
            instructions=tuple(
                self.instruction(r) for r in range(int(self.tb_ptr[index]), int(self.tb_ptr[index + 1]))
            ),
        )

    def threadblocks(self, rank: int | None = None) -> list[Threadblock]:
        """All threadblocks, or those of one rank, as typed views."""
        return [self.threadblock(t) for t in range(self.ntbs) if rank is None or self.tb_rank[t] == rank]

    def content_hash(self) -> str:
        """SHA-256 of everything a run depends on (name and notes excluded)."""
        head = (self.collective, self.nranks, self.root, self.nunits, self.nchannels, self.protocol.value,
                self.in_place, self.out_of_place, self.min_bytes, self.max_bytes)  # fmt: skip
        digest = hashlib.sha256(repr(head).encode())
        for column in (
            self.input_units, self.output_units, self.scratch_units, self.tb_rank, self.tb_id, self.tb_send,
            self.tb_recv, self.tb_channel, self.tb_ptr, self.op, self.src_space, self.src_buffer, self.src_index,
            self.dst_space, self.dst_buffer, self.dst_index, self.count, self.peer, self.sync, self.dep_ptr,
            self.dep_tb, self.dep_step,
        ):  # fmt: skip
            digest.update(np.ascontiguousarray(column, dtype=np.int64).tobytes())
        if self.channel_kind is not None and self.channel_kind.any():
            digest.update(b"kind" + np.ascontiguousarray(self.channel_kind, dtype=np.int64).tobytes())
        if self.groups or self.semaphore_init:
            digest.update(repr((self.groups, self.semaphore_init)).encode())
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Target:
    """What a runtime accepts of a program; None means no such limit.

    Attributes:
        name: `msccl-executor`, `msccl`, `rccl`, `astra-sim`, `any` ...
        max_steps: instructions of one threadblock (exclusive upper bound of the step index + 1).
        max_threadblocks: threadblocks of one rank.
        max_dependency_tb: largest threadblock id that can be waited on.
        max_channels: channels.
        max_tbs_per_channel: sending (and receiving) threadblocks of one rank on one channel.
        max_count: units of one instruction.
        max_index: largest operand index.
        fused_receive: whether rcs, rrc, rrs, rrcs run.
        multiple_dependencies: whether an instruction may carry more than one dependency without nops.
        max_xml_nodes: XML nodes that one rank may read.
        divisible: whether the payload's elements must be a multiple of nunits for the program to be
            selected.
        root_is_zero: whether rooted collectives always mean root 0.
        one_mode: whether a file serves either in-place or out-of-place calls, never both.
        one_sided: whether programs must be one-sided (True), must not be (False), or may be (None).
        max_semaphores, max_barriers: of one rank.
        max_tb_channels: channels of one kind that one threadblock uses.
    """

    name: str
    max_steps: int | None = None
    max_threadblocks: int | None = None
    max_dependency_tb: int | None = None
    max_channels: int | None = None
    max_tbs_per_channel: int | None = None
    max_count: int | None = None
    max_index: int | None = None
    fused_receive: bool = True
    multiple_dependencies: bool = True
    max_xml_nodes: int | None = None
    divisible: bool = False
    root_is_zero: bool = False
    one_mode: bool = False
    one_sided: bool | None = None
    max_semaphores: int | None = None
    max_barriers: int | None = None
    max_tb_channels: int | None = None


#: Limits read from the runtimes' sources (research on IR formats, section 1.9).
TARGETS: dict[str, Target] = {
    "any": Target("any"),
    "msccl-executor": Target(
        "msccl-executor", max_steps=64, max_threadblocks=1024, max_dependency_tb=127, max_channels=32,
        max_tbs_per_channel=32, max_count=71, max_index=32767, multiple_dependencies=False, max_xml_nodes=4095,
        divisible=True, root_is_zero=True, one_sided=False,
    ),
    "msccl": Target(
        "msccl", max_steps=256, max_threadblocks=216, max_dependency_tb=127, max_channels=32, max_tbs_per_channel=32,
        max_count=71, max_index=32767, multiple_dependencies=False, max_xml_nodes=4095, divisible=True,
        root_is_zero=True, one_mode=True, one_sided=False,
    ),
    "rccl": Target(
        "rccl", max_steps=64, max_threadblocks=64, max_dependency_tb=127, max_channels=128, max_tbs_per_channel=32,
        max_count=71, max_index=32767, fused_receive=False, multiple_dependencies=False, max_xml_nodes=4095,
        divisible=True, root_is_zero=True, one_sided=False,
    ),
    "mscclpp": Target(
        "mscclpp", max_steps=64, divisible=True, root_is_zero=True, one_mode=True, one_sided=True,
        max_semaphores=16, max_barriers=16, max_tb_channels=16,
    ),
    "astra-sim": Target("astra-sim"),
}  # fmt: skip
