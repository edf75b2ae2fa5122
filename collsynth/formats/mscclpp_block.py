"""The operations of one threadblock of an MSCCL++ plan as rows of a Program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..program import Buffer, ChannelKind, Instruction, Op, Operand, Space
from .mscclpp_json import Node
from .mscclpp_rules import Note
from .mscclpp_sync import BlockSync

_BUFFERS = {"i": Buffer.INPUT, "o": Buffer.OUTPUT, "s": Buffer.SCRATCH}
_KINDS = {"memory": ChannelKind.MEMORY, "port": ChannelKind.PORT, "switch": ChannelKind.SWITCH}
#: Names of transition versions that the executor no longer knows, and what they became.
_LEGACY = {"ucpkt": "upkt", "rspkt": "respkt", "tpkt": "cpkt"}
_SIGNALS = {
    "signal": Op.SIGNAL,
    "wait": Op.WAIT,
    "rlxsignal": Op.RELAXED_SIGNAL,
    "rlxwait": Op.RELAXED_WAIT,
    "flush": Op.FLUSH,
}
#: More chunks are not sensible: the executor counts bytes in 32 bits, 16 a chunk.
MAX_UNITS = 1 << 22


@dataclass(slots=True)
class Gpu:
    """The tables of one GPU of a plan.

    Attributes:
        node: its part of the plan.  rank: its rank.
        channels: kind -> (peer, number of the channel between the two) by flat channel id.
        switches: (buffer, group) by flat switch channel id.
        remote: (rank, buffer) by remote buffer id.
        semaphores: start values.
        sizes: units of input, output and scratch.
    """

    node: Node
    rank: int
    channels: dict[ChannelKind, list[tuple[int, int]]]
    switches: list[tuple[Buffer, int]]
    remote: list[tuple[int, Buffer]]
    semaphores: tuple[int, ...]
    sizes: tuple[int, int, int]


class Block:
    """One threadblock: its operations, one after another, as rows.

    Args:
        gpu: the GPU that it belongs to.
        node: its part of the plan.  position: its number.
        scale: units that a chunk of the plan is.
        sync: the meeting points of its threads.

    Attributes:
        rows, origins: the rows, and for each the number of its operation (and of that in a pipeline).
        notes: what the executor objects to.
        looped: whether a pipeline was unrolled.
        contexts: direction of a channel, semaphore or barrier -> the (unit_size, num_chunks) of the pipelines
            in which it is used, (0, 0) for outside of them.
    """

    def __init__(self, gpu: Gpu, node: Node, position: int, scale: int, sync: BlockSync) -> None:
        self.gpu, self.node, self.position, self.scale, self.sync = gpu, node, position, scale, sync
        self.notes: list[Note] = []
        self.looped = False
        self.contexts: dict[tuple[int | str, ...], set[tuple[int, int]]] = {}
        self.rows: list[Instruction] = []
        self.origins: list[tuple[int, ...]] = []
        self.channels: dict[ChannelKind, list[int]] = {}
        self.buffers: dict[ChannelKind, list[tuple[int, Buffer]]] = {}

    def read(self) -> None:
        """Fill `rows`.

        Raises:
            InputError: with its place.
        """
        for channel in self.node.items("channels"):
            kind = kind_of(channel, "channel_type")
            known = self.gpu.switches if kind is ChannelKind.SWITCH else self.gpu.channels.get(kind, [])
            for number in channel.numbers("channel_ids"):
                if number >= len(known):
                    raise channel.fail(f"{kind.name.lower()} channel {number}", f"one of the GPU's {len(known)}")
                self.channels.setdefault(kind, []).append(number)
        for reference in self.node.items("remote_buffer_refs", []):
            kind = kind_of(reference, "access_channel_type")
            for number in reference.numbers("remote_buffer_ids"):
                if number >= len(self.gpu.remote):
                    raise reference.fail(f"remote buffer {number}", f"one of the GPU's {len(self.gpu.remote)}")
                self.buffers.setdefault(kind, []).append(self.gpu.remote[number])
        for index, op in enumerate(self.node.items("ops")):
            if op.text("name") == "pipeline":
                self.looped = True
                context = op.get("iter_context")
                loop = (context.number("unit_size"), context.number("num_chunks"))
                if not all(loop):
                    raise context.fail("an empty loop", "unit_size and num_chunks of 1 or more")
                for inner_index, inner in enumerate(op.items("ops")):
                    self._operation(inner, (index, inner_index), loop)
            else:
                self._operation(op, (index,), (0, 0))

    def _operation(self, op: Node, origin: tuple[int, ...], loop: tuple[int, int]) -> None:
        name = op.text("name")
        name = _LEGACY.get(name, name)
        if name == "nop":
            self.sync.meet()
            return
        if name == "pipeline":
            raise op.fail("a pipeline inside a pipeline", "operations")
        build: Callable[[Node, str], list[Instruction]] | None = getattr(self, f"_{_METHODS.get(name, '')}", None)
        if build is None:
            raise op.fail(f"operation {name!r}", "one of " + ", ".join(sorted({*_METHODS, "nop", "pipeline"})))
        rows = build(op, name)
        if any(row.op is Op.BARRIER for row in rows):
            self.sync.meet()
        elif rows:
            reason = self.sync.missing(rows)
            if reason is not None:
                self._note("E-NOSYNC", f"{op.place}: no nop before this {name}, and {reason}", targets=())
        for row in rows:
            if (used := self._meets_in(row)) is not None:
                self.contexts.setdefault(used, set()).add(loop)
        self.rows += rows
        self.origins += [origin] * len(rows)

    def _meets_in(self, row: Instruction) -> tuple[int | str, ...] | None:
        """What a row meets others in: a direction of a channel, a semaphore, a barrier; None for none."""
        rank, peer, sync = self.gpu.rank, -1 if row.peer is None else row.peer, -1 if row.sync is None else row.sync
        if row.op in (Op.SIGNAL, Op.RELAXED_SIGNAL):
            return (row.kind.name.lower(), rank, peer, sync)
        if row.op in (Op.WAIT, Op.RELAXED_WAIT):
            return (row.kind.name.lower(), peer, rank, sync)
        if row.op in (Op.ACQUIRE, Op.RELEASE, Op.BARRIER):
            return ("barrier" if row.op is Op.BARRIER else "semaphore", rank, sync)
        return None

    def _note(
        self, code: str, message: str, *, severity: str = "error", targets: tuple[str, ...] = ("mscclpp",)
    ) -> None:
        self.notes.append(
            Note(code, severity, message, 1, targets, self.gpu.rank, self.position, len(self.rows))
        )  # fmt: skip

    # --- operands ------------------------------------------------------------------------------------

    def _operands(self, op: Node, key: str, kind: ChannelKind) -> list[tuple[Operand, int]]:
        """The operands of a list, each with the peer (REMOTE), the group (MULTICAST) or -1."""
        return [self._operand(op, node, kind) for node in op.items(key, [])]

    def _operand(self, op: Node, node: Node, kind: ChannelKind) -> tuple[Operand, int]:
        scale = self.scale
        index, count = node.number("index") * scale, node.number("size") * scale
        if op.has("tbg_info"):
            info = op.get("tbg_info")
            part, parts = info.number("tb_id"), info.number("tbg_size")
            if part >= parts:
                raise info.fail(f"slice {part} of {parts}", "a slice below the size")
            index, count = index + count * part // parts, count * (part + 1) // parts - count * part // parts
        if max(index, count) > MAX_UNITS:
            raise node.fail(f"units {index}..{index + count}", f"at most {MAX_UNITS}")
        if node.has("type"):
            return Operand(buffer_of(node, "type"), index, count), -1
        if node.has("buffer_id"):
            number = node.number("buffer_id")
            if kind is ChannelKind.NONE:
                kind = next((k for k in self.buffers if k is not ChannelKind.SWITCH), kind)
                self._note("E-PLAN-CHANNEL", f"{op.place}: a remote operand without channel_type")
            known = self.buffers.get(kind, [])
            if number >= len(known):
                raise node.fail(f"{kind.name.lower()} buffer {number}", f"one of the threadblock's {len(known)}")
            peer, buffer = known[number]
            return Operand(buffer, index, count, Space.REMOTE), peer
        if node.has("switch_channel_id"):
            number = node.number("switch_channel_id")
            ids = self.channels.get(ChannelKind.SWITCH, [])
            if number >= len(ids):
                raise node.fail(f"switch channel {number}", f"one of the threadblock's {len(ids)}")
            buffer, group = self.gpu.switches[ids[number]]
            return Operand(buffer, index, count, Space.MULTICAST), group
        raise node.fail("names no buffer", "type, buffer_id or switch_channel_id")

    def _lists(
        self, op: Node, sources: int, results: int
    ) -> tuple[ChannelKind, list[tuple[Operand, int]], list[tuple[Operand, int]]]:
        """Channel kind and both operand lists, of which so many must be there; equal counts."""
        kind = kind_of(op, "channel_type") if op.has("channel_type") else ChannelKind.NONE
        src, dst = self._operands(op, "src_buff", kind), self._operands(op, "dst_buff", kind)
        if len(src) < sources or len(dst) < results:
            raise op.fail(f"has {len(src)} sources and {len(dst)} destinations", f"{sources} and {results} or more")
        if len({operand.count for operand, _ in (*src, *dst)}) > 1:
            raise op.fail("operands of different sizes", "one size")
        return kind, src, dst

    def _local(self, op: Node, *operands: tuple[Operand, int]) -> None:
        if any(operand.space is not Space.LOCAL for operand, _ in operands):
            raise op.fail("an operand of another rank", "one of the own rank (type i, o or s)")

    def _channel(self, op: Node, kind: ChannelKind, position: int) -> tuple[int, int]:
        """(peer, number) of the channel that the operation names at a position of its list."""
        listed = op.numbers("channel_ids", [])
        ids = self.channels.get(kind, [])
        # the executor's array is zero where the plan says nothing
        index = listed[position] if position < len(listed) else 0
        if index >= len(ids):
            raise op.fail(f"{kind.name.lower()} channel {index}", f"one of the threadblock's {len(ids)}")
        return self.gpu.channels[kind][ids[index]]

    # --- operations ----------------------------------------------------------------------------------

    def _signals(self, op: Node, name: str) -> list[Instruction]:
        kind = kind_of(op, "channel_type")
        if kind not in (ChannelKind.MEMORY, ChannelKind.PORT):
            raise op.fail(f"{name} on a {kind.name.lower()} channel", "memory or port")
        rows = []
        for position in range(len(op.numbers("channel_ids"))):
            peer, number = self._channel(op, kind, position)
            rows.append(Instruction(_SIGNALS[name], 0, peer=peer, sync=number, kind=kind))
        return rows

    def _barrier(self, op: Node, name: str) -> list[Instruction]:
        return [Instruction(Op.BARRIER, op.number("num_threadblocks"), sync=op.number("barrier_id"))]

    def _semaphores(self, op: Node, name: str) -> list[Instruction]:
        known = self.gpu.semaphores
        if any(i >= len(known) for i in op.numbers("semaphore_ids")):
            raise op.fail(f"semaphores {op.numbers('semaphore_ids')}", f"some of the GPU's {len(known)}")
        code = Op.ACQUIRE if name == "sem_acquire" else Op.RELEASE
        return [Instruction(code, 0, sync=i) for i in op.numbers("semaphore_ids")]

    def _copy(self, op: Node, name: str) -> list[Instruction]:
        _, src, dst = self._lists(op, 1, 1)
        self._local(op, src[0], dst[0])
        code = {"copy": Op.COPY, "cpkt": Op.PUT_PACKET, "upkt": Op.READ_PACKET}[name]
        return [Instruction(code, src[0][0].count, src[0][0], dst[0][0])]

    def _put(self, op: Node, name: str) -> list[Instruction]:
        kind, src, dst = self._lists(op, 1, 1)
        if name == "rppkt":
            src = src[:1] * len(dst)
        if len(src) != len(dst):
            raise op.fail(f"{len(src)} sources for {len(dst)} destinations", "one each")
        self._local(op, *src)
        rows: list[Instruction] = []
        for position, ((source, _), (result, peer)) in enumerate(zip(src, dst, strict=True)):
            if result.space is not Space.REMOTE:
                raise op.fail("puts into the own rank", "a remote buffer (buffer_id)")
            code = {"ppkt": Op.PUT_PACKET, "rppkt": Op.FORWARD_PACKET}.get(name, Op.PUT)
            if kind is ChannelKind.PORT:
                other, number = self._channel(op, kind, position)
                if other != peer:
                    raise op.fail(f"a channel to rank {other} for a buffer of rank {peer}", "the same rank")
                # a port moves packets that are packed already
                code = Op.FORWARD_PACKET if code is Op.PUT_PACKET else code
                rows.append(Instruction(code, source.count, source, result, peer=peer, sync=number, kind=kind))
                if name in ("pws", "pwsf"):
                    rows.append(Instruction(Op.SIGNAL, 0, peer=peer, sync=number, kind=kind))
                if name == "pwsf":
                    rows.append(Instruction(Op.FLUSH, 0, peer=peer, sync=number, kind=kind))
            else:
                if name in ("pws", "pwsf"):
                    self._note(
                        "E-PLAN-SIGNAL", f"{op.place}: {name} on a memory channel puts without a signal", targets=()
                    )
                rows.append(Instruction(code, source.count, source, result, peer=peer, kind=ChannelKind.MEMORY))
        return rows

    def _get(self, op: Node, name: str) -> list[Instruction]:
        _, src, dst = self._lists(op, 1, 1)
        if len(src) != len(dst) or any(s.space is not Space.REMOTE for s, _ in src):
            raise op.fail("sources and destinations do not pair", "a remote source and a local destination each")
        self._local(op, *dst)
        return [
            Instruction(Op.GET, s.count, s, d, peer=peer, kind=ChannelKind.MEMORY)
            for (s, peer), (d, _) in zip(src, dst, strict=True)
        ]

    def _reduce(self, op: Node, name: str) -> list[Instruction]:
        """re, res, rre, rres and the packet forms: the sum first, then copies of it elsewhere."""
        _, src, dst = self._lists(op, 1, 1)
        local = 2 if name in ("recpkt", "recspkt") else 1
        if len(dst) < local or (len(dst) > local and name in ("re", "rre", "repkt", "recpkt")):
            raise op.fail(f"{name} with {len(dst)} destinations", "fewer or more of them")
        self._local(op, src[0], *dst[:local])
        result, packets = dst[0][0], name.endswith("pkt")
        terms = list(src)
        same = next((i for i, (s, _) in enumerate(terms) if s == result), None)
        if packets or name in ("rre", "rres"):
            same = 0 if same == 0 else None
        if any(s.space is Space.LOCAL and _overlap(s, result) for i, (s, _) in enumerate(terms) if i != same):
            raise op.fail("a source overlaps the destination in part", "the same units, or others")
        rows = []
        if same is None:
            rows.append(Instruction(Op.COPY, result.count, terms.pop(0)[0], result))
        else:
            terms.pop(same)
        for source, peer in terms:
            remote = source.space is Space.REMOTE
            code = Op.READ_PACKET_REDUCE if packets else Op.READ_REDUCE if remote else Op.REDUCE
            if remote != (name in ("rre", "rres")):
                raise op.fail(f"{name} from this place", "remote sources for rre and rres, local ones otherwise")
            rows.append(Instruction(code, result.count, source, result, peer=peer if remote else None,
                                    kind=ChannelKind.MEMORY if remote else ChannelKind.NONE))  # fmt: skip
        if local == 2:
            rows.append(Instruction(Op.PUT_PACKET, result.count, result, dst[1][0]))
        for target, peer in dst[local:]:
            if target.space is not Space.REMOTE:
                raise op.fail("sends to the own rank", "a remote buffer (buffer_id)")
            code = Op.PUT_PACKET if packets else Op.PUT
            rows.append(Instruction(code, result.count, result, target, peer=peer, kind=ChannelKind.MEMORY))
        return rows

    def _multicast(self, op: Node, name: str) -> list[Instruction]:
        _, src, dst = self._lists(op, 1, 1)
        (source, group), (result, target) = src[0], dst[0]
        reduces = name in ("glre", "glres")
        spaces = (Space.MULTICAST if reduces else Space.LOCAL, Space.LOCAL if name == "glre" else Space.MULTICAST)
        if (source.space, result.space) != spaces or len(src) != 1 or len(dst) != 1:
            raise op.fail(f"operands of {name} in the wrong place", "a switch channel where the group is meant")
        if reduces and name == "glres" and group != target:
            raise op.fail("reads one group and writes another one", "one group")
        code = Op.MULTICAST_REDUCE if reduces else Op.MULTICAST_STORE if name == "gstore" else Op.FORWARD_PACKET
        number = group if reduces else target
        return [Instruction(code, source.count, source, result, sync=number, kind=ChannelKind.SWITCH)]


_METHODS = {
    **dict.fromkeys(_SIGNALS, "signals"), "barrier": "barrier", "sem_acquire": "semaphores",
    "sem_release": "semaphores", "copy": "copy", "cpkt": "copy", "upkt": "copy", "put": "put", "pws": "put",
    "pwsf": "put", "ppkt": "put", "rppkt": "put", "get": "get", "re": "reduce", "res": "reduce", "rre": "reduce",
    "rres": "reduce", "repkt": "reduce", "respkt": "reduce", "recpkt": "reduce", "recspkt": "reduce",
    "glre": "multicast", "glres": "multicast", "gstore": "multicast", "gstorepkt": "multicast",
}  # fmt: skip


def _overlap(one: Operand, two: Operand) -> bool:
    return one.buffer is two.buffer and one.index < two.index + two.count and two.index < one.index + one.count


def kind_of(node: Node, key: str) -> ChannelKind:
    """The channel type `key`.

    Raises:
        InputError: no such type.
    """
    name = node.text(key)
    if name not in _KINDS:
        raise node.fail(f"channel type {name!r}", "memory, port or switch")
    return _KINDS[name]


def buffer_of(node: Node, key: str) -> Buffer:
    """The buffer type `key`.

    Raises:
        InputError: no such buffer.
    """
    name = node.text(key)
    if name not in _BUFFERS:
        raise node.fail(f"buffer type {name!r}", "i, o or s")
    return _BUFFERS[name]
