"""One run of a sound one-sided program on symbols, with vector clocks: data, races, what is not waited for.

Two clocks a thread: one of everything that is over, one of everything whose writes are visible.  A read or
write of what another thread wrote needs the second, a write over what another thread read the first.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from ..program import Op
from .memory import Goal, Layout, cell_name
from .onesided_graph import PACKET_READS, PACKET_WRITES, Graph
from .report import Finding, error, warning
from .symbolic import GARBAGE, Cell, Odd, Value, describe, terms_of

_ADDING = frozenset({Op.REDUCE, Op.READ_REDUCE, Op.READ_PACKET_REDUCE})
_SILENT = frozenset({
    Op.NOP, Op.SIGNAL, Op.WAIT, Op.RELAXED_SIGNAL, Op.RELAXED_WAIT, Op.FLUSH, Op.BARRIER, Op.ACQUIRE, Op.RELEASE,
})  # fmt: skip
_BY_SWITCH = frozenset({Op.MULTICAST_STORE, Op.MULTICAST_REDUCE})
Clock = NDArray[np.int32]


class Run:
    """One run in one mode.

    Attributes:
        cells: cells[rank][cell], what is there at the end.
        writer: writer[rank][cell], node that wrote it last, -1 for none.
        findings: races, undefined reads, and what is touched before its rank is known to have begun.
        odd_sums: sums of different places or of a term twice (worth telling when the result is wrong).
    """

    def __init__(self, graph: Graph, layout: Layout, goal: Goal) -> None:
        self.graph, self.layout, self.goal, self.table = graph, layout, goal, graph.table
        program = self.table.program
        self.cells: list[list[Cell]] = []
        for rank, ncells in enumerate(layout.ncells):
            cells: list[Cell] = [None] * ncells
            first, first_out, _ = layout.base[rank]
            if not goal.judged:
                cells[first_out : first_out + len(goal.want[rank])] = [GARBAGE] * len(goal.want[rank])
            for unit, value in enumerate(goal.start[rank]):
                if value is not None:
                    cells[first + unit] = value
            self.cells.append(cells)
        self.writer = [[-1] * n for n in layout.ncells]
        self.readers: list[list[tuple[int, ...]]] = [[()] * n for n in layout.ncells]
        self.findings: list[Finding] = []
        self.odd_sums: list[Finding] = []
        self.begun = np.searchsorted(program.tb_rank, np.arange(program.nranks + 1)).tolist()
        #: number of each node within its thread, from 1
        self.number = [0] * len(graph.row_of)
        self.over: Clock = np.zeros((graph.nthreads, graph.nthreads), dtype=np.int32)
        self.seen: Clock = np.zeros((graph.nthreads, graph.nthreads), dtype=np.int32)
        self._races: set[tuple[int, int]] = set()
        self._early: set[tuple[int, int]] = set()

    def run(self) -> Run:
        """Do every node in an order in which they can be done."""
        graph, steps = self.graph, [0] * self.graph.nthreads
        uses = Counter(other for edges in graph.before for other, _, _ in edges)
        kept: dict[int, tuple[Clock, Clock]] = {}
        for node in graph.order:
            thread = graph.thread_of[node]
            over, seen = self.over[thread], self.seen[thread]
            for other, visible, _ in graph.before[node]:
                if graph.thread_of[other] != thread:
                    np.maximum(over, kept[other][0], out=over)
                    if visible:
                        np.maximum(seen, kept[other][1], out=seen)
                uses[other] -= 1
                if not uses[other]:
                    kept.pop(other, None)
            steps[thread] += 1
            self.number[node] = over[thread] = seen[thread] = steps[thread]
            row = graph.row_of[node]
            if graph.done(row) == node and self.table.op[row] not in _SILENT:
                self._do(node, row)
            if uses[node]:
                kept[node] = (over.copy(), seen.copy())
        return self

    # --- one row -------------------------------------------------------------------------------------

    def _places(self, row: int, source: bool) -> list[tuple[int, int, int]]:
        """(rank, first cell, cell after the last) of an operand."""
        table, graph = self.table, self.graph
        buffer = (table.src_buffer if source else table.dst_buffer)[row]
        index = (table.src_index if source else table.dst_index)[row]
        space = (graph.src_space if source else graph.dst_space)[row]
        found = []
        for rank in graph.members(row, space):
            begin = self.layout.base[rank][buffer] + index
            found.append((rank, begin, begin + table.count[row]))
        return found

    def _do(self, node: int, row: int) -> None:
        op, values = Op(self.table.op[row]), None
        for rank, begin, end in self._places(row, source=True):
            if op not in PACKET_READS:
                self._read(node, row, rank, begin, end)
            term = self._load(row, rank, begin, end)
            values = term if values is None else self._add(row, values, term)
        assert values is not None
        for rank, begin, end in self._places(row, source=False):
            result = values
            if op in _ADDING:
                self._read(node, row, rank, begin, end)
                result = self._add(row, self._load(row, rank, begin, end), values)
            if op not in PACKET_WRITES:
                self._write(node, row, rank, begin, end)
            self.cells[rank][begin:end] = result
            self.writer[rank][begin:end] = [node] * (end - begin)

    def _load(self, row: int, rank: int, begin: int, end: int) -> list[Value]:
        cells = self.cells[rank][begin:end]
        if None not in cells:
            return cells  # type: ignore[return-value]
        unwritten = [i for i, value in enumerate(cells) if value is None]
        more = f" and {len(unwritten) - 1} more units" if len(unwritten) > 1 else ""
        message = (
            f"{self.table.name(row)} reads {self._cell(rank, begin + unwritten[0])}{more}, which nobody has written"
        )
        self.findings.append(error("E-UNDEFINED-READ", message, **self.table.at(row)))
        return [GARBAGE if value is None else value for value in cells]

    def _cell(self, rank: int, cell: int) -> str:
        return f"{cell_name(self.layout, rank, cell)} of rank {rank}"

    def _add(self, row: int, one: list[Value], two: list[Value]) -> list[Value]:
        low = (1 << self.goal.shift) - 1
        return [
            a | b if (a & b) == (a & low) == (b & low) else self._odd_sum(row, a, b)  # type: ignore[operator]
            for a, b in zip(one, two, strict=True)
        ]

    def _odd_sum(self, row: int, one: Value, two: Value) -> Odd:
        if one is GARBAGE or two is GARBAGE:
            return GARBAGE
        first, second = terms_of(one, self.goal.shift), terms_of(two, self.goal.shift)
        common = first & second
        if isinstance(one, int) and isinstance(two, int):
            if common:
                place, ranks = next(iter(common))[0], sorted(rank for _, rank in common)
                message = f"{self.table.name(row)} adds the terms of ranks {ranks} of unit {place} a second time"
            else:
                message = f"{self.table.name(row)} adds {describe(two, self.goal)} to {describe(one, self.goal)}"
            self.odd_sums.append(error("E-DOUBLE" if common else "E-MIX", message, **self.table.at(row)))
        return Odd(first + second)

    # --- order ---------------------------------------------------------------------------------------

    def _known(self, clock: Clock, node: int, other: int) -> bool:
        return bool(clock[self.graph.thread_of[node], self.graph.thread_of[other]] >= self.number[other])

    def _begins(self, node: int, row: int, rank: int, begin: int, verb: str) -> None:
        """Warn where another rank's memory is touched before that rank is known to run at all."""
        own = self.table.rank(row)
        clock = self.over[self.graph.thread_of[node]]
        first, last = self.begun[rank], self.begun[rank + 1]
        if rank != own and first < last and not clock[first:last].any() and (row, rank) not in self._early:
            self._early.add((row, rank))
            message = f"{self.table.name(row)} {verb} {self._cell(rank, begin)} before that rank is known to have begun"
            self.findings.append(warning("W-START", message, **self.table.at(row)))

    def _read(self, node: int, row: int, rank: int, begin: int, end: int) -> None:
        self._begins(node, row, rank, begin, "reads")
        written = self.writer[rank][begin:end]
        for other in set(written):
            if other >= 0 and other != node and not self._known(self.seen, node, other):
                self._race(other, node, rank, begin + written.index(other), "writes", "reads")
        readers, thread_of = self.readers[rank], self.graph.thread_of
        mine = thread_of[node]
        grown: dict[tuple[int, ...], tuple[int, ...]] = {}
        for cell in range(begin, end):
            before = readers[cell]
            if before not in grown:
                grown[before] = (*(r for r in before if thread_of[r] != mine), node)
            readers[cell] = grown[before]

    def _write(self, node: int, row: int, rank: int, begin: int, end: int) -> None:
        self._begins(node, row, rank, begin, "writes")
        before, readers = self.writer[rank][begin:end], self.readers[rank]
        reads = readers[begin:end]
        for other in set(before):
            if other >= 0 and other != node and not self._known(self.seen, node, other):
                self._race(other, node, rank, begin + before.index(other), "writes", "writes")
        for group in set(reads):
            for other in group:
                if other != node and not self._known(self.over, node, other):
                    self._race(other, node, rank, begin + reads.index(group), "reads", "writes")
        readers[begin:end] = [()] * (end - begin)

    def _race(self, other: int, node: int, rank: int, cell: int, did: str, does: str) -> None:
        one, two = self.graph.row_of[other], self.graph.row_of[node]
        if (one, two) in self._races:
            return
        self._races.add((one, two))
        table, place = self.table, self._cell(rank, cell)
        port = " (a port does it later)" if self.graph.later.get(one) == other else ""
        only = self._known(self.over, node, other)
        why = "only an order without visibility is known" if only else "nothing orders them"
        here = f"{table.name(two)} {does} {place}, which {table.name(one)} {did}{port}, and {why}"
        there = f"{table.name(one)} {did} {place}{port}, which {table.name(two)} {does}, and {why}"
        self.findings.append(error("E-RACE", here, **table.at(two)))
        self.findings.append(error("E-RACE", there, **table.at(one)))

    # --- the end -------------------------------------------------------------------------------------

    def ends(self) -> list[Finding]:
        """Outputs that a rank does not wait for, and memory that is still read when its rank may have ended."""
        program, found = self.table.program, []
        told: set[tuple[str, int, int]] = set()
        for rank in range(program.nranks):
            first, last = self.begun[rank], self.begun[rank + 1]
            nothing = np.zeros((1, self.graph.nthreads), np.int32)
            over = (self.over[first:last] if first < last else nothing).max(axis=0)
            seen = (self.seen[first:last] if first < last else nothing).max(axis=0)
            begin = self.layout.base[rank][1]
            scratch = self.layout.base[rank][2]
            for cell in range(scratch):
                node = self.writer[rank][cell]
                output = begin <= cell < begin + self.layout.size[rank][1]
                if node >= 0 and output:
                    row, thread = self.graph.row_of[node], self.graph.thread_of[node]
                    # a multicast is done by the switch: runtimes take a relaxed signal for its arrival
                    known = over if self.table.op[row] in _BY_SWITCH else seen
                    if known[thread] < self.number[node] and ("w", row, rank) not in told:
                        told.add(("w", row, rank))
                        how = "without waiting for" if over[thread] < self.number[node] else "after a relaxed wait for"
                        message = f"rank {rank} ends {how} {self.table.name(row)}, which writes "
                        found.append(error("E-SIGNAL", message + self._cell(rank, cell), **self.table.at(row)))
                for node in self.readers[rank][cell]:
                    row = self.graph.row_of[node]
                    if over[self.graph.thread_of[node]] < self.number[node] and ("r", row, rank) not in told:
                        told.add(("r", row, rank))
                        message = f"rank {rank} may end while {self.table.name(row)} still reads "
                        found.append(warning("W-END", message + self._cell(rank, cell), **self.table.at(row)))
        return found

    def wrong_outputs(self) -> list[Finding]:
        """E-POST of every run of outputs that do not hold what is wanted, at the step that wrote them last."""
        found = []
        for rank, wanted in enumerate(self.goal.want):
            first = self.layout.base[rank][1]
            told: set[int] = set()
            for unit, want in enumerate(wanted):
                held = self.cells[rank][first + unit]
                if want is None or held == want or held in self.goal.others.get((rank, unit), ()):
                    continue
                node = self.writer[rank][first + unit]
                if node in told:
                    continue
                told.add(node)
                message = (
                    f"output[{unit}] of rank {rank} holds {describe(held, self.goal)}, not {describe(want, self.goal)}"
                )
                if node < 0:
                    found.append(error("E-POST", f"{message}; nobody writes it", rank=rank))
                else:
                    row = self.graph.row_of[node]
                    found.append(error("E-POST", f"{message}; {self.table.name(row)} wrote it", **self.table.at(row)))
        return found

    def changed_inputs(self) -> list[Finding]:
        """E-CLOBBER of every step that wrote last into an input that must be kept."""
        found = []
        for rank, keeps in enumerate(self.layout.keeps_input):
            first, told = self.layout.base[rank][0], set[int]()
            for unit, value in enumerate(self.goal.start[rank] if keeps else ()):
                node = self.writer[rank][first + unit]
                if value is not None and self.cells[rank][first + unit] != value and node not in told:
                    told.add(node)
                    row = self.graph.row_of[node]
                    message = f"{self.table.name(row)} writes input[{unit}] of rank {rank}, which must stay as it is"
                    found.append(error("E-CLOBBER", f"{message} out of place", **self.table.at(row)))
        return found
