"""Chakra execution traces of any origin: read, checked, replayed, and turned back into programs.

`read` takes the traces of all ranks; `faults` says what would stop ASTRA-sim or let it run to a wrong end;
`program_of` gives the program back, as far as the trace holds it:

* traces that collsynth wrote carry their instructions (`chakra`): the very program, checked against the nodes;
* traces of the published converter carry the MSCCL XML that they were made from: its program, if no step of it
  is missing in the trace (that converter drops some);
* for other traces see `chakra_infer`: a node says how many bytes move, not which.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CollsynthError, InputError, RefusedError, VerificationError
from ..program import RECEIVING, SENDING, Op, Program, Protocol
from . import chakra
from .chakra_wire import Node, NodeType, decode
from .files import read_bytes

_FILE = re.compile(r"(.+)\.(\d+)\.et$")
_STEP = re.compile(r"_tb(\d+)_step(\d+)$")
_INSTRUCTION = re.compile(
    r"(s|r|cpy|re|nop|rcs|rrc|rrs|rrcs) (-|[ios]:-?\d{1,12}) (-|[ios]:-?\d{1,12}) (\d{1,12})"
    r"(?: after ((?:-?\d{1,9}:-?\d{1,9},)*-?\d{1,9}:-?\d{1,9}))?"
)
_OPS = {name: op for op, name in chakra.OP_NAMES.items()}
_MAX_TAG = 500_000_000
_MESSAGES = (NodeType.COMM_SEND, NodeType.COMM_RECV)
#: Largest program that metadata may ask for.
_MAX_STEPS = 1 << 26


@dataclass(frozen=True, eq=False)
class Trace:
    """The traces of all ranks.

    Attributes:
        prefix: the files are `<prefix>.<rank>.et`.
        versions: the version field of each rank's metadata.
        metadata: the attributes of each rank's metadata.
        ranks: the nodes of each rank, in the order of the file.
    """

    prefix: str
    versions: tuple[str, ...]
    metadata: tuple[dict[str, Any], ...]
    ranks: tuple[tuple[Node, ...], ...]

    @property
    def nranks(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    def where(self, rank: int, node: Node) -> str:
        """`file: byte N, node I`, for messages."""
        return f"{self.prefix}.{rank}.et: byte {node.offset}, node {node.id}"


@dataclass(frozen=True, slots=True)
class TraceFault:
    """What is wrong with a trace.

    Attributes:
        code: `E-ID`, `E-DEPENDENCY`, `E-CYCLE`, `E-ATTRIBUTE`, `E-PEER`, `E-SIZE`, `E-TAG`, `E-NODE`, `E-EMPTY`,
            `E-PAIRING`, or the warning `W-SHARED-TAG`.
        rank, node: where; node is the id in the file, None for the whole file.
        message: one sentence.
    """

    code: str
    rank: int
    node: int | None
    message: str

    @property
    def is_error(self) -> bool:
        """Whether the trace cannot run as it is meant to."""
        return self.code.startswith("E")


def prefix_of(path: str | Path) -> str | None:
    """The prefix that a path names, as prefix, as one of the files, or as `<prefix>.et`; None if there is no trace."""
    text = str(path)
    match = _FILE.fullmatch(text)
    candidates = [match[1]] if match else [text, text.removesuffix(".et")]
    return next((prefix for prefix in candidates if Path(f"{prefix}.0.et").is_file()), None)


def read(path: str | Path) -> Trace:
    """The traces of all ranks of a prefix (or of one of its files).

    Raises:
        InputError: there are none, one between others is missing, or one is damaged (file and byte are named).
    """
    prefix = prefix_of(path)
    if prefix is None:
        raise InputError("no Chakra traces", where=str(path), expected=f"{path}.0.et, {path}.1.et ...")
    parent, name = Path(prefix).parent, Path(prefix).name
    numbers = sorted(
        int(match[2]) for file in parent.glob("*.et") if (match := _FILE.fullmatch(file.name)) and match[1] == name
    )
    for expected, number in enumerate(numbers):
        if number != expected:
            raise InputError(
                "a rank's trace is missing", where=f"{prefix}.{expected}.et", expected=f"it, since there is {number}"
            )
    files = [f"{prefix}.{rank}.et" for rank in numbers]
    parts = [decode(read_bytes(file), file) for file in files]
    return Trace(
        prefix,
        tuple(version for version, _, _ in parts),
        tuple(attributes for _, attributes, _ in parts),
        tuple(tuple(nodes) for _, _, nodes in parts),
    )


# --- checking ------------------------------------------------------------------------------------


def faults(ranks: Iterable[Iterable[Node]]) -> list[TraceFault]:
    """Everything in a set of traces that stops ASTRA-sim, or that it runs otherwise than meant.

    Nodes are checked one by one, then messages are paired as the simulator pairs them (equal tag, ends and size),
    then a replay shows which nodes never run.
    """
    found: list[TraceFault] = []
    tables = [list(nodes) for nodes in ranks]
    for rank, nodes in enumerate(tables):
        found.extend(_node_faults(rank, nodes, len(tables)))
    if any(fault.is_error for fault in found):
        return found  # what does not stand alone cannot be paired
    found.extend(_pairing_faults(tables))
    if not any(fault.is_error for fault in found):
        for rank, stuck in enumerate(replay(tables).stuck):
            if stuck:
                found.append(TraceFault("E-CYCLE", rank, stuck[0], f"{len(stuck)} nodes wait for each other"))
    return found


def _node_faults(rank: int, nodes: list[Node], nranks: int) -> Iterator[TraceFault]:
    def fault(code: str, node: Node, message: str) -> TraceFault:
        return TraceFault(code, rank, node.id, message)

    if not nodes:
        yield TraceFault("E-EMPTY", rank, None, "the trace has no nodes, which ASTRA-sim refuses")
    seen: set[int] = set()
    for node in nodes:
        if node.id in seen:
            yield fault("E-ID", node, "another node has this id")
        seen.add(node.id)
    for node in nodes:
        unknown = [d for d in node.depends + node.control if d not in seen]
        if unknown:
            yield fault("E-DEPENDENCY", node, f"depends on node {unknown[0]}, which does not exist")
        if node.type in (NodeType.METADATA, NodeType.MEM_LOAD, NodeType.MEM_STORE):
            yield fault("E-NODE", node, f"a {node.type.name} node is started and never ends")
        if node.type in _MESSAGES:
            yield from _message_faults(rank, node, nranks)


def _message_faults(rank: int, node: Node, nranks: int) -> Iterator[TraceFault]:
    sends = node.type is NodeType.COMM_SEND
    other, own = ("comm_dst", "comm_src") if sends else ("comm_src", "comm_dst")
    symbolic = "comm_size" not in node.attributes and node.integer("msg_chunk_cnt") is not None
    for name in (other, "comm_tag", *(() if symbolic else ("comm_size",))):
        if node.integer(name) is None:
            what = f"{name} is {node.attributes[name]!r:.40}, no integer" if name in node.attributes else f"no {name}"
            yield TraceFault("E-ATTRIBUTE", rank, node.id, what)
    peer = node.integer(other)
    if peer is not None and not 0 <= peer < nranks:
        yield TraceFault("E-PEER", rank, node.id, f"{other} is {peer} of {nranks} ranks")
    if peer == rank:
        yield TraceFault("E-PEER", rank, node.id, "a message to itself")
    if node.integer(own) not in (None, rank):
        yield TraceFault("E-PEER", rank, node.id, f"{own} is {node.integer(own)}, not the rank of the file")
    for name in ("comm_size", "msg_chunk_cnt"):
        size = node.integer(name)
        if size is not None and size <= 0:
            yield TraceFault("E-SIZE", rank, node.id, f"{name} is {size}: nothing is sent")
    tag = node.integer("comm_tag")
    if tag is not None and not 0 <= tag < _MAX_TAG:
        yield TraceFault("E-TAG", rank, node.id, f"comm_tag is {tag}, not in 0..{_MAX_TAG - 1}")


def _key(rank: int, node: Node) -> tuple[int, int, int, int]:
    """(src, dst, tag, size), by which messages are paired; size in chunks where it is only symbolic."""
    if node.type is NodeType.COMM_SEND:
        ends = rank, node.integer("comm_dst") or 0
    else:
        ends = node.integer("comm_src") or 0, rank
    size = node.integer("comm_size")
    return (*ends, node.integer("comm_tag") or 0, (node.integer("msg_chunk_cnt") or 0) if size is None else size)


def _pairing_faults(tables: list[list[Node]]) -> Iterator[TraceFault]:
    sends: dict[tuple[int, ...], list[int]] = defaultdict(list)
    receives: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for rank, nodes in enumerate(tables):
        for node in nodes:
            if node.type in _MESSAGES:
                (sends if node.type is NodeType.COMM_SEND else receives)[_key(rank, node)].append(node.id)
    shared = 0
    for key in sorted(sends.keys() | receives.keys()):
        src, dst, tag, size = key
        out, into = sends[key], receives[key]
        if len(out) != len(into):
            rank, extra = (src, out[len(into) :]) if len(out) > len(into) else (dst, into[len(out) :])
            message = (
                f"rank {src} sends {len(out)} messages of tag {tag}, size {size} to rank {dst}, "
                f"which receives {len(into)}"
            )
            yield TraceFault("E-PAIRING", rank, extra[0], message)
        elif len(out) > 1 and not shared:
            shared += 1
            message = f"{len(out)} messages to rank {dst} share tag {tag} and size: which is which is left to chance"
            yield TraceFault("W-SHARED-TAG", src, out[0], message)


@dataclass(frozen=True, slots=True)
class Replay:
    """How a replay ended: per rank the nodes that never ran; messages that nobody took; nodes in order of running."""

    stuck: list[list[int]]
    unreceived: int
    order: list[tuple[int, int]]


def replay(ranks: Iterable[Iterable[Node]]) -> Replay:
    """Run the nodes as their dependencies allow: a receive waits for its message, a send is not held up.

    Messages with equal tag, ends and size are taken in the order in which they were sent.
    """
    tables = [{node.id: node for node in nodes} for nodes in ranks]
    after: dict[tuple[int, int], list[int]] = defaultdict(list)
    waits: dict[tuple[int, int], int] = {}
    ready: deque[tuple[int, int]] = deque()
    for rank, nodes in enumerate(tables):
        for node in nodes.values():
            needed = set(node.depends + node.control)
            waits[rank, node.id] = len(needed)
            for other in needed:
                after[rank, other].append(node.id)
            if not needed:
                ready.append((rank, node.id))
    under_way: Counter[tuple[int, ...]] = Counter()
    posted: dict[tuple[int, ...], deque[tuple[int, int]]] = defaultdict(deque)
    order: list[tuple[int, int]] = []

    def finish(place: tuple[int, int]) -> None:
        order.append(place)
        for other in after[place]:
            waits[place[0], other] -= 1
            if waits[place[0], other] == 0:
                ready.append((place[0], other))

    while ready:
        rank, number = place = ready.popleft()
        node = tables[rank][number]
        if node.type is NodeType.COMM_SEND:
            key = _key(rank, node)
            finish(place)
            if posted[key]:
                finish(posted[key].popleft())
            else:
                under_way[key] += 1
        elif node.type is NodeType.COMM_RECV:
            key = _key(rank, node)
            if under_way[key]:
                under_way[key] -= 1
                finish(place)
            else:
                posted[key].append(place)
        else:
            finish(place)
    done = set(order)
    stuck = [[n for n in nodes if (rank, n) not in done] for rank, nodes in enumerate(tables)]
    return Replay(stuck, sum(under_way.values()), order)


# --- programs ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Recovered:
    """A program out of a trace: the payload it was made for (None: not known), and what was lost or assumed."""

    program: Program
    size: int | None
    losses: tuple[str, ...]


def recovered(trace: Trace) -> Recovered | None:
    """The program that a trace carries in words; None when it carries none.

    Raises:
        InputError: what the metadata or a node says is damaged, or the nodes are not those of the program.
        RefusedError: steps of the MSCCL XML that the trace was made from are missing in it.
    """
    if all(chakra.PROGRAM_KEY in attributes for attributes in trace.metadata):
        return _annotated(trace)
    if trace.metadata and isinstance(trace.metadata[0].get("input_file"), str):
        return _embedded(trace)
    return None


_HEADER = (
    "name", "collective", "nranks", "root", "nunits", "nchannels", "protocol", "in_place", "out_of_place",
    "min_bytes", "max_bytes", "payload_bytes", "notes",
)  # fmt: skip


def _annotated(trace: Trace) -> Recovered:
    """The program of a trace that collsynth wrote; the trace must be the one that the program gives."""
    descriptions = [_description(trace, rank) for rank in range(trace.nranks)]
    head = {name: descriptions[0][name] for name in _HEADER}
    for rank, own in enumerate(descriptions):
        if {name: own[name] for name in _HEADER} != head or own["rank"] != rank or head["nranks"] != trace.nranks:
            raise InputError(
                f"its metadata are those of rank {own['rank']} of {own['nranks']} of {own['name']!r:.60}",
                where=f"{trace.prefix}.{rank}.et", expected=f"rank {rank} of {trace.nranks} of the same program",
            )  # fmt: skip
    blocks: list[tuple[int, ...]] = []
    rows: list[_Row] = []
    for rank, own in enumerate(descriptions):
        texts = _step_texts(trace, rank, own)
        for number, send, recv, channel, steps in own["threadblocks"]:
            blocks.append((rank, number, send, recv, channel, steps))
            for step in range(steps):
                text = texts.pop((number, step), None)
                if text is None:
                    raise InputError(f"threadblock {number} has no step {step}", where=f"{trace.prefix}.{rank}.et")
                rows.append(_row(text, f"{trace.prefix}.{rank}.et: threadblock {number}, step {step}"))
        if texts:
            raise InputError(f"step {min(texts)} is in no threadblock", where=f"{trace.prefix}.{rank}.et")
    program = _assemble(head, descriptions, blocks, rows)
    size = head["payload_bytes"]
    _compare(trace, program, size)
    return Recovered(program, size, ())


def _description(trace: Trace, rank: int) -> dict[str, Any]:
    where = f"{trace.prefix}.{rank}.et: {chakra.PROGRAM_KEY}"
    try:
        own = json.loads(trace.metadata[rank][chakra.PROGRAM_KEY])
        if own["format"] != chakra.PROGRAM_FORMAT:
            raise InputError(f"format {own['format']!r}", where=where, expected=str(chakra.PROGRAM_FORMAT))
        numbers = [own[name] for name in ("rank", "nranks", "nunits", "nchannels", "payload_bytes", "input_units",
                                          "output_units", "scratch_units")]  # fmt: skip
        numbers += [number for block in own["threadblocks"] for number in block]
        numbers += [number for block in own["nops"] for number in block[:2]]
        good = (
            all(type(number) is int and abs(number) < 1 << 40 for number in numbers)
            and all(len(block) == 5 and 0 <= block[4] <= _MAX_STEPS for block in own["threadblocks"])
            and all(type(own[name]) in (int, type(None)) for name in ("root", "min_bytes", "max_bytes"))
            and type(own["in_place"]) is type(own["out_of_place"]) is bool
            and type(own["name"]) is type(own["collective"]) is str
            and isinstance(own["notes"], list)
        )
        own["protocol"] = Protocol(own["protocol"])
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise InputError("is damaged", where=where, expected="it as collsynth wrote it") from error
    if not good:
        raise InputError("is damaged", where=where, expected="it as collsynth wrote it")
    assert isinstance(own, dict)
    return own


def _step_texts(trace: Trace, rank: int, own: dict[str, Any]) -> dict[tuple[int, int], str]:
    """(threadblock, step) -> instruction, from the nodes and, for nops, the metadata."""
    texts = {(number, step): str(text) for number, step, text in own["nops"]}
    for node in trace.ranks[rank]:
        if "instruction" not in node.attributes:
            continue
        number, step, text = node.integer("tb_id"), node.integer("local_time_step"), node.attributes["instruction"]
        if number is None or step is None or not isinstance(text, str):
            raise InputError("has an instruction but no step", where=trace.where(rank, node))
        if texts.setdefault((number, step), text) != text:
            raise InputError("is not of the same instruction as an earlier node of its step",
                             where=trace.where(rank, node))  # fmt: skip
    return texts


@dataclass(frozen=True, slots=True)
class _Row:
    op: int
    src: tuple[int, int]
    dst: tuple[int, int]
    count: int
    waits: tuple[tuple[int, int], ...]


def _row(text: str, where: str) -> _Row:
    match = _INSTRUCTION.fullmatch(text)
    if match is None:
        raise InputError(f"instruction {text!r:.60} is damaged", where=where)
    name, src, dst, count, after = match.groups()

    def operand(word: str) -> tuple[int, int]:
        return (-1, -1) if word == "-" else ("ios".index(word[0]), int(word[2:]))

    waits = tuple((int(tb), int(step)) for tb, step in (pair.split(":") for pair in after.split(","))) if after else ()
    return _Row(int(_OPS[name]), operand(src), operand(dst), int(count), waits)


def _assemble(
    head: dict[str, Any], ranks: list[dict[str, Any]], blocks: list[tuple[int, ...]], rows: list[_Row]
) -> Program:
    def column(values: Iterable[int]) -> np.ndarray:
        return np.array(list(values), dtype=np.int64)

    table = np.array(blocks, dtype=np.int64).reshape(len(blocks), 6).T.copy()
    zeros, none = np.zeros(len(rows), dtype=np.int64), np.full(len(rows), -1, dtype=np.int64)
    waits = [wait for row in rows for wait in row.waits]
    return Program(
        **{name: head[name] for name in _HEADER if name not in ("payload_bytes", "notes")},
        notes=tuple(str(note) for note in head["notes"]),
        input_units=column(own["input_units"] for own in ranks),
        output_units=column(own["output_units"] for own in ranks),
        scratch_units=column(own["scratch_units"] for own in ranks),
        tb_rank=table[0], tb_id=table[1], tb_send=table[2], tb_recv=table[3], tb_channel=table[4],
        tb_ptr=np.concatenate(([0], np.cumsum(table[5]))).astype(np.int64),
        op=column(row.op for row in rows),
        src_space=zeros, src_buffer=column(row.src[0] for row in rows), src_index=column(row.src[1] for row in rows),
        dst_space=zeros.copy(), dst_buffer=column(row.dst[0] for row in rows),
        dst_index=column(row.dst[1] for row in rows),
        count=column(row.count for row in rows), peer=none, sync=none.copy(),
        dep_ptr=np.concatenate(([0], np.cumsum([len(row.waits) for row in rows]))).astype(np.int64),
        dep_tb=column(tb for tb, _ in waits), dep_step=column(step for _, step in waits),
    )  # fmt: skip


def _compare(trace: Trace, program: Program, size: int) -> None:
    """Do nothing if the program gives this trace (durations apart).

    Raises:
        InputError: a node is another one than its instruction gives.
    """
    try:
        expected = chakra.traces(program, size=size)
    except (CollsynthError, IndexError) as error:
        raise InputError(f"its instructions give no trace ({error})", where=f"{trace.prefix}.0.et") from error
    for rank, (ours, theirs) in enumerate(zip(expected, trace.ranks, strict=True)):
        for one, two in zip(ours, theirs, strict=False):
            if (one.id, one.type, one.depends, one.control, one.attributes) != (
                two.id, two.type, two.depends, two.control, two.attributes,
            ):  # fmt: skip
                raise InputError(
                    "is not what the instructions of the trace give", where=trace.where(rank, two),
                    expected=f"{one.type.name} {one.attributes}; the trace was changed after collsynth wrote it",
                )  # fmt: skip
        if len(ours) != len(theirs):
            raise InputError(f"has {len(theirs)} nodes", where=f"{trace.prefix}.{rank}.et", expected=str(len(ours)))


def _embedded(trace: Trace) -> Recovered:
    """The program of the MSCCL XML in a trace's metadata, if the trace has all its messages."""
    from . import msccl_read

    source = msccl_read.parse(trace.metadata[0]["input_file"], f"{trace.prefix}.0.et: input_file")
    program = source.program
    if program.nranks != trace.nranks:
        raise InputError(f"its MSCCL XML is for {program.nranks} ranks", where=trace.prefix, expected=str(trace.nranks))
    present: dict[tuple[int, int], list[tuple[int, str]]] = defaultdict(list)
    for rank, nodes in enumerate(trace.ranks):
        for node in nodes:
            match = _STEP.search(node.name)
            if match and node.type in _MESSAGES:
                present[rank, int(match[1])].append((int(match[2]), node.type.name))
    missing = total = 0
    first = ""
    for block in range(program.ntbs):
        place = int(program.tb_rank[block]), int(program.tb_id[block])
        there = Counter(kind for _, kind in present[place])
        rows = range(int(program.tb_ptr[block]), int(program.tb_ptr[block + 1]))
        wanted = Counter(
            kind for row in rows for kinds, kind in ((RECEIVING, "COMM_RECV"), (SENDING, "COMM_SEND"))
            if Op(int(program.op[row])) in kinds
        )  # fmt: skip
        total += wanted.total()
        absent = (wanted - there).total()
        if absent and not missing:
            first = f"rank {place[0]}, threadblock {place[1]}"
        missing += absent
    if missing:
        raise RefusedError(
            f"{trace.prefix}: {missing} of the {total} messages of the MSCCL XML that this trace was made from are "
            f"missing in it (first: {first}); the published converter drops such steps; convert the XML itself"
        )
    return Recovered(
        program, _payload(trace, program),
        ("the program is that of the MSCCL XML in the trace's metadata; durations and the trace's own tags are lost",),
    )  # fmt: skip


def _payload(trace: Trace, program: Program) -> int | None:
    """Payload bytes, from the first message that has a size in bytes and a step in the program."""
    places = {
        (int(rank), int(number)): block
        for block, (rank, number) in enumerate(zip(program.tb_rank, program.tb_id, strict=True))
    }  # fmt: skip
    for rank, nodes in enumerate(trace.ranks):
        for node in nodes:
            match, size = _STEP.search(node.name), node.integer("comm_size")
            if match and size is not None and (block := places.get((rank, int(match[1])))) is not None:
                row = int(program.tb_ptr[block]) + int(match[2])
                if row < program.tb_ptr[block + 1] and program.count[row]:
                    return size * program.nunits // int(program.count[row])
    return None


def require_runnable(trace: Trace) -> None:
    """Do nothing if a trace runs to its end with all messages paired.

    Raises:
        VerificationError: it does not; the message names the first fault, `findings` holds all.
    """
    found = [fault for fault in faults(trace.ranks) if fault.is_error]
    if found:
        first = found[0]
        node = "" if first.node is None else f", node {first.node}"
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise VerificationError(
            f"{trace.prefix}.{first.rank}.et{node}: {first.message} [{first.code}]{more}", tuple(found)
        )
