"""Program to MSCCL++ execution plan (schema since August 2025), for programs of one-sided operations.

Rows that one operation of the executor does together become that operation (signals on several channels, puts
to several peers, a sum that is also sent), so that data is loaded once; the threads of a block meet (`nop`)
exactly where `mscclpp_sync` says that they must.  Reading the plan gives the rows back.

Not written, because the executor runs them wrongly or not at all: put-with-signal-and-flush (a put-with-signal
and a flush instead), a sum of a multicast group into one rank, dependencies between threadblocks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import RefusedError
from ..program import TARGETS, ChannelKind, Instruction, Op, Operand, Program, Protocol, Space, Target
from .files import check_writable, write_text_atomically
from .mscclpp_read import DEFAULT_OPTIONS, NO_LIMIT, PlanOptions, channel_count, own_cells
from .mscclpp_rules import (
    MAX_BARRIERS,
    MAX_OP_BUFFERS,
    MAX_OP_CHANNELS,
    MAX_OPERATIONS,
    MAX_SEMAPHORES,
    MAX_TB_CHANNELS,
    packet_overlap,
)  # fmt: skip
from .mscclpp_sync import place_nops

_LETTERS = "ios"
_KIND_NAMES = {ChannelKind.MEMORY: "memory", ChannelKind.PORT: "port", ChannelKind.SWITCH: "switch"}
_SIGNAL_NAMES = {Op.SIGNAL: "signal", Op.WAIT: "wait", Op.RELAXED_SIGNAL: "rlxsignal", Op.RELAXED_WAIT: "rlxwait",
                 Op.FLUSH: "flush"}  # fmt: skip
_CONNECTED = (ChannelKind.MEMORY, ChannelKind.PORT)
_TERM_OPS = {Op.REDUCE: "re", Op.READ_REDUCE: "rre", Op.READ_PACKET_REDUCE: "repkt"}
Rows = Sequence[Instruction]


def losses(program: Program) -> tuple[str, ...]:
    """What of a program a plan does not carry (its data movement and order are carried whole)."""
    lost = []
    if program.in_place and program.out_of_place:
        lost.append("that it also serves calls out of place (a plan serves one mode)")
    rows = [program.instruction(row) for row in range(program.nrows)]
    if any(row.op is Op.NOP for row in rows):
        lost.append("steps without effect")
    if program.nchannels != channel_count(rows):
        lost.append(f"nchannels {program.nchannels} (a plan's is what is used, {channel_count(rows)})")
    used = {program.groups[r.sync] for r in rows if r.kind is ChannelKind.SWITCH and r.sync is not None}
    if list(program.groups) != sorted(used):
        lost.append("multicast groups that are unused, and their order")
    return tuple(lost)


def render(program: Program, options: PlanOptions = DEFAULT_OPTIONS, target: Target = TARGETS["mscclpp"]) -> str:
    """The text of a plan.

    Args:
        program: a one-sided program that keeps the executor's limits.
        options: launch parameters.
        target: whose limits to keep.

    Raises:
        RefusedError: something that a plan or the executor does not have; names the limit, the figure and the place.
    """
    return dumps(plan_of(program, options))


def write(
    program: Program, path: str | Path, *, target: Target = TARGETS["mscclpp"], force: bool = False,
    options: PlanOptions = DEFAULT_OPTIONS,
) -> None:  # fmt: skip
    """Write a plan in one move; see `render`.

    Raises:
        InputError: the file exists and `force` is not given, or cannot be written.
        RefusedError: the plan cannot express the program.
    """
    check_writable(path, force=force)
    write_text_atomically(path, render(program, options, target), force=force)


def dumps(plan: dict[str, Any]) -> str:
    """A plan with one line an operation, channel list or buffer."""
    head = {k: v for k, v in plan.items() if k != "gpus"}
    lines = ["{", *(f"  {json.dumps(k)}: {json.dumps(v)}," for k, v in head.items()), '  "gpus": [']
    for number, gpu in enumerate(plan["gpus"]):
        small = ", ".join(f"{json.dumps(k)}: {v}" for k, v in gpu.items() if isinstance(v, int))
        lines.append(f"    {{{small},")
        for key in ("channels", "remote_buffers", "semaphores"):
            lines += _list_lines(key, gpu[key], 5, ",")
        lines.append('     "threadblocks": [')
        for position, block in enumerate(gpu["threadblocks"]):
            lines.append(f'      {{"id": {block["id"]},')
            for key in ("channels", "remote_buffer_refs"):
                lines += _list_lines(key, block[key], 7, ",")
            lines += _list_lines("ops", block["ops"], 7, "}" + ("," if position + 1 < len(gpu["threadblocks"]) else ""))
        lines.append("     ]}" + ("," if number + 1 < len(plan["gpus"]) else ""))
    return "\n".join([*lines, "  ]", "}", ""])


def _list_lines(key: str, values: list[Any], indent: int, end: str) -> list[str]:
    if not values:
        return [f'{" " * indent}"{key}": []{end}']
    inner = [f"{' ' * (indent + 2)}{json.dumps(value)}," for value in values]
    inner[-1] = inner[-1][:-1] + f"]{end}"
    return [f'{" " * indent}"{key}": [', *inner]


# --- the plan --------------------------------------------------------------------------------------------


def plan_of(program: Program, options: PlanOptions = DEFAULT_OPTIONS) -> dict[str, Any]:
    """The plan as a JSON value; see `render`."""
    _refuse_unfit(program)
    packets = program.protocol is Protocol.LL
    double = packets if options.double_scratch is None else options.double_scratch
    plan: dict[str, Any] = {
        "name": program.name, "collective": program.collective or "custom", "protocol": program.protocol.value,
        "inplace": program.in_place, "reuse_resources": options.reuse_resources,
        "num_threads_per_block": options.num_threads_per_block, "use_double_scratch_buffer": double,
        "buffer_alignment": options.buffer_alignment, "min_message_size": program.min_bytes or 0,
        "max_message_size": NO_LIMIT if program.max_bytes is None else program.max_bytes,
    }  # fmt: skip
    switches = _switch_channels(program)
    plan["gpus"] = [_Gpu(program, rank, switches).value() for rank in range(program.nranks)]
    return plan


def _refuse(what: str) -> RefusedError:
    return RefusedError(f"target mscclpp refuses: {what}")


def _refuse_unfit(program: Program) -> None:
    if program.protocol is Protocol.LL128:
        raise _refuse("protocol LL128; its plans are Simple or LL")
    if program.root:
        raise _refuse(f"root {program.root}, its plans can only mean root 0")
    if not (program.in_place or program.out_of_place):
        raise _refuse("the program is for no mode, neither in place nor out of place")
    for label, sizes in (("input", program.input_units), ("output", program.output_units)):
        if not sizes.all():
            raise _refuse(f"the {label} of rank {int(sizes.argmin())} has no chunks, and its loader divides by them")
    if len(program.dep_tb):
        row = int((program.dep_ptr[1:] > 0).argmax())
        tb = int((program.tb_ptr > row).argmax()) - 1
        place = f"rank {program.tb_rank[tb]} tb {program.tb_id[tb]}"
        raise _refuse(f"{place} waits by a dependency on another threadblock; "
                      "it has semaphores and barriers")  # fmt: skip
    if any(op < Op.PUT and op not in (Op.NOP, Op.COPY, Op.REDUCE) for op in program.op.tolist()):
        raise _refuse("sends and receives through FIFOs, its plans are one-sided (lower for target mscclpp)")
    rank_of = np.repeat(program.tb_rank, np.diff(program.tb_ptr))
    strange = (program.peer >= program.nranks) | (program.peer == rank_of)
    if strange.any():
        row = int(strange.argmax())
        raise _refuse(f"a step of rank {rank_of[row]} names peer {program.peer[row]}")
    overlap = packet_overlap(program)
    if overlap is not None:
        raise _refuse(overlap)


def _switch_channels(program: Program) -> list[tuple[int, int]]:
    """(group, buffer) of every switch channel that somebody uses; all members of the group create it."""
    used: set[tuple[int, int]] = set()
    for row in range(program.nrows) if program.groups else ():
        view = program.instruction(row)
        if view.kind is ChannelKind.SWITCH and view.sync is not None:
            used.update((view.sync, int(o.buffer)) for o in (view.src, view.dst) if o and o.space is Space.MULTICAST)
    return sorted(used)


class _Gpu:
    """One GPU of a plan: its tables, then its threadblocks."""

    def __init__(self, program: Program, rank: int, switches: list[tuple[int, int]]) -> None:
        self.program, self.rank = program, rank
        self.blocks = program.threadblocks(rank)
        self.switches = [(group, buffer) for group, buffer in switches if rank in program.groups[group]]
        rows = [row for block in self.blocks for row in block.instructions]
        most: dict[tuple[ChannelKind, int], int] = {}
        remote: dict[tuple[int, int], set[str]] = {}
        for row in rows:
            if row.kind in _CONNECTED and row.peer is not None:
                key = (row.kind, row.peer)  # a peer must be connected by a channel for its memory to be mapped
                most[key] = max(most.get(key, 1), 1 + (0 if row.sync is None else row.sync))
                for operand in (row.src, row.dst):
                    if operand is not None and operand.space is Space.REMOTE:
                        remote.setdefault((row.peer, int(operand.buffer)), set()).add(_KIND_NAMES[row.kind])
        #: (kind, peer, number) -> flat channel id of its kind
        self.channel_ids: dict[tuple[ChannelKind, int, int], int] = {}
        self.connected: dict[ChannelKind, list[int]] = {kind: [] for kind in _CONNECTED}
        for (kind, peer), number in sorted(most.items()):
            for channel in range(number):
                self.channel_ids[kind, peer, channel] = len(self.connected[kind])
                self.connected[kind].append(peer)
        self.remote = {key: index for index, key in enumerate(sorted(remote))}
        self.access = [sorted(remote[key]) for key in sorted(remote)]

    def value(self) -> dict[str, Any]:
        program, rank = self.program, self.rank
        channels: list[dict[str, Any]] = [
            {"channel_type": _KIND_NAMES[kind], "connected_to": peers}
            for kind, peers in self.connected.items()
            if peers
        ]
        for group, buffer in self.switches:
            members = list(program.groups[group])
            channels.append({"channel_type": "switch", "buffer_type": _LETTERS[buffer],
                             "rank_groups": [{"size": len(members), "ranks": members}]})  # fmt: skip
        starts = program.semaphore_init[rank] if program.semaphore_init else ()
        if len(starts) > MAX_SEMAPHORES:
            raise _refuse(f"rank {rank} has {len(starts)} semaphores, the limit is {MAX_SEMAPHORES}")
        blocks = []
        for position, block in enumerate(self.blocks):
            if block.id != position:
                raise _refuse(f"threadblock {position} of rank {rank} has id {block.id}; a plan numbers them in order")
            blocks.append(_Block(self, position, block.instructions).value())
        return {
            "id": rank, "input_chunks": int(program.input_units[rank]),
            "output_chunks": int(program.output_units[rank]), "scratch_chunks": int(program.scratch_units[rank]),
            "channels": channels,
            "remote_buffers": [
                {"rank": peer, "type": _LETTERS[buffer], "access_channel_types": self.access[index]}
                for (peer, buffer), index in self.remote.items()
            ],
            "semaphores": [{"init_value": value} for value in starts], "threadblocks": blocks,
        }  # fmt: skip


class _Block:
    """One threadblock of a plan."""

    def __init__(self, gpu: _Gpu, position: int, rows: Rows) -> None:
        self.gpu, self.place = gpu, f"rank {gpu.rank} tb {position}"
        self.rows = [row for row in rows if row.op is not Op.NOP]
        self.channels: dict[ChannelKind, list[int]] = {}
        self.buffers: dict[ChannelKind, list[int]] = {}

    def value(self) -> dict[str, Any]:
        groups: list[Rows] = []
        begin = 0
        while begin < len(self.rows):
            end = begin + _length(self.rows, begin)
            groups.append(self.rows[begin:end])
            begin = end
        nops = place_nops(groups, own_cells(self.gpu.program, self.gpu.rank))
        ops: list[dict[str, Any]] = []
        for rows, nop in zip(groups, nops, strict=True):
            if nop:
                ops.append({"name": "nop"})
            ops.append(self._operation(rows))
        if len(ops) > MAX_OPERATIONS:
            raise _refuse(f"{self.place} has {len(ops)} operations (nops included), the limit is {MAX_OPERATIONS}")
        for kind, ids in self.channels.items():
            if len(ids) > MAX_TB_CHANNELS:
                raise _refuse(
                    f"{self.place} uses {len(ids)} {_KIND_NAMES[kind]} channels, the limit is {MAX_TB_CHANNELS}"
                )
        return {
            "id": int(self.place.rsplit(" ", 1)[1]),
            "channels": [{"channel_type": _KIND_NAMES[k], "channel_ids": ids} for k, ids in self.channels.items()],
            "remote_buffer_refs": [
                {"access_channel_type": _KIND_NAMES[k], "remote_buffer_ids": ids} for k, ids in self.buffers.items()
            ],
            "ops": ops,
        }  # fmt: skip

    # --- operands ------------------------------------------------------------------------------------

    @staticmethod
    def _index(listed: list[int], value: int) -> int:
        if value not in listed:
            listed.append(value)
        return listed.index(value)

    def _channel(self, row: Instruction) -> int:
        assert row.peer is not None and row.sync is not None
        flat = self.gpu.channel_ids[row.kind, row.peer, row.sync]
        return self._index(self.channels.setdefault(row.kind, []), flat)

    def _operand(self, row: Instruction, operand: Operand | None) -> dict[str, int | str]:
        assert operand is not None
        where: dict[str, int | str]
        if operand.space is Space.LOCAL:
            where = {"type": _LETTERS[operand.buffer]}
        elif operand.space is Space.REMOTE:
            assert row.peer is not None
            number = self.gpu.remote[row.peer, int(operand.buffer)]
            where = {"buffer_id": self._index(self.buffers.setdefault(row.kind, []), number)}
        else:
            assert row.sync is not None
            flat = self.gpu.switches.index((row.sync, int(operand.buffer)))
            where = {"switch_channel_id": self._index(self.channels.setdefault(ChannelKind.SWITCH, []), flat)}
        return where | {"index": operand.index, "size": operand.count}

    # --- operations ----------------------------------------------------------------------------------

    def _operation(self, rows: Rows) -> dict[str, Any]:
        row = rows[0]
        op = row.op
        if op in _SIGNAL_NAMES:
            ids = [self._channel(r) for r in rows]
            return {"name": _SIGNAL_NAMES[op], "channel_ids": ids, "channel_type": _KIND_NAMES[row.kind]}
        if op in (Op.ACQUIRE, Op.RELEASE):
            name = "sem_acquire" if op is Op.ACQUIRE else "sem_release"
            return {"name": name, "semaphore_ids": [r.sync for r in rows]}
        if op is Op.BARRIER:
            if row.sync is None or row.sync >= MAX_BARRIERS:
                raise _refuse(f"{self.place} uses barrier {row.sync}, the limit is {MAX_BARRIERS}")
            return {"name": "barrier", "barrier_id": row.sync, "num_threadblocks": row.count}
        if op in _TERM_OPS or (op is Op.COPY and len(rows) > 1):
            return self._sum(rows)
        if op in (Op.COPY, Op.READ_PACKET) or (op is Op.PUT_PACKET and row.kind is ChannelKind.NONE):
            name = {Op.COPY: "copy", Op.READ_PACKET: "upkt", Op.PUT_PACKET: "cpkt"}[op]
            return {"name": name, **self._lists(rows)}
        if row.kind is ChannelKind.SWITCH:
            return self._multicast(row)
        return self._transfer(rows)

    def _lists(self, rows: Rows) -> dict[str, Any]:
        sources = [self._operand(r, r.src) for r in rows]
        return {"src_buff": sources, "dst_buff": [self._operand(r, r.dst) for r in rows]}

    def _transfer(self, rows: Rows) -> dict[str, Any]:
        puts = [r for r in rows if r.op is not Op.SIGNAL]
        op, kind = puts[0].op, puts[0].kind
        if op is Op.PUT_PACKET and kind is ChannelKind.PORT:
            raise _refuse(
                f"{self.place} packs and sends through a port in one step; it packs into its own scratch first"
            )
        name = {Op.PUT: "put", Op.GET: "get", Op.PUT_PACKET: "ppkt", Op.FORWARD_PACKET: "rppkt"}[op]
        lists = self._lists(puts)
        if op is Op.FORWARD_PACKET:
            lists["src_buff"] = lists["src_buff"][:1]
        new = {"name": name if len(puts) == len(rows) else "pws", **lists}
        if kind is ChannelKind.PORT:
            new["channel_ids"] = [self._channel(r) for r in puts]
        return new | {"channel_type": _KIND_NAMES[kind]}

    def _multicast(self, row: Instruction) -> dict[str, Any]:
        assert row.dst is not None
        if row.op is Op.PUT_PACKET:
            raise _refuse(f"{self.place} packs and multicasts in one step; it packs into its own scratch first")
        if row.op is Op.MULTICAST_REDUCE and row.dst.space is Space.LOCAL:
            raise _refuse(f"{self.place} reduces a multicast group into one rank, which its executor does not run")
        name = {Op.MULTICAST_STORE: "gstore", Op.MULTICAST_REDUCE: "glres", Op.FORWARD_PACKET: "gstorepkt"}[row.op]
        reduces = {"reduce_op": "sum"} if name == "glres" else {}
        return {"name": name, **self._lists([row]), "channel_type": "switch", **reduces}

    def _sum(self, rows: Rows) -> dict[str, Any]:
        """A sum, and where else it goes."""
        terms = [r for r in rows if r.op in _TERM_OPS]
        first, result = rows[0], rows[0].dst
        sources = [self._operand(first, first.src if first.op is Op.COPY else result)]
        sources += [self._operand(r, r.src) for r in terms]
        sent = [r for r in rows if r.op in (Op.PUT, Op.PUT_PACKET)]
        local = any(r.kind is ChannelKind.NONE for r in sent)
        remote = any(r.kind is not ChannelKind.NONE for r in sent)
        packets = terms[0].op is Op.READ_PACKET_REDUCE
        name = _TERM_OPS[terms[0].op]
        if packets:
            name = "re" + ("c" if local else "") + ("s" if remote else "") + "pkt"
        elif remote:
            name += "s"
        results = [self._operand(first, result), *(self._operand(r, r.dst) for r in sent)]
        new: dict[str, Any] = {"name": name, "src_buff": sources, "dst_buff": results}
        kinds = {r.kind for r in (*terms, *sent)} - {ChannelKind.NONE}
        return new | ({"channel_type": "memory"} if kinds else {}) | {"reduce_op": "sum"}


# --- which rows one operation does -----------------------------------------------------------------------


def _length(rows: Rows, begin: int) -> int:
    """Number of rows from `begin` that one operation does; reading the operation gives these rows."""
    row = rows[begin]
    if row.op in _SIGNAL_NAMES or row.op in (Op.ACQUIRE, Op.RELEASE):
        return _run(rows, begin, lambda r: (r.op, r.kind), lambda r: (r.peer, r.sync), MAX_OP_CHANNELS)
    if row.op in _TERM_OPS or row.op is Op.COPY:
        return _sum_length(rows, begin)
    if row.kind is ChannelKind.PORT:
        signals = _signal_pairs(rows, begin)
        return signals or _run(rows, begin, _port_key, lambda r: (r.peer, r.sync), MAX_OP_CHANNELS)
    if row.op is Op.PUT or row.op is Op.GET or (row.op is Op.PUT_PACKET and row.kind is ChannelKind.MEMORY):
        return _run(rows, begin, _memory_key, lambda r: r.dst and (r.peer, r.dst.buffer, r.dst.index), MAX_OP_CHANNELS)
    if row.op is Op.FORWARD_PACKET and row.kind is ChannelKind.MEMORY:
        return _run(rows, begin, lambda r: (r.op, r.kind, r.src), lambda r: (r.peer, r.dst), MAX_OP_CHANNELS)
    return 1


def _run(rows: Rows, begin: int, same: Any, different: Any, limit: int) -> int:
    """Rows from `begin` with the same `same` and pairwise different `different`, at most `limit`."""
    key, end = same(rows[begin]), begin
    seen: set[Any] = set()
    while end < len(rows) and end - begin < limit and same(rows[end]) == key and different(rows[end]) not in seen:
        seen.add(different(rows[end]))
        end += 1
    return end - begin


def _memory_key(row: Instruction) -> tuple[Any, ...]:
    # the executor takes the first source's buffer for all of them
    local = row.src if row.op is not Op.GET else row.dst
    return (row.op, row.kind, row.count, local and local.buffer)


def _port_key(row: Instruction) -> tuple[Any, ...]:
    return (row.op, row.kind, row.count, row.src if row.op is Op.FORWARD_PACKET else None)


def _signal_pairs(rows: Rows, begin: int) -> int:
    """Rows of PUT, SIGNAL pairs through ports, each pair on a channel of its own."""
    end = begin
    seen: set[tuple[int | None, int | None]] = set()
    while end + 1 < len(rows) and len(seen) < MAX_OP_CHANNELS:
        put, signal = rows[end], rows[end + 1]
        key = (put.peer, put.sync)
        paired = (
            put.op is Op.PUT and signal.op is Op.SIGNAL and put.kind is signal.kind is ChannelKind.PORT
            and key == (signal.peer, signal.sync) and key not in seen and put.count == rows[begin].count
        )  # fmt: skip
        if not paired:
            break
        seen.add(key)
        end += 2
    return end - begin


def _sum_length(rows: Rows, begin: int) -> int:
    """A first term (COPY) and further ones into one place, and where the sum is sent."""
    first = rows[begin]
    result, end = first.dst, begin
    assert result is not None
    if first.op is Op.COPY:
        end += 1
    if end == len(rows) or rows[end].op not in _TERM_OPS or rows[end].dst != result:
        return 1
    kind = rows[end].op
    if first.op is Op.COPY and _aliases(first.src, result):
        return 1
    while end < len(rows) and rows[end].op is kind and rows[end].dst == result and end - begin < MAX_OP_BUFFERS - 1:
        if _aliases(rows[end].src, result):
            break
        end += 1
    if all(r.op is Op.COPY for r in rows[begin:end]):
        return 1
    packets = kind is Op.READ_PACKET_REDUCE
    send = Op.PUT_PACKET if packets else Op.PUT
    limit, sent, local = end + MAX_OP_CHANNELS, end, False
    while sent < len(rows) and sent < limit and rows[sent].op is send and rows[sent].src == result:
        if rows[sent].kind is ChannelKind.NONE and not local and sent == end:
            local = True  # the own copy comes first
        elif rows[sent].kind is not ChannelKind.MEMORY:
            break
        sent += 1
    return sent - begin


def _aliases(source: Operand | None, result: Operand) -> bool:
    """Whether a term overlaps the place of the sum (which one operation would not do in order)."""
    if source is None or source.space is not Space.LOCAL or source.buffer is not result.buffer:
        return False
    return source.index < result.index + result.count and result.index < source.index + source.count
