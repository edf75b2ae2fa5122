"""What MSCCL++'s loader and executor accept of a plan: names, keys, limits.  Facts read from their source."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..errors import InputError
from ..program import Buffer, Op, Program, Protocol, Space
from .mscclpp_json import Node, is_generation_1

#: Operations that the executor runs.
OPERATIONS = frozenset(
    [
        "nop",
        "barrier",
        "put",
        "pws",
        "pwsf",
        "get",
        "copy",
        "signal",
        "wait",
        "flush",
        "re",
        "res",
        "rre",
        "rres",
        "ppkt",
        "rppkt",
        "respkt",
        "cpkt",
        "upkt",
        "repkt",
        "recpkt",
        "recspkt",
        "glres",
        "gstore",
        "gstorepkt",
        "rlxsignal",
        "rlxwait",
        "pipeline",
        "sem_acquire",
        "sem_release",
    ]
)
_PACKET_SOURCES = (Op.READ_PACKET, Op.READ_PACKET_REDUCE, Op.FORWARD_PACKET)
#: Fixed arrays of the executor; only the first limit is checked by it, the others are written past.
MAX_OPERATIONS = 64
MAX_OP_CHANNELS = 8
MAX_OP_BUFFERS = 10
MAX_TB_CHANNELS = 16
MAX_SEMAPHORES = 16
MAX_BARRIERS = 16
#: Bytes of the scratch buffer that plans with `reuse_resources` share.
PREDEFINED_SCRATCH = 64 << 20


@dataclass(frozen=True, slots=True)
class Note:
    """What a target's loader or executor objects to (the fields `collsynth.verifier` reads of a source).

    Attributes:
        code: stable code.
        severity: `error` or `warning`.
        message: in words, with the place.
        line: line in the file, 1 where it is about the whole.
        targets: runtimes that it holds for; () for everybody.
        rank, threadblock, step: place in the program, None where it has none.
    """

    code: str
    severity: str
    message: str
    line: int = 1
    targets: tuple[str, ...] = ("mscclpp",)
    rank: int | None = None
    threadblock: int | None = None
    step: int | None = None


def violations(plan: Node) -> tuple[Note, ...]:
    """The rules of the loader and the executor that a plan breaks, each once, first place named.

    A plan that is so broken that it cannot be looked through ends the list with `E-PLAN-KEY`.
    """
    found: dict[tuple[str, str], Note] = {}
    try:
        for code, what, where in _violations(plan):
            found.setdefault((code, what), Note(code, "error", f"{where}: {what}" if where else what))
    except InputError as error:
        found["E-PLAN-KEY", error.what] = Note("E-PLAN-KEY", "error", str(error).removeprefix(f"{plan.file}: "))
    return tuple(found.values())


def _violations(plan: Node) -> Iterator[tuple[str, str, str]]:
    if is_generation_1(plan):
        yield "E-PLAN-V1", "the schema before August 2025 (camelCase keys), which the current loader does not read", ""
        return
    if not isinstance(plan.value.get("name"), str):
        yield "E-PLAN-NAME", f"the name is {json.dumps(plan.value.get('name')):.40}, and the loader needs a text", ""
    template = plan.value.get("dynamic") is True
    for index, gpu in enumerate(plan.items("gpus")):
        if not template:
            if gpu.number("id") != index:
                yield "E-PLAN-ID", f"GPU {index} has id {gpu.number('id')}", gpu.place
            if not gpu.number("input_chunks") or not gpu.number("output_chunks"):
                yield (
                    "E-PLAN-ZERO-CHUNKS",
                    "zero input or output chunks (the loader's size check divides by them)",
                    gpu.place,
                )
        for channel in gpu.items("channels"):
            if channel.text("channel_type") not in ("memory", "port", "switch", "none"):
                yield "E-PLAN-CHANNEL", f"channel type {channel.text('channel_type')!r}", channel.place
        number = len(list(gpu.items("semaphores", [])))
        if number > MAX_SEMAPHORES:
            yield "E-LIMIT-SEMAPHORES", f"{number} semaphores; the executor has {MAX_SEMAPHORES}", gpu.place
        for position, block in enumerate(gpu.items("threadblocks")):
            if block.number("id") != position:
                yield "E-PLAN-ID", f"threadblock {position} has id {block.number('id')}", block.place
            yield from _block(block)


def _block(block: Node) -> Iterator[tuple[str, str, str]]:
    kinds: dict[str, int] = {}
    for channel in block.items("channels"):
        kind = channel.text("channel_type")
        kinds[kind] = kinds.get(kind, 0) + len(channel.numbers("channel_ids"))
    for kind, number in kinds.items():
        if number > MAX_TB_CHANNELS:
            message = f"{number} {kind} channels in a threadblock; the executor has {MAX_TB_CHANNELS}"
            yield "E-LIMIT-TB-CHANNELS", message, block.place
    total = 0
    for op in block.items("ops"):
        total += 1
        yield from _operation(op)
        if op.has("ops"):
            for inner in op.items("ops"):
                total += 1
                yield from _operation(inner)
    if total > MAX_OPERATIONS:
        message = f"{total} operations in a threadblock; the executor runs {MAX_OPERATIONS}"
        yield "E-LIMIT-STEPS", message, block.place


def _operation(op: Node) -> Iterator[tuple[str, str, str]]:
    name = op.text("name")
    if name not in OPERATIONS:
        yield "E-PLAN-OP", f"operation {name!r} is unknown to the executor", op.place
    for key, limit, what, code in (
        ("channel_ids", MAX_OP_CHANNELS, "channels", "E-LIMIT-OP-CHANNELS"),
        ("src_buff", MAX_OP_BUFFERS, "source buffers", "E-LIMIT-OP-BUFFERS"),
        ("dst_buff", MAX_OP_BUFFERS, "destination buffers", "E-LIMIT-OP-BUFFERS"),
    ):
        number = len(list(op.items(key, [])))
        if number > limit:
            yield code, f"{number} {what} in one {name}; the executor holds {limit}", op.place
    if op.has("barrier_id") and op.number("barrier_id") >= MAX_BARRIERS:
        yield "E-LIMIT-BARRIERS", f"barrier {op.number('barrier_id')}; the executor has {MAX_BARRIERS}", op.place
    for semaphore in op.numbers("semaphore_ids", []):
        if semaphore >= MAX_SEMAPHORES:
            yield "E-LIMIT-SEMAPHORES", f"semaphore {semaphore}; the executor has {MAX_SEMAPHORES}", op.place


def packet_overlap(program: Program) -> str | None:
    """Where packets and data would share bytes of scratch, None if nowhere.

    A packet is twice as large as its data: packet unit p of scratch lies where the data units 2p and 2p + 1 lie.
    """
    writes = np.isin(program.op, [int(Op.PUT_PACKET), int(Op.FORWARD_PACKET)])
    if not writes.any():
        return None
    if program.protocol is not Protocol.LL:
        return f"packets in a program of protocol {program.protocol.value}; they need LL"
    packets: list[set[int]] = [set() for _ in range(program.nranks)]
    data: list[set[int]] = [set() for _ in range(program.nranks)]
    rank_of = np.repeat(program.tb_rank, np.diff(program.tb_ptr))
    for row in range(program.nrows):
        view = program.instruction(row)
        for operand, as_packets in ((view.src, view.op in _PACKET_SOURCES), (view.dst, bool(writes[row]))):
            if operand is None or operand.buffer is not Buffer.SCRATCH:
                continue
            if operand.space is Space.LOCAL:
                ranks: tuple[int, ...] = (int(rank_of[row]),)
            elif operand.space is Space.REMOTE:
                ranks = () if view.peer is None else (view.peer,)
            else:
                ranks = program.groups[view.sync or 0]
            for rank in ranks:
                (packets if as_packets else data)[rank].update(range(operand.index, operand.index + operand.count))
    for rank in range(program.nranks):
        hit = next((unit for unit in sorted(data[rank]) if unit // 2 in packets[rank]), None)
        if hit is not None:
            return f"scratch[{hit}] of rank {rank} holds data where the packets of scratch[{hit // 2}] lie"
    return None
