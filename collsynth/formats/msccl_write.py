"""Program to MSCCL XML: the portable superset that all three runtimes' parsers take.

One element a line, two-space indent, no declaration, LF, double quotes, at most 12 attributes; every
attribute that any parser requires; operands local; `s` equal to the runtimes' own counter; several
dependencies as nops in front of the step, the last one on the step itself; hasdep exactly on steps that
somebody waits for.  The operand that a step does not use repeats the used one, which every reader takes.

Size window: minBytes and maxBytes are the program's; without an upper limit maxBytes is
`DEFAULT_MAX_BYTES`, never 0 (which means no limit to two runtimes and no size at all to msccl, which
also allocates scratch for maxBytes when it starts).
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from ..errors import RefusedError
from ..limits import check_limits, fused_receives
from ..nops import single_waits
from ..program import TARGETS, TWO_SIDED, Op, Program, Space, Target
from .files import check_writable, write_text_atomically
from .msccl_read import STEP_TYPES, USES_DESTINATION, USES_SOURCE

#: maxBytes of a program without an upper limit: 4 GiB.
DEFAULT_MAX_BYTES = 1 << 32
_COLLECTIVES = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce", "gather", "scatter")
_NAMES = {int(op): name for name, op in STEP_TYPES.items()}
_LETTERS = "ios"


def render(program: Program, target: Target = TARGETS["any"]) -> str:
    """The XML text of a program for a target (`any`: the executor's spelling, no limits).

    Raises:
        RefusedError: the format or the target cannot express the program; the message has the figure.
    """
    _check_expressible(program, target)
    program = single_waits(program)
    check_limits(program, target)
    flags = _flags(program)
    scope = "reduce_scatter" if target.name == "msccl" else "reducescatter"
    coll = scope if program.collective == "reducescatter" else program.collective
    # msccl uses a file in the one mode that inplace names, and does not read outofplace
    lines = [
        f'<algo name="{_label(program.name)}" ngpus="{program.nranks}" nchunksperloop="{program.nunits}"'
        f' nchannels="{max(program.nchannels, 1)}" proto="{program.protocol.value}" coll="{coll}"'
        f' inplace="{int(program.in_place)}" outofplace="{int(program.out_of_place)}"'
        f' minBytes="{program.min_bytes or 0}" maxBytes="{program.max_bytes or DEFAULT_MAX_BYTES}">'
    ]
    steps = _step_lines(program, flags)
    first = np.searchsorted(program.tb_rank, np.arange(program.nranks + 1)).tolist()
    ptr = program.tb_ptr.tolist()
    sends, receives, channels, ids = (
        column.tolist() for column in (program.tb_send, program.tb_recv, program.tb_channel, program.tb_id)
    )
    for rank in range(program.nranks):
        lines.append(
            f'  <gpu id="{rank}" i_chunks="{program.input_units[rank]}" o_chunks="{program.output_units[rank]}"'
            f' s_chunks="{program.scratch_units[rank]}">'
        )
        for block in range(first[rank], first[rank + 1]):
            lines.append(
                f'    <tb id="{ids[block]}" send="{sends[block]}" recv="{receives[block]}" chan="{channels[block]}">'
            )
            lines.extend(steps[ptr[block] : ptr[block + 1]])
            lines.append("    </tb>")
        lines.append("  </gpu>")
    lines.append("</algo>\n")
    return "\n".join(lines)


def write(program: Program, path: str | Path, *, target: Target = TARGETS["any"], force: bool = False) -> None:
    """Write `render(program, target)` in one move.

    Raises:
        RefusedError: see `render`.
        InputError: the file exists and `force` is not given, or its folder does not exist.
    """
    check_writable(path, force=force)
    write_text_atomically(path, render(program, target), force=force)


def _label(name: str) -> str:
    """The name in 63 characters that the tokenizer takes (it knows no entities)."""
    return re.sub(r"[^A-Za-z0-9_.,:+=/()-]+", "_", name)[:63] or "collsynth"


def _check_expressible(program: Program, target: Target) -> None:
    """Refuse what no MSCCL XML can say."""

    def refuse(text: str) -> RefusedError:
        return RefusedError(f"MSCCL XML cannot express the program: {text}")

    if program.collective not in _COLLECTIVES:
        raise refuse(f"collective {program.collective!r} has no name there")
    if target.name == "msccl" and program.collective in ("gather", "scatter"):
        raise refuse(f"msccl knows no {program.collective}")
    if target.name == "astra-sim":
        raise refuse("ASTRA-sim reads Chakra traces; write .et")
    foreign = np.flatnonzero(~np.isin(program.op, [int(op) for op in TWO_SIDED]))
    if len(foreign):
        raise refuse(f"operation {Op(int(program.op[foreign[0]])).name} is not two-sided")
    remote = (program.src_space != int(Space.LOCAL)) | (program.dst_space != int(Space.LOCAL))
    if remote.any():
        raise refuse("an operand is not local")
    if not target.fused_receive and (fused := fused_receives(program)):
        raise RefusedError(
            f"target {target.name} refuses: {fused} fused steps (rcs, rrc, rrs, rrcs), which it never runs"
        )
    if program.root not in (None, 0):
        raise refuse(f"root {program.root}; a file can only mean root 0")
    nranks, nunits = program.nranks, program.nunits
    shard_in = program.collective in ("allgather", "gather")
    shard_out = program.collective in ("reducescatter", "scatter")
    for label, units, is_shard in (
        ("input", program.input_units, shard_in), ("output", program.output_units, shard_out),
    ):  # fmt: skip
        odd = np.flatnonzero((units != 0) & (units * (nranks if is_shard else 1) != nunits))
        if len(odd):
            raise refuse(
                f"rank {odd[0]}'s {label} has {units[odd[0]]} of {nunits} units; shards must be equal "
                f"(uneven ones fit .sched and .prog)"
            )


def _flags(program: Program) -> list[int]:
    """hasdep of each row: somebody waits for it (for a nop: for the step behind it).

    Raises:
        RefusedError: somebody waits for a step that does not exist, or a nop chain ends without a wait.
    """
    flags = [0] * program.nrows
    ops = program.op.tolist()
    ptr = program.tb_ptr.tolist()
    place = {
        (rank, number): block
        for block, (rank, number) in enumerate(zip(program.tb_rank.tolist(), program.tb_id.tolist(), strict=True))
    }
    dep_ptr, dep_tb, dep_step = program.dep_ptr.tolist(), program.dep_tb.tolist(), program.dep_step.tolist()
    nop = int(Op.NOP)
    for block, rank in enumerate(program.tb_rank.tolist()):
        for row in range(ptr[block], ptr[block + 1]):
            where = f"rank {rank}, threadblock {program.tb_id[block]}, step {row - ptr[block]}"
            if row > ptr[block] and ops[row - 1] == nop != ops[row] and dep_ptr[row] == dep_ptr[row + 1]:
                raise RefusedError(f"MSCCL XML cannot express the program: {where} follows a nop but waits for nothing")
            for index in range(dep_ptr[row], dep_ptr[row + 1]):
                other = place.get((rank, dep_tb[index]))
                target = -1 if other is None else ptr[other] + dep_step[index]
                while other is not None and target < ptr[other + 1] and ops[target] == nop:
                    target += 1
                if other is None or not ptr[other] <= target < ptr[other + 1]:
                    raise RefusedError(
                        f"MSCCL XML cannot express the program: {where} waits for threadblock {dep_tb[index]}, "
                        f"step {dep_step[index]}, which does not exist"
                    )
                flags[target] = 1
    return flags


def _step_lines(program: Program, flags: list[int]) -> list[str]:
    """One line an instruction."""
    numbers = np.arange(program.nrows) - np.repeat(program.tb_ptr[:-1], np.diff(program.tb_ptr))
    waits = np.diff(program.dep_ptr) > 0
    at = program.dep_ptr[:-1][waits]
    dep_tb, dep_step = np.full(program.nrows, -1), np.full(program.nrows, -1)
    dep_tb[waits], dep_step[waits] = program.dep_tb[at], program.dep_step[at]
    lines = []
    for number, op, sb, si, db, di, count, tb, step, flag in zip(
        numbers.tolist(), program.op.tolist(), program.src_buffer.tolist(), program.src_index.tolist(),
        program.dst_buffer.tolist(), program.dst_index.tolist(), program.count.tolist(), dep_tb.tolist(),
        dep_step.tolist(), flags, strict=True,
    ):  # fmt: skip
        name = _NAMES[op]
        if name == "nop":
            sb, si, db, di = 0, -1, 1, -1
        elif name not in USES_SOURCE:
            sb, si = db, di
        elif name not in USES_DESTINATION:
            db, di = sb, si
        lines.append(
            f'      <step s="{number}" type="{name}" srcbuf="{_LETTERS[sb]}" srcoff="{si}" dstbuf="{_LETTERS[db]}"'
            f' dstoff="{di}" cnt="{count}" depid="{tb}" deps="{step}" hasdep="{flag}"/>'
        )
    return lines
