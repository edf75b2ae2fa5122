"""Bounds equal brute force over all cuts and partitions, and an independent linear program."""

from __future__ import annotations

import random
from dataclasses import replace

import bounds_oracles as oracle
import numpy as np
import pytest

from collsynth import collective as coll
from collsynth.bounds import bound, check_certificate
from collsynth.bounds.graph import Graph
from collsynth.bounds.partitions import worst_partition
from collsynth.topology import Capability

SEEDS = range(100)


def _switches(seed: int) -> int:
    return seed % 3


@pytest.mark.parametrize("seed", SEEDS)
def test_cut_bounds_equal_all_cuts(seed: int) -> None:
    topology = oracle.random_machine(seed, max_ranks=8 - _switches(seed), switches=_switches(seed), balanced=seed % 2)
    n = topology.nranks
    root = seed % n
    at_root = [int(r == root) for r in range(n)]
    back = topology.reverse()
    for name, machine, weights, sinks, total in (
        ("allgather", topology, [1] * n, range(n), n),
        ("reducescatter", back, [1] * n, range(n), n),
        ("broadcast", topology, at_root, range(n), 1),
        ("reduce", back, at_root, range(n), 1),
        ("gather", topology, [1] * n, [root], n),
        ("scatter", back, [1] * n, [root], n),
    ):
        found = bound(topology, name, root=root if name in ("broadcast", "reduce", "gather", "scatter") else None)
        assert found.seconds_per_byte == oracle.worst_cut(machine, weights, sinks) / total, name
        assert found.certificate.kind == "cut"
        assert check_certificate(topology, found), name


@pytest.mark.parametrize("seed", SEEDS)
def test_allreduce_equals_all_cuts_and_partitions(seed: int) -> None:
    topology = oracle.random_machine(seed, max_ranks=8 - _switches(seed), switches=_switches(seed))
    found = bound(topology, "allreduce")
    assert found.seconds_per_byte == oracle.allreduce(topology)
    assert check_certificate(topology, found)
    assert found.rs_ag_seconds_per_byte is not None and found.rs_ag_seconds_per_byte >= found.seconds_per_byte
    if found.tree_seconds_per_byte is not None:
        assert found.seconds_per_byte < found.tree_seconds_per_byte <= found.rs_ag_seconds_per_byte


@pytest.mark.parametrize("seed", range(40))
def test_allreduce_with_switches_that_are_faster_one_way(seed: int) -> None:
    """Here the relaxed parts may meet in a switch, and its place is branched on."""
    topology = oracle.random_machine(seed, max_ranks=6, switches=2, balanced=False)
    found = bound(topology, "allreduce")
    assert found.seconds_per_byte == oracle.allreduce(topology)
    assert check_certificate(topology, found)


@pytest.mark.parametrize("seed", range(40))
def test_allreduce_with_copying_switches(seed: int) -> None:
    plain = oracle.random_machine(seed, max_ranks=6, switches=2)
    able = [Capability.MULTICAST, Capability.REDUCE_TO_REQUESTER, Capability.REDUCE_AND_MULTICAST][seed % 3]
    topology = oracle.machine(
        plain.nranks, [(k.src, k.dst, k.bandwidth or 0) for k in plain.links()], 2, capability=able
    )
    found = bound(topology, "allreduce")
    assert found.seconds_per_byte == oracle.allreduce(topology) <= oracle.allreduce(plain)
    assert check_certificate(topology, found)
    assert "2 switches may copy" in found.multicast or "2 switches may reduce" in found.multicast


#: Seeds of `random_machine(max_ranks=6, switches=2, balanced=False)` whose relaxed parts meet in a switch.
MEETING = (53, 90, 94, 108, 137, 139, 154, 231, 236, 260, 289)


@pytest.mark.parametrize("seed", [*range(20), *MEETING])
@pytest.mark.parametrize("capability", [Capability.NONE, Capability.MULTICAST])
def test_partition_search_without_a_limit_finds_the_least_ratio(seed: int, capability: Capability) -> None:
    """Also where the cut says more, so that the search is not cut off by it."""
    drawn = oracle.random_machine(seed, max_ranks=6, switches=2, balanced=False)
    links = [(k.src, k.dst, k.bandwidth or 0) for k in drawn.links()]
    topology = oracle.machine(drawn.nranks, links, 2, capability=capability)
    graph = Graph.of(topology)
    search = worst_partition(graph)
    partition = search.partition
    assert partition is not None and search.complete
    count = np.sum(partition.parts, axis=0)
    assert (count[: topology.nranks] == 1).all() and count.max() == 1
    assert 2 / (partition.ratio * graph.unit) == oracle.partition(topology)


def test_a_search_cut_short_gives_a_valid_partition_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collsynth.bounds.partitions._BRANCHING_BUDGET", 0)
    monkeypatch.setattr("collsynth.bounds.partitions._LEAST_BRANCHES", 1)
    cut_short = 0
    for seed in MEETING:
        topology = oracle.random_machine(seed, max_ranks=6, switches=2, balanced=False)
        graph = Graph.of(topology)
        search = worst_partition(graph)
        partition = search.partition
        assert partition is not None
        assert (np.sum(partition.parts, axis=0)[: topology.nranks] == 1).all()
        assert 2 / (partition.ratio * graph.unit) <= oracle.partition(topology)
        cut_short += not search.complete
    assert cut_short


@pytest.mark.parametrize("seed", range(30))
def test_uneven_shards_count(seed: int) -> None:
    topology = oracle.random_machine(seed, max_ranks=6, switches=seed % 2)
    rng = random.Random(seed)
    weights = [rng.randint(0, 4) for _ in range(topology.nranks - 1)] + [2]
    expected = oracle.worst_cut(topology, weights, range(topology.nranks)) / sum(weights)
    found = bound(topology, coll.allgather(topology.nranks, weights=weights))
    assert found.seconds_per_byte == expected
    assert check_certificate(topology, found)
    scattered = bound(topology, coll.reduce_scatter(topology.nranks, weights=weights))
    expected = oracle.worst_cut(topology.reverse(), weights, range(topology.nranks)) / sum(weights)
    assert scattered.seconds_per_byte == expected
    assert check_certificate(topology, scattered)


@pytest.mark.parametrize("seed", range(100))
def test_alltoall_equals_a_program_with_one_commodity_a_pair(seed: int) -> None:
    topology = oracle.random_machine(seed, max_ranks=5, switches=seed % 2, balanced=seed % 4 < 2)
    n = topology.nranks
    found = bound(topology, "alltoall")
    expected = oracle.alltoall(topology, [[1] * n] * n) / n
    assert float(found.seconds_per_byte) == pytest.approx(expected, rel=1e-9)
    assert found.certificate.kind == "lp-dual" and not found.notes
    assert check_certificate(topology, found)


@pytest.mark.parametrize("seed", range(10))
def test_uneven_alltoall(seed: int) -> None:
    topology = oracle.random_machine(seed, max_ranks=5)
    n = topology.nranks
    rng = random.Random(seed)
    base = coll.alltoall(n)
    weight = np.array([rng.randint(1, 5) for _ in range(base.nchunks)], dtype=np.int64)
    demand = [[int(weight[s * n + d]) for d in range(n)] for s in range(n)]
    total = int(weight.sum())
    found = bound(topology, replace(base, weight=weight, payload_units=total))
    assert float(found.seconds_per_byte) == pytest.approx(oracle.alltoall(topology, demand) / total, rel=1e-9)
    assert check_certificate(topology, found)
