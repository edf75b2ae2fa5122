"""Nodes joined by NICs and network switches: the part that all multi-node built-ins share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from collsynth.errors import InputError
from collsynth.parameters import check_extent
from collsynth.topology import Capability, Link, Topology, Vertex, VertexKind

#: NIC to network switch, one side: half of the 2.6 us that TE-CCL and TACCL charge for InfiniBand.
NETWORK_LATENCY = 1_300_000


class Cluster:
    """Collects the vertices and links of `nodes` equal nodes, ranks first.

    Names are `gpu:3` in a single node and `node1/gpu:3` in several.
    """

    def __init__(self, name: str, nodes: int, gpus: int, *, devices: int, links: int) -> None:
        """Args:
            name: for messages.
            nodes, gpus: nodes, and ranks in each.
            devices, links: vertices beyond the ranks, and directed links, in each node (for the size check).

        Raises:
            InputError: nodes is below 1, or the machine is too large.
        """
        if nodes < 1:
            raise InputError(f"{nodes} nodes", where=name, expected="1 or more")
        check_extent(nodes * (gpus + devices), nodes * links, name)
        self.name, self.nodes, self.gpus = name, nodes, gpus
        self.vertices = [
            Vertex(self.label(node, f"gpu:{local}"), rank=node * gpus + local, node=node)
            for node in range(nodes)
            for local in range(gpus)
        ]
        self.links: list[Link] = []
        self._ids = {vertex.name: index for index, vertex in enumerate(self.vertices)}

    def label(self, node: int, device: str) -> str:
        """The full name of a device of a node."""
        return f"node{node}/{device}" if self.nodes > 1 else device

    def gpu(self, node: int, local: int) -> int:
        """Vertex id (= rank) of a GPU."""
        return node * self.gpus + local

    def add(
        self,
        name: str,
        kind: VertexKind,
        *,
        node: int | None = None,
        rail: int | None = None,
        capability: Capability = Capability.NONE,
    ) -> int:
        """A device that forwards; returns its vertex id."""
        self._ids[name] = len(self.vertices)
        self.vertices.append(Vertex(name, kind, node=node, rail=rail, capability=capability))
        return self._ids[name]

    def both(self, a: int, b: int, bandwidth: int, *, latency: int, kind: str, provenance: str, count: int = 1) -> None:
        """A link in each direction."""
        for src, dst in ((a, b), (b, a)):
            self.links.append(Link(src, dst, bandwidth, latency=latency, kind=kind, count=count, provenance=provenance))

    def one(self, src: int, dst: int, bandwidth: int, *, latency: int, kind: str, provenance: str) -> None:
        """A link in one direction."""
        self.links.append(Link(src, dst, bandwidth, latency=latency, kind=kind, provenance=provenance))

    def network(self, rails: int, fabric: str) -> list[int]:
        """Network switches, one for each rail number: `rail:i` each, or one `fabric:0` for all."""
        if fabric == "one-switch":
            return [self.add("fabric:0", VertexKind.SWITCH)] * rails
        return [self.add(f"rail:{rail}", VertexKind.SWITCH, rail=rail) for rail in range(rails)]

    def nic_per_gpu(self, bandwidth: int, fabric: str, provenance: str) -> None:
        """One NIC for each GPU: gpu <-> nic <-> switch, NIC i of every node on rail i.

        Both sides run at the NIC's speed; the latency sits between NIC and switch.
        """
        switches = self.network(self.gpus, fabric)
        for node in range(self.nodes):
            for local in range(self.gpus):
                nic = self.add(self.label(node, f"nic:{local}"), VertexKind.NIC, node=node, rail=local)
                self.both(self.gpu(node, local), nic, bandwidth, latency=0, kind="pcie", provenance=provenance)
                self.both(nic, switches[local], bandwidth, latency=NETWORK_LATENCY, kind="ib", provenance=provenance)

    def permutation(self, image: Callable[[int, str], tuple[int, str]], shared: Callable[[str], str]) -> list[int]:
        """Device `d` of node `n` goes to `image(n, d)`, a vertex `s` outside all nodes to `shared(s)`."""
        result = []
        for vertex in self.vertices:
            if vertex.node is None:
                result.append(self._ids[shared(vertex.name)])
            else:
                device = vertex.name.rpartition("/")[2]
                result.append(self._ids[self.label(*image(vertex.node, device))])
        return result

    def node_rotation(self) -> list[list[int]]:
        """The generator that moves every node onto the next one (none for a single node)."""
        if self.nodes == 1:
            return []
        return [self.permutation(lambda node, device: ((node + 1) % self.nodes, device), lambda name: name)]

    def gpu_permutation(self, images: Sequence[int], *, moves: tuple[str, ...] = ("gpu", "nic")) -> list[int]:
        """GPU i of every node onto GPU images[i], with its NIC and rail (device kinds not in `moves` stay)."""

        def moved(device: str) -> str:
            kind, _, index = device.partition(":")
            return f"{kind}:{images[int(index)]}" if kind in moves else device

        def shared(name: str) -> str:
            kind, _, index = name.partition(":")
            return f"rail:{images[int(index)]}" if kind == "rail" and "nic" in moves else name

        return self.permutation(lambda node, device: (node, moved(device)), shared)

    def build(self, symmetry: Sequence[Sequence[int]], *, assumptions: Sequence[str] = ()) -> Topology:
        """The finished machine."""
        return Topology.build(self.name, self.vertices, self.links, symmetry=symmetry, assumptions=assumptions)
