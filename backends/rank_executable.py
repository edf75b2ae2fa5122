"""One rank's executable of a program: the caller's arrays in, the executor's unit arrays, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from collsynth.errors import InputError, RunError
from collsynth.program import Program

from .control import Control
from .data import COMBINING, finish, poison
from .executor import Array, Arrays, Executor, largest_count, slice_widths
from .layout import Buffers, Layout, is_in_place
from .transport import FIFO_BYTES, MixedTransport


class Runner(Protocol):
    """What runs a rank's instructions: `Executor`, or a backend's own."""

    bytes_sent: dict[int, int]
    messages_sent: dict[int, int]

    def run(self, buffers: Buffers, op: str, *, widths: Sequence[int], timeout: float) -> None:
        """Run them to their end; errors as `Executor.run`."""


class Connections(Protocol):
    """What a rank's instructions talk through, as far as an executable knows it."""

    @property
    def message_bytes(self) -> int | None:
        """Largest message in bytes; None when there is no limit."""

    @property
    def hosts(self) -> list[int]:
        """The host of every rank, as small numbers."""

    def close(self) -> None:
        """Free everything; calling it again does nothing."""


class RankExecutable:
    """Runs one rank's part of a program on this process's arrays; made by a backend's `load`.

    Every rank of the communicator calls it with the same count, type and reduction.  After a
    `RunError` it cannot be used again.

    Attributes:
        bytes_sent: peer -> payload bytes that this rank sent to it in the last call, padding included.
        messages_sent: peer -> messages.
        control: the control plane (small messages and barrier without collective calls).
    """

    def __init__(
        self, program: Program, control: Control, transport: Connections, arrays: Arrays, executor: Runner
    ) -> None:
        self.program, self.control = program, control
        self._transport, self._arrays = transport, arrays
        self._executor: Runner | None = executor
        self._largest = largest_count(program)
        self._scratch: Array | None = None

    @staticmethod
    def load(
        program: Program,
        comm: Any,
        make_arrays: Callable[[int], Arrays],
        *,
        timeout: float = 60.0,
        assume_hosts: int | None = None,
        fifo_bytes: int = FIFO_BYTES,
    ) -> RankExecutable:
        """Agree with the other ranks and make all connections; every rank must call it.

        Args:
            program: the same on all ranks.
            comm: an mpi4py communicator, a `Control`, or None for COMM_WORLD.
            make_arrays: gives the array operations of this rank.
            timeout: seconds without progress after which a call gives up.
            assume_hosts: split the ranks into so many pretend hosts.
            fifo_bytes: memory of one connection; messages are at most this over the FIFO's depth.

        Raises:
            InputError: the ranks hold different programs, the number of processes is not the program's,
                or the program cannot be run by this interpreter; every rank raises the same.
            RunError: another rank did not come.
        """
        control = comm if isinstance(comm, Control) else Control(comm, timeout=timeout)
        arrays = control.together(lambda: make_arrays(control.rank))
        transport = MixedTransport(program, control, assume_hosts=assume_hosts, fifo_bytes=fifo_bytes)
        try:
            executor = control.together(lambda: Executor(program, control.rank, transport, arrays))
            return RankExecutable(program, control, transport, arrays, executor)
        except BaseException:
            transport.close()
            raise

    @property
    def bytes_sent(self) -> dict[int, int]:
        return dict(self._running().bytes_sent)

    @property
    def messages_sent(self) -> dict[int, int]:
        return dict(self._running().messages_sent)

    @property
    def arrays(self) -> Arrays:
        """How arrays of this backend are made from the host's and read back."""
        return self._arrays

    @property
    def hosts(self) -> list[int]:
        """Host number of every rank."""
        return self._transport.hosts

    def __call__(self, sendbuf: Array | None, recvbuf: Array | None, op: str = "sum") -> None:
        """Run the collective.

        Args:
            sendbuf: contiguous array of this rank's input; None where the rank has none.
            recvbuf: contiguous array for its output; None where it has none.  In place means that the
                two share memory as NCCL has it: the same array, for allgather `sendbuf` is the rank's
                slice of `recvbuf`, for reducescatter `recvbuf` its slice of `sendbuf`.
            op: `sum`, `prod`, `max`, `min` or `avg`; without meaning where nothing is reduced.

        Raises:
            InputError: wrong sizes, types or reduction.
            RefusedError: in place or out of place, and the program is not made for that.
            RunError: it could not go on.
        """
        executor, rank = self._running(), self.control.rank
        send, recv = _flat(sendbuf, "sendbuf"), _flat(recvbuf, "recvbuf")
        layout = Layout.of(self.program, self._count(send, recv))
        in_place = is_in_place(send, recv, layout, rank)
        layout.require_mode(in_place or ((send is None or recv is None) and not self.program.out_of_place))
        dtype = next(array.dtype for array in (send, recv) if array is not None)
        buffers = layout.pack(
            rank, send, recv, in_place=in_place, scratch=self._scratch_of(layout, dtype), xp=self._arrays.xp
        )
        widths = slice_widths(layout.unit, dtype.itemsize, self._largest, self._transport.message_bytes)
        self._arrays.complete()
        executor.run(buffers, "sum" if op == "avg" else op, widths=widths, timeout=self.control.timeout)
        layout.unpack(rank, buffers, send, recv, in_place=in_place)
        if op == "avg" and self.program.collective in COMBINING and recv is not None:
            recv[...] = finish(op, recv, self.program.nranks)
        self._arrays.complete()

    def close(self) -> None:
        """Free connections and buffers; calling it again does nothing."""
        self._executor = self._scratch = None
        self._transport.close()

    def __enter__(self) -> RankExecutable:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            # The others would wait for this rank's next call until their time-out.
            self.control.fail(str(error) or type(error).__name__)
        self.close()

    def _count(self, send: Array | None, recv: Array | None) -> int:
        """The call's count as nccl-tests has it, from the arrays' lengths.

        Raises:
            InputError: an array is missing, or lengths or types do not fit each other.
        """
        one, rank = Layout.of(self.program, 1), self.control.rank
        counts = {}
        for label, array, shards in (
            ("sendbuf", send, one.input_elements(rank)), ("recvbuf", recv, one.output_elements(rank)),
        ):  # fmt: skip
            if shards and array is None and not self._insignificant(label):
                raise InputError(f"rank {rank} needs a {label}")
            if shards and array is not None:
                if len(array) % shards:
                    raise InputError(f"{label} has {len(array)} elements", expected=f"a multiple of {shards}")
                counts[label] = len(array) // shards
        if len(set(counts.values())) > 1:
            assert send is not None and recv is not None
            raise InputError(f"sendbuf has {len(send)} elements and recvbuf {len(recv)}: they do not fit each other")
        if send is not None and recv is not None and send.dtype != recv.dtype:
            raise InputError(f"sendbuf is {send.dtype} and recvbuf {recv.dtype}", expected="one type")
        if not counts:
            raise InputError(f"program {self.program.name} gives rank {rank} no buffer")
        return next(iter(counts.values()))

    def _insignificant(self, label: str) -> bool:
        """Whether this rank's buffer does not matter, as in MPI: input of broadcast, output of reduce, off the root."""
        side = {"broadcast": "sendbuf", "reduce": "recvbuf"}.get(self.program.collective)
        return side == label and self.control.rank != (self.program.root or 0)

    def _scratch_of(self, layout: Layout, dtype: np.dtype[Any]) -> Array:
        """The scratch buffer, kept from call to call while size and type stay."""
        size = layout.scratch_elements(self.control.rank)
        if self._scratch is None or self._scratch.dtype != dtype or len(self._scratch) != size:
            self._scratch = poison(self._arrays.empty((size,), dtype))
        return self._scratch

    def _running(self) -> Runner:
        if self._executor is None:
            raise RunError("the executable is closed")
        return self._executor


def _flat(array: Array | None, label: str) -> Array | None:
    """The array as one dimension, sharing its memory.

    Raises:
        InputError: it is not contiguous.
    """
    if array is None:
        return None
    if not array.flags.c_contiguous:
        raise InputError("is not contiguous", where=label, expected="an array in C order")
    return array.reshape(-1)
