"""AMD MI250 nodes of 16 GCDs."""

from __future__ import annotations

from collsynth.parameters import Count
from collsynth.topology import Topology

from ._cluster import Cluster

XGMI = 50 * 10**9
XGMI_LATENCY = 700_000
NIC = 16 * 10**9

#: (a, b, links): seven xGMI links a GCD, four of them to the other GCD of its package.
MI250_LINKS = (
    (0, 1, 4), (0, 4, 2), (0, 8, 1), (1, 5, 1), (1, 9, 1), (1, 10, 1), (2, 3, 4), (2, 6, 1), (2, 9, 1),
    (2, 10, 1), (3, 7, 2), (3, 11, 1), (4, 5, 4), (4, 6, 1), (5, 6, 1), (5, 7, 1), (6, 7, 4), (8, 9, 4),
    (8, 12, 2), (9, 13, 1), (10, 11, 4), (10, 14, 1), (11, 15, 2), (12, 13, 4), (12, 14, 1), (13, 14, 1),
    (13, 15, 1), (14, 15, 4),
)  # fmt: skip


def mi250(nodes: Count = 1) -> Topology:
    """`mi250[:nodes=N]`: 16 GCDs joined by xGMI, 50 GB/s a link and direction, 0.7 us.

    Several nodes: 16 GB/s a GCD to one switch (`nic:i`, 1.3 us a side).

    Args:
        nodes: machines.

    Raises:
        InputError: nodes is below 1 or too large.

    Notes:
        Link multiplicities and the 16 GB/s: ForestColl (https://arxiv.org/abs/2402.06787; TE-CCL uses the
        same matrix).  The network latency is not theirs: it is that of the other built-ins.
        Symmetry: node rotation, and GCD i onto i xor 3 and i xor 8 of every node.
    """
    name = "mi250" if nodes == 1 else f"mi250:nodes={nodes}"
    cluster = Cluster(name, nodes, 16, devices=16, links=2 * len(MI250_LINKS) + 64)
    for node in range(nodes):
        for a, b, count in MI250_LINKS:
            cluster.both(
                cluster.gpu(node, a), cluster.gpu(node, b), count * XGMI,
                latency=XGMI_LATENCY, kind="xgmi", count=count, provenance="built-in mi250 (ForestColl)",
            )  # fmt: skip
    if nodes > 1:
        cluster.nic_per_gpu(NIC, "one-switch", "built-in mi250 (ForestColl)")
    symmetry = [cluster.gpu_permutation([i ^ mask for i in range(16)]) for mask in (3, 8)]
    return cluster.build([*cluster.node_rotation(), *symmetry])
