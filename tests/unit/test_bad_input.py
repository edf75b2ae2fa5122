"""Wrong options, names, places to write to and streams: one message, exit code 2, nothing lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from bad_input import Run, runner

RING = ("-t", "ring:4")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    return runner(capsys, monkeypatch)


WRONG = [
    # names and their parameters
    (("nope",), "No such command"),
    (("topo", "show", "nope"), "one of dgx-v100"),
    (("topo", "show", "dgx-a10"), "try dgx-a100"),
    (("topo", "show", ""), "name is empty"),
    (("topo", "show", "a\0b"), "expected"),
    (("topo", "show", "/nowhere/\udcff.yaml"), "no such file"),
    (("topo", "show", "ring:0"), "from 1"),
    (("topo", "show", "ring:4:bw=0"), "more than 0"),
    (("topo", "show", "ring:4:bw=-1GB/s"), "more than 0"),
    (("topo", "show", "ring:4:bw=nan"), "for example 25GB/s"),
    (("topo", "show", "ring:4:bww=3"), "try bw"),
    (("topo", "show", "torus:99999x99999"), "too many"),
    (("topo", "show", "dgx-a100:nodes=2:nodes=3"), "twice"),
    # no machine
    (("bound", "allreduce"), "-t TOPOLOGY"),
    (("synth", "allreduce"), "-t"),
    # collectives, roots, ranks
    (("bound", "allredcue", *RING), "try allreduce"),
    (("synth", "allredcue", *RING), "try allreduce"),
    (("bound", "allreduce", *RING, "--root", "1"), "has no root"),
    (("bound", "broadcast", *RING, "--root", "4"), "0..3"),
    (("synth", "broadcast", *RING, "--root", "-1"), "0..3"),
    (("bound", "allreduce", *RING, "--ranks", ""), "for example 0,1,5"),
    (("bound", "allreduce", *RING, "--ranks", "²"), "for example 0,1,5"),
    (("bound", "allreduce", *RING, "--ranks", "3-0"), "empty"),
    (("bound", "allreduce", *RING, "--ranks", "1,2,1"), "rank 1 is named twice"),
    (("bound", "allreduce", *RING, "--ranks", "0,9"), "0..3"),
    (("bound", "allreduce", *RING, "--ranks", "0,2"), "--relay"),
    (("synth", "allreduce", *RING, "--ranks", "0,2"), "--relay"),
    (("synth", "allreduce", *RING, "--relay"), "--ranks"),
    # numbers
    (("bound", "allreduce", *RING, "-s", "-1"), "0 or more"),
    (("bound", "allreduce", *RING, "-s", "1.5"), "whole number"),
    (("bound", "allreduce", *RING, "-s", "1e30"), "2^62"),
    (("bound", "allreduce", *RING, "-s", "٣"), "for example 64M"),
    (("synth", "allreduce", *RING, "--chunks", "0"), "1 to 4096"),
    (("synth", "allreduce", *RING, "--chunks", "1000000000"), "1 to 4096"),
    (("synth", "allreduce", *RING, "--time-limit", "0"), "more than 0"),
    (("synth", "allreduce", *RING, "--time-limit", "nan"), "more than 0"),
    (("synth", "allreduce", *RING, "--time-limit", "inf"), "more than 0"),
    (("synth", "allreduce", *RING, "--instances", "0"), "1<=x<=64"),
    (("synth", "allreduce", *RING, "-m", "zzz"), "one of auto"),
    (("synth", "allreduce", *RING, "--target", "zzz"), "one of any"),
    # places to write to
    (("synth", "allreduce", *RING, "-o", "-", "--json"), "standard output"),
    (("synth", "allreduce", *RING, "-o", ""), "empty"),
    (("synth", "allreduce", *RING, "-o", "/nowhere/a.xml"), "does not exist"),
    (("synth", "allreduce", *RING, "-o", "without-suffix"), ".xml, .et"),
    (("synth", "allreduce", *RING, "-o", ".xml"), ".xml, .et"),
    (("synth", "allreduce", *RING, "-o", "a\0.xml"), "file name"),
    (("synth", "allreduce", *RING, "-o", "a" * 300 + ".xml"), "file name"),
    (("synth", "allreduce", *RING, "-o", "-", "--format", "sched"), "-o FILE"),
    # files that are none
    (("verify", ""), "empty"),
    (("inspect", ""), "empty"),
    (("verify", "/nowhere"), "No such file"),
    (("inspect", "/"), "is a directory"),
    (("verify", "/dev/null"), "it is empty"),
    (("topo", "show", "/dev/null"), "it is empty"),
    (("verify", "-"), "it is empty"),
    (("bound", "allreduce", "-t", "-"), "it is empty"),
    (("simulate", "/nowhere", "-s", "1M"), "No such file"),
    (("run", "/nowhere"), "No such file"),
    (("run", "/nowhere", "--backend", "zzz"), "one of numpy"),
    (("run", "/nowhere", "--dtype", "zzz"), "one of int8"),
    (("run", "/nowhere", "--op", "zzz"), "one of sum"),
    (("run", "/nowhere", "--timeout", "nan"), "more than 0"),
    (("launch", "-n", "0", "true"), "1 to"),
    (("launch", "-n", "99999999999999999999", "true"), "1 to"),
    (("launch", "-n", "2", "no-such-command"), "on PATH"),
]


@pytest.mark.parametrize(("arguments", "word"), WRONG, ids=[" ".join(map(ascii, a))[:60] for a, _ in WRONG])
def test_wrong_usage_is_one_message(arguments: tuple[str, ...], word: str, run: Run, tmp_path: Path,
                                    monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    run(*arguments).refused(word)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["a.xml", "a.sched", "a.prog", "a.et"])
def test_existing_output_is_kept(name: str, run: Run, tmp_path: Path) -> None:
    path = tmp_path / name
    held = path if name != "a.et" else tmp_path / "a.2.et"  # one of several files is enough to refuse
    held.write_text("mine")
    run("synth", "allgather", *RING, "-o", str(path)).refused("exists", "-f")
    assert [p.name for p in tmp_path.iterdir()] == [held.name] and held.read_text() == "mine"


def test_devices_are_written_to_and_links_followed(tmp_path: Path) -> None:
    from collsynth.formats.files import write_bytes_atomically

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_bytes_atomically(pipe, b"through", force=False)
    assert os.read(reader, 100) == b"through" and pipe.is_fifo()
    os.close(reader)
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    write_bytes_atomically(tmp_path / "link", b"new", force=True)
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_bytes() == b"new"


def test_a_folder_that_takes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from collsynth.errors import InputError
    from collsynth.formats import files

    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(files.tempfile, "mkstemp", refuse)
    with pytest.raises(InputError, match=r"a\.xml: cannot be written: Permission denied"):
        files.write_bytes_atomically(tmp_path / "a.xml", b"", force=False)


def test_endless_files_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from collsynth.errors import InputError
    from collsynth.formats import files

    monkeypatch.setattr(files, "MAX_FILE_BYTES", 1 << 20)
    with pytest.raises(InputError, match="more than"):
        files.read_bytes("/dev/zero")


@pytest.fixture
def program(run: Run, tmp_path: Path) -> str:
    """An AllReduce program for 4 ranks."""
    path = tmp_path / "ar.xml"
    assert run("synth", "allreduce", "-m", "direct", "-t", "fully-connected:4", "-o", str(path)).code == 0
    return str(path)


def test_wrong_use_of_a_right_program(program: str, run: Run, tmp_path: Path) -> None:
    full = ("-t", "fully-connected:4")
    run("simulate", program, "-s", "1M").refused("-t TOPOLOGY")
    run("simulate", program, "-s", "1M", "-t", "ring:5").refused("4 ranks", "has 5")
    run("simulate", program, "-s", "1M", "-t", "torus:2x2").refused("no path")
    for sizes in ("", "0", "-1", "1M:1K", "1:", "1K,,", "1e30"):
        run("simulate", program, "-s", sizes, *full).refused("-s")
    run("simulate", program, "-s", "1M", *full, "--trace", program).refused("exists")
    run("simulate", program, "-s", "1M", *full, "--trace", "-", "--json").refused("standard output")
    assert json.loads(run("simulate", program, "-s", "1M", *full, "--trace", "-").out)["traceEvents"]
    run("run", program, "-s", "1000T").refused("GiB of memory")
    run("run", program, "--count", "99999999999999999999").refused("GiB of memory")
    run("run", program, "--assume-hosts", "2").refused("--backend mpi")
    run("run", program, "-s", "1K", "-c", "zzz").refused("unknown collective")
    for nothing in ("0", "3"):  # less than one element
        result = run("run", program, "-s", nothing, "--iters", "1", "--json").clean()
        assert result.code == 0 and json.loads(result.out)["ok"]


def test_the_numpy_backend_does_not_run_once_a_process(program: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "3")
    run("run", program).refused("without launch", "3 were started")


def test_an_unforeseen_error_is_no_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import collsynth.formats as formats

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(formats, "load_topology", fail)
    outcome = run("topo", "show", "ring:4")
    assert outcome.code == 2 and outcome.out == ""
    assert "internal error" in outcome.err and "oops" in outcome.err and "Traceback" not in outcome.err
    assert "Traceback" in run("--debug", "topo", "show", "ring:4").err


def test_a_message_waits_for_itself_at_a_shared_vertex(run: Run, tmp_path: Path) -> None:
    """The critical path ends also where a switch's total capacity counts a message twice."""
    path = tmp_path / "switch.yaml"
    path.write_text(
        "collsynth-topology: 1\nranks: 3\ndevices: [{name: s, total_capacity: 77.7}]\n"
        "links: [{src: [gpu:0, gpu:1, gpu:2], dst: s, bandwidth: 33.6, latency: 1.3}]\n"
    )
    result = run(
        "synth", "allgather", "-t", str(path), "-m", "direct", "-o", str(tmp_path / "s.sched"), "--json"
    ).clean()
    assert result.code == 0 and json.loads(result.out)["verified"]
    assert run("simulate", str(tmp_path / "s.sched"), "-s", "1M").code == 0


# --- streams: these need a process of their own --------------------------------------------------

_COMMAND = f"{sys.executable} -m collsynth"


@pytest.mark.parametrize(
    ("line", "code", "word"),
    [
        (f"({_COMMAND} topo show torus:32x32 --json; echo code $? >&2) | true", 0, "code 141"),
        (f"{_COMMAND} topo show ring:4 >&-", 2, "standard output is closed"),
        (f"{_COMMAND} topo show ring:4 > /dev/full", 2, "No space left"),
        (f"{_COMMAND} topo show nope 2>&-", 2, ""),
        (f"{_COMMAND} bound allreduce -t - <&-", 2, "standard input: is closed"),
        (f"PYTHONIOENCODING=ascii {_COMMAND} topo show $'/x\\xff\\xc3\\xa9.yaml'", 2, "no such file"),
    ],
)
def test_streams(line: str, code: int, word: str) -> None:
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, errors="replace", timeout=120)
    assert done.returncode == code, (done.returncode, done.stderr)
    assert word in done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
