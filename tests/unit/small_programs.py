"""Small right programs, built by hand, for tests of the prover and of backends."""

from __future__ import annotations

from collsynth.program import Buffer, Instruction, Op, Operand, Program, Protocol, Threadblock

INPUT, OUTPUT, SCRATCH = Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH


def step(
    op: Op, src: tuple[Buffer, int] | None = None, dst: tuple[Buffer, int] | None = None, *, count: int = 1,
    after: tuple[tuple[int, int], ...] = (),
) -> Instruction:  # fmt: skip
    """An instruction from (buffer, index) operands; `after`: (threadblock, step) pairs."""
    return Instruction(
        op, count, None if src is None else Operand(*src, count), None if dst is None else Operand(*dst, count), after
    )  # fmt: skip


def ring_allreduce(nranks: int, protocol: Protocol = Protocol.SIMPLE) -> Program:
    """One threadblock a rank; right in place and out of place."""
    blocks = []
    for rank in range(nranks):
        steps = [step(Op.SEND, (INPUT, (rank - 1) % nranks))]
        steps += [step(Op.RECV_REDUCE_SEND, (INPUT, (rank - 1 - k) % nranks)) for k in range(1, nranks - 1)]
        steps.append(step(Op.RECV_REDUCE_COPY_SEND, (INPUT, rank), (OUTPUT, rank)))
        steps += [step(Op.RECV_COPY_SEND, None, (OUTPUT, (rank - k) % nranks)) for k in range(1, nranks - 1)]
        steps.append(step(Op.RECV, None, (OUTPUT, (rank + 1) % nranks)))
        blocks.append(Threadblock(rank, 0, (rank + 1) % nranks, (rank - 1) % nranks, 0, tuple(steps)))
    return Program.build(
        blocks, name="ring", collective="allreduce", nranks=nranks, nunits=nranks, nchannels=1, protocol=protocol,
        input_units=[nranks] * nranks, output_units=[nranks] * nranks, scratch_units=[0] * nranks,
        in_place=True, out_of_place=True,
    )  # fmt: skip


def direct_reduce_scatter(nranks: int, units: int = 1) -> Program:
    """A threadblock for each peer, and a local one that waits for all of them and adds."""
    blocks = []
    for rank in range(nranks):
        adding = [step(Op.COPY, (INPUT, rank * units), (OUTPUT, 0), count=units)]
        for number, offset in enumerate(range(1, nranks)):
            to, source = (rank + offset) % nranks, (rank - offset) % nranks
            moves = (
                step(Op.SEND, (INPUT, to * units), count=units),
                step(Op.RECV, None, (SCRATCH, number * units), count=units),
            )
            blocks.append(Threadblock(rank, number, to, source, 0, moves))
            place = (SCRATCH, number * units)
            adding.append(step(Op.REDUCE, place, (OUTPUT, 0), count=units, after=((number, 1),)))
        blocks.append(Threadblock(rank, nranks - 1, None, None, 0, tuple(adding)))
    return Program.build(
        blocks, name="direct", collective="reducescatter", nranks=nranks, nunits=nranks * units, nchannels=1,
        input_units=[nranks * units] * nranks, output_units=[units] * nranks,
        scratch_units=[(nranks - 1) * units] * nranks, in_place=True, out_of_place=True,
    )  # fmt: skip


def exchange(units: int, protocol: Protocol = Protocol.SIMPLE) -> Program:
    """AllGather on two ranks whose threadblock sends all its `units` messages before it takes any."""
    blocks = []
    for rank in range(2):
        other = 1 - rank
        steps = [step(Op.COPY, (INPUT, 0), (OUTPUT, rank * units), count=units)]
        steps += [step(Op.SEND, (INPUT, u)) for u in range(units)]
        steps += [step(Op.RECV, None, (OUTPUT, other * units + u)) for u in range(units)]
        blocks.append(Threadblock(rank, 0, other, other, 0, tuple(steps)))
    return Program.build(
        blocks, name="exchange", collective="allgather", nranks=2, nunits=2 * units, nchannels=1, protocol=protocol,
        input_units=[units] * 2, output_units=[2 * units] * 2, scratch_units=[0, 0], in_place=True, out_of_place=True,
    )  # fmt: skip


def relay_broadcast(nranks: int, units: int) -> Program:
    """A chain in which one threadblock receives into scratch and another, waiting for it, copies and sends."""
    blocks = []
    for rank in range(nranks):
        after, last = rank + 1, rank == nranks - 1
        if rank == 0:
            steps = []
            for unit in range(units):
                steps.append(step(Op.SEND, (INPUT, unit)))
                steps.append(step(Op.COPY, (INPUT, unit), (OUTPUT, unit)))
            blocks.append(Threadblock(0, 0, 1, None, 0, tuple(steps)))
            continue
        taking = tuple(step(Op.RECV, None, (SCRATCH, unit)) for unit in range(units))
        blocks.append(Threadblock(rank, 0, None, rank - 1, 0, taking))
        steps = []
        for unit in range(units):
            steps.append(step(Op.COPY, (SCRATCH, unit), (OUTPUT, unit), after=((0, unit),)))
            if not last:
                steps.append(step(Op.SEND, (SCRATCH, unit)))
        blocks.append(Threadblock(rank, 1, None if last else after, None, 0, tuple(steps)))
    return Program.build(
        blocks, name="relay", collective="broadcast", nranks=nranks, root=0, nunits=units, nchannels=1,
        input_units=[units] * nranks, output_units=[units] * nranks, scratch_units=[0] + [units] * (nranks - 1),
        in_place=True, out_of_place=True,
    )  # fmt: skip


def small_programs() -> list[Program]:
    """One of each kind and a few sizes."""
    return [
        ring_allreduce(2), ring_allreduce(3), ring_allreduce(4, Protocol.LL), direct_reduce_scatter(2),
        direct_reduce_scatter(3, 2), exchange(1), exchange(2), exchange(5, Protocol.LL128), relay_broadcast(3, 3),
    ]  # fmt: skip
