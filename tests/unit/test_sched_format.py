"""`.sched` and `.prog`: nothing is lost, damage is seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_schedules import complete, random_schedule

from collsynth import collective as collectives
from collsynth.errors import InputError
from collsynth.formats import read, sched, write
from collsynth.lowering import lower
from collsynth.program import Program
from collsynth.schedule import Schedule, SymmetryElement, Transfer
from collsynth.topology import Link, LinkState, Topology, Vertex, VertexKind

NAMES = ("allgather", "reducescatter", "allreduce", "alltoall", "broadcast", "reduce")


@settings(max_examples=40, deadline=None)
@given(name=st.sampled_from(NAMES), nranks=st.integers(1, 5), chunks=st.integers(1, 4), seed=st.integers(0, 10**6))
def test_round_trip(name: str, nranks: int, chunks: int, seed: int) -> None:
    """Same content, same bytes, for the schedule and its program."""
    schedule = random_schedule(name, nranks, chunks, seed)
    for value in (schedule, lower(schedule)):
        data = sched.dumps(value)
        again = sched.parse(data)
        assert type(again) is type(value)
        assert again.content_hash() == value.content_hash()
        assert sched.dumps(again) == data


def rich_schedule() -> Schedule:
    """One with everything that a file must carry: names, notes, states, capacities, symmetry, groups, epochs."""
    vertices = [Vertex(f"gpu:{r}", rank=r, node=r // 2, in_capacity=10**9) for r in range(4)]
    vertices.append(Vertex("schälter:0", VertexKind.SWITCH, rail=3, total_capacity=5 * 10**9))
    links = [Link(r, 4, 10**9, 7, 3, 2, "nvlink", "tab 1", LinkState.DEGRADED) for r in range(4)]
    links += [Link(4, r, 10**9, 7, 3, 2, "nvlink", "tab 1", LinkState.DEGRADED) for r in range(4)]
    turn = [1, 2, 3, 0, 4]
    topology = Topology.build("räck", vertices, links, symmetry=[turn], assumptions=["one"], warnings=["two", "three"])
    collective = collectives.allgather(4)
    rows = [Transfer(0, 0, d, False, 0, (0, 4 + d)) for d in (1, 2, 3)]
    base = Schedule.build(topology, collective, rows, method="métier")
    element = SymmetryElement(np.array(turn, dtype=np.int64), np.array([1, 2, 3, 0], dtype=np.int64))
    return replace(base, generators=(element,), group=np.array([5, 5, -1]), epoch=np.array([0, 0, 1]))


def test_nothing_is_lost() -> None:
    value = rich_schedule()
    again = sched.parse(sched.dumps(value))
    assert isinstance(again, Schedule)
    assert again.content_hash() == value.content_hash()
    assert again.expand().nrows == 12
    assert again.method == value.method
    assert again.group is not None and again.group.tolist() == [5, 5, -1]
    assert again.epoch is not None and again.epoch.tolist() == [0, 0, 1]
    ours, theirs = value.topology, again.topology
    assert (ours.name, ours.vertices, ours.links()) == (theirs.name, theirs.vertices, theirs.links())
    assert (ours.assumptions, ours.warnings) == (theirs.assumptions, theirs.warnings)
    assert [g.tolist() for g in theirs.symmetry] == [[1, 2, 3, 0, 4]]
    assert again.collective.destinations.is_everyone and not again.collective.sources.is_everyone


def test_uneven_shards_and_odd_names() -> None:
    collective = collectives.allgather(3, weights=[3, 0, 1])
    schedule = Schedule.build(complete(3), collective, [], method='a "b"\n\u2028')
    again = sched.parse(sched.dumps(schedule))
    assert isinstance(again, Schedule)
    assert again.collective.input_units.tolist() == [3, 0, 1] and again.method == schedule.method


@pytest.mark.parametrize("fraction", [0.0, 0.01, 0.1, 0.5, 0.9, 0.999])
def test_cut_off_files(fraction: float) -> None:
    data = sched.dumps(random_schedule("allgather", 3, 1, 0))
    with pytest.raises(InputError, match=r"x\.sched"):
        sched.parse(data[: int(len(data) * fraction)], "x.sched")


def test_longer_files_and_other_versions() -> None:
    data = sched.dumps(random_schedule("allgather", 3, 1, 0))
    with pytest.raises(InputError, match="where its header says"):
        sched.parse(data + b"\0" * 8)
    with pytest.raises(InputError, match=r"version 2 of the format; expected version 1"):
        sched.parse(data.replace(b"collsynth 1\n", b"collsynth 2\n"))
    with pytest.raises(InputError, match=r"is no \.sched"):
        sched.parse(b"PK\3\4")


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damaged_files_never_crash(data: st.DataObject) -> None:
    """Flipped bytes are refused, or give a valid value (a changed number)."""
    program = data.draw(st.booleans())
    schedule = random_schedule("allgather", 3, 1, 0)
    good = bytearray(sched.dumps(lower(schedule) if program else schedule))
    for _ in range(data.draw(st.integers(1, 3))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    try:
        sched.parse(bytes(good))
    except InputError as error:
        assert error.where


def test_files(tmp_path: Path) -> None:
    """Through `read` and `write`, which tell formats by content and suffix."""
    schedule = random_schedule("allreduce", 3, 1, 0)
    program = lower(schedule)
    write(schedule, tmp_path / "a.sched")
    write(program, tmp_path / "a.prog")
    (tmp_path / "odd.name").write_bytes((tmp_path / "a.prog").read_bytes())
    one, two = read(tmp_path / "a.sched"), read(tmp_path / "odd.name")
    assert isinstance(one, Schedule) and one.content_hash() == schedule.content_hash()
    assert isinstance(two, Program) and two.content_hash() == program.content_hash() and two.name == program.name
    with pytest.raises(InputError, match="the file exists"):
        write(schedule, tmp_path / "a.sched")
    write(schedule, tmp_path / "a.sched", force=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.prog", "a.sched", "odd.name"]
