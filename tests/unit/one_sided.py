"""Small right programs of one-sided operations, for the tests of plans and of their proof."""

from __future__ import annotations

from collections.abc import Sequence

from collsynth.program import Buffer, ChannelKind, Instruction, Op, Operand, Program, Protocol, Space, Threadblock

I, O, S = Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH  # noqa: E741
MEMORY, PORT, SWITCH = ChannelKind.MEMORY, ChannelKind.PORT, ChannelKind.SWITCH


def at(buffer: Buffer, index: int, count: int = 1, space: Space = Space.LOCAL) -> Operand:
    return Operand(buffer, index, count, space)


def sync(op: Op, peer: int, number: int = 0, kind: ChannelKind = MEMORY) -> Instruction:
    return Instruction(op, 0, peer=peer, sync=number, kind=kind)


def put(source: Operand, peer: int, buffer: Buffer, index: int, number: int | None = None) -> Instruction:
    kind = MEMORY if number is None else PORT
    target = at(buffer, index, source.count, Space.REMOTE)
    return Instruction(Op.PUT, source.count, source, target, peer=peer, sync=number, kind=kind)


def local(op: Op, source: Operand, target: Operand) -> Instruction:
    return Instruction(op, source.count, source, target)


def packet(source: Operand, peer: int, index: int, op: Op = Op.PUT_PACKET) -> Instruction:
    return Instruction(op, source.count, source, at(S, index, source.count, Space.REMOTE), peer=peer, kind=MEMORY)


def semaphore(op: Op, number: int) -> Instruction:
    return Instruction(op, 0, sync=number)


def barrier(number: int, blocks: int) -> Instruction:
    return Instruction(Op.BARRIER, blocks, sync=number)


def program(
    ranks: Sequence[Sequence[Sequence[Instruction]]], collective: str, *, inputs: int, outputs: int, scratch: int = 0,
    in_place: bool = False, protocol: Protocol = Protocol.SIMPLE, nchannels: int = 1,
    groups: Sequence[Sequence[int]] = (), semaphores: int = 0,
) -> Program:  # fmt: skip
    """ranks[r][t] is threadblock t of rank r."""
    blocks = [
        Threadblock(rank, tb, None, None, 0, tuple(rows))
        for rank, tbs in enumerate(ranks)
        for tb, rows in enumerate(tbs)
    ]
    n = len(ranks)
    return Program.build(
        blocks, name="test", collective=collective, nranks=n, nunits=max(inputs, outputs), nchannels=nchannels,
        input_units=[inputs] * n, output_units=[outputs] * n, scratch_units=[scratch] * n, protocol=protocol,
        in_place=in_place, out_of_place=not in_place, groups=groups, semaphore_init=[[0] * semaphores] * n,
    )  # fmt: skip


def handshake(rank: int, peers: Sequence[int], kind: ChannelKind = MEMORY) -> list[Instruction]:
    """Everybody has begun."""
    return [sync(Op.RELAXED_SIGNAL, p, kind=kind) for p in peers] + [sync(Op.RELAXED_WAIT, p, kind=kind) for p in peers]


def allgather_puts(nranks: int = 3, kind: ChannelKind = MEMORY) -> Program:
    """Each rank puts its input into everybody's output."""
    ranks = []
    for rank in range(nranks):
        peers = [p for p in range(nranks) if p != rank]
        number = 0 if kind is PORT else None
        rows = [local(Op.COPY, at(I, 0), at(O, rank)), *handshake(rank, peers, kind)]
        for peer in peers:
            rows += [put(at(I, 0), peer, O, rank, number)]
            rows += [sync(Op.SIGNAL, peer, kind=kind)] if kind is PORT else []
        rows += [] if kind is PORT else [sync(Op.SIGNAL, p) for p in peers]
        rows += [sync(Op.WAIT, p, kind=kind) for p in peers]
        rows += [sync(Op.FLUSH, p, kind=kind) for p in peers] if kind is PORT else []
        ranks.append([rows])
    return program(ranks, "allgather", inputs=1, outputs=nranks)


def allreduce_packets(nranks: int = 4) -> Program:
    """Reduce-scatter and allgather by packets: respkt and upkt."""
    ranks = []
    for rank in range(nranks):
        peers = [p for p in range(nranks) if p != rank]
        send = [packet(at(I, p), p, rank) for p in peers]
        add = [local(Op.COPY, at(I, rank), at(O, rank))]
        add += [local(Op.READ_PACKET_REDUCE, at(S, p), at(O, rank)) for p in peers]
        add += [packet(at(O, rank), p, nranks + rank) for p in peers]
        read = [local(Op.READ_PACKET, at(S, nranks + p), at(O, p)) for p in peers]
        ranks.append([send, add, read])
    return program(
        ranks, "allreduce", inputs=nranks, outputs=nranks, scratch=2 * nranks, protocol=Protocol.LL, nchannels=0
    )


def allreduce_switch(nranks: int = 4) -> Program:
    """NVLS: each rank reduces its slice over the group and multicasts the sum, in place."""
    ranks = []
    for rank in range(nranks):
        peers = [p for p in range(nranks) if p != rank]
        move = Instruction(Op.MULTICAST_REDUCE, 1, at(I, rank, 1, Space.MULTICAST), at(I, rank, 1, Space.MULTICAST),
                           sync=0, kind=SWITCH)  # fmt: skip
        rows = [*handshake(rank, peers), move]
        rows += [sync(Op.RELAXED_SIGNAL, p) for p in peers] + [sync(Op.RELAXED_WAIT, p) for p in peers]
        ranks.append([rows])
    return program(ranks, "allreduce", inputs=nranks, outputs=nranks, in_place=True, groups=[range(nranks)])


def reducescatter_reads(nranks: int = 3) -> Program:
    """Each rank reads its slice of everybody's input."""
    ranks = []
    for rank in range(nranks):
        peers = [p for p in range(nranks) if p != rank]
        rows = [*handshake(rank, peers), local(Op.COPY, at(I, rank), at(O, 0))]
        for peer in peers:
            source = at(I, rank, 1, Space.REMOTE)
            rows.append(Instruction(Op.READ_REDUCE, 1, source, at(O, 0), peer=peer, kind=MEMORY))
        rows += [sync(Op.SIGNAL, p) for p in peers] + [sync(Op.WAIT, p) for p in peers]
        ranks.append([rows])
    return program(ranks, "reducescatter", inputs=nranks, outputs=1)


def alltoall_two_blocks() -> Program:
    """Two ranks; one threadblock puts into scratch, another one copies out, through a semaphore and a barrier."""
    ranks = []
    for rank in range(2):
        peer = 1 - rank
        one = [*handshake(rank, [peer]), put(at(I, peer), peer, S, 0), sync(Op.SIGNAL, peer), sync(Op.WAIT, peer)]
        one += [semaphore(Op.RELEASE, 0), barrier(0, 2)]
        two = [local(Op.COPY, at(I, rank), at(O, rank)), semaphore(Op.ACQUIRE, 0)]
        two += [local(Op.COPY, at(S, 0), at(O, peer)), barrier(0, 2)]
        ranks.append([one, two])
    return program(ranks, "alltoall", inputs=2, outputs=2, scratch=1, semaphores=1)


RIGHT = {
    "allgather-memory": allgather_puts,
    "allgather-port": lambda: allgather_puts(3, PORT),
    "allreduce-packets": allreduce_packets,
    "allreduce-switch": allreduce_switch,
    "reducescatter-reads": reducescatter_reads,
    "alltoall-two-blocks": alltoall_two_blocks,
}
