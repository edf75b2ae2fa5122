"""What every unit of memory holds while an algorithm is recorded, in each mode that it is to be right in.

A value is one integer: the unit's place in the input buffer in the low bits, and above it a bit for
each rank whose term it holds.  In place, input and output are one memory; out of place they are not, and
the input must stay as it is.  Both are followed side by side, so that one text that serves both modes is
right in both, and a line that would tell them apart is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..collective import Collective
from ..errors import InputError
from ..lowering.ir import Aliases
from ..program import Buffer
from .operations import Span

#: (rank, memory, unit), see `Aliases.address`.
Cell = tuple[int, int, int]


class _Mode:
    """The memory of all ranks in one mode: what each cell holds, and the line that wrote it (None: input)."""

    def __init__(self, collective: Collective, in_place: bool) -> None:
        self.label = "in place" if in_place else "out of place"
        self.aliases = Aliases(collective, 1, in_place)
        self.held: dict[Cell, tuple[int, str | None]] = {}

    def cells(self, span: Span) -> list[Cell]:
        memory, unit = self.aliases.address(span.rank, (span.buffer, span.index))
        return [(span.rank, memory, unit + i) for i in range(span.count)]


class Memory:
    """All modes together."""

    def __init__(self, collective: Collective, in_place: bool, out_of_place: bool) -> None:
        self.collective = collective
        self.shift = max([1, *collective.input_units.tolist()]).bit_length()
        self.modes = [_Mode(collective, flag) for flag, wanted in ((True, in_place), (False, out_of_place)) if wanted]
        self.scratch_units = [0] * collective.nranks
        for chunk, rank, unit in _input_units(collective):
            place = int(collective.input_offset[chunk]) + unit
            value = 1 << (rank + self.shift) | place
            for mode in self.modes:
                for cell in mode.cells(Span(rank, Buffer.INPUT, place, 1)):
                    mode.held[cell] = (value, None)

    def place_of(self, value: int) -> int:
        """Place in the input buffer that a value comes from."""
        return value & ((1 << self.shift) - 1)

    def check_range(self, span: Span, where: str) -> None:
        """Raise InputError if a span leaves its buffer."""
        sizes = {Buffer.INPUT: self.collective.input_units, Buffer.OUTPUT: self.collective.output_units}
        if span.buffer != Buffer.SCRATCH and span.index + span.count > sizes[span.buffer][span.rank]:
            size, name = int(sizes[span.buffer][span.rank]), span.buffer.name.lower()
            raise InputError(f"{span} leaves the buffer", where=where,
                             expected=f"{size} units of {name} on rank {span.rank}")  # fmt: skip

    def read(self, span: Span, where: str) -> tuple[int, ...]:
        """The values of a span, which must be the same in every mode.

        Raises:
            InputError: out of range, never written, or different in the two modes.
        """
        self.check_range(span, where)
        values: list[int] = []
        for offset in range(span.count):
            unit = Span(span.rank, span.buffer, span.index + offset, 1)
            found = [mode.held.get(mode.cells(unit)[0]) for mode in self.modes]
            first = found[0]
            if first is None:
                raise InputError(f"{unit} is read before anything was written there", where=where)
            if found[-1] is None or found[-1][0] != first[0]:
                line = "the input" if first[1] is None else f"written at {first[1]}"
                other = "nothing" if found[-1] is None else self.describe(found[-1][0])
                raise InputError(
                    f"{unit} holds {self.describe(first[0])} in place ({line}), but {other} out of place",
                    where=where, hint="the other buffer, or record(..., out_of_place=False) or in_place=False",
                )  # fmt: skip
            values.append(first[0])
        return tuple(values)

    def check_current(self, span: Span, values: Sequence[int], taken: str, where: str) -> None:
        """Raise InputError if a chunk taken at line `taken` is no longer what the memory holds."""
        for mode in self.modes:
            for offset, (cell, value) in enumerate(zip(mode.cells(span), values, strict=True)):
                now = mode.held[cell]
                if now[0] != value:
                    unit = Span(span.rank, span.buffer, span.index + offset, 1)
                    only = f" ({mode.label})" if len(self.modes) > 1 else ""
                    hint = "the chunk that the later operation returned, or a copy in scratch"
                    if mode.aliases.in_place and len(self.modes) > 1:
                        hint += ", or record(..., in_place=False)"
                    raise InputError(
                        f"stale chunk: {unit} was taken at {taken} and overwritten{only} at {now[1]}",
                        where=where, hint=hint,
                    )  # fmt: skip

    def check_overlap(self, source: Span, target: Span, where: str) -> None:
        """Raise InputError if two spans overlap without being the same memory."""
        for mode in self.modes:
            one, two = mode.cells(source), mode.cells(target)
            if one != two and set(one) & set(two):
                only = f" {mode.label}" if len(self.modes) > 1 else ""
                raise InputError(f"{source} and {target} overlap{only}", where=where,
                                 expected="the same memory or separate memory")  # fmt: skip

    def add(self, one: Sequence[int], two: Sequence[int], own: Span, source: Span, where: str) -> tuple[int, ...]:
        """The sums of two spans' values.

        Raises:
            InputError: they hold a common term, or come from different places.
        """
        sums: list[int] = []
        for a, b in zip(one, two, strict=True):
            if self.place_of(a) != self.place_of(b):
                raise InputError(
                    f"{source} holds {self.describe(b)}, it cannot be added to {own}, which holds {self.describe(a)}",
                    where=where,
                )  # fmt: skip
            common = (a & b) >> self.shift
            if common:
                term = self.describe(common << self.shift | self.place_of(a))
                raise InputError(f"{own} + {source} adds {term} a second time", where=where)
            sums.append(a | b)
        return tuple(sums)

    def check_writable(self, span: Span, where: str) -> None:
        """Raise InputError if a span leaves its buffer, or is an input that must stay as it is."""
        self.check_range(span, where)
        for mode in self.modes:
            if mode.cells(span)[0][1] == int(Buffer.INPUT):
                raise InputError(
                    f"{span} must stay as it is {mode.label}", where=where,
                    hint="the output or scratch as the target, or record(..., out_of_place=False)",
                )  # fmt: skip

    def write(self, span: Span, values: Sequence[int], where: str, *, same_as: Span | None = None) -> None:
        """Put values into a writable span; `same_as` is the span that they are copied from."""
        if span.buffer == Buffer.SCRATCH:
            self.scratch_units[span.rank] = max(self.scratch_units[span.rank], span.index + span.count)
        for mode in self.modes:
            cells = mode.cells(span)
            if same_as is not None and mode.cells(same_as) == cells:
                continue
            for cell, value in zip(cells, values, strict=True):
                mode.held[cell] = (value, where)

    def wrong(self) -> Iterator[tuple[Span, str, str | None]]:
        """Output units that do not hold what the collective asks for: unit, what is wrong, line that wrote it."""
        collective = self.collective
        for mode in self.modes:
            only = f" {mode.label}" if len(self.modes) > 1 else ""
            for chunk in range(collective.nchunks):
                sources = collective.sources.of(chunk).tolist()
                terms = [1 << (rank + self.shift) for rank in sources]
                for rank in collective.destinations.of(chunk).tolist():
                    for unit in range(int(collective.weight[chunk])):
                        place = int(collective.input_offset[chunk]) + unit
                        wanted = {sum(terms) | place} if collective.combining else {t | place for t in terms}
                        span = Span(rank, Buffer.OUTPUT, int(collective.output_offset[chunk]) + unit, 1)
                        value, where = mode.held.get(mode.cells(span)[0], (None, None))
                        if value not in wanted:
                            held = "nothing" if value is None else self.describe(value)
                            asked = self.describe(min(wanted))
                            yield span, f"{span} ends with {held}{only}, {collective.name} asks for {asked}", where

    def describe(self, value: int) -> str:
        """A value in words: `unit 3 of ranks 0, 2`."""
        ranks = _bits(value >> self.shift)
        many = ranks == list(range(ranks[0], ranks[-1] + 1)) and len(ranks) > 2
        shown = f"{ranks[0]}..{ranks[-1]}" if many else ", ".join(map(str, ranks))
        return f"unit {self.place_of(value)} of rank{'s' if len(ranks) > 1 else ''} {shown}"


def _bits(mask: int) -> list[int]:
    return [bit for bit in range(mask.bit_length()) if mask >> bit & 1]


def _input_units(collective: Collective) -> Iterator[tuple[int, int, int]]:
    """(chunk, rank, unit within the chunk) of everything that is there at the start."""
    for chunk in range(collective.nchunks):
        for rank in collective.sources.of(chunk).tolist():
            for unit in range(int(collective.weight[chunk])):
                yield chunk, rank, unit
