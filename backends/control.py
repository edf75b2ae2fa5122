"""Small messages between ranks by point-to-point alone: agreement, barrier, results, bad news.

No collective call of the MPI library is made anywhere in the MPI backends, so that a run proves that
the program moved the data.  Everything here goes through rank 0 and gives up after a time-out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from collsynth.errors import CollsynthError, InputError, RefusedError, RunError, require

Result = TypeVar("Result")

#: Tags that this package uses on the communicator it is given: data messages of channel c have tag
#: DATA_TAG + c.  The standard guarantees tags up to 32767.
DATA_TAG = 16384
_GATHER_TAG = 32001
_SPREAD_TAG = 32002
_FAIL_TAG = 32003

MAX_CHANNELS = _GATHER_TAG - DATA_TAG

#: Idle polls before a waiting rank starts to sleep, and how long it then sleeps between polls.
_SPINS = 100
_NAP_S = 100e-6


def load_mpi() -> Any:
    """The module `mpi4py.MPI`; importing it starts MPI.

    Raises:
        MissingDependencyError: mpi4py or an MPI library is not installed.
    """
    return require("mpi4py.MPI", "mpi", "running on several processes")


class Control:
    """The control plane of one communicator.

    Args:
        comm: an mpi4py communicator; None means COMM_WORLD.
        timeout: seconds that any call here waits for another rank.

    Attributes:
        rank, size: of this process in the communicator.
        broken: why the communicator can no longer be used, or None.
    """

    def __init__(self, comm: Any = None, *, timeout: float = 60.0) -> None:
        self.mpi = load_mpi()
        self.comm = self.mpi.COMM_WORLD if comm is None else comm
        self.timeout = timeout
        self.rank, self.size = int(self.comm.Get_rank()), int(self.comm.Get_size())
        self.broken: str | None = None
        self._outgoing: list[Any] = []

    def exchange(self, value: Any) -> list[Any]:
        """Every rank's value, on every rank (any picklable object).

        Raises:
            RunError: another rank did not come within the time-out, or has failed.
        """
        with self._telling():
            if self.size == 1:
                return [value]
            if self.rank:
                self._send(value, 0, _GATHER_TAG)
                values: list[Any] = self._receive(0, _SPREAD_TAG)
                return values
            values = [value] + [self._receive(peer, _GATHER_TAG) for peer in range(1, self.size)]
            for peer in range(1, self.size):
                self._send(values, peer, _SPREAD_TAG)
            return values

    def broadcast(self, value: Any = None) -> Any:
        """Rank 0's value, on every rank; also a barrier."""
        return self.exchange(value if self.rank == 0 else None)[0]

    def together(self, action: Callable[[], Result]) -> Result:
        """Do `action` on every rank; where it fails on one, fail on all with the same message.

        Raises:
            InputError, RefusedError: some rank's action raised a `CollsynthError` (of that exit code)
                or an OSError.
            RunError: another rank did not come.
        """
        value: Result | None = None
        trouble: tuple[str, int] | None = None
        try:
            value = action()
        except CollsynthError as error:
            trouble = (str(error), error.exit_code)
        except OSError as error:
            trouble = (f"{error.filename or 'input/output'}: {error.strerror or error}", InputError.exit_code)
        troubles = self.exchange(trouble)
        found = [(rank, *given) for rank, given in enumerate(troubles) if given is not None]
        if found:
            rank, text, code = found[0]
            where = "" if len(found) == self.size else f"rank {rank}: "
            raise RefusedError(where + text) if code == RefusedError.exit_code else InputError(where + text)
        return cast(Result, value)

    def barrier(self) -> None:
        """Return once all ranks have come here."""
        self.exchange(None)

    def check(self) -> None:
        """Look whether another rank has reported a failure.

        Raises:
            RunError: it has; the message says which and why.
        """
        if self.broken is not None:
            raise RunError(self.broken)
        if self.comm.iprobe(source=self.mpi.ANY_SOURCE, tag=_FAIL_TAG):
            status = self.mpi.Status()
            reason = self.comm.recv(source=self.mpi.ANY_SOURCE, tag=_FAIL_TAG, status=status)
            self.broken = f"rank {self.rank} stops, because rank {status.Get_source()} gave up: {reason}"
            raise RunError(self.broken)

    def fail(self, reason: str) -> None:
        """Tell all other ranks that this one gives up; does not raise, does not wait long."""
        if self.broken is not None:
            return
        self.broken = reason
        try:
            news = [self.comm.isend(reason, dest=peer, tag=_FAIL_TAG) for peer in range(self.size) if peer != self.rank]
            deadline = time.monotonic() + 0.2
            while news and time.monotonic() < deadline:
                news = [request for request in news if not request.Test()]
        except self.mpi.Exception:
            return

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Pass an exception of this rank on to the others."""
        if self.broken is not None:
            raise RunError(f"the communicator cannot be used any more: {self.broken}")
        try:
            yield
        except BaseException as error:
            self.fail(str(error) or type(error).__name__)
            raise

    def _send(self, value: Any, peer: int, tag: int) -> None:
        self._outgoing = [request for request in self._outgoing if not request.Test()]
        self._outgoing.append(self.comm.isend(value, dest=peer, tag=tag))

    def _receive(self, peer: int, tag: int) -> Any:
        self.wait(lambda: bool(self.comm.iprobe(source=peer, tag=tag)), f"rank {peer} to come to the same point")
        return self.comm.recv(source=peer, tag=tag)

    def wait(self, done: Callable[[], bool], what: str) -> None:
        """Poll `done` until it is true.

        Raises:
            RunError: the time-out passed, or another rank has failed.
        """
        deadline = time.monotonic() + self.timeout
        polls = 0
        while not done():
            polls += 1
            # Test drives the library's progress for messages of ours that are still on their way.
            self._outgoing = [request for request in self._outgoing if not request.Test()]
            if polls % 16 == 0:
                self.check()
                if time.monotonic() > deadline:
                    raise RunError(f"rank {self.rank} waited {self.timeout:g} s in vain for {what}")
            if polls > _SPINS:
                time.sleep(_NAP_S)

    def drain(self) -> None:
        """Return once this rank's own messages have left (before the process ends)."""
        self.wait(lambda: all(request.Test() for request in self._outgoing), "its last messages to leave")
        self._outgoing = []
