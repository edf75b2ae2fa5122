"""Program to Chakra execution traces that ASTRA-sim runs as a custom collective.

One file a rank, `<prefix>.<rank>.et`, and `<prefix>.system.json` with the two keys that ASTRA-sim's system
file needs for it.  The trace says what the algorithm needs and no more: ASTRA-sim completes a send when it is
delivered, so that keeping a threadblock's order would cost a trip a message.  Nodes therefore depend on data
only: a send on what wrote its data, a reduction (COMP) on its message and on the last writer, a receive on
the readers of a buffer that it reuses.  Every message has its own tag.  Sizes are written twice, in bytes
(`comm_size`) and in chunks (`msg_chunk_cnt`, `msg_chunk_idx`, `total_chunk_cnt`), for both generations of
the simulator.  Local copies and reductions are COMP nodes.

What the simulator does not need but the program is lost without, is written beside it, so that `chakra_trace`
can give the program back: each node names its threadblock and step and carries the instruction as text
(`rrcs i:3 o:3 1 after 0:2`: type, source, destination, units, waits), the metadata of each rank hold what no
node says (buffer sizes, threadblocks, nops, the size window).
"""

from __future__ import annotations

import heapq
import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import InputError, RefusedError, VerificationError
from ..program import RECEIVING, SENDING, TWO_SIDED, Buffer, Op, Program
from ..verifier.memory import layout_of
from .chakra_wire import Node, NodeType, decode, encode
from .files import check_writable, read_bytes, write_bytes_atomically

__all__ = ["Node", "NodeType", "read", "system_file", "traces", "write"]

VERSION, SCHEMA = "0.0.4", "1.0.2-chakra.0.0.4"
_LETTERS = "ios"
#: ASTRA-sim's keys of custom collectives; it has none for the others.
_SYSTEM_KEYS = {
    "allreduce": "all-reduce-implementation-custom", "allgather": "all-gather-implementation-custom",
    "reducescatter": "reduce-scatter-implementation-custom", "alltoall": "all-to-all-implementation-custom",
}  # fmt: skip
_MAX_TAG = 500_000_000
#: Attribute of the metadata that holds what no node says; its value's `format`.
PROGRAM_KEY, PROGRAM_FORMAT = "collsynth_program", 1
#: Instruction names of MSCCL XML, which the text of an instruction begins with.
OP_NAMES = {
    Op.SEND: "s", Op.RECV: "r", Op.COPY: "cpy", Op.REDUCE: "re", Op.NOP: "nop", Op.RECV_COPY_SEND: "rcs",
    Op.RECV_REDUCE_COPY: "rrc", Op.RECV_REDUCE_SEND: "rrs", Op.RECV_REDUCE_COPY_SEND: "rrcs",
}  # fmt: skip
_REDUCING = frozenset({Op.RECV_REDUCE_COPY, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND})
_STORING = frozenset({Op.RECV_REDUCE_COPY, Op.RECV_REDUCE_COPY_SEND})


@dataclass(slots=True)
class _Memory:
    """One rank while its nodes are made: nodes so far, who wrote and read each cell, what it holds."""

    rank: int
    nodes: list[Node] = field(default_factory=list)
    writer: dict[int, int] = field(default_factory=dict)
    readers: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    unit: dict[int, int] = field(default_factory=dict)  # cell -> unit of the payload whose data it holds
    place: dict[str, Any] = field(default_factory=dict)  # attributes of the step that is being written

    def add(self, label: str, type_: NodeType, depends: set[int], attributes: dict[str, Any], duration: int = 0) -> int:
        number = len(self.nodes)
        name = f"{type_.name}_{label}"
        attributes = {"is_cpu_op": False, **attributes, **self.place}
        self.nodes.append(Node(number, name, type_, tuple(sorted(depends)), (), duration, attributes))
        return number

    def read(self, cells: range) -> set[int]:
        return {self.writer[cell] for cell in cells if cell in self.writer}

    def hazards(self, cells: range) -> set[int]:
        found = self.read(cells)
        for cell in cells:
            found.update(self.readers[cell])
        return found

    def note_read(self, cells: range, node: int) -> None:
        for cell in cells:
            self.readers[cell].append(node)

    def note_write(self, cells: range, node: int, units: list[int]) -> None:
        for cell, unit in zip(cells, units, strict=True):
            self.writer[cell] = node
            self.readers.pop(cell, None)
            self.unit[cell] = unit


def _run_order(program: Program, row_tb: list[int]) -> tuple[list[int], dict[int, int]]:
    """The rows in an order in which they can run, and for each receiving row the row that sends to it.

    Raises:
        VerificationError: messages do not pair up, or the rows wait in a circle.
    """
    ops = [Op(op) for op in program.op.tolist()]
    rank, channel = program.tb_rank.tolist(), program.tb_channel.tolist()
    sends: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    receives: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for row, op in enumerate(ops):
        block = row_tb[row]
        if op in SENDING:
            sends[rank[block], int(program.tb_send[block]), channel[block]].append(row)
        if op in RECEIVING:
            receives[int(program.tb_recv[block]), rank[block], channel[block]].append(row)
    after: dict[int, list[int]] = defaultdict(list)
    waits = [0] * len(ops)

    def edge(first: int, second: int) -> None:
        after[first].append(second)
        waits[second] += 1

    source: dict[int, int] = {}
    depth = program.protocol.fifo_depth
    for key in sends.keys() | receives.keys():
        out, into = sends[key], receives[key]
        if len(out) != len(into):
            raise VerificationError(
                f"rank {key[0]} sends {len(out)} messages to rank {key[1]} on channel {key[2]}, "
                f"which receives {len(into)}"
            )
        for number, (first, second) in enumerate(zip(out, into, strict=True)):
            if program.count[first] != program.count[second]:
                raise VerificationError(f"message {number} from rank {key[0]} to rank {key[1]} has two lengths")
            source[second] = first
            edge(first, second)
            if number >= depth:
                edge(into[number - depth], first)
    place = {
        (r, number): index for index, (r, number) in enumerate(zip(rank, program.tb_id.tolist(), strict=True))
    }  # fmt: skip
    ptr, dep_ptr = program.tb_ptr.tolist(), program.dep_ptr.tolist()
    for row in range(len(ops)):
        if row > ptr[row_tb[row]]:
            edge(row - 1, row)
        for index in range(dep_ptr[row], dep_ptr[row + 1]):
            other = place.get((rank[row_tb[row]], int(program.dep_tb[index])))
            target = -1 if other is None else ptr[other] + int(program.dep_step[index])
            if other is None or not ptr[other] <= target < ptr[other + 1]:
                raise VerificationError(f"rank {rank[row_tb[row]]} waits for a step that does not exist")
            edge(target, row)
    ready = [row for row, count in enumerate(waits) if count == 0]
    order: list[int] = []
    while ready:
        row = heapq.heappop(ready)
        order.append(row)
        for later in after[row]:
            waits[later] -= 1
            if waits[later] == 0:
                heapq.heappush(ready, later)
    if len(order) < len(ops):
        raise VerificationError(f"{len(ops) - len(order)} steps wait for each other: the program never ends")
    return order, source


def traces(program: Program, *, size: int, memory_bandwidth: int | None = None) -> list[list[Node]]:
    """The nodes of every rank.

    Args:
        program: two-sided operations, deadlock-free and free of races.
        size: payload bytes; unit u carries floor((u+1)·size/N) - floor(u·size/N) of them, so that they add up.
        memory_bandwidth: bytes/s that a reduction moves; it then takes 3·bytes/bandwidth, rounded up to a
            microsecond, as ASTRA-sim charges its own collectives.  None: 0.

    Raises:
        RefusedError: a message would have no bytes, or an operation has no counterpart in a trace.
        VerificationError: the program's messages or waits do not fit together.
    """
    if any(Op(op) not in TWO_SIDED for op in set(program.op.tolist())):
        raise RefusedError("a Chakra trace cannot express one-sided operations")
    row_tb = [
        block for block in range(program.ntbs) for _ in range(int(program.tb_ptr[block + 1] - program.tb_ptr[block]))
    ]
    order, source = _run_order(program, row_tb)
    texts = instruction_texts(program)
    layout = layout_of(program, in_place=not program.out_of_place)
    bounds = [unit * size // program.nunits for unit in range(program.nunits + 1)]
    memories = [_Memory(rank) for rank in range(program.nranks)]
    start = 0
    for rank, memory in enumerate(memories):
        shift = start if program.collective in ("allgather", "gather") else 0
        for unit in range(int(program.input_units[rank])):
            memory.unit[layout.base[rank][Buffer.INPUT] + unit] = unit + shift
        start += int(program.input_units[rank])
    sent: dict[int, tuple[int, list[int]]] = {}  # sending row -> (tag, units of the payload)

    def cells(row: int, side: str) -> range:
        buffer = int(getattr(program, f"{side}_buffer")[row])
        if buffer < 0:
            return range(0)
        first = layout.base[memory.rank][buffer] + int(getattr(program, f"{side}_index")[row])
        return range(first, first + int(program.count[row]))

    def transfer(label: str, type_: NodeType, peer: int, tag: int, units: list[int], depends: set[int]) -> int:
        size_ = sum(bounds[unit + 1] - bounds[unit] for unit in units)
        if size_ == 0:
            raise RefusedError(
                f"{size} bytes leave a message of rank {memory.rank} without data ({program.nunits} units)"
            )
        ends = (memory.rank, peer) if type_ is NodeType.COMM_SEND else (peer, memory.rank)
        attributes = {
            "comm_src": ends[0], "comm_dst": ends[1], "comm_size": size_, "comm_tag": tag,
            "msg_chunk_cnt": len(units), "msg_chunk_idx": units[0], "total_chunk_cnt": program.nunits,
        }  # fmt: skip
        return memory.add(label, type_, depends, attributes)

    def compute(label: str, units: list[int], depends: set[int], reduces: bool) -> int:
        bytes_ = sum(bounds[unit + 1] - bounds[unit] for unit in units)
        duration = 0
        if reduces and memory_bandwidth is not None:
            duration = -(-3 * bytes_ * 1_000_000 // memory_bandwidth)
        return memory.add(
            label, NodeType.COMP, depends, {"num_ops": bytes_ if reduces else 0, "tensor_size": bytes_}, duration
        )

    for row in order:
        block = row_tb[row]
        memory = memories[int(program.tb_rank[block])]
        op = Op(int(program.op[row]))
        if op is Op.NOP:
            continue
        step = row - int(program.tb_ptr[block])
        label = f"tb{program.tb_id[block]}_step{step}"
        memory.place = {"tb_id": int(program.tb_id[block]), "local_time_step": step, "instruction": texts[row]}
        src, dst = cells(row, "src"), cells(row, "dst")
        result = -1
        units: list[int] = []
        if op in RECEIVING:
            tag, units = sent[source[row]]
            direct = op not in _REDUCING
            result = transfer(
                label, NodeType.COMM_RECV, int(program.tb_recv[block]), tag, units,
                memory.hazards(dst) if direct else set(),
            )  # fmt: skip
            if direct:
                memory.note_write(dst, result, units)
        if op in _REDUCING or op in (Op.COPY, Op.REDUCE):
            depends = memory.read(src) | (memory.hazards(dst) if len(dst) else set())
            depends |= {result} if result >= 0 else set()
            held = [memory.unit.get(cell, 0) for cell in src]
            units = units or held
            result = compute(label, units, depends, op is not Op.COPY)
            memory.note_read(src, result)
            if op in _STORING or op in (Op.COPY, Op.REDUCE):
                memory.note_write(dst, result, units)
        if op in SENDING:
            if len(sent) >= _MAX_TAG:
                raise RefusedError(f"more than {_MAX_TAG} messages: ASTRA-sim has no tags for them")
            depends = {result} if result >= 0 else memory.read(src)
            units = units or [memory.unit.get(cell, 0) for cell in src]
            sent[row] = (len(sent), units)
            node = transfer(
                label, NodeType.COMM_SEND, int(program.tb_send[block]), len(sent) - 1, units, depends
            )  # fmt: skip
            if op is Op.SEND:
                memory.note_read(src, node)
            elif op is not Op.RECV_REDUCE_SEND:
                memory.note_read(dst, node)
    for memory in memories:
        memory.place = {}
        if not memory.nodes:  # ASTRA-sim refuses an empty trace
            memory.add("idle", NodeType.COMP, set(), {"num_ops": 0, "tensor_size": 0})
    return [memory.nodes for memory in memories]


def instruction_texts(program: Program) -> list[str]:
    """Each row as text: `rrcs i:3 o:3 1 after 0:2,1:5` is type, source, destination (`-`: none), units, waits."""

    def operands(buffers: Any, indices: Any) -> list[str]:
        return ["-" if b < 0 else f"{_LETTERS[b]}:{i}" for b, i in zip(buffers.tolist(), indices.tolist(), strict=True)]

    names = {int(op): name for op, name in OP_NAMES.items()}
    sources = operands(program.src_buffer, program.src_index)
    targets = operands(program.dst_buffer, program.dst_index)
    ptr = program.dep_ptr.tolist()
    waits = [f"{tb}:{step}" for tb, step in zip(program.dep_tb.tolist(), program.dep_step.tolist(), strict=True)]
    return [
        f"{names[op]} {src} {dst} {count}" + (f" after {','.join(waits[first:last])}" if last > first else "")
        for op, src, dst, count, first, last in zip(
            program.op.tolist(), sources, targets, program.count.tolist(), ptr, ptr[1:], strict=False
        )
    ]


def metadata(program: Program, size: int) -> list[dict[str, Any]]:
    """The metadata attributes of every rank's file: what no node of it says."""
    texts = instruction_texts(program)
    nops = program.op == int(Op.NOP)
    ptr = program.tb_ptr.tolist()
    common = {
        "format": PROGRAM_FORMAT, "name": program.name, "collective": program.collective, "nranks": program.nranks,
        "root": program.root, "nunits": program.nunits, "nchannels": program.nchannels,
        "protocol": program.protocol.value, "in_place": program.in_place, "out_of_place": program.out_of_place,
        "min_bytes": program.min_bytes, "max_bytes": program.max_bytes, "payload_bytes": size,
        "notes": list(program.notes),
    }  # fmt: skip
    blocks: list[list[list[int]]] = [[] for _ in range(program.nranks)]
    silent: list[list[list[Any]]] = [[] for _ in range(program.nranks)]
    for block, rank in enumerate(program.tb_rank.tolist()):
        number = int(program.tb_id[block])
        blocks[rank].append(
            [number, int(program.tb_send[block]), int(program.tb_recv[block]), int(program.tb_channel[block]),
             ptr[block + 1] - ptr[block]]
        )  # fmt: skip
        rows = range(ptr[block], ptr[block + 1])
        silent[rank] += [[number, row - ptr[block], texts[row]] for row in rows if nops[row]]
    result = []
    for rank in range(program.nranks):
        own = common | {
            "rank": rank, "input_units": int(program.input_units[rank]),
            "output_units": int(program.output_units[rank]), "scratch_units": int(program.scratch_units[rank]),
            "threadblocks": blocks[rank], "nops": silent[rank],
        }  # fmt: skip
        text = json.dumps(own, separators=(",", ":"))
        result.append({"schema": SCHEMA, "collective": program.collective or "custom", PROGRAM_KEY: text})
    return result


def system_file(collective: str, prefix: str) -> str:
    """ASTRA-sim's system JSON that runs the traces of `prefix` (relative to its working directory).

    Raises:
        InputError: ASTRA-sim takes no custom algorithm for this collective.
    """
    if collective not in _SYSTEM_KEYS:
        raise InputError(f"ASTRA-sim takes no custom {collective}", expected="one of " + ", ".join(_SYSTEM_KEYS))
    return json.dumps({_SYSTEM_KEYS[collective]: [prefix], "preferred-dataset-splits": 1}, indent=2) + "\n"


def write(
    program: Program, prefix: str | Path, *, size: int, force: bool = False, memory_bandwidth: int | None = None
) -> list[Path]:
    """Write `<prefix>.<rank>.et` for every rank and `<prefix>.system.json`; returns the paths.

    Args:
        program, size, memory_bandwidth: see `traces`.
        prefix: path without the rank and suffix.
        force: overwrite.

    Raises:
        RefusedError, VerificationError: see `traces`.
        InputError: a file exists and `force` is not given, or the folder does not exist.
    """
    paths = [Path(f"{prefix}.{rank}.et") for rank in range(program.nranks)]
    system = Path(f"{prefix}.system.json")
    has_key = program.collective in _SYSTEM_KEYS
    for path in [*paths, *([system] if has_key else [])]:
        check_writable(path, force=force)
    ranks = traces(program, size=size, memory_bandwidth=memory_bandwidth)
    for path, nodes, attributes in zip(paths, ranks, metadata(program, size), strict=True):
        write_bytes_atomically(path, encode(nodes, VERSION, attributes), force=force)
    if has_key:
        write_bytes_atomically(system, system_file(program.collective, str(prefix)).encode(), force=force)
        paths.append(system)
    return paths


def read(prefix: str | Path) -> list[list[Node]]:
    """The nodes of every rank of `<prefix>.0.et`, `<prefix>.1.et` ...

    Raises:
        InputError: there is no such file, or one is damaged.
    """
    ranks: list[list[Node]] = []
    while (path := Path(f"{prefix}.{len(ranks)}.et")).exists() or not ranks:
        ranks.append(decode(read_bytes(path), str(path))[2])
    return ranks
