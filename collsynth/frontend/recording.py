"""The recording of an algorithm, and the chunks that its operations take and return."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import TracebackType

from ..collective import Collective, allreduce, canonical_name, make
from ..errors import InputError, RefusedError, VerificationError
from ..lowering.ir import Plan
from ..lowering.pipeline import check_request, lower_plan
from ..program import TARGETS, Buffer, Program, Protocol, Target
from ..topology import Topology
from ..verifier import Finding, Severity
from .memory import Memory
from .operations import BufferName, Hints, Operation, Span, Threadblocks, buffer_of, caller, whole
from .plan import make_plan

#: Wrong outputs that an error lists.
_SHOWN = 5


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Data at a place: `count` units of a buffer of a rank, as they were when the chunk was taken.

    When the place is overwritten the chunk is stale, and using it is an error.  Operations return the chunk
    that they made.
    """

    recording: Recording = field(repr=False)
    span: Span
    values: tuple[int, ...] = field(repr=False)
    taken: str

    @property
    def rank(self) -> int:
        """Whose memory."""
        return self.span.rank

    @property
    def buffer(self) -> Buffer:
        """Which buffer."""
        return self.span.buffer

    @property
    def index(self) -> int:
        """First unit."""
        return self.span.index

    @property
    def count(self) -> int:
        """Units."""
        return self.span.count

    def copy(
        self, rank: int, buffer: BufferName, index: int, *, channel: int = 0, send_tb: int | None = None,
        recv_tb: int | None = None, tb: int | None = None,
    ) -> Chunk:  # fmt: skip
        """Copy the chunk to another place, of another rank or the same.

        Args:
            rank, buffer, index: where its first unit goes.
            channel: connections of different channels are separate.  Numbers are given anew in this order.
            send_tb, recv_tb: between ranks, names of the threadblocks that send and receive it; operations of
                one rank that name the same one share it.  None: the lowering chooses.
            tb: within a rank, the threadblock that runs it.

        Returns:
            The copy.

        Raises:
            InputError: stale chunk, out of range, overlapping source and target, an input that must stay as
                it is, contradicting threadblocks; names the script's line.
        """
        return self.recording._operate(self, None, (rank, buffer, index), Hints(channel, send_tb, recv_tb, tb))

    def reduce(
        self, other: Chunk, buffer: BufferName | None = None, index: int | None = None, *, channel: int = 0,
        send_tb: int | None = None, recv_tb: int | None = None, tb: int | None = None,
    ) -> Chunk:  # fmt: skip
        """Add another chunk, of another rank or the same, to this one.

        Args:
            other: what is added; it stays as it is.
            buffer, index: where the sum goes on this chunk's rank (None: where this chunk is).  A sum of input
                that goes to the output leaves the input as it is, which out-of-place calls need.
            channel, send_tb, recv_tb, tb: as in `copy`; `other`'s rank is the sender.

        Returns:
            The sum.

        Raises:
            InputError: as `copy`; also when a term would be added twice or terms of different places mixed.
        """
        if not isinstance(other, Chunk):
            raise InputError(f"{type(other).__name__} cannot be added", where=caller(), expected="a chunk")
        if (buffer is None) != (index is None):
            raise InputError("the sum's place needs both buffer and index", where=caller(), expected="both or neither")
        place = (self.rank, self.buffer if buffer is None else buffer, self.index if index is None else index)
        return self.recording._operate(other, self, place, Hints(channel, send_tb, recv_tb, tb))

    def split(self, parts: int) -> list[Chunk]:
        """The chunk in equal parts, in order.

        Raises:
            InputError: the units cannot be shared equally.
        """
        whole("parts", parts, 1)
        if self.count % parts:
            raise InputError(f"{self.count} units cannot be cut into {parts} equal parts", where=caller())
        size = self.count // parts
        return [self._part(start, start + size) for start in range(0, self.count, size)]

    def __getitem__(self, units: slice) -> Chunk:
        """Some of the units: `chunk[2:4]`.

        Raises:
            InputError: no unit is left, or a step other than 1.
        """
        start, stop, step = units.indices(self.count)
        if step != 1 or stop <= start:
            raise InputError(f"no units {start}:{stop}:{step} of {self.span}", where=caller())
        return self._part(start, stop)

    def join(self, other: Chunk) -> Chunk:
        """This chunk and the one right behind it as one, so that one message can carry both.

        Raises:
            InputError: they are not neighbours.
        """
        self.recording._own(other)
        behind = Span(self.rank, self.buffer, self.index + self.count, other.count)
        if other.span != behind:
            raise InputError(f"{other.span} is not right behind {self.span}", where=caller())
        span = Span(self.rank, self.buffer, self.index, self.count + other.count)
        return Chunk(self.recording, span, self.values + other.values, caller())

    def _part(self, start: int, stop: int) -> Chunk:
        span = Span(self.rank, self.buffer, self.index + start, stop - start)
        return Chunk(self.recording, span, self.values[start:stop], self.taken)


class Recording:
    """An algorithm being recorded; `record` makes one.

    Used as `with record(...) as p`, leaving the block checks that every output holds what it must.

    Attributes:
        collective: what is asked for.
        name: label of the programs.
        in_place, out_of_place: modes that the algorithm is to be right in.
        operations: what was recorded, in order.
    """

    def __init__(self, collective: Collective, name: str, in_place: bool, out_of_place: bool) -> None:
        self.collective, self.name = collective, name
        self.in_place, self.out_of_place = in_place, out_of_place
        self.operations: list[Operation] = []
        self._memory = Memory(collective, in_place, out_of_place)
        self._threadblocks = Threadblocks()
        self._ways = 1
        self._made = caller()
        self._finished = False
        self._program: Program | None = None

    def __enter__(self) -> Recording:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()

    @property
    def nranks(self) -> int:
        """Number of ranks."""
        return self.collective.nranks

    @property
    def scratch_units(self) -> tuple[int, ...]:
        """Scratch units that each rank has used so far."""
        return tuple(self._memory.scratch_units)

    def chunk(self, rank: int, buffer: BufferName, index: int, count: int = 1) -> Chunk:
        """What a place holds now: input data, or what an earlier operation put there.

        Args:
            rank: whose memory.
            buffer: `input`, `output` or `scratch`.
            index, count: units.

        Raises:
            InputError: out of range, nothing there yet, or in place another value than out of place.
        """
        span, where = self._span(rank, buffer, index, count), caller()
        return Chunk(self, span, self._memory.read(span, where), where)

    def parallel(self, ways: int) -> Parallel:
        """Cut each operation of a `with` block into equal parts that run side by side on channels of their own.

        The parts are of each operation's own units, whatever wrote them; whoever reads what other parts
        wrote waits for them.  To cut the whole algorithm, use `lower(instances=...)`, whose copies never wait
        for each other.
        """
        return Parallel(self, whole("ways", ways, 1))

    def finish(self) -> None:
        """Check the outputs and take no more operations; leaving the `with` block does it.

        Raises:
            VerificationError: outputs do not hold what the collective asks for; each finding names the line
                that wrote the output last.
        """
        if self._finished:
            return
        findings = [
            Finding("E-POST", Severity.ERROR, message, rank=span.rank, where=where or self._made)
            for span, message, where in self._memory.wrong()
        ]
        if findings:
            more = [f"and {len(findings) - _SHOWN} more outputs"] if len(findings) > _SHOWN else []
            lines = [f"{self._made}: the algorithm is wrong:", *map(str, findings[:_SHOWN]), *more]
            raise VerificationError("\n  ".join(lines), tuple(findings))
        self._finished = True

    @property
    def program(self) -> Program:
        """The program with the defaults of `lower`: no target's limits, one instance."""
        if self._program is None:
            self._program = self.lower()
        return self._program

    def lower(
        self,
        *,
        target: Target = TARGETS["any"],
        instances: int = 1,
        protocol: Protocol = Protocol.SIMPLE,
        size: int | None = None,
        name: str | None = None,
        max_threadblocks: int | None = None,
        max_channels: int | None = None,
        fuse: bool = True,
        topology: Topology | None = None,
    ) -> Program:
        """The program for a target; call it as often as there are targets.

        Args:
            target: whose limits and instruction set to keep.
            instances: parallel copies, each on an n-th of every unit, on channels of its own.
            protocol: wire protocol; its FIFO depth decides what may be fused.
            size: payload in bytes that it is meant for (selected from 0 to twice that; None: to 4 GiB).
            name: label; default: the recording's.
            max_threadblocks, max_channels: own limits for one rank.
            fuse: whether to join receives and sends in one instruction.
            topology: machine on which the fused program must not be slower; None: it is taken.

        Returns:
            A verified program.

        Raises:
            RefusedError: a limit would be broken (the message has the figure), or the target runs only
                one-sided programs.
            VerificationError: the algorithm is wrong.
            InputError: an argument is out of range.
        """
        if instances < 1:
            raise InputError(f"{instances} instances", where=caller(), expected="1 or more")
        check_request(self.collective, target, max_threadblocks, max_channels)
        if target.one_sided:
            raise RefusedError(
                f"target {target.name} runs one-sided programs only, a recording becomes a two-sided one"
            )
        self.finish()

        def build() -> Plan:
            return make_plan(
                self.collective, self.operations, self._threadblocks, self.scratch_units, instances=instances,
                in_place=self.in_place, out_of_place=self.out_of_place, target=target,
            )  # fmt: skip

        return lower_plan(
            build, target=target, protocol=protocol, size=size, name=name or self.name, fuse=fuse,
            max_threadblocks=max_threadblocks, max_channels=max_channels, topology=topology,
        )  # fmt: skip

    # --- what chunks call ---

    def _span(self, rank: int, buffer: BufferName, index: int, count: int) -> Span:
        return Span(
            whole("rank", rank, 0, self.nranks), buffer_of(buffer), whole("index", index, 0), whole("count", count, 1)
        )

    def _own(self, chunk: Chunk) -> None:
        """Raise InputError if the chunk is another recording's."""
        if chunk.recording is not self:
            raise InputError(f"{chunk.span} belongs to another recording ({chunk.recording.name})", where=caller())

    def _operate(self, source: Chunk, own: Chunk | None, place: tuple[int, BufferName, int], hints: Hints) -> Chunk:
        """Record `place = source`, or `place = own + source`; returns the chunk that is there then."""
        where, memory = caller(), self._memory
        if self._finished:
            raise InputError("the recording is finished", where=where, expected="operations inside its with block")
        for label, number in (("channel", hints.channel), ("send_tb", hints.send_tb), ("recv_tb", hints.recv_tb),
                              ("tb", hints.tb)):  # fmt: skip
            if number is not None:
                whole(label, number, 0)
        for chunk in (source,) if own is None else (source, own):
            self._own(chunk)
            memory.check_current(chunk.span, chunk.values, chunk.taken, where)
        target = self._span(*place, source.count)
        values = source.values
        if own is not None:
            if own.count != source.count:
                raise InputError(f"{own.span} and {source.span} differ in size", where=where)
            values = memory.add(own.values, source.values, own.span, source.span, where)
            memory.check_overlap(own.span, target, where)
        if source.rank == target.rank:
            memory.check_overlap(source.span, target, where)
        color = memory.place_of(source.values[0])
        operation = Operation(source.span, None if own is None else own.span, target, color, hints, self._ways, where)
        # all checks come before the first change: a line that is refused leaves no trace
        memory.check_writable(target, where)
        self._threadblocks.add(operation)
        memory.write(target, values, where, same_as=source.span if own is None else None)
        self.operations.append(operation)
        return Chunk(self, target, values, where)


class Parallel:
    """The block of `Recording.parallel`; blocks inside each other multiply."""

    def __init__(self, recording: Recording, ways: int) -> None:
        self._recording, self._ways = recording, ways

    def __enter__(self) -> None:
        self._recording._ways *= self._ways

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._recording._ways //= self._ways


def record(
    collective: str | Collective, nranks: int | None = None, chunks: int = 1, *, root: int | None = None,
    in_place: bool = True, out_of_place: bool = True, name: str | None = None,
) -> Recording:  # fmt: skip
    """Start to record an algorithm; use as `with record("allreduce", nranks=8, chunks=8) as p`.

    Args:
        collective: its name (any spelling), or a `Collective`, for instance from `collsynth.custom`.
        nranks: number of ranks; not with a `Collective`.
        chunks: units that a shard is cut into (allgather, reducescatter, alltoall, gather, scatter: what goes
            to or comes from one rank; else the whole buffer); not with a `Collective`.
        root: of a rooted collective, default 0.
        in_place, out_of_place: calls that the algorithm is to serve.  For both, it may read the input only
            until the output has taken its place, and may not write it.
        name: label; default the collective and number of ranks.

    Raises:
        InputError: an argument is out of range; names the script's line.
    """
    where = caller()
    if isinstance(collective, Collective):
        if nranks is not None or chunks != 1 or root is not None:
            raise InputError("nranks, chunks and root are the collective's own", where=where)
        wanted = collective
    else:
        if nranks is None:
            raise InputError("nranks is missing", where=where, expected=f"record({collective!r}, nranks=...)")
        whole("nranks", nranks, 1)
        whole("chunks", chunks, 1)
        try:
            if canonical_name(collective) == "allreduce" and root is None:
                wanted = allreduce(nranks, weights=[chunks] + [0] * (nranks - 1))
            else:
                wanted = make(collective, nranks, chunks, root=root)
        except InputError as error:
            raise InputError(error.what, where=where, expected=error.expected, hint=error.hint) from None
    if not (in_place or out_of_place):
        raise InputError("neither in place nor out of place", where=where, expected="at least one mode")
    return Recording(wanted, name or f"{wanted.name}_{wanted.nranks}", in_place, out_of_place)
