"""Exact execution of a program on symbols: what every unit of every buffer holds, term by term."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ..program import READING, RECEIVING, SENDING, WRITING, Op
from .memory import Goal, Layout, cell_name
from .report import Finding, error
from .structure import Structure

_READING = frozenset(int(o) for o in READING)
_WRITING = frozenset(int(o) for o in WRITING)
_SENDING = frozenset(int(o) for o in SENDING)
_RECEIVING = frozenset(int(o) for o in RECEIVING)


class Odd:
    """A value that is no plain sum of distinct terms of one place: garbage, or a sum gone wrong.

    `terms` counts (place, rank); None is garbage.  `&` with anything gives NaN, which equals nothing, so
    that the test for the plain case fails without a test for the type.
    """

    __slots__ = ("terms",)

    def __init__(self, terms: Counter[tuple[int, int]] | None) -> None:
        self.terms = terms

    def __and__(self, _: object) -> float:
        return float("nan")

    __rand__ = __and__


#: What a step passes on after it read memory that nobody wrote (reported where it was read).
GARBAGE = Odd(None)
Value = int | Odd
Cell = int | Odd | None


@dataclass(slots=True)
class Trace:
    """Where each value came from.  A unit moved by a row is coded `row * stride + position`.

    Attributes:
        carried: row -> the values that it wrote or forwarded.
        origin: row -> codes of the writers of the cells that it read (-1: there from the start).
        own: row -> codes of the writers of the destination it added to (`re`).
        writer: writer[rank][cell], code of the last writer.
    """

    stride: int
    carried: dict[int, list[Value]] = field(default_factory=dict)
    origin: dict[int, list[int]] = field(default_factory=dict)
    own: dict[int, list[int]] = field(default_factory=dict)
    writer: list[list[int]] = field(default_factory=list)


class Execution:
    """One run of a sound program, in one mode.

    Attributes:
        cells: cells[rank][cell], what is there at the end (None: nobody wrote it).
        undefined: findings about memory read before anybody wrote it.
        odd_sums: findings about steps that add a term twice or add different places.
        trace: where values came from, when asked for.
        torn: a row that stands twice in the structure's order: it reads the first time and stores the second.
    """

    def __init__(
        self, structure: Structure, layout: Layout, goal: Goal, *, trace: bool = False, torn: int | None = None
    ) -> None:
        self.torn = torn
        self.structure, self.layout, self.goal, self.table = structure, layout, goal, structure.table
        self.undefined: list[Finding] = []
        self.odd_sums: list[Finding] = []
        self._odd_rows: set[int] = set()
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
        self.trace: Trace | None = None
        if trace:
            self.trace = Trace(max([1, *self.table.count]))
            self.trace.writer = [[-1] * n for n in layout.ncells]

    def run(self) -> Execution:
        """Execute every step in an order in which they can run."""
        table, sender = self.table, self.structure.sender
        ops, counts, src_buffer, src_index = table.op, table.count, table.src_buffer, table.src_index
        dst_buffer, dst_index, tb_of, tb_rank = table.dst_buffer, table.dst_index, table.tb_of, table.tb_rank
        messages: dict[int, list[Value]] = {}
        read: list[Value] | None = None  # what the torn row has read and not yet stored
        for row in self.structure.order:
            op = ops[row]
            if op == Op.NOP:
                continue
            rank, count = tb_rank[tb_of[row]], counts[row]
            memory, base = self.cells[rank], self.layout.base[rank]
            if row == self.torn and read is None:
                read = self._operands(row, messages)
                continue
            if row == self.torn and read is not None:
                memory[self._stored(row)] = read
                if op in _SENDING:
                    messages[row] = read
                continue
            values: list[Value] = messages.pop(sender[row]) if op in _RECEIVING else []
            if op in _READING:
                begin = base[src_buffer[row]] + src_index[row]
                local = self._load(row, rank, begin, memory[begin : begin + count])
                if self.trace is not None:
                    self.trace.origin[row] = self.trace.writer[rank][begin : begin + count]
                values = self._add(row, values, local) if op in _RECEIVING else local
            if op in _WRITING:
                begin = base[dst_buffer[row]] + dst_index[row]
                if op == Op.REDUCE:
                    if self.trace is not None:
                        self.trace.own[row] = self.trace.writer[rank][begin : begin + count]
                    values = self._add(row, self._load(row, rank, begin, memory[begin : begin + count]), values)
                memory[begin : begin + count] = values
                if self.trace is not None:
                    code = row * self.trace.stride
                    self.trace.writer[rank][begin : begin + count] = range(code, code + count)
            if op in _SENDING:
                messages[row] = values
            if self.trace is not None:
                self.trace.carried[row] = values
        return self

    def _operands(self, row: int, messages: dict[int, list[Value]]) -> list[Value]:
        """The result of a row that stores, without storing it."""
        table, rank = self.table, self.table.rank(row)
        memory, base, count = self.cells[rank], self.layout.base[rank], self.table.count[row]
        values: list[Value] = messages.pop(self.structure.sender[row]) if table.op[row] in _RECEIVING else []
        if table.op[row] in _READING:
            begin = base[table.src_buffer[row]] + table.src_index[row]
            local = self._load(row, rank, begin, memory[begin : begin + count])
            values = self._add(row, values, local) if table.op[row] in _RECEIVING else local
        if table.op[row] == Op.REDUCE:
            begin = self._stored(row).start
            values = self._add(row, self._load(row, rank, begin, memory[begin : begin + count]), values)
        return values

    def _stored(self, row: int) -> slice:
        """The cells that a row writes."""
        begin = self.layout.base[self.table.rank(row)][self.table.dst_buffer[row]] + self.table.dst_index[row]
        return slice(begin, begin + self.table.count[row])

    def touched_by(self, rows: set[int]) -> set[int]:
        """These rows and all whose data comes from one of them (of a traced run)."""
        assert self.trace is not None
        touched, stride = set(rows), self.trace.stride
        for row in self.structure.order:
            if row in touched:
                continue
            origins = (*self.trace.origin.get(row, ()), *self.trace.own.get(row, ()))
            if self.structure.sender.get(row) in touched or any(code // stride in touched for code in origins):
                touched.add(row)
        return touched

    def _load(self, row: int, rank: int, begin: int, cells: list[Cell]) -> list[Value]:
        if None not in cells:
            return cells  # type: ignore[return-value]
        unwritten = [i for i, value in enumerate(cells) if value is None]
        more = f" and {len(unwritten) - 1} more units" if len(unwritten) > 1 else ""
        place = cell_name(self.layout, rank, begin + unwritten[0])
        message = f"{self.table.name(row)} reads {place}{more}, which nobody has written"
        self.undefined.append(error("E-UNDEFINED-READ", message, **self.table.at(row)))
        return [GARBAGE if value is None else value for value in cells]

    def _add(self, row: int, one: list[Value], two: list[Value]) -> list[Value]:
        low = (1 << self.goal.shift) - 1
        return [
            # same place and no common term: the sum is the union of the bits
            a | b if (a & b) == (a & low) == (b & low) else self._odd_sum(row, a, b)  # type: ignore[operator]
            for a, b in zip(one, two, strict=True)
        ]

    def _odd_sum(self, row: int, one: Value, two: Value) -> Odd:
        if one is GARBAGE or two is GARBAGE:
            return GARBAGE
        first, second = terms_of(one, self.goal.shift), terms_of(two, self.goal.shift)
        if isinstance(one, int) and isinstance(two, int) and row not in self._odd_rows:
            self._odd_rows.add(row)
            common = first & second
            if common:
                place, ranks = next(iter(common))[0], sorted(rank for _, rank in common)
                message = f"{self.table.name(row)} adds the terms of ranks {ranks} of unit {place} a second time"
                self.odd_sums.append(error("E-DOUBLE", message, **self.table.at(row)))
            else:
                message = f"{self.table.name(row)} adds {describe(two, self.goal)} to {describe(one, self.goal)}"
                self.odd_sums.append(error("E-MIX", message, **self.table.at(row)))
        return Odd(first + second)


def terms_of(value: Value, shift: int) -> Counter[tuple[int, int]]:
    """(place, rank) -> how often the term is in a value (empty for garbage)."""
    if isinstance(value, Odd):
        return value.terms or Counter()
    place, mask, terms = value & ((1 << shift) - 1), value >> shift, Counter[tuple[int, int]]()
    while mask:
        low = mask & -mask
        terms[place, low.bit_length() - 1] = 1
        mask ^= low
    return terms


def describe(value: Cell, goal: Goal) -> str:
    """A value in words: `unit 3 of ranks 0, 2`."""
    if value is None:
        return "nothing"
    if value is GARBAGE:
        return "undefined data"
    places: dict[int, Counter[int]] = {}
    for (place, rank), times in terms_of(value, goal.shift).items():
        places.setdefault(place, Counter())[rank] += times
    parts = []
    for place, ranks in sorted(places.items())[:4]:
        shown = [f"{r}" if times == 1 else f"{r} ({times} times)" for r, times in sorted(ranks.items())[:8]]
        more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
        parts.append(f"unit {place} of rank{'s' if len(ranks) > 1 else ''} {', '.join(shown)}{more}")
    return " + ".join(parts) + (" + ..." if len(places) > 4 else "")
