"""Programs on real processes: data, bytes, and what happens when something goes wrong."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import programs
import pytest
from collsynth.backends.executor import largest_count, slice_widths

from collsynth.program import SENDING, Program

pytest.importorskip("mpi4py", reason="mpi4py is not installed")

pytestmark = pytest.mark.mpi

HERE = Path(__file__).resolve().parent
PRIME = 100_003


def launch(nranks: int, *arguments: str, environment: dict[str, str] | None = None, timeout: float = 90) -> Any:
    """`collsynth launch -n nranks` of the worker; the completed process."""
    command = [sys.executable, "-m", "collsynth", "launch", "-n", str(nranks)]
    command += ["python", str(HERE / "worker.py"), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, env={**os.environ, **(environment or {})}
    )


def run(nranks: int, *arguments: str, environment: dict[str, str] | None = None) -> dict[str, Any]:
    """The JSON that rank 0 of the worker prints."""
    done = launch(nranks, *arguments, environment=environment)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def sent_units(program: Program) -> list[dict[str, int]]:
    """Units that each rank sends to each peer: what the instructions say."""
    totals: list[dict[str, int]] = [{} for _ in range(program.nranks)]
    for tb in range(program.ntbs):
        peer = int(program.tb_send[tb])
        rows = slice(int(program.tb_ptr[tb]), int(program.tb_ptr[tb + 1]))
        sends = np.isin(program.op[rows], [int(op) for op in SENDING])
        if peer >= 0:
            mine = totals[int(program.tb_rank[tb])]
            mine[str(peer)] = mine.get(str(peer), 0) + int(program.count[rows][sends].sum())
    return totals


def check(result: dict[str, Any], program: Program, itemsize: int = 4, shard_units: int | None = None) -> None:
    """No wrong element, and every rank sent each peer what the program says."""
    units = sent_units(program)
    for row in result["runs"]:
        assert row["wrong"] == 0, row
        elements = -(-row["count"] // (shard_units or program.nunits))
        expected = [{peer: count * elements * itemsize for peer, count in rank.items()} for rank in units]
        assert row["bytes"] == expected, row


@pytest.fixture(scope="session")
def interposer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that replaces every collective call of MPI by an abort."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to build the library that forbids collective calls")
    library = tmp_path_factory.mktemp("mpi") / "no_collectives.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(HERE / "no_collectives.c")], check=True)
    return library


def test_counts_around_the_units_with_every_collective_call_an_error(interposer: Path) -> None:
    program = programs.ring_allreduce(4, channels=2)
    counts = ",".join(str(count) for count in (1, program.nunits - 1, program.nunits + 1, PRIME))
    environment = {"LD_PRELOAD": str(interposer)}
    result = run(4, "ring:2", "--counts", counts, "--no-collectives", environment=environment)
    assert len(result["runs"]) == 8
    assert result["hosts"] == [0, 0, 0, 0]
    check(result, program)


def test_the_library_that_forbids_collective_calls_does(interposer: Path) -> None:
    code = "from mpi4py import MPI; MPI.COMM_WORLD.Barrier()"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "LD_PRELOAD": str(interposer)}
    )
    assert done.returncode != 0
    assert "forbidden collective call: MPI_Barrier" in done.stderr


@pytest.mark.parametrize(("dtype", "op"), [("int32", "max"), ("float32", "sum")])
def test_between_pretended_hosts_messages_go_by_mpi(dtype: str, op: str) -> None:
    program = programs.ring_allreduce(4)
    counts = f"1,3,5,{PRIME}"
    result = run(
        4, "ring", "--counts", counts, "--dtype", dtype, "--op", op, "--hosts", "2", "--no-collectives"
    )  # fmt: skip
    assert result["hosts"] == [0, 0, 1, 1]
    check(result, program)


def test_sixteen_processes_on_two_pretended_hosts() -> None:
    program = programs.ring_allreduce(16)
    result = run(16, "ring", "--counts", f"15,17,{PRIME}", "--hosts", "2", "--no-collectives")
    assert result["hosts"] == [0] * 8 + [1] * 8
    check(result, program)


def test_two_processes_with_scratch_and_allgather() -> None:
    check(run(2, "scratch", "--counts", f"1,3,{PRIME}", "--hosts", "2"), programs.scratch_allreduce())
    check(run(2, "allgather", "--counts", f"1,{PRIME}"), programs.direct_allgather(2), shard_units=1)


def test_large_payloads_run_in_slices() -> None:
    program = programs.ring_allreduce(2)
    count = 2_000_003
    row = run(2, "ring", "--counts", str(count))["runs"][0]
    assert row["wrong"] == 0
    slices = len(slice_widths(-(-count // 2), 4, largest_count(program), 1 << 19))
    assert slices > 1
    assert row["messages"] == [{"1": 2 * slices}, {"0": 2 * slices}]


def test_cupy_backend_on_the_stand_in() -> None:
    path = os.pathsep.join(filter(None, (str(HERE.parent / "fakes"), os.environ.get("PYTHONPATH"))))
    result = run(
        4, "ring:2", "--counts", f"1,9,{PRIME}", "--backend", "cupy", "--hosts", "2", environment={"PYTHONPATH": path}
    )
    check(result, programs.ring_allreduce(4, channels=2))


def test_ranks_with_different_programs_are_told_so() -> None:
    done = launch(3, "ring", "--trouble", "other-program")
    assert done.returncode != 0
    assert "the ranks hold different programs" in done.stderr
    assert "differing from rank 0: 2" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_program_of_another_size_is_refused_on_all_ranks() -> None:
    done = launch(3, "scratch")
    assert done.returncode != 0
    assert "3 processes for a program of 2 ranks" in done.stderr


def test_different_counts_are_an_error_and_no_hang() -> None:
    done = launch(2, "ring", "--counts", "4", "--trouble", "other-count", "--timeout", "5")
    assert done.returncode != 0
    assert "the ranks were called with different counts, types or programs" in done.stderr


@pytest.mark.parametrize("hosts", ["1", "2"])
def test_a_peer_that_never_comes_is_named(hosts: str) -> None:
    done = launch(2, "ring", "--counts", "4", "--trouble", "late", "--timeout", "1", "--hosts", hosts)
    assert done.returncode != 0
    assert "rank 0 waited 1 s in vain: threadblock 0, step" in done.stderr
    assert "message from rank 1 on channel 0" in done.stderr


def test_a_deadlocked_program_ends_with_the_place() -> None:
    done = launch(2, "deadlocked", "--counts", "4", "--timeout", "1")
    assert done.returncode != 0
    assert "waited 1 s in vain: threadblock 0, step 0 (recv_reduce_copy) for a message from rank" in done.stderr


def test_a_rank_that_dies_ends_the_job() -> None:
    assert launch(3, "ring", "--counts", str(PRIME), "--trouble", "die", "--timeout", "60").returncode != 0


def test_an_exception_on_one_rank_is_told_to_the_others() -> None:
    done = launch(3, "ring", "--counts", str(PRIME), "--trouble", "raise", "--timeout", "60", timeout=50)
    assert done.returncode != 0
    assert "rank 2 gave up: a bug on the last rank" in done.stderr
