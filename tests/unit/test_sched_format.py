"""`.sched` and `.prog`: nothing is lost, damage is seen."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_schedules import complete, random_schedule
from small_programs import small_programs

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
    with pytest.raises(InputError, match=r"version 3 of the format; expected version 1 or 2"):
        sched.parse(data.replace(b"collsynth 2\n", b"collsynth 3\n"))
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


@pytest.mark.parametrize(
    "column",
    [
        [], [0], [7] * 9, [-1] * 5, [0, 1, 2, 3], list(range(0, 70_000, 7)), [0, 1, 300], [-128, 127], [-129, 0],
        [-(1 << 63), (1 << 63) - 1], [(1 << 62), (1 << 62) + 5], [5, 4, 3], [1 << 40, (1 << 40) + 1, (1 << 40) + 1],
    ],
)  # fmt: skip
def test_columns_of_any_width(column: list[int]) -> None:
    """Narrow, constant and growing columns come back as they were, whatever lies behind them."""
    values = np.array(column, dtype=np.int64)
    data = sched._pack({"kind": "x"}, {"a": values, "b": np.array([1, 2], dtype=np.int64)})
    _, columns = sched._unpack(data, "x")
    assert columns["a"].tolist() == column and columns["a"].dtype == np.int64
    assert columns["b"].tolist() == [1, 2]


def test_orbit_form_is_kept() -> None:
    """The generators are written, not the rows that they make."""
    value = rich_schedule()
    again = sched.parse(sched.dumps(value))
    assert isinstance(again, Schedule) and again.nrows == value.nrows == 3
    for ours, theirs in zip(value.generators, again.generators, strict=True):
        assert ours.vertices.tolist() == theirs.vertices.tolist() and ours.chunks.tolist() == theirs.chunks.tolist()


def test_version_1_is_read() -> None:
    """Files of the first version: every value in 8 bytes."""
    program = small_programs()[0]
    data = sched.dumps(program)
    length = int.from_bytes(data[12:20], "little")
    header, columns = json.loads(data[20 : 20 + length]), sched._unpack(data, "x")[1]
    header["columns"] = [[name, len(column)] for name, column in columns.items()]
    text = json.dumps(header).encode()
    old = b"collsynth 1\n" + len(text).to_bytes(8, "little") + text + b"".join(c.tobytes() for c in columns.values())
    again = sched.parse(old)
    assert isinstance(again, Program) and again.content_hash() == program.content_hash()


def test_files_that_ask_for_much_memory() -> None:
    """A few bytes cannot ask for gigabytes."""
    for listed in ([["a", 1 << 30, 0, 5]], [[f"a{i}", 1 << 24, 0, 5] for i in range(40)], [["a", -1, 4]],
                   [["a", 0, 0, 1]], [["a", 3, 3]], [["a", True, 0, 1]], [["a", 3, 0, 1 << 70]]):  # fmt: skip
        text = json.dumps({"kind": "program", "columns": listed}).encode()
        with pytest.raises(InputError, match="damaged header"):
            sched.parse(b"collsynth 2\n" + len(text).to_bytes(8, "little") + text)
