"""The library's own collective, to be compared with: mpi4py's for MPI, NCCL's for NCCL.

Here, and only here, a collective call of the library is made.  Each runner is called like an
executable of a program: `runner(send, recv, op)`, in place when the two arrays overlap the way
`measure.Buffers` makes them.
"""

from __future__ import annotations

from typing import Any

from collsynth.backends._pynccl import Communicator, RedOp
from collsynth.backends.layout import address

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

    def supports(self, dtype: Any, in_place: bool) -> str | None:
        """Why it cannot run this type (in place or not), or None."""
        known: dict[str, Any] = self._mpi._typedict
        return None if dtype.char in known else f"MPI has no datatype {dtype.name}"

    def __call__(self, send: Array, recv: Array, op: str, in_place: bool) -> None:
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
        xp: CuPy.
    """

    label = "native"

    def __init__(self, communicator: Communicator, collective: str, root: int, xp: Any) -> None:
        self._comm, self._collective, self._root, self._xp = communicator, collective, root, xp

    def supports(self, dtype: Any, in_place: bool) -> str | None:
        """Why it cannot run this type (in place or not), or None."""
        if in_place and self._collective in _NCCL_NOT_IN_PLACE:
            return f"NCCL has no in-place {self._collective}"
        return None

    def __call__(self, send: Array | None, recv: Array | None, op: str, in_place: bool) -> None:
        """Run it once and wait for the stream."""
        comm, name = self._comm, self._collective
        stream = int(self._xp.cuda.get_current_stream().ptr)
        source, target = (0 if array is None else address(array) for array in (send, recv))
        # Of a rooted collective some ranks have one buffer only; where both are there, the shorter one
        # has the count.
        known = min((array for array in (send, recv) if array is not None), key=len)
        count, dtype = len(known), known.dtype.name
        redop = RedOp[op.upper()]
        if name == "allreduce":
            comm.all_reduce(source, target, count, dtype, redop, stream=stream)
        elif name == "allgather":
            comm.all_gather(source, target, count, dtype, stream=stream)
        elif name == "reducescatter":
            comm.reduce_scatter(source, target, count, dtype, redop, stream=stream)
        elif name == "alltoall":
            comm.all_to_all(source, target, count // comm.nranks, dtype, stream=stream)
        elif name == "broadcast":
            comm.broadcast(source, target, count, dtype, self._root, stream=stream)
        elif name == "reduce":
            comm.reduce(source, target, count, dtype, redop, self._root, stream=stream)
        elif name == "gather":
            comm.gather(source, target, count, dtype, self._root, stream=stream)
        else:
            comm.scatter(source, target, count, dtype, self._root, stream=stream)
        self._xp.cuda.get_current_stream().synchronize()

    def close(self) -> None:
        """Free the communicator."""
        self._comm.close()
