"""What a target's runtime does not accept, whatever the program means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..program import READING, TARGETS, WRITING, Op, Program, Target
from .report import Finding, Severity, error, warning
from .structure import Table

_FUSED = [int(o) for o in (Op.RECV_COPY_SEND, Op.RECV_REDUCE_COPY, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND)]
_READING = [int(o) for o in READING]
_WRITING = [int(o) for o in WRITING]


def check_limits(program: Program, table: Table | None, target: Target) -> Iterator[Finding]:
    """Findings for every limit of `target` that the program breaks (`table`: the program's, if there is one)."""
    suspicious = _suspicious_rows(program, target)
    nops = bool((program.op == Op.NOP).any())
    if table is None and (len(suspicious) or nops):
        table = Table(program)
    if nops and table is not None:
        yield from _check_nops(table, target)
    yield from _check_ranks(program, target)
    if target.max_channels is not None and program.nchannels > target.max_channels:
        yield error("E-LIMIT-CHANNELS", f"{program.nchannels} channels; {target.name} has {target.max_channels}")
    if target.root_is_zero and program.root:
        yield error("E-LIMIT-ROOT", f"root {program.root}; {target.name} knows root 0 only", rank=program.root)
    if table is not None:
        for row in suspicious.tolist():
            yield from _check_row(table, target, row)


#: Errors that a runtime's parser does not make: it loads the file and never selects, or does not run, it.
_NOT_PARSED = frozenset({"X-WINDOW", "X-MODES", "E-LIMIT-FUSED", "E-LIMIT-ROOT"})


def accepted_by(program: Program, source: Any) -> tuple[str, ...]:
    """The runtimes whose parser takes the text of an MSCCL XML file (which need not mean that it runs or is right).

    Args:
        program: what the text says.
        source: the text (`collsynth.formats.msccl_xml.ProgramSource`).
    """
    table = Table(program)
    peers = np.stack((program.tb_send, program.tb_recv))
    if ((peers == program.tb_rank) | (peers >= program.nranks)).any():
        return ()
    names = []
    for name in ("msccl", "msccl-executor", "rccl"):
        refused = {f.code for f in check_limits(program, table, TARGETS[name]) if f.severity is Severity.ERROR}
        refused |= {n.code for n in source.syntax if n.severity == "error" and (not n.targets or name in n.targets)}
        if not refused - _NOT_PARSED:
            names.append(name)
    return tuple(names)


def _suspicious_rows(program: Program, target: Target) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Rows that break a limit of single rows."""
    odd = np.zeros(program.nrows, dtype=bool)
    if target.max_count is not None:
        odd |= program.count > target.max_count
    if target.max_index is not None:
        odd |= np.isin(program.op, _READING) & (program.src_index > target.max_index)
        odd |= np.isin(program.op, _WRITING) & (program.dst_index > target.max_index)
    if not target.fused_receive:
        odd |= np.isin(program.op, _FUSED)
    if not target.multiple_dependencies:
        odd |= np.diff(program.dep_ptr) > 1
    if target.max_dependency_tb is not None and len(program.dep_tb):
        waiting = np.repeat(np.arange(program.nrows), np.diff(program.dep_ptr))
        odd[waiting[program.dep_tb > target.max_dependency_tb]] = True
    return np.flatnonzero(odd)


def _check_ranks(program: Program, target: Target) -> Iterator[Finding]:
    limits = (target.max_channels, target.max_steps, target.max_threadblocks, target.max_xml_nodes,
              target.max_tbs_per_channel)  # fmt: skip
    if all(limit is None for limit in limits):
        return
    tb_rank, tb_ptr = program.tb_rank.tolist(), program.tb_ptr.tolist()
    tbs, steps = Counter(tb_rank), Counter[int]()
    users: dict[str, Counter[tuple[int, int]]] = {"sending": Counter(), "receiving": Counter()}
    for tb, (rank, tb_id) in enumerate(zip(tb_rank, program.tb_id.tolist(), strict=True)):
        length = tb_ptr[tb + 1] - tb_ptr[tb]
        steps[rank] += length
        channel = int(program.tb_channel[tb])
        if target.max_channels is not None and not 0 <= channel < max(1, program.nchannels):
            message = f"channel {channel} of {program.nchannels}; {target.name} checks it on local threadblocks too"
            yield error("E-CHANNEL", message, rank=rank, threadblock=tb_id)
        if target.max_steps is not None and length > target.max_steps:
            message = f"{length} steps; {target.name} runs {target.max_steps}"
            yield error("E-LIMIT-STEPS", message, rank=rank, threadblock=tb_id, step=target.max_steps)
        for label, peer in (("sending", program.tb_send[tb]), ("receiving", program.tb_recv[tb])):
            if peer >= 0:
                users[label][rank, int(program.tb_channel[tb])] += 1
    for rank, number in sorted(tbs.items()):
        if target.max_threadblocks is not None and number > target.max_threadblocks:
            message = f"{number} threadblocks; {target.name} runs {target.max_threadblocks} on one rank"
            yield error("E-LIMIT-TBS", message, rank=rank, threadblock=target.max_threadblocks)
        nodes = 1 + program.nranks + number + steps[rank]
        if target.max_xml_nodes is not None and nodes > target.max_xml_nodes:
            message = f"{nodes} XML nodes for one rank; {target.name} reads {target.max_xml_nodes}"
            yield error("E-LIMIT-NODES", message, rank=rank)
    for label, uses in users.items():
        for (rank, channel), number in sorted(uses.items()):
            if target.max_tbs_per_channel is not None and number > target.max_tbs_per_channel:
                message = f"{number} {label} threadblocks on channel {channel}; {target.name} allows "
                yield error("E-LIMIT-TBS-PER-CHANNEL", message + str(target.max_tbs_per_channel), rank=rank)


def _check_row(table: Table, target: Target, row: int) -> Iterator[Finding]:
    program, op = table.program, table.op[row]
    if target.max_count is not None and table.count[row] > target.max_count:
        message = f"{table.name(row)} moves {table.count[row]} units; {target.name} moves {target.max_count}"
        yield error("E-LIMIT-COUNT", message, **table.at(row))
    if target.max_index is not None:
        index = max(
            table.src_index[row] if op in _READING else -1, table.dst_index[row] if op in _WRITING else -1
        )  # fmt: skip
        if index > target.max_index:
            message = f"{table.name(row)} uses index {index}; {target.name} reads up to {target.max_index}"
            yield error("E-LIMIT-INDEX", message, **table.at(row))
    if not target.fused_receive and op in _FUSED:
        message = f"{table.name(row)} is a fused receive, which {target.name} does not run"
        yield error("E-LIMIT-FUSED", message, **table.at(row))
    first, last = int(program.dep_ptr[row]), int(program.dep_ptr[row + 1])
    if not target.multiple_dependencies and last - first > 1:
        message = f"{table.name(row)} carries {last - first} dependencies; {target.name} wants all but one on nops"
        yield error("E-LIMIT-DEPS", message, **table.at(row))
    if target.max_dependency_tb is not None:
        for dep in range(first, last):
            if program.dep_tb[dep] > target.max_dependency_tb:
                message = f"{table.name(row)} waits for tb {program.dep_tb[dep]}; {target.name} knows ids up to "
                yield error("E-LIMIT-DEP-TB", message + str(target.max_dependency_tb), **table.at(row))


def _check_nops(table: Table, target: Target) -> Iterator[Finding]:
    """A nop carries one dependency for the next step, which must carry one itself."""
    program = table.program
    strict = not target.multiple_dependencies
    for row, op in enumerate(table.op):
        if op != Op.NOP:
            continue
        deps = program.dep_ptr[row + 1] - program.dep_ptr[row]
        if not deps:
            message = f"{table.name(row)} carries no dependency"
            if strict:
                yield error("E-LIMIT-NOP", f"{message}: {target.name} drops it and counts later steps otherwise",
                            **table.at(row))  # fmt: skip
            else:
                yield warning("W-NOP", message, **table.at(row))
        following = row + 1 if row + 1 < table.tb_ptr[table.tb_of[row] + 1] else None
        if following is None:
            yield warning("W-NOP", f"{table.name(row)} is the last of its threadblock: nothing waits", **table.at(row))
        elif table.op[following] != Op.NOP and program.dep_ptr[following] == program.dep_ptr[following + 1]:
            message = f"{table.name(row)} is followed by a step without a dependency"
            if strict:
                yield error("E-LIMIT-NOP", f"{message}: {target.name} refuses that", **table.at(following))
            else:
                yield warning("W-NOP", message, **table.at(following))
