"""Small programs written by hand, so that the runtime's tests need no synthesizer and no lowering."""

from __future__ import annotations

from collsynth.program import Buffer, Instruction, Op, Operand, Program, Protocol, Threadblock


def ring_allreduce(nranks: int, *, channels: int = 1, protocol: Protocol = Protocol.SIMPLE) -> Program:
    """AllReduce on a ring in both modes: output buffer only, fused receives, `channels` copies on split units."""
    blocks = []
    for rank in range(nranks):
        for channel in range(channels):

            def unit(shard: int, channel: int = channel) -> Operand:
                return Operand(Buffer.OUTPUT, (shard % nranks) * channels + channel, 1)

            def given(shard: int, channel: int = channel) -> Operand:
                return Operand(Buffer.INPUT, (shard % nranks) * channels + channel, 1)

            # Reduce-scatter: the partial of shard s starts on rank s + 1 and ends, complete, on rank s;
            # then every rank passes complete shards on.
            rows = [Instruction(Op.SEND, 1, src=given(rank - 1))]
            for hop in range(2, nranks):
                rows.append(Instruction(Op.RECV_REDUCE_SEND, 1, src=given(rank - hop)))
            rows.append(Instruction(Op.RECV_REDUCE_COPY_SEND, 1, src=given(rank), dst=unit(rank)))
            for hop in range(1, nranks - 1):
                rows.append(Instruction(Op.RECV_COPY_SEND, 1, dst=unit(rank - hop)))
            rows.append(Instruction(Op.RECV, 1, dst=unit(rank + 1)))
            blocks.append(
                Threadblock(rank, channel, (rank + 1) % nranks, (rank - 1) % nranks, channel, tuple(rows))
            )  # fmt: skip
    units = nranks * channels
    return Program.build(
        blocks, name=f"ring{nranks}", collective="allreduce", nranks=nranks, nunits=units, nchannels=channels,
        protocol=protocol, in_place=True, out_of_place=True, input_units=[units] * nranks,
        output_units=[units] * nranks, scratch_units=[0] * nranks,
    )  # fmt: skip


def direct_allgather(nranks: int) -> Program:
    """AllGather: every rank sends its shard to every other one; a threadblock a peer, one local copy."""
    blocks = []
    for rank in range(nranks):
        own = Operand(Buffer.INPUT, 0, 1)
        for hop in range(1, nranks):
            to, source = (rank + hop) % nranks, (rank - hop) % nranks
            rows = (
                Instruction(Op.SEND, 1, src=own),
                Instruction(Op.RECV, 1, dst=Operand(Buffer.OUTPUT, source, 1)),
            )
            blocks.append(Threadblock(rank, hop - 1, to, source, 0, rows))
        copy = Instruction(Op.COPY, 1, src=own, dst=Operand(Buffer.OUTPUT, rank, 1))
        blocks.append(Threadblock(rank, nranks - 1, None, None, 0, (copy,)))
    return Program.build(
        blocks, name=f"direct{nranks}", collective="allgather", nranks=nranks, nunits=nranks, nchannels=1,
        in_place=True, out_of_place=True, input_units=[1] * nranks, output_units=[nranks] * nranks,
        scratch_units=[0] * nranks,
    )  # fmt: skip


def scratch_allreduce() -> Program:
    """AllReduce on 2 ranks through scratch, with separate sends and receives, dependencies and a local reduce."""
    blocks = []
    for rank in range(2):
        peer = 1 - rank
        send = Instruction(Op.SEND, 2, src=Operand(Buffer.INPUT, 0, 2))
        recv = Instruction(Op.RECV, 2, dst=Operand(Buffer.SCRATCH, 0, 2))
        wait = Instruction(Op.NOP, 0, depends=((0, 0),))
        copy = Instruction(
            Op.COPY, 2, src=Operand(Buffer.INPUT, 0, 2), dst=Operand(Buffer.OUTPUT, 0, 2), depends=((1, 0),)
        )
        add = Instruction(Op.REDUCE, 2, src=Operand(Buffer.SCRATCH, 0, 2), dst=Operand(Buffer.OUTPUT, 0, 2))
        blocks.append(Threadblock(rank, 0, peer, None, 0, (send,)))
        blocks.append(Threadblock(rank, 1, None, peer, 0, (recv,)))
        blocks.append(Threadblock(rank, 2, None, None, 0, (wait, copy, add)))
    return Program.build(
        blocks, name="scratch2", collective="allreduce", nranks=2, nunits=2, nchannels=1, in_place=True,
        out_of_place=True, input_units=[2, 2], output_units=[2, 2], scratch_units=[2, 2],
    )  # fmt: skip


def deadlocked() -> Program:
    """Both ranks receive before they send: nothing can ever move."""
    blocks = [
        Threadblock(
            rank, 0, 1 - rank, 1 - rank, 0,
            (
                Instruction(Op.RECV_REDUCE_COPY, 1, src=Operand(Buffer.INPUT, 0, 1), dst=Operand(Buffer.OUTPUT, 0, 1)),
                Instruction(Op.SEND, 1, src=Operand(Buffer.INPUT, 0, 1)),
            ),
        )
        for rank in range(2)
    ]  # fmt: skip
    return Program.build(
        blocks, name="stuck", collective="allreduce", nranks=2, nunits=1, nchannels=1, in_place=False,
        out_of_place=True, input_units=[1, 1], output_units=[1, 1], scratch_units=[0, 0],
    )  # fmt: skip


_XML_OPS = {
    Op.SEND: "s", Op.RECV: "r", Op.COPY: "cpy", Op.REDUCE: "re", Op.RECV_COPY_SEND: "rcs",
    Op.RECV_REDUCE_COPY: "rrc", Op.RECV_REDUCE_SEND: "rrs", Op.RECV_REDUCE_COPY_SEND: "rrcs", Op.NOP: "nop",
}  # fmt: skip


def as_xml(program: Program) -> str:
    """MSCCL XML of a program whose instructions carry at most one dependency each."""
    waited = {(int(t), int(s)) for t, s in zip(program.dep_tb, program.dep_step, strict=True)}
    lines = [
        f'<algo name="{program.name}" nchunksperloop="{program.nunits}" nchannels="{program.nchannels}" '
        f'proto="{program.protocol.value}" ngpus="{program.nranks}" coll="{program.collective}" '
        f'inplace="{int(program.in_place)}" outofplace="{int(program.out_of_place)}" minBytes="0" '
        f'maxBytes="{1 << 40}">'
    ]
    for rank in range(program.nranks):
        sizes = (program.input_units[rank], program.output_units[rank], program.scratch_units[rank])
        lines.append('<gpu id="{}" i_chunks="{}" o_chunks="{}" s_chunks="{}">'.format(rank, *sizes))
        for tb in program.threadblocks(rank):
            send = -1 if tb.send_peer is None else tb.send_peer
            recv = -1 if tb.recv_peer is None else tb.recv_peer
            lines.append(f'<tb id="{tb.id}" send="{send}" recv="{recv}" chan="{tb.channel}">')
            for step, row in enumerate(tb.instructions):
                src = "i", -1
                dst = "o", -1
                if row.src is not None:
                    src = "ios"[row.src.buffer], row.src.index
                if row.dst is not None:
                    dst = "ios"[row.dst.buffer], row.dst.index
                depid, deps = row.depends[0] if row.depends else (-1, -1)
                lines.append(
                    f'<step s="{step}" type="{_XML_OPS[row.op]}" srcbuf="{src[0]}" srcoff="{src[1]}" '
                    f'dstbuf="{dst[0]}" dstoff="{dst[1]}" cnt="{row.count}" depid="{depid}" deps="{deps}" '
                    f'hasdep="{int((tb.id, step) in waited)}"/>'
                )
            lines.append("</tb>")
        lines.append("</gpu>")
    return "\n".join([*lines, "</algo>"])
