"""Data races: conflicting accesses of one rank's memory that nothing orders.

Order comes from program order, waits, and messages (a receive follows its send), carried by vector
clocks with one entry a threadblock.  Room in a FIFO is not counted as order: a program must not rely on
how many messages a connection happens to hold.  Only the entries of the own rank's threadblocks are kept
for each step, because conflicts are between steps of one rank.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..program import READING, WRITING, Op
from .memory import Layout, cell_name
from .report import Finding, error
from .structure import Structure, Table

_READING = frozenset(int(o) for o in READING)
_WRITING = frozenset(int(o) for o in WRITING)
_NONE: set[int] = set()
#: Entries of all threadblocks' vector clocks that are held at once.
_CLOCK_ENTRIES = 1 << 25


def vector_clocks(structure: Structure) -> list[list[int]]:
    """What each step knows: for every threadblock of its rank, how many of its steps come before (or are) it.

    Only entries of one's own rank are asked for later, but they travel through other ranks.  So the clocks run
    over groups of ranks, as many at a time as fit into `_CLOCK_ENTRIES`.
    """
    program = structure.table.program
    known: list[list[int]] = [[]] * program.nrows
    first = np.searchsorted(program.tb_rank, np.arange(program.nranks + 1)).tolist()
    begin = 0
    while begin < program.nranks:
        end = begin + 1
        while end < program.nranks and (first[end + 1] - first[begin]) * program.ntbs <= _CLOCK_ENTRIES:
            end += 1
        _run_clocks(structure, first, begin, end, known)
        begin = end
    return known


def _run_clocks(structure: Structure, first: list[int], begin: int, end: int, known: list[list[int]]) -> None:
    """Fill `known` for the rows of the ranks begin..end."""
    table = structure.table
    low, high = first[begin], first[end]
    #: clock of each threadblock's last step, and, for steps that others look at, of that step until all have
    current = np.zeros((table.program.ntbs, high - low), dtype=np.int32)
    kept: dict[int, NDArray[np.int32]] = {}
    uses = Counter(row for waited in structure.waits.values() for row in waited)
    uses.update(structure.sender.values())
    for row in structure.order:
        tb = table.tb_of[row]
        clock, rank = current[tb], table.tb_rank[tb]
        before = structure.waits.get(row, [])
        if row in structure.sender:
            before = [*before, structure.sender[row]]
        for other in before:
            np.maximum(clock, kept[other], out=clock)
            uses[other] -= 1
            if not uses[other]:
                del kept[other]
        if begin <= rank < end:
            clock[tb - low] = table.step_of[row] + 1
            known[row] = clock[first[rank] - low : first[rank + 1] - low].tolist()
        if uses[row]:
            kept[row] = clock.copy()


class _Races:
    """One pass over the steps in an order in which they can run."""

    def __init__(self, structure: Structure, layout: Layout, clocks: list[list[int]]) -> None:
        self.structure, self.layout, self.table, self.clocks = structure, layout, structure.table, clocks
        program = self.table.program
        self.first_tb = np.searchsorted(program.tb_rank, np.arange(program.nranks)).tolist()
        self.written: list[list[int]] = [[-1] * n for n in layout.ncells]
        self.readers: list[list[tuple[int, ...]]] = [[()] * n for n in layout.ncells]
        #: (earlier step, later step) -> (rank, first cell, kinds of access)
        self.races: dict[tuple[int, int], tuple[int, int, str]] = {}

    def run(self) -> None:
        for row in self.structure.order:
            self._access(row)

    def _access(self, row: int) -> None:
        table, op, count = self.table, self.table.op[row], self.table.count[row]
        rank = table.rank(row)
        first, known, base = self.first_tb[rank], self.clocks[row], self.layout.base[rank]
        if op in _READING:
            begin = base[table.src_buffer[row]] + table.src_index[row]
            self._read(row, rank, known, first, begin, begin + count)
        if op in _WRITING:
            begin = base[table.dst_buffer[row]] + table.dst_index[row]
            if op == Op.REDUCE:
                self._read(row, rank, known, first, begin, begin + count)
            if op == Op.COPY and begin == base[table.src_buffer[row]] + table.src_index[row]:
                return  # a copy onto itself changes nothing: for others it is a read
            self._write(row, rank, known, first, begin, begin + count)

    def _unordered(self, other: int, row: int, known: list[int], first: int) -> bool:
        return other != row and known[self.table.tb_of[other] - first] <= self.table.step_of[other]

    def _read(self, row: int, rank: int, known: list[int], first: int, begin: int, end: int) -> None:
        written, readers = self.written[rank][begin:end], self.readers[rank]
        for other in set(written):
            if other >= 0 and self._unordered(other, row, known, first):
                self._record(other, row, rank, begin + written.index(other), "writes", "reads")
        mine, tb_of = self.table.tb_of[row], self.table.tb_of
        grown: dict[tuple[int, ...], tuple[int, ...]] = {}
        for cell in range(begin, end):
            known_readers = readers[cell]
            more = grown.get(known_readers)
            if more is None:
                # a later read of the same threadblock stands for the earlier ones
                more = (*(r for r in known_readers if tb_of[r] != mine), row)
                grown[known_readers] = more
            readers[cell] = more

    def _write(self, row: int, rank: int, known: list[int], first: int, begin: int, end: int) -> None:
        written, readers = self.written[rank], self.readers[rank]
        before, reads = written[begin:end], readers[begin:end]
        for other in set(before):
            if other >= 0 and self._unordered(other, row, known, first):
                self._record(other, row, rank, begin + before.index(other), "writes", "writes")
        for group in set(reads):
            for other in group:
                if self._unordered(other, row, known, first):
                    self._record(other, row, rank, begin + reads.index(group), "reads", "writes")
        written[begin:end] = [row] * (end - begin)
        readers[begin:end] = [()] * (end - begin)

    def _record(self, other: int, row: int, rank: int, cell: int, one: str, two: str) -> None:
        if (other, row) not in self.races:
            self.races[other, row] = (rank, cell, f"{one} {two}")


def find_races(structure: Structure, layout: Layout, clocks: list[list[int]]) -> tuple[list[Finding], set[int]]:
    """Two findings a race, one at each of its steps, each naming the other, and all rows that touch the cells in race.

    Args:
        structure: of a sound program.
        layout: the mode.
        clocks: of `vector_clocks`.
    """
    races = _Races(structure, layout, clocks)
    races.run()
    table, findings = structure.table, []
    for (other, row), (rank, cell, kinds) in sorted(races.races.items()):
        one, two = kinds.split()
        place = cell_name(layout, rank, cell)
        for here, there, does, did in ((row, other, two, one), (other, row, one, two)):
            message = f"{table.name(here)} {does} {place}, which {table.name(there)} {did}, and nothing orders them"
            rank_there, tb_there, step_there = table.at(there).values()
            finding = error("E-RACE", message, **table.at(here))
            findings.append(replace(finding, other=(rank_there, tb_there, step_there)))
    return findings, _touching(table, layout, races.races)


def _touching(table: Table, layout: Layout, races: Iterable[tuple[int, int]]) -> set[int]:
    """Rows that use a cell that both rows of a race use (neighbours alone are reported; others may race there too)."""

    def cells(row: int) -> set[int]:
        base, count, used = layout.base[table.rank(row)], table.count[row], set[int]()
        for kinds, buffer, index in (
            (_READING, table.src_buffer[row], table.src_index[row]),
            (_WRITING, table.dst_buffer[row], table.dst_index[row]),
        ):
            if table.op[row] in kinds:
                used.update(range(base[buffer] + index, base[buffer] + index + count))
        return used

    in_race: dict[int, set[int]] = defaultdict(set)
    for one, two in races:
        in_race[table.rank(one)] |= cells(one) & cells(two)
    if not in_race:
        return set()
    return {row for row in range(table.program.nrows) if not in_race.get(table.rank(row), _NONE).isdisjoint(cells(row))}
