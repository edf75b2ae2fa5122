"""The library's own collective, to be compared with: mpi4py's for MPI, NCCL's for NCCL.

Here, and only here, a collective call of the library is made.  Each runner is called like an
executable of a program: `runner(send, recv, op)`, in place when the two arrays overlap the way
`measure.Buffers` makes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from collsynth.errors import InputError, RefusedError

Array = Any

#: Collectives whose native form has no in-place variant.
_NCCL_NOT_IN_PLACE = frozenset({"alltoall"})


class MpiNative:
    """mpi4py's collectives on one communicator.

    Args:
        comm: mpi4py communicator.
        collective: canonical name.
        root: root rank (ignored when the collective has none).
    """

    label = "native"

    def __init__(self, comm: Any, collective: str, root: int) -> None:
        from mpi4py import MPI

        self._mpi, self._comm, self._root = MPI, comm, root
        self._collective = collective
        self._rank, self._size = int(comm.Get_rank()), int(comm.Get_size())
        self._ops = {"sum": MPI.SUM, "prod": MPI.PROD, "max": MPI.MAX, "min": MPI.MIN}

    def supports(self, in_place: bool) -> str | None:
        """Why it cannot run (in place or not), or None."""
        return None

    def __call__(self, send: Array, recv: Array, op: str, *, in_place: bool) -> None:
        """Run it once."""
        comm, root, here = self._comm, self._root, self._rank == self._root
        same = self._mpi.IN_PLACE
        name = self._collective
        if name == "allreduce":
            comm.Allreduce(same if in_place else send, recv, self._ops[op])
        elif name == "allgather":
            comm.Allgather(same if in_place else send, recv)
        elif name == "alltoall":
            comm.Alltoall(same if in_place else send, recv)
        elif name == "reducescatter":
            if in_place:
                # MPI leaves the result at the start of the buffer, NCCL in the rank's own slice.
                comm.Reduce_scatter_block(same, send, self._ops[op])
                recv[...] = send[: len(recv)]
            else:
                comm.Reduce_scatter_block(send, recv, self._ops[op])
        elif name == "broadcast":
            if here and not in_place:
                recv[...] = send
            comm.Bcast(recv, root=root)
        elif name == "reduce":
            if here and in_place:
                comm.Reduce(same, recv, self._ops[op], root=root)
            else:
                comm.Reduce(send, recv if here else None, self._ops[op], root=root)
        elif name == "gather":
            comm.Gather(same if in_place and here else send, recv if here else None, root=root)
        else:
            comm.Scatter(send if here else None, same if in_place and here else recv, root=root)

    def close(self) -> None:
        """Nothing to free."""


class NcclNative:
    """NCCL's own collectives.

    Args:
        communicator: an `_pynccl.Communicator`; closed with this object.
        collective, root: as `MpiNative`.
        address: device (or, with a fake library, host) address of an array.
        synchronize: waits until the stream is done.
        stream: stream handle.
    """

    label = "native"

    def __init__(
        self,
        communicator: Any,
        collective: str,
        root: int,
        *,
        address: Callable[[Array], int],
        synchronize: Callable[[], None],
        stream: int = 0,
    ) -> None:
        self._comm, self._collective, self._root = communicator, collective, root
        self._address, self._synchronize, self._stream = address, synchronize, stream

    def supports(self, in_place: bool) -> str | None:
        """Why it cannot run (in place or not), or None."""
        if in_place and self._collective in _NCCL_NOT_IN_PLACE:
            return f"NCCL has no in-place {self._collective}"
        return None

    def __call__(self, send: Array, recv: Array, op: str, *, in_place: bool) -> None:
        """Run it once and wait for the stream."""
        from collsynth.backends._pynccl import RedOp

        comm, name, stream = self._comm, self._collective, self._stream
        source, target, dtype = self._address(send), self._address(recv), str(recv.dtype)
        redop = RedOp[op.upper()]
        if name == "allreduce":
            comm.all_reduce(source, target, recv.size, dtype, redop, stream=stream)
        elif name == "allgather":
            comm.all_gather(source, target, send.size, dtype, stream=stream)
        elif name == "reducescatter":
            comm.reduce_scatter(source, target, recv.size, dtype, redop, stream=stream)
        elif name == "alltoall":
            comm.all_to_all(source, target, send.size // comm.nranks, dtype, stream=stream)
        elif name == "broadcast":
            comm.broadcast(source, target, recv.size, dtype, self._root, stream=stream)
        elif name == "reduce":
            comm.reduce(source, target, send.size, dtype, redop, self._root, stream=stream)
        elif name == "gather":
            comm.gather(source, target, send.size, dtype, self._root, stream=stream)
        else:
            comm.scatter(source, target, recv.size, dtype, self._root, stream=stream)
        self._synchronize()

    def close(self) -> None:
        """Free the communicator."""
        self._comm.close()


def check_native(backend: str) -> None:
    """Refuse what has no native collective.

    Raises:
        InputError: an unknown backend.
        RefusedError: the backend has no library of its own to compare with.
    """
    if backend in ("mpi", "nccl"):
        return
    if backend in ("numpy", "cupy"):
        raise RefusedError(f"--backend {backend} has no native collective to compare with; try --backend mpi")
    raise InputError(f"{backend!r} is not known", where="--backend", expected="one of mpi, cupy, nccl, numpy")
