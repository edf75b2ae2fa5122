"""The NCCL backend on real processes, with a libnccl and a CuPy that work on host memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import programs
import pytest

from collsynth.program import SENDING, Program

pytest.importorskip("mpi4py", reason="mpi4py is not installed")

pytestmark = pytest.mark.mpi

HERE = Path(__file__).resolve().parent


def launch(library: Path, nranks: int, *arguments: str, **environment: str) -> Any:
    """The worker of the MPI tests with the NCCL backend; the completed process."""
    command = [sys.executable, "-m", "collsynth", "launch", "-n", str(nranks), "python", str(HERE / "worker.py")]
    fakes = os.pathsep.join([str(HERE.parent / "fakes"), os.environ.get("PYTHONPATH", "")])
    names = {**os.environ, "PYTHONPATH": fakes, "COLLSYNTH_NCCL_LIBRARY": str(library), **environment}
    return subprocess.run(
        [*command, *arguments, "--backend", "nccl"], capture_output=True, text=True, timeout=90, env=names
    )


def sent_bytes(program: Program, unit: int) -> list[dict[str, int]]:
    """Bytes that each rank sends to each peer: what the instructions say."""
    totals: list[dict[str, int]] = [{} for _ in range(program.nranks)]
    for tb in range(program.ntbs):
        rows = slice(int(program.tb_ptr[tb]), int(program.tb_ptr[tb + 1]))
        sends = np.isin(program.op[rows], [int(op) for op in SENDING])
        if program.tb_send[tb] >= 0:
            mine, peer = totals[int(program.tb_rank[tb])], str(int(program.tb_send[tb]))
            mine[peer] = mine.get(peer, 0) + int(program.count[rows][sends].sum()) * unit
    return totals


@pytest.mark.parametrize(
    ("name", "nranks", "dtype", "op"),
    [
        ("ring", 4, "float32", "sum"),
        ("ring:2", 4, "int32", "max"),
        ("allgather", 4, "int32", "sum"),
        ("scratch", 2, "float32", "prod"),
    ],
)
def test_data_and_bytes(fake_nccl: Path, name: str, nranks: int, dtype: str, op: str) -> None:
    done = launch(fake_nccl, nranks, name, "--dtype", dtype, "--op", op, "--counts", "1,5,4096", "--no-collectives")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    kind, _, channels = name.partition(":")
    program = {
        "ring": lambda: programs.ring_allreduce(nranks, channels=int(channels or 1)),
        "allgather": lambda: programs.direct_allgather(nranks),
        "scratch": programs.scratch_allreduce,
    }[kind]()
    assert len(report["runs"]) >= 3
    for run in report["runs"]:
        assert run["wrong"] == 0
        shards = nranks if program.collective == "allgather" else 1
        unit = -(-run["count"] * shards // program.nunits) * 4
        assert run["bytes"] == sent_bytes(program, unit)


def test_the_oldest_library_will_do(fake_nccl: Path) -> None:
    done = launch(fake_nccl, 2, "ring", "--counts", "7", FAKE_NCCL_VERSION="2708")
    assert done.returncode == 0, done.stderr
    assert all(run["wrong"] == 0 for run in json.loads(done.stdout.splitlines()[-1])["runs"])


def test_an_old_library_is_refused_on_all_ranks(fake_nccl: Path) -> None:
    done = launch(fake_nccl, 2, "ring", FAKE_NCCL_VERSION="2604")
    assert done.returncode == 7
    assert "needs 2.7.0 or later" in done.stderr


def test_a_peer_that_never_comes_names_rank_step_and_peer(fake_nccl: Path) -> None:
    done = launch(fake_nccl, 2, "ring", "--trouble", "late", FAKE_NCCL_TIMEOUT_MS="500")
    assert done.returncode == 7
    assert "rank 0, threadblock 0, step" in done.stderr and "a message from rank 1" in done.stderr


def test_different_programs_are_refused(fake_nccl: Path) -> None:
    done = launch(fake_nccl, 2, "ring", "--trouble", "other-program")
    assert done.returncode == 7
    assert "the ranks hold different programs" in done.stderr
