"""Tiny programs written by hand, for tests that must not depend on synthesis or lowering."""

from __future__ import annotations

from collsynth.program import Buffer, Instruction, Op, Operand, Program, Protocol, Threadblock

I, O, S = Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH  # noqa: E741 (the letters of MSCCL XML)


def at(buffer: Buffer, index: int, count: int = 1) -> Operand:
    return Operand(buffer, index, count)


def ring_allreduce(nranks: int, *, protocol: Protocol = Protocol.SIMPLE) -> Program:
    """In-place ring: reduce chunk by chunk, then copy; one threadblock a rank, fused instructions."""
    blocks = []
    for rank in range(nranks):
        rows = [Instruction(Op.SEND, 1, src=at(I, rank))]
        for step in range(1, nranks - 1):
            chunk = (rank - step) % nranks
            rows.append(Instruction(Op.RECV_REDUCE_SEND, 1, src=at(I, chunk)))
        own = (rank + 1) % nranks
        rows.append(Instruction(Op.RECV_REDUCE_COPY_SEND, 1, src=at(I, own), dst=at(O, own)))
        for step in range(1, nranks - 1):
            chunk = (rank + 1 - step) % nranks
            rows.append(Instruction(Op.RECV_COPY_SEND, 1, dst=at(O, chunk)))
        rows.append(Instruction(Op.RECV, 1, dst=at(O, (rank + 2) % nranks)))
        blocks.append(Threadblock(rank, 0, (rank + 1) % nranks, (rank - 1) % nranks, 0, tuple(rows)))
    return Program.build(
        blocks, name=f"ring-allreduce-{nranks}", collective="allreduce", nranks=nranks, nunits=nranks, nchannels=1,
        input_units=[nranks] * nranks, output_units=[nranks] * nranks, scratch_units=[0] * nranks,
        in_place=True, out_of_place=True, protocol=protocol,
    )  # fmt: skip


def all_pairs_allgather(nranks: int) -> Program:
    """Everybody sends its shard to everybody, one threadblock a peer; a local one copies the own shard."""
    blocks = []
    for rank in range(nranks):
        copy = Instruction(Op.COPY, 1, src=at(I, 0), dst=at(O, rank))
        blocks.append(Threadblock(rank, 0, None, None, 0, (copy,)))
        for i, peer in enumerate(p for p in range(nranks) if p != rank):
            rows = (Instruction(Op.SEND, 1, src=at(I, 0)), Instruction(Op.RECV, 1, dst=at(O, peer)))
            blocks.append(Threadblock(rank, i + 1, peer, peer, 0, rows))
    return Program.build(
        blocks, name=f"all-pairs-allgather-{nranks}", collective="allgather", nranks=nranks, nunits=nranks,
        nchannels=1, input_units=[1] * nranks, output_units=[nranks] * nranks, scratch_units=[0] * nranks,
        in_place=True, out_of_place=True,
    )  # fmt: skip


def exchange_allreduce(channels: int = 2) -> Program:
    """Two ranks, several channels: receive the peer's half into scratch, wait, reduce, answer with the sum."""
    blocks = []
    for rank in range(2):
        peer = 1 - rank
        blocks.append(
            Threadblock(rank, 0, None, None, 0, tuple(
                Instruction(Op.COPY, 1, src=at(I, c), dst=at(O, c)) for c in range(2 * channels)
            ))
        )  # fmt: skip
        for channel in range(channels):
            mine, theirs = rank * channels + channel, peer * channels + channel
            rows = (
                Instruction(Op.SEND, 1, src=at(I, theirs)),
                Instruction(Op.RECV, 1, dst=at(S, channel)),
                Instruction(Op.REDUCE, 1, src=at(S, channel), dst=at(O, mine), depends=((0, 2 * channels - 1),)),
                Instruction(Op.SEND, 1, src=at(O, mine)),
                Instruction(Op.RECV, 1, dst=at(O, theirs)),
            )
            blocks.append(Threadblock(rank, channel + 1, peer, peer, channel, rows))
    units = 2 * channels
    return Program.build(
        blocks, name=f"exchange-allreduce-{channels}", collective="allreduce", nranks=2, nunits=units,
        nchannels=channels, input_units=[units] * 2, output_units=[units] * 2, scratch_units=[channels] * 2,
        in_place=False, out_of_place=True,
    )  # fmt: skip


def pipelined_broadcast(nranks: int, chunks: int, protocol: Protocol = Protocol.SIMPLE) -> Program:
    """A chain of receive-copy-sends with more messages a connection than its FIFO holds."""
    blocks = []
    for rank in range(nranks):
        copy, last = Op.RECV_COPY_SEND, rank == nranks - 1
        rows = [
            Instruction(Op.SEND, 1, src=at(I, c)) if rank == 0
            else Instruction(Op.RECV if last else copy, 1, dst=at(O, c))
            for c in range(chunks)
        ]  # fmt: skip
        if rank == 0:
            local = tuple(Instruction(Op.COPY, 1, src=at(I, c), dst=at(O, c)) for c in range(chunks))
            blocks.append(Threadblock(rank, 1, None, None, 0, local))
        blocks.append(Threadblock(rank, 0, None if last else rank + 1, rank - 1 if rank else None, 0, tuple(rows)))
    blocks.sort(key=lambda block: (block.rank, block.id))
    return Program.build(
        blocks, name=f"chain-broadcast-{nranks}", collective="broadcast", nranks=nranks, nunits=chunks, nchannels=1,
        root=0, input_units=[chunks] * nranks, output_units=[chunks] * nranks, scratch_units=[0] * nranks,
        in_place=False, out_of_place=True, protocol=protocol,
    )  # fmt: skip
