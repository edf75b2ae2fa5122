"""Runs a program on numpy arrays, one process a rank, started by mpirun.

Point-to-point messages between hosts, shared memory inside a host (`transport`); no collective call of
the MPI library is made, so that a run proves that the program moved the data.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np

from collsynth.program import TARGETS, Program, Target

from .executor import Arrays
from .rank_executable import RankExecutable

#: What a program may use: the interpreter has no limits of its own.
limits: Target = TARGETS["any"]


def unavailable() -> str | None:
    """Why this backend cannot be used here, or None (nothing is imported or started)."""
    if find_spec("mpi4py") is None:
        return "mpi4py is not installed; try pip install 'collsynth[mpi]'"
    return None


def load(program: Program, comm: Any = None, **options: Any) -> RankExecutable:
    """An executable of this rank's part; every rank of the communicator must call it.

    Args:
        program: the same on all ranks (they compare its hash).
        comm: an mpi4py communicator; None means COMM_WORLD.
        options: `timeout` (seconds without progress, 60), `assume_hosts` (pretend hosts), `fifo_bytes`.

    Raises:
        MissingDependencyError: mpi4py or an MPI library is missing.
        InputError: the ranks hold different programs, or the number of processes does not fit.
        RunError: another rank did not come.
    """
    return RankExecutable.load(program, comm, lambda rank: Arrays(np), **options)
