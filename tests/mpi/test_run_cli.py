"""`collsynth run` and `collsynth launch` as a user types them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import programs
import pytest

from collsynth.cli import main

HERE = Path(__file__).resolve().parent

needs_mpi = pytest.mark.skipif(find_spec("mpi4py") is None, reason="mpi4py is not installed")


def collsynth(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command line; never a traceback."""
    done = subprocess.run(
        [sys.executable, "-m", "collsynth", *arguments],
        capture_output=True, text=True, timeout=90, env={**os.environ, **(environment or {})},
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done


class Done(NamedTuple):
    """What a call of the command line gave."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """The command line in this process: quicker, where neither MPI nor exec is involved."""

    def call(*arguments: str) -> Done:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        captured = capsys.readouterr()
        return Done(int(ended.value.code or 0), captured.out, captured.err)

    return call


@pytest.fixture
def ring4(tmp_path: Path) -> str:
    path = tmp_path / "ring4.xml"
    path.write_text(programs.as_xml(programs.ring_allreduce(4)))
    return str(path)


@pytest.fixture
def wrong2(tmp_path: Path) -> str:
    """The scratch program with its local reduction left out: half of the sum is missing."""
    text = programs.as_xml(programs.scratch_allreduce())
    path = tmp_path / "wrong2.xml"
    path.write_text("\n".join(line for line in text.splitlines() if 'type="re"' not in line))
    return str(path)


def test_numpy_backend_runs_both_modes_of_every_size(ring4: str, here: Callable[..., Done]) -> None:
    done = here("run", ring4, "--count", "1", "--count", "5", "-s", "64K", "--dtype", "int32", "--op", "max",
                     "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["ok"] and document["verified"] and document["collective"] == "allreduce"
    rows = document["results"]
    assert [(row["count"], row["mode"]) for row in rows] == [
        (count, mode) for count in (1, 5, 16384) for mode in ("out-of-place", "in-place")
    ]
    assert all(row["wrong"] == 0 for row in rows)
    assert all(row["busbw_GBps"] == pytest.approx(1.5 * row["algbw_GBps"]) for row in rows)


@pytest.mark.mpi
@needs_mpi
@pytest.mark.parametrize("backend", ["mpi", "cupy"])
def test_processes_give_the_bytes_of_the_file(ring4: str, backend: str) -> None:
    fakes = os.pathsep.join(filter(None, (str(HERE.parent / "fakes"), os.environ.get("PYTHONPATH"))))
    done = collsynth("launch", "-n", "4", "collsynth", "run", ring4, "--backend", backend, "--assume-hosts", "2",
                     "--count", "5", "--json", environment={"PYTHONPATH": fakes})  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["ok"] and document["hosts"] == [0, 0, 1, 1] and document["backend"] == backend
    for row in document["results"]:
        # 2(n-1) messages of one unit; 5 elements in 4 units are padded to 2 elements a unit.
        assert row["bytes_sent"] == [{str((rank + 1) % 4): 6 * 2 * 4} for rank in range(4)]
        assert row["messages_sent"] == [{str((rank + 1) % 4): 6} for rank in range(4)]


def test_a_wrong_program_is_refused_and_shown_wrong_when_forced(wrong2: str, here: Callable[..., Done]) -> None:
    refused = here("run", wrong2)
    assert refused.returncode == 1
    assert "not run, because it is wrong" in refused.stderr and "rank 0" in refused.stderr
    forced = here("run", wrong2, "--no-verify", "--count", "8", "--json")
    assert forced.returncode == 1
    assert not json.loads(forced.stdout)["ok"]


@pytest.mark.mpi
@needs_mpi
def test_another_number_of_processes_is_one_message_and_exit_2(ring4: str) -> None:
    alone = collsynth("run", ring4, "--backend", "mpi")
    assert alone.returncode == 2
    assert f"collsynth launch -n 4 collsynth run {ring4} --backend mpi" in alone.stderr
    three = collsynth("launch", "-n", "3", "collsynth", "run", ring4, "--backend", "mpi")
    assert three.returncode == 2
    assert three.stderr.count("3 processes for a program of 4 ranks") == 1
    assert three.stdout == ""


@pytest.mark.mpi
@needs_mpi
def test_what_one_rank_finds_is_told_once(tmp_path: Path) -> None:
    missing = collsynth("launch", "-n", "2", "collsynth", "run", str(tmp_path / "no.xml"), "--backend", "mpi")
    assert missing.returncode == 2
    assert missing.stderr.count("no.xml") == 1


@pytest.mark.mpi
@needs_mpi
def test_a_stuck_program_gives_up_and_ends_the_job(tmp_path: Path) -> None:
    path = tmp_path / "stuck.xml"
    path.write_text(programs.as_xml(programs.deadlocked()))
    done = collsynth("launch", "-n", "2", "collsynth", "run", str(path), "--backend", "mpi", "--no-verify",
                     "--timeout", "1")  # fmt: skip
    assert done.returncode == 1
    assert "waited 1 s in vain: threadblock 0, step 0 (recv_reduce_copy) for a message from rank" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--count", "-1"], "-1 elements"),
        (["--dtype", "float31"], "unknown data type 'float31'"),
        (["--op", "mean"], "unknown operation 'mean'"),
        (["--backend", "abacus"], "'abacus' is not in backends"),
        (["--assume-hosts", "2"], "all ranks are in one process"),
        (["-s", "12Q"], "unknown size unit"),
        (["--iters", "0"], "--iters"),
    ],
)
def test_bad_options_are_one_message_and_exit_2(
    ring4: str, arguments: list[str], message: str, here: Callable[..., Done]
) -> None:
    done = here("run", ring4, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stdout == ""


def test_a_mode_that_the_program_lacks_is_refused(tmp_path: Path, here: Callable[..., Done]) -> None:
    path = tmp_path / "p.xml"
    path.write_text(programs.as_xml(programs.ring_allreduce(2)).replace('inplace="1"', 'inplace="0"'))
    done = here("run", str(path), "--in-place")
    assert done.returncode == 2
    assert "not meant to be run in place" in done.stderr


def test_what_is_no_program_is_said(tmp_path: Path, here: Callable[..., Done]) -> None:
    path = tmp_path / "text.xml"
    path.write_text("hello\n")
    assert here("run", str(path)).returncode == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-n", "0", "true"], "0 processes"),
        (["-n", "2"], "no command to start"),
        (["-n", "2", "no-such-command-here"], "is not found"),
        (["true"], "-n"),
    ],
)
def test_launch_refuses_what_it_cannot_start(arguments: list[str], message: str, here: Callable[..., Done]) -> None:
    done = here("launch", *arguments)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.mpi
@needs_mpi
def test_launch_passes_options_and_exit_codes_on() -> None:
    code = "import os, sys; print(sys.argv[1:], os.environ['OMPI_MCA_mpi_yield_when_idle']); sys.exit(7)"
    done = collsynth("launch", "-n", "1", "python", "-c", code, "-n", "5", "--help")
    assert done.returncode == 7
    assert "['-n', '5', '--help'] 1" in done.stdout


def test_launch_without_mpi_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from collsynth.cli import launch as module
    from collsynth.errors import InputError

    monkeypatch.setattr(module.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"collsynth\[mpi\]"):
        module.find_mpiexec()


def test_settings_of_the_user_win() -> None:
    from collsynth.cli.launch import launch_environment

    merged: dict[str, Any] = launch_environment({"OMPI_MCA_osc": "sm", "HOME": "/h"})
    assert merged["OMPI_MCA_osc"] == "sm" and merged["HOME"] == "/h"
    assert merged["OMPI_ALLOW_RUN_AS_ROOT"] == merged["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] == "1"
