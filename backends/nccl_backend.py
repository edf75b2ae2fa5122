"""Runs a program on GPU arrays by grouped ncclSend and ncclRecv, one process and one GPU a rank.

NCCL moves the messages between devices; copies and reductions are CuPy's, on the same stream, so that
nothing waits for the host between rounds (`rounds` says which messages share a group).  Any libnccl
from 2.7 on will do (`_pynccl`).  The unique id travels by MPI point-to-point; no collective call of MPI
or NCCL is made, so that a run proves that the program moved the data.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

from collsynth.errors import InputError, RunError
from collsynth.program import TARGETS, Program, Target

from ._pynccl import Communicator, Nccl, NcclError, library_candidates
from .control import Control
from .cupy_backend import StagedArrays, device_module
from .executor import Array, Arrays, check_connections, decode
from .layout import Buffers, address
from .mpi_backend import unavailable as mpi_unavailable
from .rank_executable import RankExecutable
from .rounds import Round, Slice, rounds
from .transport import agree, host_name, pretend_host

#: What a program may use: two-sided instructions without other limits.
limits: Target = TARGETS["any"]

#: Seconds between looks at the stream, and looks between checks of the other ranks.
_NAP_S = 50e-6
_CHECK_EVERY = 64


def unavailable() -> str | None:
    """Why this backend cannot be used here, or None."""
    if find_spec("cupy") is None:
        return "CuPy is not installed; try pip install 'collsynth[cuda12]' or 'collsynth[cuda13]'"
    if not any(_loads(name) for name in library_candidates()):
        return "no NCCL library was found; try pip install nvidia-nccl-cu12 (or -cu13), or set COLLSYNTH_NCCL_LIBRARY"
    return mpi_unavailable()


def _loads(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def connect(control: Control) -> Communicator:
    """An NCCL communicator of all ranks of a control plane; every rank must call it.

    Raises:
        InputError: the library is missing or too old on some rank.
        NcclError: NCCL could not set the communicator up.
    """
    library = control.together(Nccl)
    identity = control.broadcast(control.together(library.unique_id if control.rank == 0 else bytes))
    return library.init_rank(control.size, identity, control.rank)


class NcclConnections:
    """The communicator, as an executable knows its connections."""

    message_bytes: int | None = None

    def __init__(self, communicator: Communicator, hosts: list[int]) -> None:
        self.communicator, self.hosts = communicator, hosts

    def close(self) -> None:
        """Free the communicator; calling it again does nothing."""
        self.communicator.close()


class RoundExecutor:
    """Runs one rank's rounds, again and again.

    Attributes:
        bytes_sent, messages_sent: peer -> payload bytes (padding included) and messages of the last run.
    """

    def __init__(self, program: Program, control: Control, communicator: Communicator, arrays: Arrays) -> None:
        check_connections(program)
        decode(program, control.rank)
        self._control, self._comm, self._arrays = control, communicator, arrays
        part = rounds(program, control.rank)
        self._rounds, self._staging_units = part.rounds, part.staging_units
        self._peers = sorted({move.peer for round_ in part.rounds for move in round_.sends})
        self.bytes_sent: dict[int, int] = {}
        self.messages_sent: dict[int, int] = {}
        self._staging: Array | None = None
        # One a round, so that a time-out can say which round it is.
        self._events = [arrays.xp.cuda.Event(disable_timing=True) for _ in part.rounds]

    def run(self, buffers: Buffers, op: str, *, widths: Sequence[int], timeout: float) -> None:
        """Queue all rounds on the current stream, then wait for it.

        Args:
            buffers: the rank's flat buffers of whole units.
            op: reduction name.
            widths: elements of a unit (one iteration: messages have no limit here).
            timeout: seconds without a finished round after which this rank gives up.

        Raises:
            RunError: NCCL failed, nothing moved for `timeout` seconds, or another rank failed.
        """
        try:
            self._run(buffers, self._arrays.function(op), sum(widths), timeout)
        except BaseException as error:
            self._control.fail(str(error) or type(error).__name__)
            self._comm.abort()
            raise

    def _run(self, buffers: Buffers, function: Callable[..., Any], unit: int, timeout: float) -> None:
        self.bytes_sent = dict.fromkeys(self._peers, 0)
        self.messages_sent = dict.fromkeys(self._peers, 0)
        if not unit:
            return
        dtype = buffers.output.dtype
        # Named here, before anything is queued, so that an unknown type is one clear error.
        self._comm.library.datatype(dtype.name)
        size = self._staging_units * unit
        if self._staging is None or self._staging.dtype != dtype or len(self._staging) != size:
            self._staging = self._arrays.empty((size,), dtype)
        memory = (buffers.input, buffers.output, buffers.scratch, self._staging)
        addresses = [address(array) if array.size else 0 for array in memory]
        stride = unit * dtype.itemsize
        stream = self._arrays.xp.cuda.get_current_stream()

        def view(place: Slice) -> Array:
            return memory[place.buffer][place.begin * unit : place.end * unit]

        for round_, event in zip(self._rounds, self._events, strict=True):
            if round_.sends or round_.recvs:
                try:
                    self._group(round_, addresses, stride, unit, dtype.name, stream.ptr)
                except NcclError as error:
                    raise RunError(f"rank {self._control.rank}, {self._waits(round_)}: {error}") from error
            for work in round_.work:
                target, left = view(work.target), view(work.left)
                if work.right is None:
                    self._arrays.copy(target, left)
                else:
                    function(left, view(work.right), out=target)
            event.record(stream)
        self._wait(timeout)
        self._arrays.complete()

    def _group(self, round_: Round, addresses: list[int], stride: int, unit: int, dtype: str, stream: int) -> None:
        """All messages of a round as one group."""
        with self._comm.library.group():
            for move in round_.sends:
                place = move.place
                count = (place.end - place.begin) * unit
                pointer = addresses[place.buffer] + place.begin * stride
                self._comm.send(pointer, count, dtype, move.peer, stream=stream)
                self.bytes_sent[move.peer] += (place.end - place.begin) * stride
                self.messages_sent[move.peer] += 1
            for move in round_.recvs:
                place = move.place
                count = (place.end - place.begin) * unit
                pointer = addresses[place.buffer] + place.begin * stride
                self._comm.recv(pointer, count, dtype, move.peer, stream=stream)

    def _wait(self, timeout: float) -> None:
        """Wait for the stream round by round.

        Raises:
            RunError: no round finished for `timeout` seconds, another rank failed, or NCCL did.
        """
        for round_, event in zip(self._rounds, self._events, strict=True):
            deadline = time.monotonic() + timeout
            looks = 0
            while not event.done:
                time.sleep(_NAP_S)
                looks += 1
                if looks % _CHECK_EVERY == 0:
                    self._control.check()
                    try:
                        self._comm.check()
                    except NcclError as error:
                        raise RunError(f"rank {self._control.rank}, {self._waits(round_)}: {error}") from error
                    if time.monotonic() > deadline:
                        raise RunError(
                            f"rank {self._control.rank} waited {timeout:g} s in vain for {self._waits(round_)}"
                        )

    def _waits(self, round_: Round) -> str:
        """The messages of a round in words, receives first, at most three."""
        words = [f"threadblock {m.threadblock}, step {m.step}: a message from rank {m.peer}" for m in round_.recvs]
        words += [f"threadblock {m.threadblock}, step {m.step}: rank {m.peer} to take a message" for m in round_.sends]
        return "; ".join(words[:3]) + (f" (and {len(words) - 3} more)" if len(words) > 3 else "")


def load(
    program: Program, comm: Any = None, *, timeout: float = 60.0, assume_hosts: int | None = None
) -> RankExecutable:
    """An executable of this rank's part; every rank of the communicator must call it.

    Args:
        program: the same on all ranks (they compare its hash).
        comm: an mpi4py communicator, a `Control`, or None for COMM_WORLD.
        timeout: seconds without progress after which a call gives up.
        assume_hosts: only what `hosts` reports; NCCL finds its own ways between devices.

    Raises:
        MissingDependencyError: mpi4py, an MPI library or CuPy is missing.
        InputError: the ranks hold different programs, the number of processes does not fit, there is
            no device, or no NCCL library.
        RunError: another rank did not come, or NCCL could not set up its communicator.
    """
    control = comm if isinstance(comm, Control) else Control(comm, timeout=timeout)
    arrays = control.together(lambda: StagedArrays(device_module(control.rank)))
    pretended = control.together(lambda: pretend_host(control.rank, control.size, assume_hosts))
    agree(control, control.exchange(program.content_hash()), "programs (by content hash)")
    if control.size != program.nranks:
        raise InputError(
            f"{control.size} processes for a program of {program.nranks} ranks",
            hint=f"collsynth launch -n {program.nranks} ...",
        )
    names = control.exchange(host_name() + pretended)
    communicator = connect(control)
    try:
        executor = control.together(lambda: RoundExecutor(program, control, communicator, arrays))
    except BaseException:
        communicator.abort()
        raise
    links = NcclConnections(communicator, [sorted(set(names)).index(name) for name in names])
    return RankExecutable(program, control, links, arrays, executor)
