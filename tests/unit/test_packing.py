"""Forests: every tree is checked from its routes, every rate against the bound by all cuts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collsynth.errors import DisconnectedError, InputError, UnknownSpeedError
from collsynth.formats import load_topology
from collsynth.synth.forest import Tree
from collsynth.synth.forests import PackedForest, pack_forest
from collsynth.topology import Link, Topology, Vertex, VertexKind

GB = 10**9


def machine(
    nranks: int, nswitches: int, links: list[tuple[int, int, int]], name: str = "t", unit: int = GB
) -> Topology:
    """Directed links (src, dst, bandwidth in units); vertices nranks.. are switches."""
    vertices = [Vertex(f"gpu:{r}", rank=r) for r in range(nranks)]
    vertices += [Vertex(f"switch:{s}", VertexKind.SWITCH) for s in range(nswitches)]
    return Topology.build(name, vertices, [Link(u, v, b * unit) for u, v, b in links])


def both_ways(links: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    return links + [(v, u, b) for u, v, b in links]


def without(topology: Topology, *pairs: tuple[int, int]) -> Topology:
    """The machine without the links between these pairs of vertices."""
    gone = {*pairs, *((v, u) for u, v in pairs)}
    kept = [link for link in topology.links() if (link.src, link.dst) not in gone]
    assert len(kept) < topology.nlinks
    return Topology.build(topology.name + "-", topology.vertices, kept)


def check(topology: Topology, packed: PackedForest) -> None:
    """Trees span, routes are real and avoid ranks, roots have their pieces, and the rate is what links carry."""
    load: Counter[int] = Counter()
    for trees, reduce in ((packed.forest.broadcast, False), (packed.forest.reduce, True)):
        roots: Counter[int] = Counter()
        for tree in trees:
            check_tree(topology, tree, reduce)
            roots[tree.root] += tree.multiplicity
            for edge in tree.edges:
                for link in edge.route:
                    load[link] += tree.multiplicity
        if trees:
            assert [roots[r] for r in range(topology.nranks)] == packed.pieces_per_root
    pieces = sum(packed.pieces_per_root)
    busiest = Fraction(0)
    for capacity, members in topology.capacity_groups():
        busiest = max(busiest, Fraction(sum(load[int(link)] for link in members), capacity))
    assert packed.rate == busiest / pieces
    assert packed.rate >= packed.bound
    assert packed.optimal == (packed.rate == packed.bound)


def check_tree(topology: Topology, tree: Tree, reduce: bool) -> None:
    assert tree.reduce == reduce and tree.multiplicity > 0
    reached = {tree.root}
    for edge in tree.edges:
        assert edge.parent in reached and edge.child not in reached
        reached.add(edge.child)
        at, end = (edge.child, edge.parent) if reduce else (edge.parent, edge.child)
        for position, link in enumerate(edge.route):
            assert topology.link_src[link] == at
            at = int(topology.link_dst[link])
            assert position == len(edge.route) - 1 or at >= topology.nranks
        assert at == end
    assert reached == set(range(topology.nranks))


def cut_bound(topology: Topology, weights: list[int]) -> Fraction:
    """Seconds per byte that some set of vertices forces, by trying all of them."""
    worst = Fraction(0)
    everyone = range(len(topology.vertices))
    for size in range(1, len(topology.vertices)):
        for inside in map(set, combinations(everyone, size)):
            if any(v < topology.nranks for v in inside):
                wide = sum(k.bandwidth or 0 for k in topology.links() if k.dst in inside and k.src not in inside)
                demand = sum(w for r, w in enumerate(weights) if r not in inside)
                if demand:
                    worst = max(worst, Fraction(demand, wide * sum(weights)))
    return worst


# --- machines with known optima ---------------------------------------------------------------


def dgx1_without_a_link() -> Topology:
    """One of the two links between a pair is down."""
    topology = load_topology("dgx-v100")
    double = next(k for k in topology.links() if k.bandwidth == 50 * GB)
    ends = {double.src, double.dst}
    links = [replace(k, bandwidth=25 * GB) if {k.src, k.dst} == ends else k for k in topology.links()]
    return Topology.build("dgx1-minus-a-link", topology.vertices, links)


def nic_missing(name: str) -> Topology:
    topology = load_topology(name)
    nic = next(i for i, v in enumerate(topology.vertices) if v.kind is VertexKind.NIC)
    pairs = [(k.src, k.dst) for k in topology.links() if nic in (k.src, k.dst)]
    return without(topology, *pairs)


MACHINES = {
    "dgx-v100": lambda: load_topology("dgx-v100"),
    "dgx-v100 {0,1,2,3,7}": lambda: load_topology("dgx-v100").subset([0, 1, 2, 3, 7]),
    "dgx-v100 {0,1,2}": lambda: load_topology("dgx-v100").subset([0, 1, 2]),
    "dgx-v100 {0..5}": lambda: load_topology("dgx-v100").subset(range(6)),
    "dgx-v100 {0..6}": lambda: load_topology("dgx-v100").subset(range(7)),
    "dgx-v100 minus a link": dgx1_without_a_link,
    "dgx-a100": lambda: load_topology("dgx-a100"),
    "dgx-a100:nodes=2": lambda: load_topology("dgx-a100:nodes=2"),
    "dgx-h100:nodes=2": lambda: load_topology("dgx-h100:nodes=2"),
    "dgx-a100:nodes=4": lambda: load_topology("dgx-a100:nodes=4"),
    "dgx-a100:nodes=2 NIC missing": lambda: nic_missing("dgx-a100:nodes=2"),
    "dgx-h100:nodes=4 three GPUs missing": lambda: load_topology("dgx-h100:nodes=4").subset(
        [r for r in range(32) if r not in (0, 8, 9)]
    ),
    "mi250": lambda: load_topology("mi250"),
    "mesh:4x4": lambda: load_topology("mesh:4x4"),
    "torus:4x4": lambda: load_topology("torus:4x4"),
    "torus:4x4 minus a link": lambda: without(load_topology("torus:4x4"), (0, 1)),
    "hypercube:4": lambda: load_topology("hypercube:4"),
}

#: AllReduce algorithm bandwidth in GB/s and its gain over ReduceScatter + AllGather.
ALLREDUCE = {
    "dgx-v100": (Fraction(600, 7), 1),
    "dgx-v100 {0,1,2,3,7}": (25, Fraction(8, 5)),
    "dgx-v100 {0,1,2}": (50, Fraction(4, 3)),
    "dgx-v100 {0..5}": (Fraction(125, 2), Fraction(25, 18)),
    "dgx-v100 {0..6}": (75, Fraction(9, 7)),
    "dgx-v100 minus a link": (Fraction(575, 7), Fraction(23, 20)),
    "dgx-a100": (Fraction(1200, 7), 1),
    "dgx-a100:nodes=2": (Fraction(520, 3), 1),
    "dgx-h100:nodes=2": (Fraction(800, 3), 1),
    "dgx-a100:nodes=2 NIC missing": (Fraction(515, 3), Fraction(103, 96)),
    "dgx-h100:nodes=4 three GPUs missing": (Fraction(725, 3), Fraction(23, 18)),
    "mi250": (Fraction(1200, 7), 1),
    "mesh:4x4": (80, Fraction(3, 2)),
    "torus:4x4": (Fraction(320, 3), 1),
    "torus:4x4 minus a link": (Fraction(310, 3), Fraction(31, 24)),
}


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("collective", ["allgather", "reducescatter"])
def test_exact_rate_is_reached(name: str, collective: str) -> None:
    topology = MACHINES[name]()
    packed = pack_forest(topology, collective, exact=True)
    check(topology, packed)
    assert packed.optimal and not packed.note


@pytest.mark.parametrize("name", ALLREDUCE)
def test_allreduce_reaches_its_own_optimum(name: str) -> None:
    topology = MACHINES[name]()
    algbw, gain = ALLREDUCE[name]
    packed = pack_forest(topology, "allreduce", exact=True)
    check(topology, packed)
    assert packed.optimal and not packed.note
    assert sum(packed.pieces_per_root) >= topology.nranks
    assert 1 / packed.rate == algbw * GB
    in_turn = sum(pack_forest(topology, c, exact=True).rate for c in ("allgather", "reducescatter"))
    assert in_turn / packed.rate == gain


@pytest.mark.parametrize("name", ["dgx-v100 minus a link", "mesh:4x4", "dgx-a100:nodes=2 NIC missing"])
@pytest.mark.parametrize("pieces", [64, 128])
def test_allreduce_with_a_power_of_two_of_pieces_comes_close(name: str, pieces: int) -> None:
    topology = MACHINES[name]()
    packed = pack_forest(topology, "allreduce", pieces=pieces)
    check(topology, packed)
    assert sum(packed.pieces_per_root) == pieces
    assert packed.rate <= packed.bound * Fraction(108, 100)


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
@pytest.mark.parametrize(
    ("name", "algbw"),
    [("dgx-v100", 150), ("dgx-a100:nodes=2", 200), ("mi250", 300), ("mesh:4x4", 100), ("torus:4x4", 200)],
)
def test_rooted_collectives_reach_the_least_cut(collective: str, name: str, algbw: int) -> None:
    topology = MACHINES[name]()
    packed = pack_forest(topology, collective, root=3, exact=True)
    check(topology, packed)
    assert packed.optimal
    assert 1 / packed.rate == algbw * GB
    assert [r for r, pieces in enumerate(packed.pieces_per_root) if pieces] == [3]


#: Ratio to the exact rate at k pieces a rank (k = 1, 2, 3, 4, 8), as published in the study of this method.
FIXED = {
    "dgx-v100": (1.286, 1.071, 1.143, 1.071, 1.018),
    "dgx-v100 minus a link": (1.429, 1.071, 1.071, 1.071, 1.027),
    "dgx-v100 {0..6}": (1.333, 1.000, 1.111, 1.000, 1.000),
    "mi250": (1.286, 1.071, 1.000, 1.071, 1.018),
    "dgx-a100:nodes=2": (1.011, 1.011, 1.011, 1.011, 1.002),
    "dgx-h100:nodes=2": (1.037, 1.000, 1.012, 1.000, 1.000),
}


@pytest.mark.parametrize("name", FIXED)
def test_fixed_number_of_pieces(name: str) -> None:
    topology = MACHINES[name]()
    for pieces, ratio in zip((1, 2, 3, 4, 8), FIXED[name], strict=True):
        packed = pack_forest(topology, "allgather", pieces=pieces)
        check(topology, packed)
        assert packed.pieces_per_root == [pieces] * topology.nranks
        assert float(packed.rate / packed.bound) <= ratio + 1e-3


def test_trees_stay_shallow() -> None:
    """A switch must not become a ring, and a torus must stay near its diameter."""
    for name, height in (("dgx-a100", 1), ("dgx-a100:nodes=4", 2), ("torus:4x4", 5)):
        packed = pack_forest(load_topology(name), "allgather", exact=True)
        assert max(tree.height() for tree in packed.forest.broadcast) <= height


def test_central_roots_keep_allreduce_shallow() -> None:
    packed = pack_forest(load_topology("mesh:4x4"), "allreduce", pieces=64)
    assert packed.optimal
    assert max(tree.height() for tree in (*packed.forest.broadcast, *packed.forest.reduce)) <= 7


def test_same_answer_twice() -> None:
    topology = load_topology("dgx-a100:nodes=2")
    assert pack_forest(topology, "allreduce", pieces=64).forest.broadcast == (
        pack_forest(topology, "allreduce", pieces=64).forest.broadcast
    )


# --- inputs: weights, splits, odd machines ----------------------------------------------------


def test_uneven_shards() -> None:
    topology = load_topology("dgx-v100")
    weights = [3, 1, 0, 2, 1, 1, 5, 1]
    for collective in ("allgather", "reducescatter", "allreduce"):
        packed = pack_forest(topology, collective, weights=weights, exact=collective != "allreduce", pieces=2)
        check(topology, packed)
        factor = packed.pieces_per_root[1]
        assert packed.pieces_per_root == [w * factor for w in weights]
    assert pack_forest(topology, "allgather", weights=weights, exact=True).bound == cut_bound(topology, weights)


def test_given_split_is_kept() -> None:
    topology = load_topology("mesh:3x3")
    half = [Fraction(int(b), 2) for b in topology.link_bandwidth]
    packed = pack_forest(topology, "allreduce", split=(half, half), pieces=4)
    check(topology, packed)
    both = pack_forest(topology, "allgather", pieces=4).rate + pack_forest(topology, "reducescatter", pieces=4).rate
    assert packed.rate <= both
    with pytest.raises(InputError, match="more than its bandwidth"):
        pack_forest(topology, "allreduce", split=(topology.link_bandwidth, half))


def test_vertex_capacity_limits_and_leaves_no_trace() -> None:
    """Two GPUs behind one NIC: the NIC's port is shared, its internal link is in no route."""
    vertices = [Vertex(f"gpu:{r}", rank=r) for r in range(4)]
    vertices += [Vertex(f"nic:{i}", VertexKind.NIC, in_capacity=10 * GB, out_capacity=10 * GB) for i in range(2)]
    links = both_ways([(0, 4, 25), (1, 4, 25), (2, 5, 25), (3, 5, 25), (4, 5, 25), (0, 1, 50), (2, 3, 50)])
    topology = Topology.build("shared", vertices, [Link(u, v, b * GB) for u, v, b in links])
    for collective in ("allgather", "reducescatter", "allreduce"):
        packed = pack_forest(topology, collective, exact=True)
        check(topology, packed)
        assert packed.optimal
    # Half of the payload enters each NIC from either side.
    assert pack_forest(topology, "allgather", exact=True).rate == Fraction(1, 10 * GB)


def test_unround_bandwidths_are_rounded_and_said() -> None:
    links = both_ways([(0, 1, 23_700_000_001), (1, 2, 11_999_999_987), (0, 2, 7_000_000_019)])
    topology = machine(3, 0, links, unit=1)
    packed = pack_forest(topology, "allgather", exact=True, max_pieces=64)
    check(topology, packed)
    assert packed.rate <= packed.bound * Fraction(102, 100)
    assert packed.optimal or "64" in packed.note
    check(topology, pack_forest(topology, "allreduce", pieces=32))


def test_a_switch_that_takes_in_less_than_it_could_give() -> None:
    """Cuts are too hopeful where a switch would have to copy: the bound is that of forwarding switches."""
    links = [(r, 4, 1) for r in range(4)] + [(4, r, 3) for r in range(4)]
    topology = machine(4, 1, links)
    for collective in ("allgather", "reducescatter", "allreduce", "broadcast"):
        packed = pack_forest(topology, collective, pieces=4)
        check(topology, packed)
    packed = pack_forest(topology, "allgather", exact=True)
    assert packed.rate == Fraction(3, 4 * GB) and packed.optimal
    links = [(r, 4, 2 if r else 1) for r in range(4)] + [(4, r, 2) for r in range(4)]
    packed = pack_forest(machine(4, 1, links), "allgather", exact=True)
    assert packed.rate == Fraction(12, 4 * 7 * GB) and packed.optimal and "switch" in packed.note


def test_one_rank_needs_nothing() -> None:
    topology = machine(1, 0, [])
    packed = pack_forest(topology, "allreduce")
    assert packed.rate == 0 and packed.optimal and packed.pieces_per_root == [1]


def test_errors() -> None:
    pair = machine(2, 0, both_ways([(0, 1, 1)]))
    with pytest.raises(InputError, match="no forests"):
        pack_forest(pair, "alltoall")
    with pytest.raises(InputError, match="root 2"):
        pack_forest(pair, "broadcast", root=2)
    with pytest.raises(InputError, match="weights"):
        pack_forest(pair, "allgather", weights=[1])
    with pytest.raises(InputError, match="0 pieces"):
        pack_forest(pair, "allgather", pieces=0)
    one_way = machine(3, 0, [(0, 1, 1), (1, 2, 1), (2, 1, 1)])
    for collective in ("allgather", "reducescatter", "allreduce", "reduce"):
        with pytest.raises(DisconnectedError):
            pack_forest(one_way, collective)
    assert pack_forest(one_way, "broadcast", exact=True).optimal
    unknown = Topology.build("u", pair.vertices, [Link(0, 1, None), Link(1, 0, GB)])
    with pytest.raises(UnknownSpeedError):
        pack_forest(unknown, "allgather")


# --- random machines --------------------------------------------------------------------------


@st.composite
def direct_machines(draw: st.DrawFn) -> Topology:
    """Strongly connected: a ring, and more links of any direction and width."""
    n = draw(st.integers(2, 6))
    links = [(r, (r + 1) % n, draw(st.integers(1, 4))) for r in range(n)]
    pairs = [(u, v) for u in range(n) for v in range(n) if u != v]
    links += [(u, v, draw(st.integers(1, 4))) for u, v in draw(st.lists(st.sampled_from(pairs), max_size=8))]
    return machine(n, 0, links)


@st.composite
def switched_machines(draw: st.DrawFn) -> Topology:
    """Links as wide one way as the other, every rank at some switch, switches in a line."""
    n, s = draw(st.integers(2, 5)), draw(st.integers(1, 3))
    width = st.integers(1, 4)
    links = [(r, n + draw(st.integers(0, s - 1)), draw(width)) for r in range(n)]
    links += [(n + i, n + i + 1, draw(width)) for i in range(s - 1)]
    pairs = [(u, v) for u in range(n) for v in range(u + 1, n + s)]
    links += [(u, v, draw(width)) for u, v in draw(st.lists(st.sampled_from(pairs), max_size=5))]
    return machine(n, s, both_ways(links))


@settings(max_examples=40, deadline=None)
@given(st.one_of(direct_machines(), switched_machines()), st.data())
def test_random_machines_reach_the_cut_bound(topology: Topology, data: st.DataObject) -> None:
    weights = data.draw(st.lists(st.integers(0, 3), min_size=topology.nranks, max_size=topology.nranks).filter(any))
    packed = pack_forest(topology, "allgather", weights=weights, exact=True)
    check(topology, packed)
    assert packed.bound == cut_bound(topology, weights) and packed.optimal
    packed = pack_forest(topology, "reducescatter", weights=weights, pieces=data.draw(st.integers(1, 3)))
    check(topology, packed)
    assert packed.bound == cut_bound(topology.reverse(), weights)


@settings(max_examples=25, deadline=None)
@given(st.one_of(direct_machines(), switched_machines()))
def test_random_machines_allreduce(topology: Topology) -> None:
    packed = pack_forest(topology, "allreduce", exact=True)
    check(topology, packed)
    assert packed.optimal
    in_turn = sum(pack_forest(topology, c, exact=True).rate for c in ("allgather", "reducescatter"))
    assert packed.rate <= in_turn
