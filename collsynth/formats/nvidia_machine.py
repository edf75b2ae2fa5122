"""What the cells of `nvidia-smi topo -m` mean: a machine.

* NVLink.  The number in an NV cell counts links out of the GPU, not links to that peer.  If the sum
  over a GPU's row exceeds the links that such a GPU has, there is an NVSwitch and the GPU's width is
  the largest number of its row; otherwise the links are private to the pair.
* PCIe.  Where NVLink joins all GPUs, PCIe stays out of the graph.  Where it does not, a tree is
  built from the cells: PIX = under one PCIe switch, PXB = under cascaded switches, PHB and NODE =
  through the host's root complexes, SYS = over the link between sockets.
* NICs become vertices without links (a plan for one machine sends nothing through them, and a link
  to two GPUs would be a path between them that the machine may not have), each with the rail that it
  serves; storage and front-end NICs have none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..errors import InputError
from ..topology import Capability, Link, LinkState, Topology, Vertex, VertexKind
from .gpu_models import PCIE_EFFECTIVE, PCIE_LINE, GpuClass
from .nvidia_smi import PATHS, Matrix

#: One NVLink hop, one side of an NVSwitch (TE-CCL), and the GPU's side of PCIe (NCCL: 1 us GPU to GPU).
NVLINK_LATENCY = 700_000
NVSWITCH_LATENCY = 350_000
PCIE_LATENCY = 500_000

#: NV numbers that some intact machine shows (V100 also 3 and 5, only on rare boards).
SHIPPING_COUNTS = frozenset({1, 2, 4, 6, 8, 12, 18, 36})


class _Groups:
    """Union-find over hashable things, groups listed in order of their first member."""

    def __init__(self, members: Iterable[object]) -> None:
        self._parent = {member: member for member in members}

    def find(self, member: object) -> object:
        while self._parent[member] != member:
            self._parent[member] = self._parent[self._parent[member]]
            member = self._parent[member]
        return member

    def join(self, a: object, b: object) -> None:
        self._parent[self.find(b)] = self.find(a)

    def of(self, members: Iterable[int]) -> list[list[int]]:
        groups: dict[object, list[int]] = {}
        for member in members:
            groups.setdefault(self.find(member), []).append(member)
        return list(groups.values())


@dataclass
class _Draft:
    """A machine under construction."""

    matrix: Matrix
    gpu: GpuClass | None
    vertices: list[Vertex] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    assumptions: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.matrix.gpus)

    def gpu_name(self, rank: int) -> str:
        return f"GPU{self.matrix.gpus[rank]}"

    def add(self, vertex: Vertex) -> int:
        self.vertices.append(vertex)
        return len(self.vertices) - 1

    def both(
        self, a: int, b: int, bandwidth: int | None, latency: int, kind: str, provenance: str,
        state: LinkState = LinkState.OK, count: int = 1,
    ) -> None:  # fmt: skip
        for src, dst in ((a, b), (b, a)):
            self.links.append(
                Link(src, dst, bandwidth, latency, count=count, kind=kind, provenance=provenance, state=state)
            )


def machine(matrix: Matrix, name: str, gpu: GpuClass | None = None, *, multicast: bool = False) -> Topology:
    """The machine that a matrix shows.

    Args:
        matrix: from `nvidia_smi.read_matrix`.
        name: of the topology.
        gpu: the GPU class that gives links their speed; None: speeds stay unknown.
        multicast: let the NVSwitch multicast and reduce.

    Raises:
        InputError: the matrix shows more links than such a GPU has, or `multicast` without a switch that can.
    """
    draft = _Draft(matrix, gpu)
    _check_class(matrix, gpu)
    rails, nic_rails = _rails(draft)
    for rank, number in enumerate(matrix.gpus):
        draft.add(Vertex(f"gpu:{number}", rank=rank, node=0, rail=rails[rank]))
    if gpu is None:
        draft.assumptions.append("the matrix has no speeds: all bandwidths are unknown until --gpu-model is given")
    domains = _nvlink(draft, multicast)
    draft.warnings += matrix.warnings
    if len(domains) > 1:
        _pcie(draft)
    elif draft.count > 1:
        draft.assumptions.append("PCIe is left out: NVLink joins all GPUs")
    numbers = _nic_numbers(matrix.nics)
    for column, rail in enumerate(nic_rails):
        draft.add(Vertex(f"nic:{numbers[column]}", VertexKind.NIC, node=0, rail=rail))
    return Topology.build(
        name, draft.vertices, draft.links, symmetry=_symmetry(draft),
        assumptions=draft.assumptions, warnings=draft.warnings,
    )  # fmt: skip


def _check_class(matrix: Matrix, gpu: GpuClass | None) -> None:
    if gpu is None:
        return
    for rank, row in enumerate(matrix.links):
        if max(row) > gpu.links:
            raise InputError(
                f"GPU{matrix.gpus[rank]} shows NV{max(row)}, but {gpu.name} has {gpu.links or 'no'} NVLinks",
                where=f"{matrix.source}:{matrix.lines[rank]}",
                expected="the model of these GPUs in --gpu-model",
            )


# --- NVLink ------------------------------------------------------------------------------------


def _physical_links(draft: _Draft) -> int:
    """Links of one GPU: of the class, or the smallest number of a shipped class that explains the cells."""
    if draft.gpu is not None:
        return draft.gpu.links
    widest = max(max(row) for row in draft.matrix.links)
    # Only A800 and H800 show NV8, and there it is the whole GPU.  Every other number up to 18 can be a
    # private link of a GPU with 18 links (NV6 between 4 H100), and none is in the way of telling an
    # NVSwitch apart, because its row sums are beyond 18 from three GPUs on.
    return 8 if widest == 8 else 18 if widest <= 18 else 36


def _nvlink(draft: _Draft, multicast: bool) -> list[list[int]]:
    """Adds NVLinks and NVSwitches; returns the groups of GPUs that NVLink joins."""
    matrix, gpu = draft.matrix, draft.gpu
    ranks = range(draft.count)
    joined = _Groups(ranks)
    for a in ranks:
        for b in range(a):
            if matrix.links[a][b]:
                joined.join(b, a)
    domains = joined.of(ranks)
    physical = _physical_links(draft)
    switched = [d for d in domains if any(sum(matrix.links[r]) > physical for r in d)]
    direct = [d for d in domains if len(d) > 1 and d not in switched]
    if gpu is not None and (switched or direct):
        draft.assumptions.append(
            f"NVLink of {gpu.name}: {gpu.links} links a GPU, {gpu.link_bandwidth / 1e9:g} GB/s each (line rate, "
            f"one direction)"
        )
    can_multicast = gpu is not None and gpu.multicast
    if multicast and not (switched and can_multicast):
        raise InputError(
            "there is no NVSwitch in the matrix" if not switched
            else "whether the NVSwitch multicasts is not known without the GPU model" if gpu is None
            else f"the NVSwitch of {gpu.name} does not multicast",
            where="--multicast", expected="a switched machine with --gpu-model H100-SXM or later",
        )  # fmt: skip
    capability = Capability.REDUCE_TO_REQUESTER if multicast else Capability.NONE
    for index, domain in enumerate(switched):
        _nvswitch(draft, domain, physical, index, capability)
    for domain in direct:
        _private_links(draft, domain, physical)
    _odd_nvlink(draft, domains)
    return domains


def _nvswitch(draft: _Draft, domain: list[int], physical: int, index: int, capability: Capability) -> None:
    matrix, gpu = draft.matrix, draft.gpu
    hub = draft.add(Vertex(f"nvswitch:{index}", VertexKind.SWITCH, node=0, capability=capability))
    widths = {rank: max(matrix.links[rank]) for rank in domain}
    full = gpu.links if gpu is not None else max(widths.values())
    largest = max(sum(matrix.links[rank]) for rank in domain)
    draft.assumptions.append(
        f"one NVSwitch joins {_names(draft, domain)}: a row's NV numbers add up to {largest}, more than "
        f"the {physical} links of {gpu.name if gpu else 'any such GPU'}"
    )
    if gpu is None and full not in SHIPPING_COUNTS:
        draft.warnings.append(f"NV{full} is no shipping link count: links may be down")
    missing = [(a, b) for a in domain for b in domain if a < b and not matrix.links[a][b]]
    if missing:
        a, b = missing[0]
        draft.warnings.append(
            f"{draft.gpu_name(a)} and {draft.gpu_name(b)} show no NVLink though both are on the NVSwitch"
            + (f" (and {len(missing) - 1} more pairs)" if len(missing) > 1 else "")
        )
    for rank in domain:
        width = widths[rank]
        if width < full:
            draft.warnings.append(
                f"{draft.gpu_name(rank)} (rank {rank}) shows {width} of {full} NVLinks: {full - width} down"
            )
        draft.both(
            rank, hub, None if gpu is None else width * gpu.link_bandwidth, NVSWITCH_LATENCY, "nvlink",
            f"{matrix.source}:{matrix.lines[rank]}",
            LinkState.DEGRADED if width < full else LinkState.OK, width,
        )  # fmt: skip


def _private_links(draft: _Draft, domain: list[int], physical: int) -> None:
    matrix, gpu = draft.matrix, draft.gpu
    largest = max(sum(matrix.links[rank]) for rank in domain)
    draft.assumptions.append(
        f"private NVLinks between {_names(draft, domain)}: no row's NV numbers add up to more than {largest}, "
        f"within the {physical} links of {gpu.name if gpu else 'a GPU (--gpu-model makes this certain)'}"
    )
    shipping = gpu.counts if gpu is not None else SHIPPING_COUNTS
    odd: dict[int, list[str]] = {}
    for a in domain:
        for b in domain:
            count = matrix.links[a][b]
            if b <= a or not count:
                continue
            if count not in shipping:
                odd.setdefault(count, []).append(f"{draft.gpu_name(a)}-{draft.gpu_name(b)}")
            draft.both(
                a, b, None if gpu is None else count * gpu.link_bandwidth, NVLINK_LATENCY, "nvlink",
                f"{matrix.source}:{matrix.lines[a]}",
                LinkState.OK if count in shipping else LinkState.DEGRADED, count,
            )  # fmt: skip
    for count, pairs in odd.items():
        draft.warnings.append(
            f"NV{count} ({', '.join(pairs[:4])}{' ...' if len(pairs) > 4 else ''}) is no shipping link count"
            + (f" of {gpu.name} ({' or '.join(map(str, sorted(shipping)))})" if gpu else "")
            + ": a link or bridge may be down"
        )


def _odd_nvlink(draft: _Draft, domains: list[list[int]]) -> None:
    gpu = draft.gpu
    alone = [domain[0] for domain in domains if len(domain) == 1]
    if draft.count > 1 and len(alone) == draft.count:
        if gpu is None:
            draft.warnings.append(
                f"{draft.count} GPUs, no NVLink: the fabric manager is not running, or it is a PCIe box; "
                "say --gpu-model to check"
            )
        elif gpu.links:
            draft.warnings.append(
                f"{draft.count} GPUs, no NVLink though {gpu.name} has {gpu.links}: the fabric manager is not "
                "running, or these are PCIe boards without bridges"
            )
    elif alone and len(alone) < draft.count:
        for rank in alone:
            draft.warnings.append(
                f"{draft.gpu_name(rank)} (rank {rank}) is off the NVLink fabric that joins other GPUs"
            )


def _names(draft: _Draft, ranks: list[int]) -> str:
    if len(ranks) > 4:
        return f"{len(ranks)} GPUs ({draft.gpu_name(ranks[0])}..{draft.gpu_name(ranks[-1])})"
    return ", ".join(draft.gpu_name(rank) for rank in ranks)


# --- PCIe --------------------------------------------------------------------------------------


def _pcie(draft: _Draft) -> None:
    """Adds the PCIe tree that the cells describe: GPU, PCIe switch, cascaded switch, host, socket link."""
    matrix, gpu = draft.matrix, draft.gpu
    speed = None if gpu is None else PCIE_EFFECTIVE[gpu.pcie]
    provenance = "PCIe tree from the matrix" + (f", {gpu.name}: gen {gpu.pcie} x16" if gpu else "")
    same_switch, cascade, host = (_shared_at(matrix, limit) for limit in ("PIX", "PXB", "NODE"))
    by_affinity = _join_by_numa(matrix, host)
    ranks = range(draft.count)
    hosts = host.of(ranks)
    names = 0

    def attach(child: int, parent: int, latency: int) -> None:
        draft.both(child, parent, speed, latency, "pcie", provenance, LinkState.ASSUMED)

    def pcie_switch() -> int:
        nonlocal names
        names += 1
        return draft.add(Vertex(f"pcie:{names - 1}", VertexKind.PCIE_SWITCH, node=0))

    host_ids = []
    for number, members in enumerate(hosts):
        complexes = cascade.of(members)
        needs_host = len(hosts) > 1 or len(complexes) > 1
        host_id = draft.add(Vertex(f"host:{number}", VertexKind.HOST, node=0)) if needs_host else None
        if host_id is not None:
            host_ids.append(host_id)
        for below in complexes:
            branches = same_switch.of(below)
            top = host_id
            if len(branches) > 1:
                top = pcie_switch()
                if host_id is not None:
                    attach(top, host_id, 0)
            for branch in branches:
                parent = top
                if len(branch) > 1:
                    parent = pcie_switch()
                    if top is not None:
                        attach(parent, top, 0)
                for rank in branch:
                    if parent is not None:
                        attach(rank, parent, PCIE_LATENCY)
    for a in range(len(host_ids)):
        for b in range(a):
            draft.both(
                host_ids[b], host_ids[a], None if gpu is None else gpu.socket, 0, "socket",
                "link between sockets", LinkState.ASSUMED,
            )  # fmt: skip
    draft.assumptions += _pcie_notes(gpu, len(host_ids), by_affinity)


def _pcie_notes(gpu: GpuClass | None, hosts: int, by_affinity: bool) -> list[str]:
    notes = [
        "PCIe is part of the graph, because NVLink does not join all GPUs; peer access over it is taken for granted"
    ]
    if gpu is not None:
        notes.append(
            f"PCIe gen {gpu.pcie} x16 of {gpu.name} at NCCL's effective {PCIE_EFFECTIVE[gpu.pcie] / 1e9:g} GB/s "
            f"(line rate {PCIE_LINE[gpu.pcie]:g} GB/s), half a microsecond a GPU's side"
        )
    if hosts > 1:
        speed = f"at {gpu.socket / 1e9:g} GB/s (NCCL's figure for a CPU of this time)" if gpu else "of unknown speed"
        notes.append(f"{hosts} sockets, a link between every two of them {speed}, shared by all GPUs of a socket")
    if by_affinity:
        notes.append("GPUs with the same NUMA affinity share a socket though their cells say SYS")
    return notes


def _shared_at(matrix: Matrix, limit: str) -> _Groups:
    """GPUs whose path is `limit` or better.  An NV cell hides the pair's PCIe path: a NIC near both shows it."""
    near = frozenset(PATHS[1 : PATHS.index(limit) + 1])
    ranks = range(len(matrix.gpus))
    groups = _Groups(ranks)
    for a in ranks:
        for b in range(a):
            path = matrix.paths[a][b]
            by_nic = path is None and any(
                one in near and other in near
                for one, other in zip(matrix.nic_paths[a], matrix.nic_paths[b], strict=True)
            )
            if path in near or by_nic:
                groups.join(b, a)
    return groups


def _join_by_numa(matrix: Matrix, host: _Groups) -> bool:
    """Joins GPUs of one NUMA node; whether that changed anything."""
    first: dict[int, int] = {}
    changed = False
    for rank, numa in enumerate(matrix.numa):
        if numa is None:
            continue
        other = first.setdefault(numa, rank)
        if host.find(other) != host.find(rank):
            host.join(other, rank)
            changed = True
    return changed


# --- NICs and rails ----------------------------------------------------------------------------


def _nic_numbers(names: tuple[str, ...]) -> list[int]:
    """NICk keeps its number; other names are numbered by column."""
    if all(name.startswith("NIC") and name[3:].isdigit() for name in names):
        return [int(name[3:]) for name in names]
    return list(range(len(names)))


def _rails(draft: _Draft) -> tuple[list[int | None], list[int | None]]:
    """The rail of each GPU and of each NIC.

    GPUs choose their nearest NIC, those with the nearest first; ties go to the NIC that serves fewest
    GPUs, then to the first column.  Rails are numbered in the order of the GPUs that use them.
    """
    matrix = draft.matrix
    columns = range(len(matrix.nics))
    if not columns:
        return [None] * draft.count, []
    best = [min(PATHS.index(row[c]) for row in matrix.nic_paths) for c in columns]
    compute = list(columns)
    if min(best) <= PATHS.index("PXB"):
        compute = [c for c in columns if best[c] < PATHS.index("NODE")]
    numbers = _nic_numbers(matrix.nics)
    outside = [f"nic:{numbers[c]} ({matrix.nics[c]})" for c in columns if c not in compute]
    if outside:
        draft.warnings.append(
            f"{', '.join(outside)}: no GPU nearer than NODE while other NICs are; storage or front-end, on no rail"
        )

    def distance(rank: int, column: int) -> int:
        return PATHS.index(matrix.nic_paths[rank][column])

    users = dict.fromkeys(compute, 0)
    chosen: dict[int, int] = {}
    for rank in sorted(range(draft.count), key=lambda r: (min(distance(r, c) for c in compute), r)):
        column = min(compute, key=lambda c: (distance(rank, c), users[c], c))
        users[column] += 1
        chosen[rank] = column
    order = list(dict.fromkeys([*(chosen[rank] for rank in range(draft.count)), *compute]))
    rail = {column: index for index, column in enumerate(order)}
    if any(matrix.nics[c] != f"NIC{numbers[c]}" for c in columns):
        draft.assumptions.append("NICs: " + ", ".join(f"nic:{numbers[c]} = {matrix.nics[c]}" for c in columns))
    if any(any(row) for row in matrix.links) and all(p == "SYS" for row in matrix.nic_paths for p in row):
        draft.assumptions.append(
            "every NIC is SYS from every GPU: on a Grace machine (GB200) that path is C2C and PCIe, not a socket "
            "crossing, and other trays of its NVLink domain do not show in the matrix"
        )
    return [rail[chosen[rank]] for rank in range(draft.count)], [rail.get(c) for c in columns]


def _symmetry(draft: _Draft) -> list[list[int]]:
    """GPU rotation, when equal links to one switch are all there is."""
    widths = {(link.bandwidth, link.count) for link in draft.links}
    hubs = {link.src for link in draft.links if link.src >= draft.count}
    if len(widths) != 1 or len(hubs) != 1 or len(draft.links) != 2 * draft.count:
        return []
    rotation = [(rank + 1) % draft.count for rank in range(draft.count)]
    return [[*rotation, *range(draft.count, len(draft.vertices))]]
