"""The benchmark on real processes: what runs, what it prints, and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import programs
import pytest

from collsynth.formats import load_topology, msccl_xml
from collsynth.lowering import lower
from collsynth.program import TARGETS, Program
from collsynth.synth import synthesize

pytest.importorskip("mpi4py", reason="mpi4py is not installed")

pytestmark = pytest.mark.mpi


def bench(nranks: int, *arguments: str, **environment: str) -> Any:
    """The benchmark under the launcher; the completed process."""
    command = [sys.executable, "-m", "collsynth", "launch", "-n", str(nranks), "python", "-m", "collsynth.bench"]
    names = {**os.environ, **environment}
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=90, env=names)


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]


@pytest.fixture
def ring(tmp_path: Path) -> Any:
    """Writes a ring AllReduce of so many ranks, with changes, and gives its path."""

    def write(nranks: int, **changes: Any) -> str:
        program: Program = replace(programs.ring_allreduce(nranks), **changes)
        path = tmp_path / f"ring{nranks}.xml"
        msccl_xml.write(program, path, target=TARGETS["any"], force=True)
        return str(path)

    return write


def test_program_against_native(ring: Any, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = bench(
        4, "all_reduce", "-b", "4", "-e", "1M", "-f", "512", "-n", "3", "--algo", ring(4), "--compare", "native",
        "--assume-hosts", "2", "--topology", "ring:4", "-J", str(out),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    table = rows(done.stdout)
    assert [row[0] for row in table] == ["4", "4", "2048", "2048", "1048576", "1048576"]
    assert [row[-1].split(":")[0] for row in table] == ["program", "native"] * 3
    assert all(row[8] == "0" and row[12] == "0" for row in table)
    assert "oversubscribed: 4 ranks" in done.stdout or (os.cpu_count() or 1) >= 4
    assert "assumed hosts: 2, 2 ranks" in done.stdout
    assert "# Out of bounds values : 0 OK" in done.stdout
    document = json.loads(out.read_text())
    assert [r["algorithm"].split(":")[0] for r in document["results"]] == ["program", "native"] * 3
    first = document["results"][0]
    assert first["speedup"]["out_of_place"] > 0 and first["percent_of_bound"] > 0 and first["backend"] == "mpi"


def test_outside_the_window_the_native_library_runs_and_says_so(ring: Any) -> None:
    path = ring(2, min_bytes=1024, max_bytes=4096, in_place=False)
    done = bench(2, "allreduce", "-b", "512", "-e", "8K", "-f", "4", "-n", "2", "--algo", path)
    assert done.returncode == 0, done.stderr
    below, inside, above = (line for line in done.stdout.splitlines() if line.strip() and not line.startswith("#"))
    assert "native" in below and "below minBytes 1024" in below and below.split()[12] == "0"
    assert "program:" in inside and inside.split()[9:13] == ["N/A"] * 4
    assert "native" in above and "above maxBytes 4096" in above


def test_a_program_of_other_ranks_is_exit_2(ring: Any) -> None:
    done = bench(2, "allreduce", "-b", "8", "-e", "8", "--algo", ring(4))
    assert done.returncode == 2
    assert done.stderr.count("the program has 4 ranks, and there are 2 processes") == 1
    assert "launch -n 4" in done.stderr and "Traceback" not in done.stderr


def test_an_existing_output_is_exit_2(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("mine")
    done = bench(2, "allreduce", "-b", "8", "-e", "8", "-J", str(tmp_path / "x.json"))
    assert done.returncode == 2 and "the file exists" in done.stderr
    assert (tmp_path / "x.json").read_text() == "mine"


def test_a_deadlock_is_refused_and_if_forced_ends_with_3(tmp_path: Path) -> None:
    path = tmp_path / "stuck.xml"
    msccl_xml.write(programs.deadlocked(), path, target=TARGETS["any"], force=True)
    common = (programs.deadlocked().collective, "-b", "8", "-e", "8", "-n", "1", "-T", "1", "--algo", str(path))
    nranks = programs.deadlocked().nranks
    refused = bench(nranks, *common)
    assert refused.returncode == 1 and "is wrong" in refused.stderr
    done = bench(nranks, *common, "--no-verify")
    assert done.returncode == 3
    assert "waited 1 s in vain: threadblock" in done.stderr and "for a message from rank" in done.stderr


def test_a_demanded_bandwidth_decides_the_exit_code() -> None:
    done = bench(1, "allgather", "-b", "64", "-e", "64", "-n", "1", NCCL_TESTS_MIN_BW="1000000")
    assert done.returncode == 1 and "FAILED" in done.stdout


def test_nccl_program_and_native(ring: Any, fake_nccl: Path) -> None:
    fakes = os.pathsep.join([str(Path(__file__).parents[1] / "fakes"), os.environ.get("PYTHONPATH", "")])
    done = bench(
        4, "allreduce", "-b", "1000", "-e", "1000", "-n", "2", "-d", "int32", "--backend", "nccl", "--algo", ring(4),
        "--compare", "native", PYTHONPATH=fakes, COLLSYNTH_NCCL_LIBRARY=str(fake_nccl),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    table = rows(done.stdout)
    assert [row[-1].split(":")[0] for row in table] == ["program", "native"]
    assert all(row[8] == "0" and row[12] == "0" for row in table)
    assert "NCCL 2.23.4" in done.stdout


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_rooted_programs_leave_out_insignificant_buffers(collective: str, tmp_path: Path) -> None:
    schedule = synthesize(load_topology("ring:3"), collective, chunks=1).schedule
    assert schedule is not None
    path = tmp_path / "rooted.xml"
    msccl_xml.write(lower(schedule), path, target=TARGETS["any"], force=True)
    done = bench(3, collective, "-b", "1K", "-e", "1K", "-n", "2", "--algo", str(path), "--compare", "native")
    assert done.returncode == 0, done.stderr
    table = rows(done.stdout)
    assert [row[-1].split(":")[0] for row in table] == ["program", "native"]
    assert all(row[8] == "0" for row in table)
