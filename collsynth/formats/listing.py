"""Plain-text listings that a person can read: machines, schedules, programs, traces.  Same value, same text."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..program import Buffer, ChannelKind, Instruction, Op, Operand, Program, Space
from ..schedule import Schedule
from ..topology import Topology
from ..units import gigabytes_per_second, microseconds
from .chakra_trace import Trace
from .chakra_wire import NodeType

_NAMES = {Buffer.INPUT: "in", Buffer.OUTPUT: "out", Buffer.SCRATCH: "scratch"}


def listing(value: Topology | Schedule | Program | Trace) -> str:
    """The whole value as text, LF at the end of every line."""
    if isinstance(value, Topology):
        lines = _topology(value)
    elif isinstance(value, Schedule):
        lines = _schedule(value)
    elif isinstance(value, Program):
        lines = _program(value)
    else:
        lines = _trace(value)
    return "\n".join(lines) + "\n"


def _plural(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _topology(machine: Topology) -> list[str]:
    lines = [f"machine {machine.name}: {_plural(machine.nranks, 'rank')}, {_plural(machine.nlinks, 'link')}"]
    for index, vertex in enumerate(machine.vertices):
        facts = [vertex.kind.value]
        facts += [f"{name} {getattr(vertex, name)}" for name in ("rank", "node", "rail")
                  if getattr(vertex, name) is not None]  # fmt: skip
        for name in ("in_capacity", "out_capacity", "total_capacity"):
            if (capacity := getattr(vertex, name)) is not None:
                facts.append(f"{name.removesuffix('_capacity')} {gigabytes_per_second(capacity):g} GB/s")
        lines.append(f"  {index:>4} {vertex.name:<20} {', '.join(facts)}")
    for index, link in enumerate(machine.links()):
        speed = "speed unknown" if link.bandwidth is None else f"{gigabytes_per_second(link.bandwidth):g} GB/s"
        lines.append(
            f"  {index:>4} {machine.link_name(index):<32} {speed}, {microseconds(link.latency):g} us, {link.kind}"
        )
    return lines


def _schedule(schedule: Schedule) -> list[str]:
    collective = schedule.collective
    lines = [
        f"schedule {schedule.method or 'without a name'}: {collective.name} of {_plural(collective.nchunks, 'chunk')}"
        f" on {schedule.topology.name}, {_plural(schedule.nrows, 'transfer')}"
    ]
    if schedule.generators:
        lines.append(f"  orbit form: one transfer of each orbit of {_plural(len(schedule.generators), 'generator')}")
    level = -1
    for index in schedule.order().tolist():
        row = schedule.row(index)
        if row.level != level:
            level = row.level
            lines.append(f"level {level}")
        places = [row.src, *(int(schedule.topology.link_dst[link]) for link in row.route)]
        way = " -> ".join(schedule.topology.vertices[place].name for place in places)
        lines.append(f"  chunk {row.chunk:>4} {'add ' if row.reduce else 'copy'}  {way}")
    return lines


def _operand(operand: Operand | None, peer: int | None) -> str:
    if operand is None:
        return ""
    units = f"{operand.index}" if operand.count == 1 else f"{operand.index}..{operand.index + operand.count - 1}"
    text = f"{_NAMES[operand.buffer]}[{units}]"
    if operand.space is Space.REMOTE:
        return f"rank {peer} {text}"
    return f"group {text}" if operand.space is Space.MULTICAST else text


_TWO_SIDED = {
    Op.SEND: "send {src}", Op.RECV: "receive {dst}", Op.COPY: "{dst} = {src}", Op.REDUCE: "{dst} += {src}",
    Op.RECV_COPY_SEND: "receive {dst} and send it on", Op.RECV_REDUCE_COPY: "{dst} = received + {src}",
    Op.RECV_REDUCE_SEND: "send received + {src}", Op.RECV_REDUCE_COPY_SEND: "{dst} = received + {src} and send it on",
    Op.NOP: "wait only",
}  # fmt: skip


def _instruction(row: Instruction) -> str:
    src, dst = _operand(row.src, row.peer), _operand(row.dst, row.peer)
    if row.op in _TWO_SIDED:
        text = _TWO_SIDED[row.op].format(src=src, dst=dst)
    else:
        operands = f" {dst} <- {src}" if src and dst else f" {src or dst}".rstrip()
        facts = [] if row.peer is None else [f"rank {row.peer}"]
        if row.kind is not ChannelKind.NONE:
            facts.append(row.kind.name.lower())
        if row.sync is not None:
            facts.append(f"#{row.sync}")
        text = row.op.name.lower().replace("_", " ") + operands + (f" ({', '.join(facts)})" if facts else "")
    if row.depends:
        text += "   after " + ", ".join(f"threadblock {tb} step {step}" for tb, step in row.depends)
    return text


def _program(program: Program) -> list[str]:
    modes = " and ".join(
        word for word, on in (("in place", program.in_place), ("out of place", program.out_of_place)) if on
    )
    root = "" if program.root is None else f", root {program.root}"
    lines = [
        f"program {program.name or 'without a name'}: {program.collective or 'custom'}{root} for "
        f"{_plural(program.nranks, 'rank')}, {_plural(program.nunits, 'unit')}, protocol {program.protocol.value}, "
        f"{modes or 'in no mode'}"
    ]
    if program.min_bytes is not None or program.max_bytes is not None:
        lines.append(f"  for {program.min_bytes or 0} to {program.max_bytes or 'any number of'} bytes")
    for number, group in enumerate(program.groups):
        lines.append(f"  group {number}: ranks {', '.join(map(str, group))}")
    bounds = np.searchsorted(program.tb_rank, np.arange(program.nranks + 1)).tolist()
    for rank in range(program.nranks):
        lines.append(
            f"rank {rank}: in {program.input_units[rank]}, out {program.output_units[rank]}, "
            f"scratch {program.scratch_units[rank]} units"
        )
        for index in range(bounds[rank], bounds[rank + 1]):
            block = program.threadblock(index)
            peers = [f"{word} rank {peer}" for word, peer in (("to", block.send_peer), ("from", block.recv_peer))
                     if peer is not None]  # fmt: skip
            facts = ", ".join(peers) + f" on channel {block.channel}" if peers else "local"
            lines.append(f"  threadblock {block.id}: {facts}")
            lines += [f"    {step:>4}  {_instruction(row)}" for step, row in enumerate(block.instructions)]
    return lines


def _trace(trace: Trace) -> list[str]:
    total = sum(map(len, trace.ranks))
    lines = [f"trace {trace.prefix.rsplit('/', 1)[-1]}: {_plural(trace.nranks, 'rank')}, {_plural(total, 'node')}"]
    for rank, nodes in enumerate(trace.ranks):
        lines.append(f"rank {rank}")
        for node in nodes:
            facts: list[str] = []
            if node.type is NodeType.COMM_SEND:
                facts.append(f"to rank {node.attributes.get('comm_dst', '?')}")
            elif node.type is NodeType.COMM_RECV:
                facts.append(f"from rank {node.attributes.get('comm_src', '?')}")
            if "comm_size" in node.attributes:
                facts.append(f"{node.attributes['comm_size']} bytes")
            elif "msg_chunk_cnt" in node.attributes:
                facts.append(_chunks(node.attributes))
            if "comm_tag" in node.attributes:
                facts.append(f"tag {node.attributes['comm_tag']}")
            if node.duration_us:
                facts.append(f"{node.duration_us} us")
            if node.depends or node.control:
                facts.append("after " + _numbers(node.depends + node.control))
            lines.append(f"  {node.id:>6} {node.type.name.lower():<9} {', '.join(facts)}".rstrip())
    return lines


def _chunks(attributes: dict[str, object]) -> str:
    return (
        f"chunks {attributes.get('msg_chunk_idx', '?')} +{attributes['msg_chunk_cnt']} "
        f"of {attributes.get('total_chunk_cnt', '?')}"
    )


def _numbers(values: Iterable[int]) -> str:
    return ", ".join(map(str, values))
