"""Orbit form is proven without writing it out, with the verdict and loads of the written-out schedule."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collsynth.collective import Collective, allgather, allreduce, alltoall, broadcast, reduce_scatter
from collsynth.schedule import Schedule, SymmetryElement
from collsynth.topology import Link, Topology, Vertex
from collsynth.verifier import schedule as prover
from collsynth.verifier import verify
from collsynth.verifier.orbits import Symmetry, link_units


def torus(sides: Sequence[int], *, parallel: int = 1, odd_link: bool = False) -> Topology:
    """Links both ways along every side (`parallel` of them), link ids in order of direction, rank and copy."""
    ids = np.arange(int(np.prod(sides))).reshape(sides)
    links = []
    for axis in range(len(sides)):
        for turn in (1, -1):
            target = np.roll(ids, -turn, axis).reshape(-1)
            links += [Link(r, int(t), 10**9) for r, t in enumerate(target) if r != t for _ in range(parallel)]
    if odd_link:
        links[0] = Link(links[0].src, links[0].dst, 2 * 10**9)
    return Topology.build("torus", [Vertex(f"gpu{r}", rank=r) for r in range(ids.size)], links)


def shifts(sides: Sequence[int], collective: Collective) -> tuple[SymmetryElement, ...]:
    """A turn along every side, with the chunks that go with it (chunks of one owner keep their order)."""
    ids = np.arange(int(np.prod(sides))).reshape(sides)
    found = []
    for axis in range(len(sides)):
        moved = np.roll(ids, -1, axis).reshape(-1)
        if collective.name == "alltoall":
            n = collective.nranks
            pair = np.arange(n * n)
            chunks = moved[pair // n] * n + moved[pair % n]
        else:
            each = collective.nchunks // collective.nranks
            chunks = moved[np.arange(collective.nchunks) // each] * each + np.arange(collective.nchunks) % each
        found.append(SymmetryElement(moved, chunks))
    return tuple(found)


def grown(topology: Topology, root: int, rng: random.Random) -> list[tuple[int, int, int, int]]:
    """A random spanning tree from a root: (parent, child, depth, link)."""
    inside, edges = {root: 0}, []
    while len(inside) < topology.nranks:
        choices = [
            (int(s), int(d), k) for k, (s, d) in enumerate(zip(topology.link_src, topology.link_dst, strict=True))
            if int(s) in inside and int(d) not in inside
        ]  # fmt: skip
        parent, child, link = rng.choice(choices)
        inside[child] = inside[parent] + 1
        edges.append((parent, child, inside[parent], link))
    return edges


def orbit_schedule(sides: Sequence[int], name: str, each: int, seed: int, spoil: str) -> Schedule:
    """Trees of the first rank's chunks under all shifts, each row moved by a random shift; maybe spoilt."""
    rng = random.Random(seed)
    topology = torus(sides, parallel=rng.choice((1, 2)), odd_link=spoil == "figure")
    collective = {"allgather": allgather, "reducescatter": reduce_scatter, "allreduce": allreduce}[name](
        topology.nranks, each
    )
    generators = shifts(sides, collective)
    back = {(int(s), int(d)): k for k, (s, d) in enumerate(zip(topology.link_src, topology.link_dst, strict=True))}
    rows: list[tuple[int, int, int, bool, int, int]] = []
    for chunk in range(each):
        edges = grown(topology, 0, rng)
        height = 1 + max((depth for _, _, depth, _ in edges), default=0)
        start = 0
        if collective.combining:
            rows += [(chunk, c, p, True, height - 1 - depth, back[c, p]) for p, c, depth, _ in edges]
            start = height
        if name != "reducescatter":
            rows += [(chunk, p, c, False, start + depth, link) for p, c, depth, link in edges]
    if spoil == "drop":
        del rows[rng.randrange(len(rows))]
    elif spoil == "level":
        k = rng.randrange(len(rows))
        rows[k] = (*rows[k][:4], rng.randrange(8), rows[k][5])
    elif spoil == "kind":
        k = rng.randrange(len(rows))
        rows[k] = (*rows[k][:3], not rows[k][3], *rows[k][4:])
    elif spoil == "twice":
        rows.append(rows[0])
    elif spoil == "route":
        k = rng.randrange(len(rows))
        rows[k] = (*rows[k][:5], rng.randrange(topology.nlinks))
    moved = []
    for chunk, src, dst, reduce, level, link in rows:
        for generator in generators:
            for _ in range(rng.randrange(4)):
                ends = int(topology.link_src[link]), int(topology.link_dst[link])
                link = back[int(generator.vertices[ends[0]]), int(generator.vertices[ends[1]])]
                chunk, src, dst = (
                    int(generator.chunks[chunk]),
                    int(generator.vertices[src]),
                    int(generator.vertices[dst]),
                )
        moved.append((chunk, src, dst, reduce, level, link))
    columns = np.array(moved, dtype=np.int64).reshape(len(moved), 6).T
    return Schedule(
        topology, collective, columns[0].copy(), columns[1].copy(), columns[2].copy(), columns[3].astype(bool),
        columns[4].copy(), np.arange(len(moved) + 1), columns[5].copy(), generators=generators,
    )  # fmt: skip


@settings(max_examples=120, deadline=None)
@given(
    sides=st.sampled_from([(3,), (5,), (3, 3), (3, 4), (3, 3, 3)]),
    name=st.sampled_from(["allgather", "reducescatter", "allreduce"]), each=st.integers(1, 2),
    seed=st.integers(0, 10**6), spoil=st.sampled_from(["", "", "drop", "level", "kind", "twice", "route", "figure"]),
)  # fmt: skip
def test_verdict_and_loads_are_those_of_all_rows(
    sides: tuple[int, ...], name: str, each: int, seed: int, spoil: str
) -> None:
    schedule = orbit_schedule(sides, name, each, seed, spoil)
    assert (Symmetry.of(schedule) is None) == (spoil == "figure")
    findings, depth = prover.check_schedule(schedule)
    codes = {f.code for f in findings}
    if spoil == "twice":
        assert codes == {"E-SYMMETRY"}
        return
    whole = schedule.expand()
    assert whole.nrows == schedule.nrows * schedule.topology.nranks
    expected, expected_depth = prover.check_schedule(whole)
    assert codes == {f.code for f in expected}
    assert codes or depth == expected_depth
    assert spoil or not codes
    if spoil != "route":
        units = np.zeros(schedule.topology.nlinks, dtype=np.int64)
        np.add.at(units, whole.route_links, whole.collective.weight[whole.chunk])
        # parallel links: what goes over either of them is the same, which one is a matter of the map
        ends = schedule.topology.link_src * schedule.topology.nranks + schedule.topology.link_dst
        assert np.array_equal(np.bincount(ends, units), np.bincount(ends, link_units(schedule)))


def test_groups_that_fix_chunks_are_written_out() -> None:
    """A turn that keeps the broadcast's only chunk does not act freely on chunks; the rows still form orbits."""
    topology = Topology.build(
        "star", [Vertex(f"gpu{r}", rank=r) for r in range(5)], [Link(0, r, 10**9) for r in range(1, 5)]
    )
    turn = np.array([0, 2, 3, 4, 1])
    schedule = Schedule(
        topology, broadcast(5), np.zeros(1, np.int64), np.zeros(1, np.int64), np.ones(1, np.int64),
        np.zeros(1, bool), np.zeros(1, np.int64), np.array([0, 1]), np.zeros(1, np.int64),
        generators=(SymmetryElement(turn, np.zeros(1, np.int64)),),
    )  # fmt: skip
    assert Symmetry.of(schedule) is None and verify(schedule).ok
    assert link_units(schedule).tolist() == [1, 1, 1, 1]


def test_hidden_elements_that_fix_chunks_are_noticed() -> None:
    """Twice the second generator fixes all chunks but moves ranks apart: the group is larger than the orbits."""
    topology = torus((4,))
    collective = allgather(4)
    turn = np.array([1, 2, 3, 0])
    wrong = SymmetryElement(turn, np.array([2, 3, 0, 1]))
    schedule = Schedule(
        topology, collective, np.zeros(1, np.int64), np.zeros(1, np.int64), np.ones(1, np.int64), np.zeros(1, bool),
        np.zeros(1, np.int64), np.array([0, 1]), np.zeros(1, np.int64),
        generators=(SymmetryElement(turn, turn), wrong),
    )  # fmt: skip
    assert Symmetry.of(schedule) is None and not verify(schedule).ok


def test_alltoall_has_an_orbit_for_each_distance() -> None:
    sides, n = (4,), 4
    topology, collective = torus(sides), alltoall(4)
    rows = [(d, k, k + 1, k) for d in range(1, n) for k in range(d)]  # chunk 0 -> d in d hops to the right
    columns = np.array(rows, dtype=np.int64).T
    schedule = Schedule(
        topology, collective, columns[0].copy(), columns[1].copy(), columns[2].copy(), np.zeros(len(rows), bool),
        columns[1].copy(), np.arange(len(rows) + 1), columns[3].copy(), generators=shifts(sides, collective),
    )  # fmt: skip
    symmetry = Symmetry.of(schedule)
    assert symmetry is not None and len(np.unique(symmetry.chunks.root)) == n
    assert verify(schedule).ok and verify(schedule.expand()).ok


def test_ten_thousand_ranks_are_not_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A 100 x 100 torus: one chunk goes along the first side, then along the second; 9 999 rows stand for 1e8."""
    side = 100
    n = side * side
    ids = np.arange(n).reshape(side, side)
    topology, collective = torus((side, side)), allgather(n)
    src = np.concatenate((ids[:-1, 0], ids[:, :-1].reshape(-1)))
    dst = np.concatenate((ids[1:, 0], ids[:, 1:].reshape(-1)))
    level = src // side + src % side
    link = np.concatenate((ids[:-1, 0], 2 * n + ids[:, :-1].reshape(-1)))  # links 0.. go down, 2n.. go right
    schedule = Schedule(
        topology, collective, np.zeros(n - 1, np.int64), src, dst, np.zeros(n - 1, bool), level, np.arange(n), link,
        generators=shifts((side, side), collective),
    )  # fmt: skip
    monkeypatch.setattr(Schedule, "expand", lambda _: pytest.fail("written out"))
    assert verify(schedule).ok
    assert link_units(schedule)[[0, 2 * n]].tolist() == [side - 1, n - side]


def test_groups_too_large_to_write_out_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = orbit_schedule((3, 4), "allgather", 1, 0, "figure")
    monkeypatch.setattr(prover, "MAX_EXPANDED_ROWS", 10)
    assert {f.code for f in prover.check_schedule(schedule)[0]} == {"E-SYMMETRY"}
