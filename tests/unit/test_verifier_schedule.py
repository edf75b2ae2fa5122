"""The prover of schedules: right ones pass, each kind of fault is named."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collsynth.collective import Collective, allgather, allreduce, alltoall, broadcast, reduce_scatter
from collsynth.errors import InputError, VerificationError
from collsynth.schedule import Schedule, SymmetryElement, Transfer
from collsynth.topology import Capability, Link, Topology, Vertex, VertexKind
from collsynth.verifier import require_verified, verify


def ring(nranks: int) -> Topology:
    """Link r goes from rank r to rank r + 1."""
    return Topology.build(
        "ring", [Vertex(f"gpu{r}", rank=r) for r in range(nranks)],
        [Link(r, (r + 1) % nranks, 10**9) for r in range(nranks)],
    )  # fmt: skip


def star(nranks: int, capability: Capability = Capability.NONE) -> Topology:
    """Ranks around one switch: link 2r enters it from rank r, link 2r + 1 leaves it to rank r."""
    vertices = [Vertex(f"gpu{r}", rank=r) for r in range(nranks)]
    vertices.append(Vertex("switch", VertexKind.SWITCH, capability=capability))
    links = [Link(*ends, 10**9) for r in range(nranks) for ends in ((r, nranks), (nranks, r))]
    return Topology.build("star", vertices, links)


def ring_rows(nranks: int, phases: tuple[bool, ...]) -> list[Transfer]:
    """Reduce-scatter (True) and allgather (False) phases of the ring on one chunk a rank."""
    rows, level = [], 0
    for reducing in phases:
        for step in range(nranks - 1):
            for rank in range(nranks):
                chunk = (rank - step - 1 if reducing else rank - step) % nranks
                rows.append(Transfer(chunk, rank, (rank + 1) % nranks, reducing, level, (rank,)))
            level += 1
    return rows


def ring_schedule(collective: Collective) -> Schedule:
    phases = {"allgather": (False,), "reducescatter": (True,), "allreduce": (True, False)}[collective.name]
    return Schedule.build(ring(collective.nranks), collective, ring_rows(collective.nranks, phases))


def codes(schedule: Schedule) -> set[str]:
    return {f.code for f in verify(schedule).findings}


@pytest.mark.parametrize("nranks", [2, 3, 5, 70])
@pytest.mark.parametrize("make", [allgather, reduce_scatter, allreduce])
def test_ring_is_right(make, nranks: int) -> None:
    schedule = ring_schedule(make(nranks))
    report = verify(schedule)
    assert report.ok and not report.findings
    assert report.stamp == schedule.content_hash()
    assert require_verified(schedule) is verify(schedule), "a verdict is given once"


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_single_change_of_a_minimal_ring_is_refused(data: st.DataObject) -> None:
    """The ring has no row to spare, so dropping or turning any one row must be found."""
    collective = data.draw(st.sampled_from([allgather, reduce_scatter, allreduce]))(data.draw(st.integers(2, 6)))
    rows = list(ring_schedule(collective).rows())
    index = data.draw(st.integers(0, len(rows) - 1))
    row = rows[index]
    change = data.draw(st.sampled_from(["drop", "chunk", "kind", "level", "twice"]))
    if change == "drop":
        del rows[index]
    elif change == "chunk":
        rows[index] = Transfer((row.chunk + 1) % collective.nchunks, row.src, row.dst, row.reduce, row.level, row.route)
    elif change == "kind":
        rows[index] = Transfer(row.chunk, row.src, row.dst, not row.reduce, row.level, row.route)
    elif change == "level":
        rows[index] = Transfer(row.chunk, row.src, row.dst, row.reduce, row.level + 50, row.route)
    else:
        rows.append(Transfer(row.chunk, row.src, row.dst, row.reduce, row.level + 50, row.route))
    report = verify(Schedule.build(ring(collective.nranks), collective, rows))
    harmless = not row.reduce and (change == "twice" or (change == "level" and _is_last(rows, row)))
    harmless |= row.reduce and change == "level" and collective.name == "reducescatter" and _is_last(rows, row)
    assert report.ok == harmless, report.findings


def _is_last(rows: list[Transfer], row: Transfer) -> bool:
    """Nothing sends the chunk on from where `row` brings it."""
    return not any(r.chunk == row.chunk and r.src == row.dst and r.level > row.level for r in rows)


def test_brute_force_agrees() -> None:
    """Random rows on three ranks: the verdict equals a literal execution of the definition."""
    rng = np.random.default_rng(7)
    topology = Topology.build(
        "full", [Vertex(f"gpu{r}", rank=r) for r in range(3)],
        [Link(a, b, 10**9) for a in range(3) for b in range(3) if a != b],
    )  # fmt: skip
    link = {(int(a), int(b)): i for i, (a, b) in enumerate(zip(topology.link_src, topology.link_dst, strict=True))}
    seen = set()
    for _ in range(1500):
        collective = allreduce(3, weights=[1, 0, 0])
        rows = []
        for _ in range(rng.integers(3, 6)):
            src = int(rng.integers(3))
            dst = (src + int(rng.integers(1, 3))) % 3
            rows.append(Transfer(0, src, dst, bool(rng.integers(2)), int(rng.integers(4)), (link[src, dst],)))
        verdict = verify(Schedule.build(topology, collective, rows)).ok
        assert verdict == _literal(rows), rows
        seen.add(verdict)
    assert seen == {True, False}


def _literal(rows: list[Transfer]) -> bool:
    value = [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    for level in range(4):
        now = [r for r in rows if r.level == level]
        for dst in range(3):
            here = [r for r in now if r.dst == dst]
            mixed = any(r.reduce for r in here) and not all(r.reduce for r in here)
            unlike = len({tuple(value[r.src]) for r in here if not r.reduce}) > 1
            if mixed or unlike:
                return False
        sent = [(r, list(value[r.src])) for r in now]
        for row, terms in sent:
            if row.reduce:
                value[row.dst] = [a + b for a, b in zip(value[row.dst], terms, strict=True)]
                if max(value[row.dst]) > 1:
                    return False
            else:
                value[row.dst] = terms
    return value == [[1, 1, 1]] * 3


def test_routes_must_be_paths_through_switches() -> None:
    collective = broadcast(3)
    good = [Transfer(0, 0, 1, False, 0, (0, 3)), Transfer(0, 0, 2, False, 0, (0, 5))]
    assert verify(Schedule.build(star(3), collective, good)).ok
    for route in ((), (0,), (3,), (0, 5), (3, 0), (0, 3, 2, 3)):
        rows = [Transfer(0, 0, 1, False, 0, route), good[1]]
        assert "E-ROUTE" in codes(Schedule.build(star(3), collective, rows)), route
    rows = [Transfer(0, 0, 1, False, 0, (0,)), Transfer(0, 0, 2, False, 0, (0, 1))]
    finding = next(f for f in verify(Schedule.build(ring(3), collective, rows)).findings)
    assert finding.code == "E-ROUTE" and "through a rank" in finding.message


def test_findings_name_rank_and_level() -> None:
    rows = [Transfer(0, 0, 1, False, 0, (0,)), Transfer(0, 1, 2, False, 0, (1,))]
    findings = verify(Schedule.build(ring(3), broadcast(3), rows)).findings
    assert [(f.code, f.rank, f.step) for f in findings] == [("E-ABSENT", 1, 0), ("E-POST", 2, 0)]


def test_lost_terms_name_the_copy() -> None:
    rows = [Transfer(0, 0, 1, False, 0, (0,)), Transfer(0, 1, 0, True, 1, (1,))]
    findings = verify(Schedule.build(ring(2), allreduce(2, weights=[1, 0]), rows)).findings
    assert any(f.code == "E-POST" and "overwrote" in f.message and f.rank == 1 for f in findings)


def test_alltoall_own_slices_need_no_rows() -> None:
    topology = star(3)
    rows = [
        Transfer(3 * s + d, s, d, False, 0, (2 * s, 2 * d + 1)) for s in range(3) for d in range(3) if s != d
    ]  # fmt: skip
    assert verify(Schedule.build(topology, alltoall(3), rows)).ok
    assert codes(Schedule.build(topology, alltoall(3), rows[1:])) == {"E-POST"}


def test_multicast_groups_need_a_switch_that_can() -> None:
    rows = [Transfer(0, 0, d, False, 0, (0, 2 * d + 1)) for d in (1, 2)]
    for capability, expected in ((Capability.NONE, {"E-GROUP"}), (Capability.MULTICAST, set())):
        plain = Schedule.build(star(3, capability), broadcast(3), rows)
        grouped = Schedule(
            plain.topology, plain.collective, plain.chunk, plain.src, plain.dst, plain.reduce, plain.level,
            plain.route_ptr, plain.route_links, group=np.zeros(2, dtype=np.int64),
        )  # fmt: skip
        assert codes(grouped) == expected


def test_orbit_form_is_expanded_and_proven() -> None:
    full = ring_schedule(allgather(4))
    keep = np.flatnonzero(full.src == 0)
    turn = np.roll(np.arange(4), -1)

    def orbit(chunks: np.ndarray) -> Schedule:
        return Schedule(
            full.topology, full.collective, full.chunk[keep], full.src[keep], full.dst[keep], full.reduce[keep],
            full.level[keep], np.arange(len(keep) + 1), np.zeros(len(keep), dtype=np.int64),
            generators=(SymmetryElement(turn, chunks),),
        )  # fmt: skip

    assert verify(orbit(turn)).ok
    assert not verify(orbit(np.roll(turn, 1))).ok


def test_other_collective_is_refused() -> None:
    schedule = ring_schedule(allgather(3))
    assert not verify(schedule, collective="allreduce").ok
    assert verify(schedule, collective="all_gather").ok
    with pytest.raises(InputError):
        verify("no schedule")  # type: ignore[arg-type]
    with pytest.raises(VerificationError) as caught:
        require_verified(Schedule.build(ring(3), allgather(3), schedule.rows()[1:]))
    assert caught.value.findings


def test_batches_give_the_same_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = ring_schedule(allreduce(5))
    broken = Schedule.build(schedule.topology, schedule.collective, schedule.rows()[:-1])
    expected = [(f.code, f.rank, f.step) for f in verify(broken).findings]
    monkeypatch.setattr("collsynth.verifier.schedule._STATE_WORDS", 5)
    monkeypatch.setattr("collsynth.verifier._CACHE", OrderedDict())
    assert [(f.code, f.rank, f.step) for f in verify(broken).findings] == expected
