"""`read` and `write` choose the format: reading by content, writing by suffix."""

from __future__ import annotations

from pathlib import Path

import pytest

import collsynth as cs
from collsynth.errors import InputError
from collsynth.program import Program
from collsynth.registry import load
from collsynth.schedule import Schedule
from collsynth.topology import Topology


@pytest.fixture(scope="module")
def schedule() -> Schedule:
    """A ring AllGather on four ranks."""
    make = load("algorithms", "ring")
    assert callable(make)
    made = make(cs.load_topology("ring:4"), cs.allgather(4))
    assert isinstance(made, Schedule)
    return made


@pytest.fixture(scope="module")
def program(schedule: Schedule) -> Program:
    """The same, lowered."""
    return cs.lower(schedule)


def test_what_is_written_is_recognised_whatever_its_name(tmp_path: Path, schedule: Schedule, program: Program) -> None:
    cs.write(schedule, tmp_path / "a.sched")
    cs.write(program, tmp_path / "a.xml")
    cs.write(program, tmp_path / "a.prog")
    cs.write(schedule.topology, tmp_path / "a.json")
    for name, kind in (("a.sched", Schedule), ("a.xml", Program), ("a.prog", Program), ("a.json", Topology)):
        (tmp_path / name).rename(tmp_path / "anonymous.bin")
        assert isinstance(cs.read(tmp_path / "anonymous.bin"), kind), name


def test_a_matrix_reads_as_a_machine(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("GPU0 X NV4\nGPU1 NV4 X\n")
    machine = cs.read(path)
    assert isinstance(machine, Topology) and machine.nranks == 2


@pytest.mark.parametrize("suffix", [".yaml", ".sched", ".mp4", ""])
def test_a_program_is_not_written_under_another_suffix(tmp_path: Path, program: Program, suffix: str) -> None:
    with pytest.raises(InputError, match=r"a Program is not written as .*expected \.xml, \.json, \.prog or \.et"):
        cs.write(program, tmp_path / f"a{suffix}")
    assert not list(tmp_path.iterdir())


def test_a_chakra_trace_needs_a_size(tmp_path: Path, program: Program) -> None:
    with pytest.raises(InputError, match="expected a size"):
        cs.write(program, tmp_path / "trace.et")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is empty"),
        (b"\x7fELF\0\0\0", "it is binary"),
        (b"<html></html>", "XML that begins with '<html></html>'"),
        (b"name: x\n", "it begins with 'name: x'"),
        (b"collsynth 9\n....", "expected"),
    ],
)
def test_anything_else_says_what_was_seen(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "f"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        cs.read(path)
