"""Engines and their choice: verified everywhere, never below the bound, honest, and close to it."""

from __future__ import annotations

from fractions import Fraction

import cases
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collsynth import collective as collectives
from collsynth.errors import DisconnectedError, InputError, RefusedError, TimeLimitError, UnknownSpeedError
from collsynth.formats import load_topology
from collsynth.program import TARGETS
from collsynth.simulator import makespan, rate, simulate
from collsynth.synth import ENGINES, Status, SynthResult, methods, synthesize
from collsynth.topology import Link, Topology, Vertex
from collsynth.verifier import verify


def check(result: SynthResult) -> None:
    """What holds of every result."""
    schedule, bound = result.schedule, result.bound.seconds_per_byte
    assert schedule is not None
    assert verify(schedule).ok, verify(schedule).findings[:3]
    assert result.bandwidth_ratio is not None and result.makespan_ratio is not None
    assert 1 <= result.bandwidth_ratio <= result.makespan_ratio
    if bound:
        assert result.bandwidth_ratio == rate(schedule) / bound
        assert result.makespan_ratio == makespan(schedule) / bound
    if result.optimal_in == "makespan":
        assert result.makespan_ratio == 1
    if result.status is Status.FOUND:
        assert result.bandwidth_ratio > 1 and result.optimal_in is None


def _id(value: object) -> str:
    return value.name if isinstance(value, Topology) else str(value)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("machine", "name"), list(cases.cases()), ids=_id)
def test_engine_passes_the_bank(engine: str, machine: Topology, name: str) -> None:
    try:
        result = synthesize(machine, name, method=engine, chunks=2)
    except RefusedError as error:
        assert "knows" in str(error)
        return
    except DisconnectedError:
        assert machine.name == "one-way-ring5" and name in ("gather", "scatter")
        return
    check(result)
    assert result.method == engine


@st.composite
def graphs(draw: st.DrawFn) -> Topology:
    """Random strongly connected machines of 2 to 6 ranks with uneven, partly one-way links."""
    n = draw(st.integers(2, 6))
    speed = st.sampled_from((10, 25, 50))
    pairs = {(i, (i + 1) % n): draw(speed) for i in range(n)}
    ends = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1))
    for a, b in draw(st.lists(ends, max_size=8)):
        if a != b:
            pairs[a, b] = draw(speed)
    return cases.direct("random", n, pairs)


@settings(max_examples=25, deadline=None)
@given(graphs(), st.sampled_from(("allgather", "reducescatter", "allreduce", "alltoall", "broadcast", "reduce")))
def test_random_graphs(machine: Topology, name: str) -> None:
    check(synthesize(machine, name, chunks=2))


@settings(max_examples=10, deadline=None)
@given(graphs(), st.sampled_from(("allgather", "reducescatter", "broadcast", "reduce")))
def test_exact_reaches_the_bound(machine: Topology, name: str) -> None:
    result = synthesize(machine, name, exact=True)
    check(result)
    assert result.bandwidth_ratio == 1 and result.status is Status.OPTIMAL


@pytest.mark.parametrize(
    ("machine", "name", "limit"),
    [
        ("dgx-v100", "allgather", "1.02"),
        ("dgx-v100", "allreduce", "1.08"),
        ("dgx-v100", "alltoall", "1.01"),
        ("dgx-a100", "allgather", "1"),
        ("dgx-a100:nodes=2", "allgather", "1.03"),
        ("dgx-a100:nodes=2", "alltoall", "1"),
        ("mesh:4x4", "reducescatter", "1"),
        ("mesh:4x4", "alltoall", "1.01"),
    ],
)
def test_makespan_close_to_the_bound(machine: str, name: str, limit: str) -> None:
    result = synthesize(load_topology(machine), name)
    check(result)
    assert result.makespan_ratio is not None and result.makespan_ratio <= Fraction(limit)


def test_dgx1_allgather_is_perfect_with_six_pieces() -> None:
    result = synthesize(load_topology("dgx-v100"), "allgather", exact=True)
    assert result.chunks_per_rank == 6 and result.makespan_ratio == 1 and result.optimal_in == "makespan"


def test_allreduce_beats_reduce_scatter_and_allgather_where_it_can() -> None:
    """DGX-1 with GPUs 0, 1, 2, 3, 7: GPU 7 hangs on one link, 25 GB/s is the whole truth."""
    result = synthesize(load_topology("dgx-v100").subset([0, 1, 2, 3, 7]), "allreduce")
    check(result)
    assert result.bandwidth_ratio == 1 and rate(result.schedule) == Fraction(1, 25 * 10**9)  # type: ignore[arg-type]
    assert result.bound.rs_ag_seconds_per_byte == Fraction(8, 5) * result.bound.seconds_per_byte
    assert result.makespan_ratio is not None and result.makespan_ratio < Fraction(11, 10)


def test_auto_is_no_worse_than_any_method_at_the_size() -> None:
    machine, size = cases.switch(4), 4096
    best = synthesize(machine, "allreduce", size=size)
    assert best.schedule is not None
    time = simulate(best.schedule, size=size).time
    grain = best.bound.picoseconds(size) / 256  # times within it count as equal
    for method in set(methods()) - {"paths", "greedy"}:
        other = synthesize(machine, "allreduce", size=size, method=method).schedule
        assert other is not None and time <= simulate(other, size=size).time + grain


def test_same_seed_same_schedule() -> None:
    machine = cases.boxes(2, 3)
    first, second = (synthesize(machine, "allgather", seed=5).schedule for _ in range(2))
    assert first is not None and second is not None and first.content_hash() == second.content_hash()


def test_target_divisibility_limits_the_pieces() -> None:
    target = TARGETS["msccl-executor"]
    machine = load_topology("dgx-v100").subset([0, 1, 2, 3, 7])
    result = synthesize(machine, "allreduce", size=64 << 20, target=target)
    assert result.schedule is not None
    units = result.schedule.collective.payload_units
    assert units & (units - 1) == 0 and ((64 << 20) // 4) % units == 0
    # A shard of three elements: only one piece divides it.
    odd = synthesize(machine, "allgather", size=5 * 4 * 3, target=target)
    assert odd.chunks_per_rank == 1
    with pytest.raises(RefusedError, match="multiple"):
        synthesize(machine, "allgather", size=5 * 4 * 3, target=target, chunks=2)


def test_chunks_and_units_are_respected() -> None:
    machine = cases.switch(4)
    assert synthesize(machine, "allgather", chunks=3).chunks_per_rank == 3
    assert synthesize(machine, collectives.allgather(4, 3)).chunks_per_rank == 3
    limited = synthesize(machine, "broadcast", max_units=5).schedule
    assert limited is not None and limited.collective.payload_units <= 5


def test_uneven_shards() -> None:
    result = synthesize(cases.switch(4), collectives.allgather(4, weights=[1, 0, 3, 2]))
    assert result.schedule is not None and verify(result.schedule).ok
    assert result.makespan_ratio is not None and result.makespan_ratio >= 1


def test_errors_are_named() -> None:
    machine = cases.switch(4)
    with pytest.raises(InputError, match="unknown method"):
        synthesize(machine, "allgather", method="nothing")
    with pytest.raises(InputError, match="unknown collective"):
        synthesize(machine, "allthings")
    with pytest.raises(RefusedError, match="power of two"):
        synthesize(cases.switch(5, capacity=60), "allgather", method="halving-doubling")
    with pytest.raises(RefusedError, match="exact"):
        synthesize(machine, "allgather", method="ring", exact=True)
    with pytest.raises(TimeLimitError):
        synthesize(cases.boxes(2, 3), "allgather", time_limit=1e-9)
    with pytest.raises(DisconnectedError):
        synthesize(cases.direct("dead end", 2, {(0, 1): 50}), "allgather")
    unknown = Topology.build(
        "unknown", [Vertex("a", rank=0), Vertex("b", rank=1)], [Link(0, 1, None), Link(1, 0, None)]
    )
    with pytest.raises(UnknownSpeedError):
        synthesize(unknown, "allgather")
