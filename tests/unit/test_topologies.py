"""Built-in machines: the published figures, names and parameters, declared symmetry, wrong values."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from collsynth.topologies.regular import torus
from hypothesis import given
from hypothesis import strategies as st

from collsynth import topologies
from collsynth.errors import InputError
from collsynth.formats import load_topology
from collsynth.topology import Capability, Topology, VertexKind

GB = 10**9

NAMES = [
    "dgx-v100", "dgx-v100:nodes=2", "dgx-a100", "dgx-a100:nodes=2", "dgx-a100:nodes=4:fabric=one-switch",
    "dgx-h100:nodes=3", "dgx-h100:nvls", "dgx2", "dgx2:nodes=2", "mi250", "mi250:nodes=2", "ring:8", "ring:2",
    "torus:4x3", "torus:2x2x2", "mesh:4x4", "hypercube:4", "fully-connected:8", "switch:16",
]  # fmt: skip


def links(machine: Topology) -> Counter[tuple[str, str, int, int, int]]:
    """Links by names, GB/s scaled to bytes, latency and count."""
    return Counter(
        (machine.vertices[k.src].name, machine.vertices[k.dst].name, k.bandwidth or 0, k.latency, k.count)
        for k in machine.links()
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_machine_is_bidirectional_connected_and_says_its_sources(name: str) -> None:
    machine = load_topology(name)
    out = np.bincount(machine.link_src, weights=machine.link_bandwidth, minlength=len(machine.vertices))
    into = np.bincount(machine.link_dst, weights=machine.link_bandwidth, minlength=len(machine.vertices))
    assert (out[: machine.nranks] == out[0]).all() or name.startswith(("dgx2", "mesh"))
    assert out[: machine.nranks].sum() == into[: machine.nranks].sum()
    assert not machine.unknown_speeds()
    assert all(machine.link_provenance)
    assert [v.rank for v in machine.vertices[: machine.nranks]] == list(range(machine.nranks))


@pytest.mark.parametrize("name", [n for n in NAMES if not n.startswith("mesh")])
def test_declared_symmetry_moves_ranks_without_fixed_points(name: str) -> None:
    machine = load_topology(name)
    assert machine.symmetry
    for generator in machine.symmetry:
        assert (generator[: machine.nranks] != np.arange(machine.nranks)).all()


@pytest.mark.parametrize("name", NAMES)
def test_the_name_of_a_machine_makes_it_again(name: str) -> None:
    machine = load_topology(name)
    assert load_topology(machine.name).content_hash() == machine.content_hash()


def test_dgx_v100_is_the_hybrid_cube_mesh() -> None:
    machine = load_topology("dgx-v100")
    degree = np.bincount(machine.link_src, weights=machine.link_count)
    assert (degree == 6).all()
    found = links(machine)
    assert found["gpu:0", "gpu:1", 50 * GB, 700_000, 2] == 1
    assert found["gpu:7", "gpu:3", 25 * GB, 700_000, 1] == 1
    assert not any({a, b} == {"gpu:0", "gpu:5"} for a, b, *_ in found)


def test_the_shared_nic_of_ndv2_cannot_serve_as_a_switch_inside_the_node() -> None:
    machine = load_topology("dgx-v100:nodes=2")
    found = links(machine)
    assert found["node1/nic:0.tx", "fabric:0", 12_500_000_000, 1_300_000, 1] == 1
    assert found["fabric:0", "node0/nic:0.rx", 12_500_000_000, 1_300_000, 1] == 1
    assert found["node0/gpu:5", "node0/nic:0.tx", 15_750_000_000, 0, 1] == 1
    sends = {machine.vertices[int(s)].name for s in machine.link_src}
    tx = machine.vertex_id("node0/nic:0.tx")
    after_tx = {
        machine.vertices[int(d)].name for s, d in zip(machine.link_src, machine.link_dst, strict=True) if s == tx
    }
    assert after_tx == {"fabric:0"} and "node0/nic:0.rx" in sends


def test_dgx_a100_two_nodes_on_rails_or_one_switch() -> None:
    rails = load_topology("dgx-a100:nodes=2")
    found = links(rails)
    assert found["node1/gpu:3", "node1/nvswitch:0", 300 * GB, 350_000, 12] == 1
    assert found["node1/gpu:3", "node1/nic:3", 25 * GB, 0, 1] == 1
    assert found["node1/nic:3", "rail:3", 25 * GB, 1_300_000, 1] == 1
    assert rails.vertices[rails.vertex_id("node1/nic:3")].rail == 3
    assert rails.nranks == 16 and rails.nnodes == 2
    one = load_topology("dgx-a100:nodes=2:fabric=one-switch")
    assert links(one)["node1/nic:3", "fabric:0", 25 * GB, 1_300_000, 1] == 1
    assert sum(v.kind is VertexKind.SWITCH for v in one.vertices) == 3


def test_nvls_is_off_unless_asked_for() -> None:
    def capability(name: str, multicast: bool = False) -> Capability:
        machine = load_topology(name, multicast=multicast)
        return machine.vertices[machine.vertex_id("nvswitch:0")].capability

    assert capability("dgx-h100") is Capability.NONE
    assert capability("dgx-h100:nvls") is capability("dgx-h100", multicast=True) is Capability.REDUCE_TO_REQUESTER
    for name in ("dgx-a100", "ring:4"):
        with pytest.raises(InputError, match="no NVLink switch that multicasts"):
            load_topology(name, multicast=True)


def test_dgx2_nic_pairs_send_from_odd_and_receive_at_even_gpus() -> None:
    found = links(load_topology("dgx2:nodes=2"))
    assert found["node0/gpu:3", "node0/nic:1.tx", 12_500_000_000, 0, 1] == 1
    assert found["node0/nic:1.rx", "node0/gpu:2", 12_500_000_000, 0, 1] == 1
    assert found["node0/gpu:2", "node0/nvswitch:0", 125 * GB, 350_000, 6] == 1
    assert not any(a == "node0/gpu:2" and "nic" in b for a, b, *_ in found)


@pytest.mark.corpus
def test_mi250_equals_the_published_matrix(corpus: object) -> None:
    path = f"{corpus}/topology/taccl/forestcoll-mi250-16gcd-adjacency.csv"
    published = np.loadtxt(path, delimiter=",", dtype=np.int64)
    machine = load_topology("mi250")
    counts = np.zeros((16, 16), dtype=np.int64)
    counts[machine.link_src, machine.link_dst] = machine.link_count
    assert np.array_equal(counts, published)
    assert np.array_equal(machine.link_bandwidth, machine.link_count * 50 * GB)
    assert links(load_topology("mi250:nodes=2"))["node1/gpu:9", "node1/nic:9", 16 * GB, 0, 1] == 1


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4).filter(lambda s: max(s) > 1))
def test_torus_neighbours_differ_by_one_step_in_one_side(shape: list[int]) -> None:
    machine = torus(tuple(shape))
    sides = np.array(shape)
    a = np.array(np.unravel_index(machine.link_src, shape)).T
    b = np.array(np.unravel_index(machine.link_dst, shape)).T
    step = (a - b) % sides
    assert (((step == 1) | (step == sides - 1)) & (step != 0)).sum(axis=1).tolist() == [1] * machine.nlinks
    assert ((step != 0).sum(axis=1) == 1).all()
    expected = sum(0 if s == 1 else 1 if s == 2 else 2 for s in shape) * int(np.prod(shape))
    assert machine.nlinks == expected
    pairs = set(zip(machine.link_src.tolist(), machine.link_dst.tolist(), strict=True))
    assert len(pairs) == expected and {(d, s) for s, d in pairs} == pairs


def test_parameters_override_the_default_speed() -> None:
    machine = load_topology("torus:4x4:bw=25GB/s:lat=0.7us")
    assert set(machine.link_bandwidth.tolist()) == {25 * GB} and set(machine.link_latency.tolist()) == {700_000}
    assert set(load_topology("switch:4:bw=200Gb/s").link_bandwidth.tolist()) == {25 * GB}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nope", "is not in topologies; expected one of dgx-v100"),
        ("dgx-a10", "try dgx-a100"),
        ("dgx-a100:nodes=0", "nodes: '0' is not a count"),
        ("dgx-a100:nodes=-1", "is not a count"),
        ("dgx-a100:nodes=1000000000", "is not a count"),
        ("dgx-a100:nodes=999999999", "too many"),
        ("dgx-a100:nodez=2", "unknown parameter 'nodez=2'.*try nodes"),
        ("dgx-a100:2", "unknown parameter '2'"),
        ("dgx-a100:nodes=2:nodes=3", "given twice"),
        ("dgx-a100:fabric=foo", "one of rails, one-switch"),
        ("torus", "shape must be given"),
        ("torus:0x4", "is not a count"),
        ("torus:4xx4", "is not a count"),
        ("torus:1x1", "fewer than two ranks"),
        ("torus:" + "x".join("2" * 17), "too many"),
        ("torus:100000x100000", "too many"),
        ("ring:1", "fewer than two ranks"),
        ("hypercube:40", "too many"),
        ("hypercube:99", "dimensions"),
        ("fully-connected:100000", "too many"),
        ("switch:999999999", "too many"),
        ("torus:4x4:bw=0", "not positive"),
        ("torus:4x4:lat=-1us", "negative"),
        ("dgx-h100:nvls=maybe", "not a flag"),
        ("", "the name is empty"),
        ("no/such/file.yaml", "no such file"),
    ],
)
def test_wrong_names_are_one_clear_error(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_topology(name)


def test_a_gpu_model_does_not_suit_a_machine_with_speeds() -> None:
    with pytest.raises(InputError, match="has its own speeds"):
        load_topology("dgx-a100", gpu_model="A100")


def test_the_folder_is_documented() -> None:
    assert topologies.__doc__
