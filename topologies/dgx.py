"""NVIDIA DGX machines, at line rate per direction.

Sources: NVLink 2, 3 and 4 carry 25 GB/s a link and direction; 6, 12 and 18 links a GPU (NVIDIA V100,
A100 and H100 architecture whitepapers).  NVLink latency 0.7 us a hop, 0.35 us a side of an NVSwitch,
InfiniBand 2.6 us end to end (TE-CCL, https://github.com/microsoft/TE-CCL).  The DGX-1 link
multiplicities are those of SCCL (https://github.com/microsoft/msccl-tools, `dgx1`).
"""

from __future__ import annotations

from typing import Literal

from collsynth.parameters import Count
from collsynth.topology import Capability, Topology, VertexKind

from ._cluster import NETWORK_LATENCY, Cluster

Fabric = Literal["rails", "one-switch"]

GB = 10**9
NVLINK = 25 * GB
NVLINK_LATENCY = 700_000
NVSWITCH_LATENCY = 350_000
PCIE_GEN3_X16 = 15_750_000_000

#: (a, b, links) of the hybrid cube mesh: six links a GPU, a ring of doubles 0-1-3-2-6-7-5-4.
DGX1_LINKS = (
    (0, 1, 2), (0, 2, 1), (0, 3, 1), (0, 4, 2), (1, 2, 1), (1, 3, 2), (1, 5, 1), (2, 3, 2),
    (2, 6, 2), (3, 7, 1), (4, 5, 2), (4, 6, 1), (4, 7, 1), (5, 6, 1), (5, 7, 2), (6, 7, 2),
)  # fmt: skip


def _full_name(base: str, nodes: int, fabric: str = "rails", nvls: bool = False) -> str:
    name = base if nodes == 1 else f"{base}:nodes={nodes}"
    if nodes > 1 and fabric != "rails":
        name += f":fabric={fabric}"
    return name + (":nvls" if nvls else "")


def dgx_v100(nodes: Count = 1) -> Topology:
    """`dgx-v100[:nodes=N]`: 8 V100 in a hybrid cube mesh; several nodes share one 100 Gb/s NIC each (NDv2).

    The one NIC of a node serves all 8 GPUs.  It is two vertices, `nic:0.tx` (all GPUs to it, it to the
    switch) and `nic:0.rx` (the switch to it, it to all GPUs): with a single vertex a route could run
    GPU -> NIC -> GPU of the same node and use the NIC as a PCIe switch that the machine does not have.
    The GPU side is PCIe gen 3 x16 (15.75 GB/s), so the 12.5 GB/s of the NIC are what limits.

    Args:
        nodes: machines.

    Raises:
        InputError: nodes is below 1 or too large.

    Notes:
        Links: SCCL's `dgx1` matrix, 25 GB/s a link.  Latency: TE-CCL, 0.7 us NVLink, 1.3 us a side to the switch.
        Symmetry: node rotation, and GPU i onto i xor 2 and i xor 4.
    """
    cluster = Cluster(_full_name("dgx-v100", nodes), nodes, 8, devices=2, links=50)
    for node in range(nodes):
        for a, b, count in DGX1_LINKS:
            cluster.both(
                cluster.gpu(node, a), cluster.gpu(node, b), count * NVLINK,
                latency=NVLINK_LATENCY, kind="nvlink", count=count, provenance="built-in dgx-v100",
            )  # fmt: skip
    if nodes > 1:
        provenance = "built-in dgx-v100: Azure NDv2, one EDR NIC a node"
        fabric = cluster.network(1, "one-switch")[0]
        for node in range(nodes):
            tx = cluster.add(cluster.label(node, "nic:0.tx"), VertexKind.NIC, node=node, rail=0)
            rx = cluster.add(cluster.label(node, "nic:0.rx"), VertexKind.NIC, node=node, rail=0)
            for local in range(8):
                gpu = cluster.gpu(node, local)
                cluster.one(gpu, tx, PCIE_GEN3_X16, latency=0, kind="pcie", provenance=provenance)
                cluster.one(rx, gpu, PCIE_GEN3_X16, latency=0, kind="pcie", provenance=provenance)
            nic = 12_500_000_000
            cluster.one(tx, fabric, nic, latency=NETWORK_LATENCY, kind="ib", provenance=provenance)
            cluster.one(fabric, rx, nic, latency=NETWORK_LATENCY, kind="ib", provenance=provenance)
    symmetry = [cluster.gpu_permutation([i ^ bit for i in range(8)], moves=("gpu",)) for bit in (2, 4)]
    return cluster.build([*cluster.node_rotation(), *symmetry])


def _nvswitch_machine(
    name: str,
    base: str,
    nodes: int,
    *,
    gpus: int,
    links: int,
    bandwidth: int,
    nic: int,
    fabric: str,
    capability: Capability = Capability.NONE,
) -> Topology:
    """GPUs around one NVSwitch vertex a node, one NIC a GPU."""
    cluster = Cluster(name, nodes, gpus, devices=gpus + 1, links=6 * gpus)
    for node in range(nodes):
        hub = cluster.add(cluster.label(node, "nvswitch:0"), VertexKind.SWITCH, node=node, capability=capability)
        for local in range(gpus):
            cluster.both(
                cluster.gpu(node, local), hub, bandwidth,
                latency=NVSWITCH_LATENCY, kind="nvlink", count=links, provenance=f"built-in {base}",
            )  # fmt: skip
    if nodes > 1:
        cluster.nic_per_gpu(nic, fabric, f"built-in {base}")
    rotation = cluster.gpu_permutation([(i + 1) % gpus for i in range(gpus)])
    return cluster.build([*cluster.node_rotation(), rotation])


def dgx_a100(nodes: Count = 1, fabric: Fabric = "rails") -> Topology:
    """`dgx-a100[:nodes=N][:fabric=rails|one-switch]`: 8 A100, 300 GB/s each to one NVSwitch vertex.

    Several nodes: one 200 Gb/s NIC (25 GB/s) a GPU; NIC i of every node on rail switch i, or all NICs
    on one switch.

    Args:
        nodes: machines.
        fabric: `rails` (a switch for each NIC number) or `one-switch`.

    Raises:
        InputError: nodes is below 1 or too large.

    Notes:
        12 NVLink 3 of 25 GB/s a GPU (NVIDIA A100 whitepaper); 0.35 us a side (TE-CCL); NICs as in
        NVIDIA's DGX A100 and Azure NDv4.  Symmetry: node rotation, GPU rotation in all nodes at once.
    """
    return _nvswitch_machine(
        _full_name("dgx-a100", nodes, fabric), "dgx-a100", nodes,
        gpus=8, links=12, bandwidth=300 * GB, nic=25 * GB, fabric=fabric,
    )  # fmt: skip


def dgx_h100(nodes: Count = 1, fabric: Fabric = "rails", nvls: bool = False) -> Topology:
    """`dgx-h100[:nodes=N][:fabric=rails|one-switch][:nvls]`: 8 H100, 450 GB/s each to one NVSwitch vertex.

    Several nodes: one 400 Gb/s NIC (50 GB/s) a GPU, as in `dgx_a100`.

    Args:
        nodes: machines.
        fabric: `rails` (a switch for each NIC number) or `one-switch`.
        nvls: the NVSwitch multicasts, and reduces towards the GPU that asks (NVLink SHARP).

    Raises:
        InputError: nodes is below 1 or too large.

    Notes:
        18 NVLink 4 of 25 GB/s a GPU (NVIDIA H100 whitepaper); 0.35 us a side (TE-CCL, for A100); NICs as in
        NVIDIA's DGX H100 and Azure NDv5.  Symmetry: node rotation, GPU rotation in all nodes at once.
    """
    return _nvswitch_machine(
        _full_name("dgx-h100", nodes, fabric, nvls), "dgx-h100", nodes,
        gpus=8, links=18, bandwidth=450 * GB, nic=50 * GB, fabric=fabric,
        capability=Capability.REDUCE_TO_REQUESTER if nvls else Capability.NONE,
    )  # fmt: skip


def dgx2(nodes: Count = 1, fabric: Fabric = "rails") -> Topology:
    """`dgx2[:nodes=N][:fabric=rails|one-switch]`: 16 V100, 125 GB/s each to one NVSwitch vertex.

    Several nodes: 8 NICs of 12.5 GB/s, each used as TE-CCL does: the odd GPU 2i+1 sends through NIC i
    (`nic:i.tx`), the even GPU 2i receives (`nic:i.rx`), 2.6 us end to end.  Sender and receiver are two
    vertices so that a route cannot turn around inside the NIC.

    Args:
        nodes: machines.
        fabric: `rails` (a switch for each NIC number) or `one-switch`.

    Raises:
        InputError: nodes is below 1 or too large.

    Notes:
        Figures: TE-CCL (125 GB/s, 0.35 us a side; 12.5 GB/s, 2.6 us), not the 150 GB/s line rate of six
        NVLink 2.  Symmetry: node rotation, rotation by a NIC pair of GPUs in all nodes at once.
    """
    cluster = Cluster(_full_name("dgx2", nodes, fabric), nodes, 16, devices=17, links=64)
    for node in range(nodes):
        hub = cluster.add(cluster.label(node, "nvswitch:0"), VertexKind.SWITCH, node=node)
        for local in range(16):
            cluster.both(
                cluster.gpu(node, local), hub, 125 * GB,
                latency=NVSWITCH_LATENCY, kind="nvlink", count=6, provenance="built-in dgx2 (TE-CCL)",
            )  # fmt: skip
    if nodes > 1:
        nic, provenance = 12_500_000_000, "built-in dgx2 (TE-CCL NIC pairs)"
        switches = cluster.network(8, fabric)
        for node in range(nodes):
            for pair in range(8):
                tx = cluster.add(cluster.label(node, f"nic:{pair}.tx"), VertexKind.NIC, node=node, rail=pair)
                rx = cluster.add(cluster.label(node, f"nic:{pair}.rx"), VertexKind.NIC, node=node, rail=pair)
                gpu = cluster.gpu(node, 2 * pair)
                cluster.one(gpu + 1, tx, nic, latency=0, kind="pcie", provenance=provenance)
                cluster.one(tx, switches[pair], nic, latency=NETWORK_LATENCY, kind="ib", provenance=provenance)
                cluster.one(switches[pair], rx, nic, latency=NETWORK_LATENCY, kind="ib", provenance=provenance)
                cluster.one(rx, gpu, nic, latency=0, kind="pcie", provenance=provenance)
    return cluster.build([*cluster.node_rotation(), cluster.permutation(_next_pair_in_node, _next_pair)])


def _next_pair(device: str) -> str:
    """The device one NIC pair further: GPUs by two of 16, NICs and rails by one of 8."""
    kind, _, index = device.partition(":")
    number, dot, side = index.partition(".")
    if kind == "gpu":
        return f"gpu:{(int(number) + 2) % 16}"
    return f"{kind}:{(int(number) + 1) % 8}{dot}{side}" if kind in ("nic", "rail") else device


def _next_pair_in_node(node: int, device: str) -> tuple[int, str]:
    return node, _next_pair(device)
