"""Machines, schedules, programs and traces as graphs for other tools: DOT (Graphviz) and GraphML.

* a machine: its vertices and links;
* a schedule: the machine's ranks, an edge for each pair that a row joins, with the chunks and levels;
* a program or trace: a node for each instruction or trace node, edges for order, waits and messages.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

from ..errors import RefusedError
from ..program import RECEIVING, SENDING, Op, Program
from ..schedule import Schedule
from ..topology import Topology, VertexKind
from ..units import gigabytes_per_second, microseconds
from .chakra import instruction_texts
from .chakra_trace import Trace
from .chakra_wire import NodeType

Attribute = str | int | float
_XML_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_TYPES = {str: "string", int: "long", float: "double"}


@dataclass(frozen=True, slots=True)
class Graph:
    """A directed graph with attributes.

    Attributes:
        name: for the file.
        nodes: (id, attributes); edges: (source id, target id, attributes).  `label` is what is shown.
    """

    name: str
    nodes: tuple[tuple[str, dict[str, Attribute]], ...]
    edges: tuple[tuple[str, str, dict[str, Attribute]], ...]


def graph_of(value: Topology | Schedule | Program | Trace) -> Graph:
    """The graph of whatever can be drawn.

    Raises:
        RefusedError: a program with one-sided operations (its messages are no edges).
    """
    if isinstance(value, Topology):
        return _of_topology(value)
    if isinstance(value, Schedule):
        return _of_schedule(value)
    return _of_program(value) if isinstance(value, Program) else _of_trace(value)


def _of_topology(machine: Topology) -> Graph:
    nodes = []
    for index, vertex in enumerate(machine.vertices):
        attributes: dict[str, Attribute] = {"label": vertex.name, "kind": vertex.kind.value}
        for name in ("rank", "node", "rail"):
            if (number := getattr(vertex, name)) is not None:
                attributes[name] = number
        for name in ("in_capacity", "out_capacity", "total_capacity"):
            if (capacity := getattr(vertex, name)) is not None:
                attributes[f"{name}_GBps"] = gigabytes_per_second(capacity)
        nodes.append((f"v{index}", attributes))
    edges = []
    for link in machine.links():
        attributes = {"kind": link.kind, "count": link.count, "latency_us": microseconds(link.latency)}
        if link.overhead:
            attributes["overhead_us"] = microseconds(link.overhead)
        if link.bandwidth is not None:
            attributes |= {"label": f"{gigabytes_per_second(link.bandwidth):g}",
                           "bandwidth_GBps": gigabytes_per_second(link.bandwidth)}  # fmt: skip
        edges.append((f"v{link.src}", f"v{link.dst}", attributes))
    return Graph(machine.name, tuple(nodes), tuple(edges))


def _of_schedule(schedule: Schedule) -> Graph:
    explicit = schedule.expand()
    nodes: tuple[tuple[str, dict[str, Attribute]], ...] = tuple(
        (f"v{rank}", {"label": explicit.topology.vertices[rank].name, "kind": VertexKind.GPU.value, "rank": rank})
        for rank in range(explicit.topology.nranks)
    )
    pairs: dict[tuple[int, int], list[tuple[int, int, bool]]] = defaultdict(list)
    for chunk, src, dst, level, reduces in zip(
        explicit.chunk.tolist(), explicit.src.tolist(), explicit.dst.tolist(), explicit.level.tolist(),
        explicit.reduce.tolist(), strict=True,
    ):  # fmt: skip
        pairs[src, dst].append((level, chunk, reduces))
    edges: list[tuple[str, str, dict[str, Attribute]]] = []
    for (src, dst), moves in sorted(pairs.items()):
        rows = [f"{chunk}{'+' if reduces else ''}@{level}" for level, chunk, reduces in sorted(moves)]
        shown = " ".join(rows[:6]) + (f" and {len(rows) - 6} more" if len(rows) > 6 else "")
        edges.append((f"v{src}", f"v{dst}", {"label": shown, "rows": " ".join(rows), "transfers": len(rows)}))
    return Graph(f"{explicit.collective.name} {explicit.method}".strip(), nodes, tuple(edges))


def _of_program(program: Program) -> Graph:
    if program.one_sided:
        raise RefusedError("a graph of instructions has an edge for each message; this program is one-sided")
    texts = instruction_texts(program)
    nodes: list[tuple[str, dict[str, Attribute]]] = []
    edges: list[tuple[str, str, dict[str, Attribute]]] = []
    place = {
        (rank, number): block
        for block, (rank, number) in enumerate(zip(program.tb_rank.tolist(), program.tb_id.tolist(), strict=True))
    }  # fmt: skip
    sends: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    receives: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    ptr, dep_ptr, ops = program.tb_ptr.tolist(), program.dep_ptr.tolist(), program.op.tolist()
    for (rank, number), block in place.items():
        channel = int(program.tb_channel[block])
        for row in range(ptr[block], ptr[block + 1]):
            step = row - ptr[block]
            nodes.append(
                (f"i{row}", {"label": f"{rank}.{number}.{step} {texts[row].split(' after ')[0]}", "rank": rank,
                             "threadblock": number, "step": step, "operation": Op(ops[row]).name.lower(),
                             "count": int(program.count[row])})
            )  # fmt: skip
            if step:
                edges.append((f"i{row - 1}", f"i{row}", {"kind": "order"}))
            for index in range(dep_ptr[row], dep_ptr[row + 1]):
                other = place.get((rank, int(program.dep_tb[index])))
                target = -1 if other is None else ptr[other] + int(program.dep_step[index])
                if other is not None and ptr[other] <= target < ptr[other + 1]:
                    edges.append((f"i{target}", f"i{row}", {"kind": "wait"}))
            if ops[row] in SENDING:
                sends[rank, int(program.tb_send[block]), channel].append(row)
            if ops[row] in RECEIVING:
                receives[int(program.tb_recv[block]), rank, channel].append(row)
    for key in sorted(sends):
        for out, into in zip(sends[key], receives[key], strict=False):
            edges.append((f"i{out}", f"i{into}", {"kind": "message", "channel": key[2]}))
    return Graph(program.name or "program", tuple(nodes), tuple(edges))


def _of_trace(trace: Trace) -> Graph:
    nodes: list[tuple[str, dict[str, Attribute]]] = []
    edges: list[tuple[str, str, dict[str, Attribute]]] = []
    sends: dict[tuple[int, ...], list[str]] = defaultdict(list)
    receives: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for rank, own in enumerate(trace.ranks):
        for node in own:
            name = f"n{rank}_{node.id}"
            attributes: dict[str, Attribute] = {
                "label": f"{rank}: {node.name}", "rank": rank, "operation": node.type.name.lower(),
            }  # fmt: skip
            for key in ("comm_size", "comm_tag"):
                if (number := node.integer(key)) is not None:
                    attributes[key] = number
            nodes.append((name, attributes))
            edges += [(f"n{rank}_{other}", name, {"kind": "dependency"}) for other in node.depends + node.control]
            ends = (node.integer("comm_src"), node.integer("comm_dst"))
            tag = (node.integer("comm_tag") or 0, node.integer("comm_size") or 0)
            if node.type is NodeType.COMM_SEND:
                sends[rank, -1 if ends[1] is None else ends[1], *tag].append(name)
            elif node.type is NodeType.COMM_RECV:
                receives[-1 if ends[0] is None else ends[0], rank, *tag].append(name)
    for pair in sorted(sends):
        edges += [(out, into, {"kind": "message"}) for out, into in zip(sends[pair], receives[pair], strict=False)]
    return Graph(trace.prefix.rsplit("/", 1)[-1], tuple(nodes), tuple(edges))


# --- writing -------------------------------------------------------------------------------------

_SHAPES = {"gpu": "box", "switch": "diamond", "nic": "hexagon"}
_STYLES = {"wait": "dashed", "message": "bold"}


def dot(graph: Graph) -> str:
    """Graphviz's language; attributes that Graphviz does not know are kept, it ignores them."""

    def quoted(text: Attribute) -> str:
        return '"' + str(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'

    def listed(attributes: dict[str, Attribute]) -> str:
        return ", ".join(f"{name}={quoted(value)}" for name, value in attributes.items())

    lines = [f"digraph {quoted(graph.name)} {{"]
    for name, attributes in graph.nodes:
        shape = _SHAPES.get(str(attributes.get("kind", "")))
        lines.append(f"  {name} [{listed(attributes | ({'shape': shape} if shape else {}))}];")
    for src, dst, attributes in graph.edges:
        style = _STYLES.get(str(attributes.get("kind", "")))
        lines.append(f"  {src} -> {dst} [{listed(attributes | ({'style': style} if style else {}))}];")
    return "\n".join([*lines, "}", ""])


def graphml(graph: Graph) -> str:
    """GraphML with typed attributes, as networkx, igraph, Gephi and yEd read it."""
    keys: dict[tuple[str, str], str] = {}
    for domain, rows in (("node", [a for _, a in graph.nodes]), ("edge", [a for _, _, a in graph.edges])):
        for attributes in rows:
            for name, value in attributes.items():
                keys.setdefault((domain, name), _TYPES[type(value)])
    ids = {key: f"d{number}" for number, key in enumerate(keys)}

    def data(domain: str, attributes: dict[str, Attribute]) -> Iterator[str]:
        for name, value in attributes.items():
            yield f'<data key="{ids[domain, name]}">{escape(_clean(str(value)))}</data>'

    lines = ["<?xml version='1.0' encoding='utf-8'?>", '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">']
    for (domain, name), type_ in keys.items():
        lines.append(f'  <key id="{ids[domain, name]}" for="{domain}" attr.name="{name}" attr.type="{type_}"/>')
    lines.append(f'  <graph id={quoteattr(_clean(graph.name))} edgedefault="directed">')
    for name, attributes in graph.nodes:
        lines.append(f'    <node id="{name}">{"".join(data("node", attributes))}</node>')
    for src, dst, attributes in graph.edges:
        lines.append(f'    <edge source="{src}" target="{dst}">{"".join(data("edge", attributes))}</edge>')
    return "\n".join([*lines, "  </graph>", "</graphml>", ""])


def _clean(text: str) -> str:
    """Text without the characters that XML cannot hold."""
    return _XML_FORBIDDEN.sub("�", text)
