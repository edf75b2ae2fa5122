"""Known values on real machines: published figures and users' cases, restated as graphs."""

from __future__ import annotations

from fractions import Fraction

import bounds_oracles as oracle
import pytest

from collsynth.bounds import Bound, bound, check_certificate
from collsynth.bounds.tree_lp import solve
from collsynth.collective import busbw_factor
from collsynth.formats import load_topology
from collsynth.topology import Topology

GB = oracle.GB


def algbw(found: Bound) -> float:
    assert found.algbw is not None
    return float(found.algbw / GB)


def busbw(found: Bound) -> float:
    return round(algbw(found) * busbw_factor(found.collective, found.nranks), 9)


def without(topology: Topology, *names: str) -> Topology:
    """The machine less the links of these names."""
    assert set(names) <= {topology.link_name(i) for i in range(topology.nlinks)}
    kept = [k for i, k in enumerate(topology.links()) if topology.link_name(i) not in names]
    return Topology.build(topology.name, topology.vertices, kept)


def pcie_box(fast: list[tuple[int, int, int]], pcie: int, nranks: int) -> Topology:
    """GPUs with some fast links among them, and `pcie` GB/s each to one host bridge (the last vertex)."""
    links = [*fast, *((r, nranks, pcie * GB) for r in range(nranks))]
    return oracle.machine(nranks, links, 1, both_ways=True)


def b200_box(fabric: list[int]) -> Topology:
    """8 B200: 900 GB/s to the NVSwitch for those on the fabric, 48 GB/s of PCIe for all."""
    links = [(r, 8, 900 * GB) for r in fabric] + [(r, 9, 48 * GB) for r in range(8)]
    return oracle.machine(8, links, 2, both_ways=True)


def h100_box(lost: int = 0) -> Topology:
    """8 H100 of 18 links of 25 GB/s, the first with `lost` fewer."""
    return oracle.machine(8, [(r, 8, (18 - (lost if r == 0 else 0)) * 25 * GB) for r in range(8)], 1, both_ways=True)


def test_dgx1_and_its_subsets() -> None:
    dgx1 = load_topology("dgx-v100")
    assert busbw(bound(dgx1, "allgather")) == 150
    five = dgx1.subset([0, 1, 2, 3, 7])
    assert busbw(bound(five, "allgather")) == 25
    found = bound(five, "allreduce")
    assert algbw(found) == 25.0 and found.certificate.kind == "cut"
    assert found.rs_ag_seconds_per_byte == Fraction(1, 15_625_000_000)
    assert found.tree_seconds_per_byte is None
    assert found.bottleneck.text == "gpu:7 must receive the whole payload through gpu:3->gpu:7 (25 GB/s)"
    assert found.bottleneck.ranks == (4,)
    assert [five.link_name(link) for link in found.bottleneck.links] == ["gpu:3->gpu:7"]
    gathered = bound(five, "allgather")
    assert gathered.bottleneck.text == "gpu:7 must receive 4 shards through gpu:3->gpu:7 (25 GB/s)"
    assert busbw(bound(dgx1.subset([0, 1, 2, 3]), "allgather")) == 100


@pytest.mark.parametrize(
    ("ranks", "allgather", "allreduce"),
    [(3, (1, 3), (1, 2)), (5, (2, 5), (1, 2)), (6, (5, 18), (2, 5)), (7, (3, 14), (1, 3))],
)
def test_dgx1_first_gpus(ranks: int, allgather: tuple[int, int], allreduce: tuple[int, int]) -> None:
    """Times in units of the payload over one 25 GB/s link."""
    topology = load_topology("dgx-v100").subset(range(ranks))
    assert bound(topology, "allgather").seconds_per_byte * 25 * GB == Fraction(*allgather)
    found = bound(topology, "allreduce")
    assert found.seconds_per_byte * 25 * GB == Fraction(*allreduce)
    assert found.tree_seconds_per_byte is None
    assert solve(topology).certified


def test_dgx1_with_six_gpus_is_held_back_by_three_groups() -> None:
    topology = load_topology("dgx-v100").subset(range(6))
    found = bound(topology, "allreduce")
    assert found.certificate.kind == "partition"
    assert sorted(map(tuple, found.certificate.data["parts"])) == [(0, 1, 2, 3), (4,), (5,)]


@pytest.mark.parametrize(
    ("spec", "lost", "expected"),
    [
        ("dgx-v100", "gpu:0-gpu:2", Fraction(14, 46) / (25 * GB)),
        ("torus:4x4", "gpu:0-gpu:1", Fraction(30, 62) / (50 * GB)),
        ("mesh:4x4", "", Fraction(5, 8) / (50 * GB)),
        ("mesh:6x6", "", Fraction(7, 12) / (50 * GB)),
        ("torus:4x4", "", Fraction(30, 64) / (50 * GB)),
        ("dgx-a100:nodes=2", "node0/gpu:0-node0/nic:0", Fraction(30, 5150) / GB),
        ("dgx-a100:nodes=4", "node0/gpu:0-node0/nic:0", Fraction(6, 775) / GB),
        ("dgx-a100:nodes=2", "", Fraction(30, 5200) / GB),
    ],
)
def test_allreduce_optimum_is_certified_and_reached_by_trees(spec: str, lost: str, expected: Fraction) -> None:
    topology = load_topology(spec)
    if lost:
        a, b = lost.split("-")
        topology = without(topology, f"{a}->{b}", f"{b}->{a}")
    found = bound(topology, "allreduce")
    assert found.seconds_per_byte == expected
    assert found.certificate.kind == "partition" and check_certificate(topology, found)
    trees = solve(topology)
    assert trees.exact and trees.certified and 1 / trees.value == expected


def test_a_missing_gpu_in_one_of_four_boxes() -> None:
    topology = load_topology("dgx-a100:nodes=4").subset([r for r in range(32) if r != 3])
    assert bound(topology, "allreduce").seconds_per_byte == Fraction(6, 775) / GB
    assert solve(topology).certified


@pytest.mark.parametrize(
    ("spec", "shard_time", "link"),
    [
        ("dgx-v100", Fraction(7, 6), 25),
        ("dgx-a100", Fraction(7, 300), 1),
        ("dgx-a100:nodes=2", Fraction(3, 65), 1),
        ("dgx-a100:nodes=4", Fraction(3, 25), 1),
        ("dgx-a100:nodes=8", Fraction(7, 25), 1),
        ("torus:8x8", Fraction(63, 4), 50),
        ("mesh:8x8", Fraction(63, 2), 50),
        ("hypercube:4", Fraction(15, 4), 50),
    ],
)
def test_allgather_time_of_one_shard(spec: str, shard_time: Fraction, link: int) -> None:
    topology = load_topology(spec)
    for name in ("allgather", "reducescatter"):
        found = bound(topology, name)
        assert found.seconds_per_byte * topology.nranks * link * GB == shard_time
        assert check_certificate(topology, found)


@pytest.mark.parametrize(
    ("spec", "theta", "link"),
    [
        ("dgx-v100", Fraction(3, 8), 25),
        ("dgx-a100:nodes=4", Fraction(25, 24), 1),
        ("dgx-a100:nodes=8", Fraction(25, 56), 1),
        ("torus:8x8", Fraction(1, 64), 50),
        ("torus:4x4x4", Fraction(1, 32), 50),
    ],
)
def test_alltoall_rate_of_one_pair(spec: str, theta: Fraction, link: int) -> None:
    topology = load_topology(spec)
    found = bound(topology, "alltoall")
    assert 1 / (found.seconds_per_byte * topology.nranks * link * GB) == theta
    assert found.certificate.kind == "lp-dual" and not found.notes
    assert check_certificate(topology, found)


def test_boxes_of_published_cases() -> None:
    direct = oracle.machine(4, [(a, b, 100 * GB) for a in range(4) for b in range(a)], both_ways=True)
    assert busbw(bound(direct, "allgather")) == 300
    p3 = oracle.machine(4, [(0, 1, 50 * GB), (2, 3, 50 * GB), (0, 2, 25 * GB), (0, 3, 25 * GB), (1, 2, 25 * GB),
                            (1, 3, 25 * GB)], both_ways=True)  # fmt: skip
    assert busbw(bound(p3, "allgather")) == 100
    # 8 A100 PCIe in pairs, two sockets of four, 22 GB/s between the sockets.
    sockets = [(r, 8 + r // 4, 24 * GB) for r in range(8)] + [(8, 9, 22 * GB)]
    pairs = oracle.machine(8, [*sockets, *((r, r + 1, 300 * GB) for r in range(0, 8, 2))], 2, both_ways=True)
    assert busbw(bound(pairs, "allgather")) == pytest.approx(38.5)


def test_h100_with_one_link_of_eighteen_lost() -> None:
    assert busbw(bound(h100_box(), "allgather")) == 450
    degraded = h100_box(lost=1)
    assert busbw(bound(degraded, "allgather")) == 425
    assert busbw(bound(degraded, "allreduce")) == 446.875


def test_b200_with_one_gpu_off_the_fabric() -> None:
    off = b200_box([0, 1, 2, 3, 5, 6, 7])
    assert busbw(bound(off, "allgather")) == 48
    found = bound(off, "allreduce")
    assert algbw(found) == 48 and found.rs_ag_seconds_per_byte is not None
    assert float(1 / found.rs_ag_seconds_per_byte) / GB == pytest.approx(27.43, abs=0.01)
    seven = b200_box(list(range(8))).subset(range(7))
    assert algbw(bound(seven, "allreduce")) == pytest.approx(553)
    assert busbw(bound(seven, "allgather")) >= 900


def test_pcie_boxes() -> None:
    # Two pairs, 12 and 8 NVLinks of 25 GB/s; PCIe sets the bound, not the weaker pair.
    assert algbw(bound(pcie_box([(0, 1, 300 * GB), (2, 3, 200 * GB)], 24, 4), "allreduce")) == 48
    # Three GPUs, one bridged pair.
    three = pcie_box([(0, 1, 112 * GB)], 24, 3)
    assert busbw(bound(three, "allgather")) == 24
    found = bound(three, "allreduce")
    assert algbw(found) == 24 and found.rs_ag_seconds_per_byte == Fraction(1, 18 * GB)


@pytest.mark.parametrize(("nic", "expected"), [(12, 18), (24, 24)])
def test_two_hosts_of_which_one_has_a_nic_at_half_width(nic: int, expected: int) -> None:
    hosts = [(0, 4, 24), (1, 4, 24), (2, 5, 24), (3, 5, 24), (4, 6, nic), (5, 6, 24)]
    topology = oracle.machine(4, [(u, v, b * GB) for u, v, b in hosts], 3, both_ways=True)
    assert busbw(bound(topology, "allreduce")) == pytest.approx(expected)


def test_nvls_is_named_and_its_gap_noted() -> None:
    found = bound(load_topology("dgx-h100", multicast=True), "allreduce")
    assert algbw(found) == 450
    assert "NVLS" in found.multicast and any("1+1/N" in note for note in found.notes)
    assert bound(load_topology("dgx-h100"), "allreduce").multicast == "none"


def test_boxes_whose_switches_copy_are_parts_of_their_own() -> None:
    """Four NVLS boxes of eight 50 GB/s NICs: 6 payloads through 1600 GB/s, not the min cut of 400 GB/s."""
    topology = load_topology("dgx-h100:nodes=4:nvls")
    found = bound(topology, "allreduce")
    assert found.seconds_per_byte == Fraction(6, 1600 * GB) and found.certificate.kind == "partition"
    assert check_certificate(topology, found)
    # Trees reach it, so the search, which does not try every place of the four switches, missed nothing.
    assert found.tree_seconds_per_byte is None and not any("cut short" in note for note in found.notes)


def test_broadcast_crosses_the_nics() -> None:
    found = bound(load_topology("dgx-a100:nodes=2"), "broadcast", root=3)
    assert algbw(found) == 200 and found.root == 3


def test_256_gpus() -> None:
    topology = load_topology("dgx-h100:nodes=32")
    assert bound(topology, "allgather").seconds_per_byte * 256 * GB == Fraction(31 * 8, 400)
    assert bound(topology, "allreduce").rs_ag_seconds_per_byte == Fraction(2 * 31 * 8, 400 * 256) / GB
