"""What a conversion loses: found by comparing what was read with what was written, not by promises."""

from __future__ import annotations

import numpy as np

from ..nops import extra_waits, single_waits
from ..program import Program
from .msccl_read import ProgramSource

_HEADER = ("name", "collective", "nranks", "root", "nunits", "nchannels", "in_place", "out_of_place", "min_bytes",
           "max_bytes")  # fmt: skip
_COLUMNS = (
    "input_units", "output_units", "scratch_units", "tb_rank", "tb_id", "tb_send", "tb_recv", "tb_channel", "tb_ptr",
    "op", "src_space", "src_buffer", "src_index", "dst_space", "dst_buffer", "dst_index", "count", "peer", "sync",
    "dep_ptr", "dep_tb", "dep_step",
)  # fmt: skip
#: Attributes of <algo> that have a place in a Program.
_KEPT = frozenset({"name", "ngpus", "nchunksperloop", "nchannels", "proto", "coll", "inplace", "outofplace",
                   "minBytes", "maxBytes"})  # fmt: skip


def differences(before: Program, after: Program) -> list[str]:
    """What of a program is another thing in what was written; empty if nothing."""
    lost = []
    for name in (*_HEADER, "protocol"):
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            lost.append(f"{name} is written as {new if new not in ('', None) else 'nothing'}, not {old}")
    if before.notes and before.notes != after.notes:
        lost.append(f"notes: {'; '.join(before.notes)}")
    waits = int(extra_waits(before).sum())
    same = before if before.nrows == after.nrows else single_waits(before)
    columns = [name for name in _COLUMNS if not np.array_equal(getattr(same, name), getattr(after, name))]
    if columns:
        lost.append(f"these columns are other ones: {', '.join(columns)}")
    elif same is not before:
        lost.append(f"{waits} further waits of steps are written as nops in front of them")
    return lost


def of_xml(source: ProgramSource) -> list[str]:
    """What of an MSCCL XML text has no place in a program."""
    lost = list(source.program.notes)
    unread = sorted(set(source.attributes) - _KEPT)
    if unread:
        lost.append(f"attributes of <algo>: {', '.join(unread)}")
    waited = _waited(source.program)
    idle, missing = int((source.flags & ~waited).sum()), int((~source.flags & waited).sum())
    if idle:
        lost.append(f"hasdep on {idle} steps that nobody waits for")
    if missing:
        lost.append(
            f"{missing} steps are waited for but have no hasdep: they get one (the wait was met later, or never)"
        )
    own = sum(note.severity == "error" and len(note.targets) != 1 for note in source.syntax)
    if own:
        lost.append(f"{own} peculiarities of the text that runtimes refuse or misread (collsynth verify lists them)")
    return lost


def _waited(program: Program) -> np.ndarray:
    """bool[nrows]: some step of the rank waits for this one."""
    waited = np.zeros(program.nrows, dtype=bool)
    place = {
        (rank, number): block
        for block, (rank, number) in enumerate(zip(program.tb_rank.tolist(), program.tb_id.tolist(), strict=True))
    }  # fmt: skip
    tb_of_row = np.repeat(np.arange(program.ntbs), np.diff(program.tb_ptr))
    rank_of_dep = program.tb_rank[np.repeat(tb_of_row, np.diff(program.dep_ptr))]
    ptr = program.tb_ptr.tolist()
    for rank, number, step in zip(
        rank_of_dep.tolist(), program.dep_tb.tolist(), program.dep_step.tolist(), strict=True
    ):
        block = place.get((rank, number))
        if block is not None and 0 <= step < ptr[block + 1] - ptr[block]:
            waited[ptr[block] + step] = True
    return waited
