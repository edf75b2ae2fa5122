"""A collective is what its name says, or is refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collsynth.collective import COLLECTIVES, RankSets, allgather, allreduce, alltoall, make, reduce_scatter
from collsynth.formats import load_topology, sched
from collsynth.schedule import Schedule
from collsynth.synth import synthesize
from collsynth.verifier import verify
from collsynth.verifier.meaning import wrong_meaning


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize(("nranks", "chunks"), [(1, 1), (2, 3), (5, 2)])
def test_every_built_collective_means_its_name(name: str, nranks: int, chunks: int) -> None:
    assert wrong_meaning(make(name, nranks, chunks)) is None


@given(st.lists(st.integers(0, 3), min_size=1, max_size=5).filter(any))
def test_uneven_shards_mean_their_name(weights: list[int]) -> None:
    for builder in (allgather, reduce_scatter, allreduce):
        assert wrong_meaning(builder(len(weights), weights=weights)) is None


@pytest.mark.parametrize("name", [n for n in COLLECTIVES if n not in ("gather", "scatter")])
def test_a_name_does_not_make_the_collective(name: str) -> None:
    """Every other collective under this name is refused."""
    for other in COLLECTIVES:
        if other != name:
            assert wrong_meaning(replace(make(other, 3, 2), name=name)) is not None


def test_less_than_the_name_promises_is_refused(tmp_path: Path) -> None:
    schedule = synthesize(load_topology("ring:4"), "allreduce", chunks=1).schedule
    assert schedule is not None
    cheap = replace(schedule.collective, destinations=RankSets.from_lists([[0]] * schedule.collective.nchunks, 4))
    none = np.zeros(0, np.int64)
    empty = Schedule(
        schedule.topology, replace(cheap, sources=RankSets.from_lists([[0]] * cheap.nchunks, 4)), none, none, none,
        np.zeros(0, bool), none, np.zeros(1, np.int64), none,
    )  # fmt: skip
    for wrong in (replace(schedule, collective=cheap), empty):
        path = tmp_path / "x.sched"
        sched.write(wrong, path, force=True)
        report = verify(sched.read(path))
        assert not report.ok and "E-COLLECTIVE" in {f.code for f in report.findings}


def test_misplaced_and_missing_chunks_are_refused() -> None:
    swap = alltoall(3, 2)
    moved = swap.output_offset.copy()
    moved[[0, 1]] = moved[[1, 0]]
    assert "not its place" in str(wrong_meaning(replace(swap, output_offset=moved)))
    assert "fill the input" in str(wrong_meaning(replace(swap, input_units=swap.input_units + 1)))
    assert "root" in str(wrong_meaning(replace(make("broadcast", 3), root=None)))
