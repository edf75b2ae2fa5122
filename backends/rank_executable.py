"""One rank's executable of a program: the caller's arrays in, the executor's unit arrays, and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from collsynth.errors import InputError, RunError
from collsynth.program import Buffer, Program

from .control import Control
from .executor import Array, Arrays, Buffers, Executor, largest_count, slice_widths
Layout = Any
from .transport import FIFO_BYTES, MixedTransport


@dataclass(slots=True)
class _Plan:
    """What one (count, type, mode) needs; kept from call to call.

    Attributes:
        layout: how elements lie in units.
        widths: elements of every unit in each iteration.
        input, output: padded arrays, or None where the caller's memory is used as it is.
        scratch: always ours.
    """

    layout: Layout
    widths: list[int]
    input: Array | None
    output: Array | None
    scratch: Array


class RankExecutable:
    """Runs one rank's part of a program on this process's arrays; made by a backend's `load`.

    Every rank of the communicator calls it with the same count, type and reduction.  After a
    `RunError` it cannot be used again.

    Attributes:
        bytes_sent: peer -> payload bytes that this rank sent to it in the last call, padding included.
        messages_sent: peer -> messages.
        control: the control plane (small messages and barrier without collective calls).
    """

    def __init__(self, program: Program, control: Control, transport: MixedTransport, arrays: Arrays) -> None:
        self.program, self.control = program, control
        self._transport, self._arrays = transport, arrays
        self._executor: Executor | None = Executor(program, control.rank, transport, arrays)
        self._largest = largest_count(program)
        self._plan: tuple[tuple[int, str, bool], _Plan] | None = None

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
            return control.together(lambda: RankExecutable(program, control, transport, arrays))
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
            op: `sum`, `prod`, `max` or `min`; without meaning where nothing is reduced.

        Raises:
            InputError: wrong sizes or types, or a mode that the program does not have.
            RunError: it could not go on.
        """
        executor = self._running()
        send, recv = _flat(sendbuf, "sendbuf"), _flat(recvbuf, "recvbuf")
        layout, dtype, in_place = self._inspect(send, recv)
        plan = self._planned(layout, dtype, in_place)
        self._arrays.function(op)
        given, wanted = self._fill(plan, send, recv, in_place)
        executor.run(Buffers(given, wanted, plan.scratch), op, widths=plan.widths, timeout=self.control.timeout)
        if plan.output is not None and recv is not None:
            layout.unpack(plan.output, recv)
            self._arrays.complete()

    def close(self) -> None:
        """Free connections and buffers; calling it again does nothing."""
        self._executor = self._plan = None
        self._transport.close()

    def __enter__(self) -> RankExecutable:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def _running(self) -> Executor:
        if self._executor is None:
            raise RunError("the executable is closed")
        return self._executor
