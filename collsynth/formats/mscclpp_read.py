"""MSCCL++ execution plan to Program.

Every operation becomes the rows that `collsynth.program.Op` defines.  What the operations of the executor
mean is read from its source: which operand lists are paired, which packets wait for their flags, which
channel is which (`docs/mscclpp.md`).  What a Program does not hold is dropped with a note: meeting points
of a block's threads (checked first), slices of threadblock groups (units become smaller instead), pipeline
loops (one iteration is what is proven), several handles of one multicast group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from math import lcm
from pathlib import Path

from ..collective import canonical_name
from ..errors import InputError
from ..program import Buffer, ChannelKind, Instruction, Operand, Program, Protocol, Threadblock
from .files import read_bytes
from .mscclpp_block import MAX_UNITS, Block, Gpu, buffer_of, kind_of
from .mscclpp_json import Node, is_generation_1, load, modernised, operation_lines
from .mscclpp_rules import Note, violations
from .mscclpp_sync import BlockSync

MAX_RANKS = 1 << 14
MAX_GROUP = 64
NO_LIMIT = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What a plan says about its launch, which a Program does not hold.

    Attributes:
        num_threads_per_block: threads of a block.
        reuse_resources: whether plans share one predefined scratch buffer and channels.
        double_scratch: whether launches use two halves of the scratch in turn; None: as packets need it.
        buffer_alignment: bytes that sizes and slices are multiples of.
    """

    num_threads_per_block: int = 1024
    reuse_resources: bool = False
    double_scratch: bool | None = None
    buffer_alignment: int = 16


DEFAULT_OPTIONS = PlanOptions()


@dataclass(frozen=True)
class PlanSource:
    """A program and the plan that it came from.

    Attributes:
        program: what the plan means.
        path: file name.
        syntax: what the loader and executor object to, and missing meeting points.
        violations: the part of `syntax` that the loader or the executor's fixed arrays refuse.
        options: launch parameters.
        losses: what the program does not hold.
        flags: None; plans have no publishing flags.
    """

    program: Program
    path: str
    syntax: tuple[Note, ...]
    violations: tuple[Note, ...]
    options: PlanOptions
    losses: tuple[str, ...]
    _data: bytes = field(repr=False, default=b"")
    _origins: dict[tuple[int, int], list[tuple[int, ...]]] = field(repr=False, default_factory=dict)
    flags: None = None

    @cached_property
    def _lines(self) -> dict[tuple[int, ...], int]:
        return operation_lines(self._data)

    def where(self, rank: int | None = None, threadblock: int | None = None, step: int | None = None) -> str:
        """`file:line: gpu 0 threadblock 1 op 3` of a row, or of the best known part of it."""
        if rank is None:
            return self.path
        if threadblock is None:
            return f"{self.path}: gpu {rank}"
        origins = self._origins.get((rank, threadblock), [])
        if step is None or not 0 <= step < len(origins):
            return f"{self.path}: gpu {rank} threadblock {threadblock}"
        number, *inner = origins[step]
        words = f"gpu {rank} threadblock {threadblock} op {number}" + (f" op {inner[0]}" if inner else "")
        return f"{self.path}:{self._lines.get((rank, threadblock, number, *inner), 1)}: {words}"


def read(path: str | Path) -> PlanSource:
    """The plan in a file (`-`: standard input); see `parse`."""
    return parse(read_bytes(path), "<stdin>" if str(path) == "-" else str(path))


def parse(data: bytes, path: str = "<bytes>") -> PlanSource:
    """The program in a plan's bytes.

    Args:
        data: the whole file, of either generation.
        path: file name for messages.

    Raises:
        InputError: no plan, a template, or something is missing, of a wrong type or out of range; with its place.
    """
    plan = load(data, path)
    broken = violations(plan)
    if plan.value.get("dynamic") is True:
        raise plan.fail("is a template of a plan (dynamic), whose numbers are filled in at run time", "a plan")
    if is_generation_1(plan):
        plan = modernised(plan)
    return _Reader(plan, data, broken).source()


class _Reader:
    def __init__(self, plan: Node, data: bytes, broken: tuple[Note, ...]) -> None:
        self.plan, self.data, self.broken = plan, data, broken
        self.notes: list[Note] = []
        self.losses: dict[str, None] = {}
        self.gpus: list[Gpu] = []
        self.groups: list[tuple[int, ...]] = []
        self.nranks = len(plan.value["gpus"])
        if self.nranks > MAX_RANKS:
            raise plan.fail(f"has {self.nranks} GPUs", f"at most {MAX_RANKS}")
        self.scale = _slices(plan)

    def source(self) -> PlanSource:
        plan = self.plan
        self.groups = self._all_groups()
        self.gpus = [self._gpu(node, rank) for rank, node in enumerate(plan.items("gpus"))]
        protocol = plan.text("protocol")
        if protocol not in ("Simple", "LL"):
            raise plan.get("protocol").fail(f"is {protocol!r}", "Simple or LL")
        name = plan.value.get("name")
        program = Program.build(
            [],
            name=name if isinstance(name, str) else Path(plan.file).stem,
            collective=self._collective(), nranks=self.nranks, nunits=1, nchannels=0,
            input_units=[g.sizes[0] for g in self.gpus], output_units=[g.sizes[1] for g in self.gpus],
            scratch_units=[g.sizes[2] for g in self.gpus], protocol=Protocol(protocol),
            in_place=plan.flag("inplace"), out_of_place=not plan.flag("inplace"),
        )  # fmt: skip
        blocks, origins = self._blocks(program)
        lower, upper = plan.number("min_message_size", 0), plan.number("max_message_size", NO_LIMIT)
        rows = [row for block in blocks for row in block.instructions]
        program = Program.build(
            blocks, name=program.name, collective=program.collective, nranks=self.nranks,
            root=0 if program.collective in ("broadcast", "reduce", "gather", "scatter") else None,
            nunits=self._payload(program), nchannels=channel_count(rows),
            input_units=program.input_units.tolist(), output_units=program.output_units.tolist(),
            scratch_units=program.scratch_units.tolist(), protocol=program.protocol, in_place=program.in_place,
            out_of_place=program.out_of_place, min_bytes=lower or None, max_bytes=None if upper == NO_LIMIT else upper,
            groups=self.groups, semaphore_init=[g.semaphores for g in self.gpus],
        )  # fmt: skip
        options = PlanOptions(
            plan.number("num_threads_per_block", 1024), plan.flag("reuse_resources"),
            plan.flag("use_double_scratch_buffer"), plan.number("buffer_alignment", 16),
        )  # fmt: skip
        located = PlanSource(program, plan.file, (), (), options, (), self.data, origins)
        notes = [self._with_line(note, located) for note in self.notes]
        return replace(located, syntax=(*self.broken, *notes), violations=self.broken, losses=tuple(self.losses))

    @staticmethod
    def _with_line(note: Note, source: PlanSource) -> Note:
        where = source.where(note.rank, note.threadblock, note.step)
        line = where.removeprefix(source.path).split(":")[1:2]
        return replace(note, line=int(line[0])) if line and line[0].isdigit() else note

    def _collective(self) -> str:
        name = self.plan.text("collective", "")
        try:
            return canonical_name(name)
        except InputError:
            if name not in ("test", ""):
                self.losses[f"collective {name!r}, which has no definition here"] = None
            return ""

    def _payload(self, program: Program) -> int:
        wide = program.output_units if program.collective in ("allgather", "gather") else program.input_units
        return max(1, int(wide.max()), int(program.output_units.max()) if not program.collective else 1)

    # --- tables --------------------------------------------------------------------------------------

    def _all_groups(self) -> list[tuple[int, ...]]:
        found: set[tuple[int, ...]] = set()
        for gpu in self.plan.items("gpus"):
            for channel in gpu.items("channels"):
                if channel.text("channel_type") == "switch":
                    found.update(self._members(channel))
        return sorted(found)

    def _members(self, channel: Node) -> list[tuple[int, ...]]:
        groups = []
        for group in channel.items("rank_groups", []):
            ranks = group.numbers("ranks")
            if not ranks or len(set(ranks)) < len(ranks) or max(ranks) >= self.nranks:
                raise group.fail(f"members {ranks}", f"different ranks below {self.nranks}")
            groups.append(tuple(sorted(ranks)))
        return groups

    def _gpu(self, node: Node, rank: int) -> Gpu:
        if node.number("id") != rank:
            raise node.fail(f"has id {node.number('id')}", str(rank))
        channels: dict[ChannelKind, list[tuple[int, int]]] = {ChannelKind.MEMORY: [], ChannelKind.PORT: []}
        switches: list[tuple[Buffer, int]] = []
        count: dict[tuple[ChannelKind, int], int] = {}
        for channel in node.items("channels"):
            kind = kind_of(channel, "channel_type")
            if kind is ChannelKind.SWITCH:
                buffer = buffer_of(channel, "buffer_type")
                for group in self._members(channel):
                    if (buffer, self.groups.index(group)) in switches:
                        self.losses["several switch channels of one group and buffer, which are one group here"] = None
                    switches.append((buffer, self.groups.index(group)))
                continue
            for peer in channel.numbers("connected_to"):
                if peer >= self.nranks or peer == rank:
                    raise channel.fail(f"connected to rank {peer}", f"another rank below {self.nranks}")
                number = count.get((kind, peer), 0)
                count[kind, peer] = number + 1
                channels.setdefault(kind, []).append((peer, number))
        remote = []
        for buffer_node in node.items("remote_buffers", []):
            peer = buffer_node.number("rank")
            if peer >= self.nranks:
                raise buffer_node.fail(f"is of rank {peer}", f"a rank below {self.nranks}")
            remote.append((peer, buffer_of(buffer_node, "type")))
        semaphores = tuple(s.number("init_value") for s in node.items("semaphores", []))
        keys = ("input_chunks", "output_chunks", "scratch_chunks")
        sizes = tuple(node.number(key) * self.scale for key in keys)
        if max(sizes) > MAX_UNITS:
            raise node.fail(f"has {max(sizes)} units", f"at most {MAX_UNITS}")
        return Gpu(node, rank, channels, switches, remote, semaphores, (sizes[0], sizes[1], sizes[2]))

    # --- threadblocks --------------------------------------------------------------------------------

    def _blocks(self, sizes: Program) -> tuple[list[Threadblock], dict[tuple[int, int], list[tuple[int, ...]]]]:
        blocks: list[Threadblock] = []
        origins: dict[tuple[int, int], list[tuple[int, ...]]] = {}
        contexts: dict[tuple[int | str, ...], set[tuple[int, int]]] = {}
        for gpu in self.gpus:
            cells = own_cells(sizes, gpu.rank)
            for position, node in enumerate(gpu.node.items("threadblocks")):
                if node.number("id") != position:
                    raise node.fail(f"has id {node.number('id')}", str(position))
                block = Block(gpu, node, position, self.scale, BlockSync(cells))
                block.read()
                self.notes += block.notes
                for used, loops in block.contexts.items():
                    contexts.setdefault(used, set()).update(loops)
                if block.looped:
                    self.losses["pipeline loops: one iteration is held"] = None
                blocks.append(Threadblock(gpu.rank, position, None, None, 0, tuple(block.rows)))
                origins[gpu.rank, position] = block.origins
        for used, loops in contexts.items():
            if len(loops) > 1:
                words = " ".join(map(str, used))
                message = f"{words} is used in loops of different lengths, or in one and outside of it: {sorted(loops)}"
                self.notes.append(Note("E-PLAN-LOOP", "error", message, targets=()))
        return blocks, origins


def _slices(plan: Node) -> int:
    """The least factor by which units must be cut so that every threadblock group's slices are whole units."""
    sizes = set()
    for gpu in plan.items("gpus"):
        for block in gpu.items("threadblocks"):
            for outer in block.items("ops"):
                for op in (outer, *outer.items("ops", [])):
                    if op.has("tbg_info"):
                        size = op.get("tbg_info").number("tbg_size")
                        if not 1 <= size <= MAX_GROUP:
                            raise op.fail(f"a group of {size} threadblocks", f"1..{MAX_GROUP}")
                        sizes.add(size)
    factor = lcm(*sizes)
    if factor > 1 << 16:
        raise plan.fail(f"groups of {sorted(sizes)} threadblocks", "sizes with a small common multiple")
    return factor


def own_cells(program: Program, rank: int) -> Callable[[Operand], int]:
    """Cell of a local operand of a rank; input and output share cells where an in-place run makes them."""
    inputs, outputs = program.input_units.tolist(), program.output_units.tolist()
    first_in = first_out = 0
    if not program.in_place:
        first_out = inputs[rank]
    elif program.collective == "allgather":
        first_in = list(accumulate(inputs))[rank] - inputs[rank]
    elif program.collective == "reducescatter":
        first_out = list(accumulate(outputs))[rank] - outputs[rank]
    total = max(first_in + inputs[rank], first_out + outputs[rank])
    base = {Buffer.INPUT: first_in, Buffer.OUTPUT: first_out, Buffer.SCRATCH: total}
    return lambda operand: base[operand.buffer] + operand.index


def channel_count(rows: Sequence[Instruction]) -> int:
    """1 + the largest number of a memory or port channel that is used."""
    kinds = (ChannelKind.MEMORY, ChannelKind.PORT)
    return 1 + max((r.sync for r in rows if r.kind in kinds and r.sync is not None), default=-1)
