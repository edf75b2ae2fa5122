"""What a target's parser counts; a program that breaks a limit is refused with the figure."""

from __future__ import annotations

import numpy as np

from .errors import RefusedError
from .nops import extra_waits
from .program import Op, Program, Target


def longest_threadblock(program: Program) -> tuple[int, int, int]:
    """(steps, rank, threadblock) of the longest threadblock, nops for further waits included."""
    if program.ntbs == 0:
        return 0, 0, 0
    cost = np.concatenate(([0], np.cumsum(1 + extra_waits(program))))
    steps = cost[program.tb_ptr[1:]] - cost[program.tb_ptr[:-1]]
    worst = int(steps.argmax())
    return int(steps[worst]), int(program.tb_rank[worst]), int(program.tb_id[worst])


def fused_receives(program: Program) -> int:
    """Number of rcs, rrc, rrs and rrcs instructions."""
    fused = (Op.RECV_COPY_SEND, Op.RECV_REDUCE_COPY, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND)
    return int(np.isin(program.op, [int(op) for op in fused]).sum())


def check_limits(program: Program, target: Target) -> None:
    """Do nothing if the program keeps the target's limits.

    Raises:
        RefusedError: names the first limit that is broken, the figure, and where.
    """

    def refuse(what: str, figure: int, limit: int | None) -> None:
        if limit is not None and figure > limit:
            raise RefusedError(f"target {target.name} refuses: {what} is {figure}, the limit is {limit}")

    steps, rank, block = longest_threadblock(program)
    refuse(f"the number of steps of rank {rank}, threadblock {block}", steps, target.max_steps)
    blocks = np.bincount(program.tb_rank, minlength=program.nranks)
    refuse(f"the number of threadblocks of rank {int(blocks.argmax())}", int(blocks.max()), target.max_threadblocks)
    if len(program.dep_tb):
        refuse("the largest threadblock id that is waited for", int(program.dep_tb.max()), target.max_dependency_tb)
    refuse("the number of channels", program.nchannels, target.max_channels)
    for label, peers in (("sending", program.tb_send), ("receiving", program.tb_recv)):
        used = peers >= 0
        if used.any():
            keys = program.tb_rank[used] * max(program.nchannels, 1) + program.tb_channel[used]
            most = int(np.unique(keys, return_counts=True)[1].max())
            refuse(f"the number of {label} threadblocks of a rank on one channel", most, target.max_tbs_per_channel)
    if program.nrows:
        refuse("the number of units of one step", int(program.count.max()), target.max_count)
        refuse("the largest operand index", int(max(program.src_index.max(), program.dst_index.max())),
               target.max_index)  # fmt: skip
    rows = np.concatenate(([0], np.cumsum(1 + extra_waits(program))))
    per_block = rows[program.tb_ptr[1:]] - rows[program.tb_ptr[:-1]]
    nodes = 1 + program.nranks + blocks + np.bincount(program.tb_rank, weights=per_block, minlength=program.nranks)
    refuse(f"the number of XML nodes that rank {int(nodes.argmax())} reads", int(nodes.max()), target.max_xml_nodes)
    if target.root_is_zero and program.root not in (None, 0):
        raise RefusedError(f"target {target.name} refuses: root {program.root}, its files can only mean root 0")
