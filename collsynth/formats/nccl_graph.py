"""NCCL graph XML (`NCCL_GRAPH_FILE`): a ring or chain of ours as the orders in which stock NCCL runs its own.

The file is the same on every node and lists the GPUs of one node for each channel; `dev` is hexadecimal.  NCCL
joins the nodes itself, so that the order inside all nodes must be the same one, and a ring must visit each node
once.  Written as NCCL's small tokenizer wants it: no declaration, two blanks of indent, one blank between
attributes, double quotes.  Graphs that the file lacks (tree beside ring, NVLS) NCCL searches as ever.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ..errors import InputError, RefusedError
from ..program import Program
from ..schedule import Schedule
from ..topology import Topology, VertexKind
from ..units import gigabytes_per_second
from .paths import Paths, find

#: id and pattern of NCCL's graphs: ring, and tree whose part inside a node is a chain.
_GRAPHS = {"ring": (0, 4), "chain": (1, 3)}
_MAX_NODES = 65536
#: Path classes by the kind of the slowest link; others count as SYS.
_TYPES = {"nvlink": "NVL", "xgmi": "NVL", "pcie": "PHB"}
_ASSUMED_SPEED = "20"


@dataclass(frozen=True, slots=True)
class Rendered:
    """A text, what it leaves out, and what was assumed for it."""

    text: str
    losses: tuple[str, ...]
    assumptions: tuple[str, ...]


def render(value: Schedule | Program, topology: Topology | None = None) -> Rendered:
    """The graph file for a ring or chain.

    Args:
        value: schedule or program.
        topology: the machine; a schedule's own by default.  None: one node, GPU r is rank r, speeds assumed.

    Raises:
        RefusedError: it is no ring or chain, or its nodes differ.
        InputError: the machine has another number of ranks.
    """
    machine = value.topology if isinstance(value, Schedule) and topology is None else topology
    found = find(value)
    if machine is not None and machine.nranks != len(found.orders[0]):
        raise InputError(f"the machine has {machine.nranks} ranks", where="-t", expected=str(len(found.orders[0])))
    losses = ("chunks, their order and their routes: NCCL runs its own algorithm and protocol over these orders",)
    channels = [_local(order, found.kind, machine) for order in found.orders]
    crossing = machine is not None and machine.nnodes > 1
    nets = [_nics(order, machine) for order in found.orders] if crossing and machine is not None else []
    intra, inter, kind, assumed = _speeds(found, machine)
    if machine is None:
        assumed.append("all ranks are in one node")
    assumed.append("dev is the local rank (the order of NVML and of CUDA_VISIBLE_DEVICES may differ)")
    number, pattern = _GRAPHS[found.kind]
    same = len(set(map(tuple, channels))) == 1
    lines = [
        '<graphs version="1">',
        f'  <graph id="{number}" pattern="{pattern}" crossnic="{int(any(a != b for a, b in nets))}"'
        f' nchannels="{len(channels)}" speedintra="{intra}" speedinter="{inter}" latencyinter="0"'
        f' typeintra="{kind}" typeinter="PXB" samechannels="{int(same)}">',
    ]
    for index, devices in enumerate(channels):
        lines.append("    <channel>")
        if nets:
            lines.append(f'      <net dev="{_hex(nets[index][0])}"/>')
        lines += [f'      <gpu dev="{_hex(device)}"/>' for device in devices]
        if nets:
            lines.append(f'      <net dev="{_hex(nets[index][1])}"/>')
        lines.append("    </channel>")
    lines += ["  </graph>", "</graphs>", ""]
    nodes = sum(line.lstrip().startswith("<") and not line.lstrip().startswith("</") for line in lines)
    if nodes > _MAX_NODES:
        raise RefusedError(f"a graph file of {nodes} XML nodes: NCCL reads {_MAX_NODES}")
    return Rendered("\n".join(lines), losses, tuple(assumed))


def _hex(number: int) -> str:
    """As NCCL's own dumps write it: 0, 0x1, 0xa."""
    return f"{number:#x}" if number else "0"


def _local(order: tuple[int, ...], kind: str, machine: Topology | None) -> list[int]:
    """Local ranks in the order of one node, the same for all nodes.

    Raises:
        RefusedError: a node is visited twice, or nodes differ.
    """
    if machine is None or machine.nnodes == 1:
        return list(order)
    node_of = [vertex.node for vertex in machine.vertices[: machine.nranks]]
    local: list[int] = []
    count: Counter[int | None] = Counter()
    for node in node_of:
        local.append(count[node])
        count[node] += 1
    # start at the border of two nodes
    turn = next(i for i in range(len(order)) if node_of[order[i]] != node_of[order[i - 1]])
    turned = order[turn:] + order[:turn] if kind == "ring" else order
    visits: list[tuple[int | None, list[int]]] = []
    for rank in turned:
        if not visits or visits[-1][0] != node_of[rank]:
            visits.append((node_of[rank], []))
        visits[-1][1].append(local[rank])
    if len(visits) != machine.nnodes:
        raise RefusedError(f"NCCL visits each node once; this {kind} does so {len(visits)} times in all")
    if any(devices != visits[0][1] for _, devices in visits):
        raise RefusedError("NCCL's graph file is one for all nodes; here the order inside the nodes differs")
    return visits[0][1]


def _nics(order: tuple[int, ...], machine: Topology) -> tuple[int, int]:
    """NIC (by its number in the node) through which a node is entered and left: the one nearest to the GPU."""
    node_of = [vertex.node for vertex in machine.vertices[: machine.nranks]]
    turn = next(i for i in range(len(order)) if node_of[order[i]] != node_of[order[i - 1]])
    first = order[turn]
    last = order[turn - 1]
    return _nic_of(first, machine), _nic_of(last, machine)


def _nic_of(rank: int, machine: Topology) -> int:
    vertex = machine.vertices[rank]
    nics = [i for i, v in enumerate(machine.vertices) if v.kind is VertexKind.NIC and v.node == vertex.node]
    if not nics:
        raise RefusedError(f"node {vertex.node} has no NIC for the ring to leave it by")
    around = set(machine.link_dst[machine.link_src == rank].tolist())
    beyond = set(machine.link_dst[np.isin(machine.link_src, sorted(around - {rank}))].tolist())
    for near in (around, beyond):
        linked = [i for i in nics if i in near]
        same = [i for i in linked if vertex.rail is not None and machine.vertices[i].rail == vertex.rail]
        if linked:
            return nics.index((same or linked)[0])
    return nics.index(nics[0])


def _speeds(found: Paths, machine: Topology | None) -> tuple[str, str, str, list[str]]:
    """speedintra, speedinter, typeintra and what was assumed for them; GB/s of one channel."""
    if machine is None or machine.unknown_speeds():
        kind = "NVL"
        why = f"{_ASSUMED_SPEED} GB/s a channel and paths of class NVL: the speeds are not known"
        return _ASSUMED_SPEED, _ASSUMED_SPEED, kind, [why]
    uses: Counter[int] = Counter()
    neighbours = {
        (order[i], order[(i + 1) % len(order)]) for order in found.orders for i in range(len(order))
    }  # fmt: skip
    routes = {pair: _route(pair, machine) for pair in neighbours}
    for order in found.orders:
        for i in range(len(order) - (found.kind == "chain")):
            uses.update(routes[order[i], order[(i + 1) % len(order)]])
    node = [vertex.node for vertex in machine.vertices]
    speed = {
        link: Fraction(int(machine.link_bandwidth[link]), times) for link, times in uses.items()
    }  # fmt: skip
    inside = {
        link for pair, links in routes.items() if node[pair[0]] == node[pair[1]] for link in links if link in speed
    }
    between = set(speed) - inside
    kinds = {machine.link_kind[link] for link in inside}
    worst = max((_TYPES.get(kind, "SYS") for kind in kinds), key=["NVL", "PHB", "SYS"].index, default="LOC")
    intra = min((speed[link] for link in inside), default=min(speed.values(), default=Fraction(20 * 10**9)))
    inter = min((speed[link] for link in between), default=intra)
    notes = ["a channel's speed is that of its slowest link by the topology, shared by the channels that cross it",
             "typeinter is PXB"]  # fmt: skip
    return f"{gigabytes_per_second(intra):g}", f"{gigabytes_per_second(inter):g}", worst, notes


def _route(pair: tuple[int, int], machine: Topology) -> list[int]:
    """Link ids of a shortest way between two ranks through vertices that are no ranks; empty if there is none."""
    before: dict[int, int] = {}
    layer, seen = [pair[0]], {pair[0]}
    while layer and pair[1] not in seen:
        after = []
        for link in np.flatnonzero(np.isin(machine.link_src, layer)).tolist():
            to = int(machine.link_dst[link])
            if to not in seen and (to >= machine.nranks or to == pair[1]):
                seen.add(to)
                before[to] = link
                after.append(to)
        layer = after
    links: list[int] = []
    place = pair[1]
    while place != pair[0] and place in before:
        links.append(before[place])
        place = int(machine.link_src[before[place]])
    return links
