"""Runs a program on GPU arrays, one process a rank: the MPI backend's executor over CuPy.

Data stay on the device; messages are staged through host memory (the shared-memory rings inside a
host, MPI buffers between hosts).  CUDA-aware MPI is not assumed.  The current stream is synchronised
before a message leaves and before a slot is given back.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np

from collsynth.errors import InputError, require
from collsynth.program import TARGETS, Program, Target

from .executor import Array, Arrays
from .mpi_backend import unavailable as mpi_unavailable
from .rank_executable import RankExecutable

#: What a program may use: the interpreter has no limits of its own.
limits: Target = TARGETS["any"]

#: Where launchers put the rank within the node.
LOCAL_RANK_VARIABLES = (
    "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID",
    "PALS_LOCAL_RANKID", "LOCAL_RANK",
)  # fmt: skip


def unavailable() -> str | None:
    """Why this backend cannot be used here, or None."""
    if find_spec("cupy") is None:
        return "CuPy is not installed; try pip install 'collsynth[cuda12]' or 'collsynth[cuda13]'"
    return mpi_unavailable()


def local_rank(environment: Mapping[str, str] = os.environ) -> int | None:
    """The rank within the node as the launcher tells it, or None."""
    for name in LOCAL_RANK_VARIABLES:
        text = environment.get(name, "")
        if text.isdigit():
            return int(text)
    return None


def pick_device(count: int, rank: int, environment: Mapping[str, str] = os.environ) -> int:
    """Device of a process: its local rank (else its rank) among the `count` devices that it sees.

    Ranks wrap around when there are fewer devices than ranks; a launcher that shows each process one
    device gets device 0.
    """
    local = local_rank(environment)
    return (rank if local is None else local) % count


class StagedArrays(Arrays):
    """Device buffers, messages in host memory."""

    def to_host(self, array: Array) -> np.ndarray:
        host: np.ndarray = self.xp.asnumpy(array)
        return host

    def put(self, message: Array, src: Array) -> None:
        self.xp.asnumpy(src, out=message)

    def take(self, dst: Array, message: Array) -> None:
        dst[...] = self.xp.asarray(message)

    def combine(self, function: Callable[..., Any], dst: Array, message: Array, src: Array) -> None:
        function(self.xp.asarray(message), src, out=dst)

    def combine_out(self, function: Callable[..., Any], out: Array, message: Array, src: Array) -> None:
        self.xp.asnumpy(function(self.xp.asarray(message), src), out=out)

    def complete(self) -> None:
        self.xp.cuda.get_current_stream().synchronize()


def device_module(rank: int) -> Any:
    """CuPy, with this process's device made current.

    Raises:
        MissingDependencyError: CuPy is not installed.
        InputError: it finds no device.
    """
    cupy: Any = require("cupy", "cuda12", "the cupy backend")
    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise InputError(f"CuPy finds no usable GPU: {error}", where="--backend cupy", hint="--backend mpi") from error
    if count < 1:
        raise InputError("CuPy finds no GPU", where="--backend cupy", hint="--backend mpi")
    cupy.cuda.Device(pick_device(count, rank)).use()
    return cupy


def load(program: Program, comm: Any = None, **options: Any) -> RankExecutable:
    """An executable of this rank's part on CuPy arrays; options and errors as `mpi_backend.load`.

    Raises:
        InputError: there is no device, or as `mpi_backend.load`.
    """
    return RankExecutable.load(program, comm, lambda rank: StagedArrays(device_module(rank)), **options)
