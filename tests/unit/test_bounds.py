"""Bounds: arguments, errors, latency, certificates, max-flow and the verb."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import bounds_oracles as oracle
import networkx as nx
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from collsynth import collective as coll
from collsynth.bounds import Bound, Certificate, bound, check_certificate, latency_bound
from collsynth.bounds.maxflow import FlowNetwork
from collsynth.bounds.tree_lp import solve
from collsynth.cli import main
from collsynth.errors import DisconnectedError, InputError, UnknownSpeedError
from collsynth.formats import load_topology
from collsynth.topology import Link, Topology, Vertex, VertexKind

GB = oracle.GB
NAMES = coll.COLLECTIVES


def line(n: int, *, one_way: bool = False) -> Topology:
    links = [(i, i + 1, 10 * GB) for i in range(n - 1)]
    return oracle.machine(n, links, both_ways=not one_way)


# --- arguments and errors ---------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_one_rank_needs_no_time(name: str) -> None:
    topology = oracle.machine(1, [])
    found = bound(topology, name)
    assert found.seconds_per_byte == 0 == found.latency and found.algbw is None
    assert check_certificate(topology, found)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_and_its_collective_give_the_same_bound(name: str) -> None:
    topology = load_topology("dgx-v100").subset(range(6))
    for chunks in (1, 3):
        by_type = bound(topology, coll.make(name, 6, chunks))
        assert by_type == bound(topology, name)


def test_disconnected_machines_are_named() -> None:
    with pytest.raises(DisconnectedError, match=r"nothing leads from gpu:[12] to gpu:[01]"):
        bound(line(3, one_way=True), "allgather")
    for name in NAMES:
        with pytest.raises(DisconnectedError):
            bound(oracle.machine(4, [(0, 1, GB), (2, 3, GB)], both_ways=True), name)
    # A broadcast needs one direction only.
    assert bound(line(3, one_way=True), "broadcast").seconds_per_byte == Fraction(1, 10 * GB)
    assert bound(line(3, one_way=True), "reduce", root=2).seconds_per_byte == Fraction(1, 10 * GB)
    with pytest.raises(DisconnectedError, match=r"from gpu:[12] to gpu:0"):
        bound(line(3, one_way=True), "reduce", root=0)


def test_wrong_arguments() -> None:
    topology = line(3)
    for root in (3, -1):
        with pytest.raises(InputError, match=rf"root {root} is out of range; expected 0\.\.2"):
            bound(topology, "broadcast", root=root)
    with pytest.raises(InputError, match="allgather has no root"):
        bound(topology, "allgather", root=0)
    with pytest.raises(InputError, match="for 4 ranks, the topology has 3"):
        bound(topology, coll.allgather(4))
    with pytest.raises(InputError, match="unknown collective 'allgrab'"):
        bound(topology, "allgrab")
    with pytest.raises(InputError, match="root is 1, not 2"):
        bound(topology, coll.broadcast(3, root=1), root=2)
    with pytest.raises(InputError, match="one rank"):
        solve(oracle.machine(1, []))


def test_unknown_speeds_are_listed_but_latency_needs_none() -> None:
    vertices = [Vertex(f"gpu:{r}", rank=r) for r in range(2)]
    topology = Topology.build("dark", vertices, [Link(0, 1, None, latency=7), Link(1, 0, GB, latency=5)])
    with pytest.raises(UnknownSpeedError, match="gpu:0->gpu:1"):
        bound(topology, "allreduce")
    assert latency_bound(topology, "allreduce") == 7


# --- vertex capacities, magnitudes ------------------------------------------------------------


def test_a_vertex_capacity_bounds_like_a_link_and_is_named() -> None:
    vertices = [Vertex(f"gpu:{r}", rank=r, in_capacity=3 * GB if r == 0 else None) for r in range(3)]
    links = [Link(u, v, 2 * GB) for u in range(3) for v in range(3) if u != v]
    topology = Topology.build("capped", vertices, links)
    found = bound(topology, "allgather")
    assert found.seconds_per_byte == Fraction(2, 3) / (3 * GB)
    assert found.bottleneck.text == "gpu:0 must receive 2 shards through the in capacity of gpu:0 (3 GB/s)"
    assert found.bottleneck.links == ()
    assert check_certificate(topology, found)
    for name in ("allreduce", "alltoall", "reducescatter"):
        found = bound(topology, name)
        assert check_certificate(topology, found)
    assert len(solve(topology).broadcast_split) == topology.nlinks


def test_figures_beyond_64_bits_stay_exact() -> None:
    """Coprime bandwidths near 2^59 make scaled capacities overflow int64; the ratio must not change."""
    small = load_topology("dgx-v100").subset([0, 1, 2, 3, 7])
    factor = (1 << 33) + 9
    links = [replace(k, bandwidth=(k.bandwidth or 0) // (25 * GB) * factor * 29 + 1) for k in small.links()]
    large = Topology.build("large", small.vertices, links)
    for name in ("allgather", "allreduce", "broadcast"):
        found = bound(large, name)
        assert check_certificate(large, found)
        assert float(found.seconds_per_byte * factor * 29) == pytest.approx(
            float(bound(small, name).seconds_per_byte * 25 * GB), rel=1e-6
        )


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_max_flow_equals_networkx_at_any_magnitude(data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 6))
    scale = data.draw(st.sampled_from([1, 1 << 61]))
    ends = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).filter(lambda e: e[0] != e[1])
    arcs = data.draw(st.lists(st.tuples(ends, st.integers(0, 9)), min_size=1, max_size=15))
    network = FlowNetwork(n, [u for (u, _), _ in arcs], [v for (_, v), _ in arcs], [0] * len(arcs))
    graph = nx.DiGraph()
    graph.add_nodes_from(range(n))
    for index, ((u, v), c) in enumerate(arcs):
        network.set_capacity(index, c * scale)
        before = graph[u][v]["capacity"] if graph.has_edge(u, v) else 0
        graph.add_edge(u, v, capacity=before + c * scale)
    value = nx.maximum_flow_value(graph, 0, n - 1)
    assert network.solve(0, n - 1) == value
    side = network.source_side()
    assert side[0] and not side[n - 1]
    assert sum(c * scale for (u, v), c in arcs if side[u] and not side[v]) == value
    # A second solve after a change forgets the first.
    network.set_capacity(0, arcs[0][1] * scale + 5)
    assert value <= network.solve(0, n - 1) <= value + 5


def test_max_flow_without_ortools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FlowNetwork, "_native_solver", lambda self: None)
    topology = load_topology("mesh:4x4")
    assert bound(topology, "allgather").seconds_per_byte == Fraction(15, 32 * 50 * GB)


# --- invariants -------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), switches=st.integers(0, 2), factor=st.integers(2, 9))
def test_bounds_scale_with_speed_and_turn_around_with_the_machine(seed: int, switches: int, factor: int) -> None:
    topology = oracle.random_machine(seed, max_ranks=6, switches=switches)
    links = [replace(k, bandwidth=(k.bandwidth or 0) * factor) for k in topology.links()]
    faster = Topology.build("faster", topology.vertices, links)
    for name in ("allgather", "allreduce", "alltoall", "gather"):
        assert bound(topology, name).seconds_per_byte == bound(faster, name).seconds_per_byte * factor
    back = topology.reverse()
    for name, dual in (("allgather", "reducescatter"), ("broadcast", "reduce"), ("gather", "scatter")):
        assert bound(topology, name).seconds_per_byte == bound(back, dual).seconds_per_byte


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), data=st.data())
def test_one_more_link_between_ranks_never_raises_a_bound(seed: int, data: st.DataObject) -> None:
    topology = oracle.random_machine(seed, max_ranks=6, switches=1)
    u, v = data.draw(st.permutations(range(topology.nranks)))[:2]
    richer = Topology.build("richer", topology.vertices, [*topology.links(), Link(u, v, 3 * GB)])
    for name in NAMES:
        assert bound(richer, name).seconds_per_byte <= bound(topology, name).seconds_per_byte


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), switches=st.integers(0, 1))
def test_tree_rates_are_feasible_and_between_bound_and_rs_ag(seed: int, switches: int) -> None:
    topology = oracle.random_machine(seed, max_ranks=7, switches=switches)
    found = bound(topology, "allreduce")
    trees = solve(topology)
    assert trees.exact and trees.value == sum(trees.root_weights)
    assert found.rs_ag_seconds_per_byte is not None
    assert found.seconds_per_byte <= 1 / trees.value <= found.rs_ag_seconds_per_byte
    assert trees.certified == (1 / trees.value == found.seconds_per_byte)
    for link, (a, b) in enumerate(zip(trees.broadcast_split, trees.reduce_split, strict=True)):
        assert a >= 0 and b >= 0 and a + b <= int(topology.link_bandwidth[link])


# --- latency ----------------------------------------------------------------------------------


def test_latency_is_the_longest_of_the_shortest_paths() -> None:
    vertices = [Vertex(f"gpu:{r}", rank=r) for r in range(3)] + [Vertex("sw", VertexKind.SWITCH)]
    links = [
        Link(0, 1, GB, latency=100, overhead=5), Link(0, 1, GB, latency=30), Link(1, 2, GB, latency=30),
        Link(2, 3, GB, latency=1), Link(3, 0, GB, latency=0, overhead=2), Link(1, 0, GB, latency=1000),
    ]  # fmt: skip
    topology = Topology.build("t", vertices, links)
    # 0->1 30, 0->2 60, 1->2 30, 1->0 33 (by 2 and the switch), 2->0 3, 2->1 33.
    assert latency_bound(topology, "allreduce") == 60
    assert latency_bound(topology, "broadcast", root=1) == 33
    assert latency_bound(topology, "reduce", root=1) == 33
    assert latency_bound(topology, "gather", root=0) == 33
    assert latency_bound(topology, "scatter", root=0) == 60
    assert latency_bound(topology, coll.allgather(3, weights=[0, 1, 1])) == 33
    found = bound(topology, "allreduce")
    assert found.latency == 60
    assert found.picoseconds(0) == 60
    assert found.picoseconds(10**6) == found.seconds_per_byte * 10**18


def test_large_machines_get_the_same_distances() -> None:
    """Beyond a size SciPy computes them; torus diameters are known."""
    topology = load_topology("torus:12x14")
    assert latency_bound(topology, "alltoall") == (6 + 7) * int(topology.link_latency[0])


# --- certificates -----------------------------------------------------------------------------


def _changed(found: Bound, change: Callable[[dict[str, Any]], None]) -> Bound:
    data = json.loads(json.dumps(dict(found.certificate.data)))
    change(data)
    return replace(found, certificate=replace(found.certificate, data=data))


def _forgeries(found: Bound) -> list[Bound]:
    forged = [
        replace(found, seconds_per_byte=found.seconds_per_byte * 2),
        replace(found, nranks=found.nranks + 1),
        replace(found, certificate=Certificate("none", {}, "")),
        replace(found, certificate=Certificate("rumour", {}, "")),
        replace(found, certificate=replace(found.certificate, data={})),
    ]
    edits: Mapping[str, list[Callable[[dict[str, Any]], None]]] = {
        "cut": [
            lambda d: d["vertices"].pop(),
            lambda d: d["vertices"].append(10**6),
            lambda d: d["vertices"].append(d["vertices"][0]),
            lambda d: d.update(direction="enter" if d["direction"] == "exit" else "exit"),
            lambda d: d.update(capacity_bytes_per_s=d["capacity_bytes_per_s"] // 2),
            lambda d: d.update(demand="2"),
            lambda d: d.update(weights=[1, -1]),
        ],
        "partition": [
            lambda d: d["parts"].pop(),
            lambda d: d["parts"][0].append(d["parts"][1][0]),
            lambda d: d["egress_bytes_per_s"].reverse() or d["egress_bytes_per_s"].pop(),
            lambda d: d["parts"].append([]),
        ],
        "lp-dual": [
            lambda d: d["lengths"].update({next(iter(d["lengths"])): 10**3}),
            lambda d: d["lengths"].update({next(iter(d["lengths"])): -1}),
            lambda d: d.update(payload_units=1),
            lambda d: d.update(demand=[[0]]),
        ],
    }
    return forged + [_changed(found, change) for change in edits[found.certificate.kind]]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("spec", ["mesh:3x4", "dgx-a100:nodes=2", "dgx-v100"])
def test_forged_certificates_are_refused(name: str, spec: str) -> None:
    topology = load_topology(spec)
    found = bound(topology, name)
    assert check_certificate(topology, found)
    assert check_certificate(topology, _changed(found, lambda data: None)), "survives JSON"
    for number, forged in enumerate(_forgeries(found)):
        assert not check_certificate(topology, forged), (number, forged.certificate)
    links = [replace(k, bandwidth=(k.bandwidth or 0) // 2) for k in topology.links()]
    assert not check_certificate(Topology.build("slower", topology.vertices, links), found)


def test_a_partition_must_hold_copying_switches() -> None:
    """A certificate for plain switches does not prove anything where they copy."""
    plain = load_topology("dgx-h100")
    found = bound(plain, "allreduce")
    assert found.certificate.kind == "partition" and check_certificate(plain, found)
    assert not check_certificate(load_topology("dgx-h100", multicast=True), found)


# --- the verb ---------------------------------------------------------------------------------


def run(*args: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command line."""
    from collsynth.cli.bound import bound as verb

    result = CliRunner().invoke(verb, list(args), catch_exceptions=True)
    return result.exit_code, result.stdout, result.stderr


def test_verb_json_keys() -> None:
    code, out, _ = run("All_Reduce", "-t", "dgx-v100", "--ranks", "0-3,7", "-s", "64M", "--json")
    assert code == 0
    row = json.loads(out)
    assert row["collective"] == "allreduce" and row["nranks"] == 5
    assert row["algbw_GBps"] == 25 and row["busbw_GBps"] == 40 and row["exact"] == "1/25000000000"
    assert row["time_us"] == pytest.approx(64 * 2**20 / 25e3) and row["limited_by"] == "bandwidth"
    assert row["latency_us"] == 1.4 and row["rs_ag_algbw_GBps"] == 15.625 and row["multicast"] == "none"
    assert row["bottleneck"]["links"] == ["gpu:3->gpu:7"] and row["bottleneck"]["ranks"] == [4]
    assert row["certificate"]["kind"] == "cut" and "only ranks 0,1,2,3,7" in row["assumptions"][-1]
    row = json.loads(run("allgather", "-t", "dgx-h100", "--json")[1])
    assert row["busbw_GBps"] == 450 and "time_us" not in row and "rs_ag_algbw_GBps" not in row
    small = json.loads(run("broadcast", "-t", "ring:8", "--root", "3", "-s", "1", "--json")[1])
    assert small["limited_by"] == "latency" and small["time_us"] == small["latency_us"] and small["root"] == 3
    alone = json.loads(run("reduce", "-t", "dgx-v100", "--ranks", "5", "--json")[1])
    assert alone["algbw_GBps"] is None and alone["exact"] == "0"


def test_verb_text() -> None:
    code, out, _ = run("allreduce", "-t", "mesh:4x4", "-s", "1M")
    assert code == 0
    assert "algbw <= 80 GB/s, busbw <= 150 GB/s" in out
    assert "the 16 ranks must send each other 30 payloads through outgoing links of 2400 GB/s in all" in out
    assert "1.5x the time of the bound" in out and "set by bandwidth" in out
    assert "nothing has to move" in run("allgather", "-t", "ring:4", "--ranks", "2")[1]
    assert "to root 1" in run("reduce", "-t", "ring:4", "--root", "1")[1]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["allgrab", "-t", "ring:4"], "unknown collective"),
        (["broadcast", "-t", "ring:4", "--root", "4"], "root 4 is out of range"),
        (["allreduce", "-t", "ring:4", "--ranks", "0,9"], "rank 9 is out of range"),
        (["allreduce", "-t", "ring:4", "--relay"], "--ranks"),
        (["allreduce", "-t", "dgx-v100", "--ranks", "0,7"], "nothing leads from gpu:0 to gpu:7"),
        (["allreduce", "-t", "ring:4", "-s", "many"], "not a size"),
    ],
)
def test_verb_errors_are_one_message_and_exit_code_2(
    args: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["bound", *args])
    assert stop.value.code == 2
    errors = capsys.readouterr().err
    assert message in errors and "Traceback" not in errors
