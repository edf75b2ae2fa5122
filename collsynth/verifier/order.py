"""Proof that a flow has no data race, in columns (what `races` finds and explains, this rules out).

In an order in which the program can run, only neighbours need a look: each read after the last write before it,
each write after the last write and after the reads since.  If all of them are ordered by program order, waits
and messages, so are all conflicting accesses, because order is transitive.  Most pairs belong to one threadblock
or are ordered by a wait between their two threadblocks; vector clocks, with columns for the threadblocks that
are asked about only, decide the rest.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .expressions import Moves
from .flow import Flow

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

#: Entries of vector clocks that are held at once.
_CLOCK_ENTRIES = 1 << 24


def free_of_races(flow: Flow, moves: Moves) -> bool:
    """Whether all conflicting accesses are ordered without counting on room in FIFOs."""
    before, after = _neighbours(flow, moves)
    unclear = ~_waited_for(flow, before, after)
    before, after = before[unclear], after[unclear]
    return not len(before) or _clocks_order(flow, before, after)


def _neighbours(flow: Flow, moves: Moves) -> tuple[IntArray, IntArray]:
    """Distinct (earlier row, later row) pairs of different threadblocks with conflicting accesses that meet."""
    ncells, row = moves.ncells, moves.row
    tb = flow.row_tb[row]
    reads = (moves.first < ncells, (moves.second >= 0) & (moves.second < ncells))
    # a copy of a unit onto itself changes nothing: for others it is a read
    stores = (moves.store >= 0) & ((moves.store != moves.first) | (moves.second >= 0))
    # only cells that several threadblocks touch, one of them writing, can have races
    one_tb = np.full(ncells, -1, dtype=np.int64)
    shared, written = np.zeros(ncells, dtype=bool), np.zeros(ncells, dtype=bool)
    touched = ((moves.first, reads[0]), (moves.second, reads[1]), (moves.store, stores))
    for column, mask in touched:
        one_tb[column[mask]] = tb[mask]
    for column, mask in touched:
        shared[column[mask][one_tb[column[mask]] != tb[mask]]] = True
    written[moves.store[stores]] = True
    shared &= written
    cells, times = [], []
    for turn, (column, mask) in enumerate(touched):
        here = np.flatnonzero(mask)
        here = here[shared[column[here]]]
        cells.append(column[here])
        times.append(2 * here + (turn == 2))
    cell, time = np.concatenate(cells), np.concatenate(times)
    order = np.lexsort((time, cell))
    cell, time = cell[order], time[order]
    if not len(cell):
        return cell, cell.copy()
    write, rows = time % 2 == 1, row[time // 2]
    index = np.arange(len(cell))
    first = np.concatenate(([True], cell[1:] != cell[:-1]))
    group = np.maximum.accumulate(np.where(first, index, 0))
    last_write = np.maximum.accumulate(np.where(write, index, -1))
    earlier = np.concatenate(([-1], last_write[:-1]))
    after_write = earlier >= group
    next_write = np.minimum.accumulate(np.where(write, index, len(cell))[::-1])[::-1]
    last = np.concatenate((first[1:], [True]))
    end = np.minimum.accumulate(np.where(last, index, len(cell))[::-1])[::-1]
    read_first = ~write & (next_write <= end)
    one = np.concatenate((rows[earlier[after_write]], rows[read_first]))
    two = np.concatenate((rows[after_write], rows[next_write[read_first]]))
    cross = flow.row_tb[one] != flow.row_tb[two]
    pairs = np.unique(one[cross] * flow.program.nrows + two[cross])
    return pairs // flow.program.nrows, pairs % flow.program.nrows


def _waited_for(flow: Flow, before: IntArray, after: IntArray) -> BoolArray:
    """Pairs ordered by a wait of the later threadblock for the earlier one."""
    ordered = np.zeros(len(before), dtype=bool)
    if not len(flow.wait_row) or not len(before):
        return ordered
    ntbs, nrows, tb = flow.program.ntbs, flow.program.nrows, flow.row_tb
    key, group = np.unique(tb[flow.wait_row] * ntbs + tb[flow.wait_on], return_inverse=True)
    order = np.lexsort((flow.wait_row, group))
    group = group[order]
    reached = np.maximum.accumulate(group * nrows + flow.wait_on[order])
    asked = tb[after] * ntbs + tb[before]
    place = np.minimum(np.searchsorted(key, asked), len(key) - 1)
    known = key[place] == asked
    entry = np.searchsorted(group * nrows + flow.wait_row[order], place * nrows + after, side="right") - 1
    good = known & (entry >= 0)
    good[good] = (group[entry[good]] == place[good]) & (reached[entry[good]] >= place[good] * nrows + before[good])
    return good


def _clocks_order(flow: Flow, before: IntArray, after: IntArray) -> bool:
    """Whether every pair is ordered, by vector clocks over the earlier rows' threadblocks."""
    columns, column = np.unique(flow.row_tb[before], return_inverse=True)
    plan = _Plan(flow)
    width = max(1, _CLOCK_ENTRIES // (flow.program.ntbs + plan.nslots))
    for begin in range(0, len(columns), width):
        here = (column >= begin) & (column < begin + width)
        if not plan.run(columns[begin : begin + width], before[here], column[here] - begin, after[here]):
            return False
    return True


class _Plan:
    """Rows by level, the edges between threadblocks that end there, and slots for clocks that wait to be read."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        level, nrows = flow.level, flow.program.nrows
        nlevels = int(level.max()) + 1
        self.rows = np.argsort(level, kind="stable")
        self.row_ptr = np.searchsorted(level[self.rows], np.arange(nlevels + 1)).tolist()
        taking = np.flatnonzero(flow.sender >= 0)
        target = np.concatenate((taking, flow.wait_row))
        source = np.concatenate((flow.sender[taking], flow.wait_on))
        outside = flow.row_tb[target] != flow.row_tb[source]
        target, source = target[outside], source[outside]
        # edges that end in one row come in turns, so that one turn has distinct rows
        order = np.lexsort((target, level[target]))
        self.target, self.source = target[order], source[order]
        index = np.arange(len(order))
        fresh = np.concatenate(([True], self.target[1:] != self.target[:-1])) if len(order) else np.zeros(0, bool)
        self.turn = index - np.maximum.accumulate(np.where(fresh, index, 0)) if len(order) else index
        self.edge_ptr = np.searchsorted(level[self.target], np.arange(nlevels + 1)).tolist()
        self.uses = np.bincount(self.source, minlength=nrows)
        self._assign_slots(nlevels)

    def _assign_slots(self, nlevels: int) -> None:
        """A slot for each row that others look at, given free again after the last look."""
        level, nrows = self.flow.level, self.flow.program.nrows
        self.slot = np.full(nrows, -1, dtype=np.int64)
        last_look = np.full(nrows, -1, dtype=np.int64)
        np.maximum.at(last_look, self.source, level[self.target])
        watched = self.rows[self.uses[self.rows] > 0]
        begin_ptr = np.searchsorted(level[watched], np.arange(nlevels + 1)).tolist()
        by_end = watched[np.argsort(last_look[watched], kind="stable")]
        end_ptr = np.searchsorted(last_look[by_end], np.arange(nlevels + 1)).tolist()
        free = np.zeros(0, dtype=np.int64)
        self.nslots = 0
        for number in range(nlevels):
            new = watched[begin_ptr[number] : begin_ptr[number + 1]]
            if len(new) > len(free):
                more = len(new) - len(free)
                free = np.concatenate((free, np.arange(self.nslots, self.nslots + more)))
                self.nslots += more
            self.slot[new] = free[: len(new)]
            free = np.concatenate((free[len(new) :], self.slot[by_end[end_ptr[number] : end_ptr[number + 1]]]))

    def run(self, columns: IntArray, before: IntArray, column: IntArray, after: IntArray) -> bool:
        """Whether each `after` knows `before`, a row of threadblock `columns[column]`."""
        flow, level = self.flow, self.flow.level
        asked = np.argsort(level[after], kind="stable")
        before, column, after = before[asked], column[asked], after[asked]
        ask_ptr = np.searchsorted(level[after], np.arange(len(self.row_ptr))).tolist()
        own = np.full(flow.program.ntbs, -1, dtype=np.int64)
        own[columns] = np.arange(len(columns))
        clock = np.full((flow.program.ntbs, len(columns)), -1, dtype=np.int32)
        kept = np.empty((self.nslots, len(columns)), dtype=np.int32)
        for number in range(len(self.row_ptr) - 1):
            begin, end = self.edge_ptr[number], self.edge_ptr[number + 1]
            if begin < end:
                turns = self.turn[begin:end]
                for turn in range(int(turns.max()) + 1):
                    now = begin + np.flatnonzero(turns == turn)
                    tbs = flow.row_tb[self.target[now]]
                    clock[tbs] = np.maximum(clock[tbs], kept[self.slot[self.source[now]]])
            rows = self.rows[self.row_ptr[number] : self.row_ptr[number + 1]]
            tbs = flow.row_tb[rows]
            mine = own[tbs]
            clock[tbs[mine >= 0], mine[mine >= 0]] = rows[mine >= 0]
            watched = self.uses[rows] > 0
            kept[self.slot[rows[watched]]] = clock[tbs[watched]]
            asks = slice(ask_ptr[number], ask_ptr[number + 1])
            if (clock[flow.row_tb[after[asks]], column[asks]] < before[asks]).any():
                return False
        return True
