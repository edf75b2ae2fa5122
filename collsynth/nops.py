"""Programs whose instructions wait for several threadblocks, for runtimes that allow one wait each.

MSCCL's way: nops in front of the instruction carry all dependencies but the last.  A nop is a step of
its own to the runtimes' counters, so everything that refers to later steps is renumbered.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from .program import Op, Program


def extra_waits(program: Program) -> NDArray[np.int64]:
    """int64[nrows]: dependencies of each row beyond the first, each of which needs a nop."""
    extra: NDArray[np.int64] = np.maximum(np.diff(program.dep_ptr) - 1, 0)
    return extra


def single_waits(program: Program) -> Program:
    """The same program with at most one dependency a row; the program itself when that holds already.

    A dependency on an unknown threadblock or step is kept as it is.
    """
    extra = extra_waits(program)
    if not extra.any():
        return program
    nrows = program.nrows
    lengths = extra + 1
    starts = np.cumsum(lengths) - lengths  # first new row (a nop, if any) of each old row
    total = int(lengths.sum())
    old_of_new = np.repeat(np.arange(nrows), lengths)
    is_last = np.zeros(total, dtype=bool)
    is_last[starts + extra] = True
    new_of_old = starts + extra
    tb_ptr = np.concatenate((np.concatenate((starts, [total]))[program.tb_ptr[:-1]], [total])).astype(np.int64)

    def spread(column: NDArray[np.int64], filler: int) -> NDArray[np.int64]:
        return np.where(is_last, column[old_of_new], filler).astype(np.int64)

    # one dependency a new row, in the old order: nops take the first ones
    has = np.diff(program.dep_ptr) > 0
    new_counts = np.where(is_last, has[old_of_new], True).astype(np.int64)
    place = {
        (int(rank), int(tb)): index for index, (rank, tb) in enumerate(zip(program.tb_rank, program.tb_id, strict=True))
    }
    tb_of_row = np.repeat(np.arange(program.ntbs), np.diff(program.tb_ptr))
    rank_of_dep = program.tb_rank[tb_of_row][np.repeat(np.arange(nrows), np.diff(program.dep_ptr))]
    dep_step = program.dep_step.copy()
    for index in range(len(dep_step)):
        target = place.get((int(rank_of_dep[index]), int(program.dep_tb[index])))
        if target is None:
            continue
        row = int(program.tb_ptr[target]) + int(program.dep_step[index])
        if dep_step[index] >= 0 and row < program.tb_ptr[target + 1]:
            dep_step[index] = new_of_old[row] - tb_ptr[target]
    return replace(
        program,
        tb_ptr=tb_ptr,
        op=spread(program.op, int(Op.NOP)),
        src_space=spread(program.src_space, 0), src_buffer=spread(program.src_buffer, -1),
        src_index=spread(program.src_index, -1),
        dst_space=spread(program.dst_space, 0), dst_buffer=spread(program.dst_buffer, -1),
        dst_index=spread(program.dst_index, -1),
        count=spread(program.count, 0), peer=spread(program.peer, -1), sync=spread(program.sync, -1),
        dep_ptr=np.concatenate(([0], np.cumsum(new_counts))).astype(np.int64),
        dep_tb=program.dep_tb.copy(), dep_step=dep_step,
    )  # fmt: skip
