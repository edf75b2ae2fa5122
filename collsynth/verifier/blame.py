"""From a wrong output back to the step at fault, along the chain of writers.

An output is wrong because wrong data reached it, or because right data did not.  In the first case the
chain of steps that carried the value is walked back to where it went wrong; in the second the step is
looked for that last held what is missing.  Findings are grouped by step: one faulty step can spoil many
outputs.  Which step a person would call the culprit is not always decidable (a shifted send and a shifted
receive look alike), so the whole chain is told.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from ..program import Op
from .memory import cell_name
from .report import Finding, error
from .symbolic import Cell, Execution, describe

#: Steps of a chain that a message prints.
_SHOWN_CHAIN = 8


@dataclass(slots=True)
class _Suspect:
    """Outputs that one step is blamed for: how many, and the first in words."""

    text: str
    outputs: int = 0
    ranks: set[int] = field(default_factory=set)


class Blame:
    """Explains the wrong outputs of one traced execution."""

    def __init__(self, execution: Execution) -> None:
        assert execution.trace is not None
        self.execution, self.trace, self.table = execution, execution.trace, execution.table
        self.goal, self.layout = execution.goal, execution.layout
        self.suspects: dict[int, _Suspect] = {}
        self.unplaced: dict[int, _Suspect] = {}
        self.low = (1 << self.goal.shift) - 1
        self.carriers: dict[int, list[tuple[int, int]]] | None = None
        self.idle: dict[int, list[int]] = defaultdict(list)
        for row, op in enumerate(self.table.op):
            if not self.table.count[row] or (op == Op.NOP and row not in execution.structure.waits):
                self.idle[self.table.rank(row)].append(row)
        self.waiting: dict[int, list[int]] = defaultdict(list)
        for row, waited in execution.structure.waits.items():
            for other in waited:
                self.waiting[other].append(row)

    def findings(self, wrong: list[tuple[int, int]]) -> list[Finding]:
        """E-POST findings for the wrong (rank, output unit) pairs, one for each step to blame."""
        for rank, unit in wrong:
            self._explain(rank, unit)
        result = []
        for row, suspect in self.suspects.items():
            result.append(error("E-POST", self._told(suspect), **self.table.at(row)))
        for rank, suspect in self.unplaced.items():
            result.append(error("E-POST", self._told(suspect), rank=rank))
        return result

    @staticmethod
    def _told(suspect: _Suspect) -> str:
        if suspect.outputs == 1:
            return suspect.text
        return f"{suspect.text} ({suspect.outputs} wrong output units on {len(suspect.ranks)} ranks in all)"

    def _suspect(self, row: int, rank: int, text: str) -> None:
        suspect = self.suspects.setdefault(row, _Suspect(text))
        suspect.outputs += 1
        suspect.ranks.add(rank)

    def _explain(self, rank: int, unit: int) -> None:
        cell = self.layout.base[rank][1] + unit
        value, wanted = self.execution.cells[rank][cell], self.goal.want[rank][unit]
        assert wanted is not None
        head = f"rank {rank} {cell_name(self.layout, rank, cell)} holds {describe(value, self.goal)}"
        if isinstance(value, int) and self._good(value, wanted):
            head += f" and lacks {describe(wanted & ~value | wanted & self.low, self.goal)}"
        else:
            head += f" where {describe(wanted, self.goal)} belongs"
        if value is None and wanted >> self.goal.shift == 1 << rank:
            head += f" (the rank's own input[{wanted & self.low}], which no step copies there)"
        code = self.trace.writer[rank][cell]
        if code >= 0:
            chain = self._chain(code, wanted)
            told = " <- ".join(self.table.name(row) for row in chain[:_SHOWN_CHAIN])
            told += f" <- ... ({len(chain)} steps)" if len(chain) > _SHOWN_CHAIN else ""
            fault = "" if self._good(value, wanted) else f"; wrong since {self._fault(chain[-1], wanted)}"
            self._suspect(chain[0], rank, f"{head}; written by {told}{fault}")
        missing = wanted & ~value & ~self.low if self._good(value, wanted) else wanted & ~self.low  # type: ignore[operator]
        blamed = code >= 0
        if value is None or code < 0 or self._good(value, wanted):
            blamed |= self._missing(rank, cell, wanted, missing, head, value is None)
        if not blamed:
            suspect = self.unplaced.setdefault(rank, _Suspect(f"{head}; no step brings it"))
            suspect.outputs += 1
            suspect.ranks.add(rank)

    # --- wrong data arrived ---

    def _good(self, value: Cell, wanted: int) -> bool:
        """Whether a value is a partial sum on the way to what is wanted."""
        return isinstance(value, int) and value & self.low == wanted & self.low and not value & ~wanted & ~self.low

    def _parents(self, code: int) -> list[tuple[int, Cell]]:
        """(code, value) of what a unit was made from; code -1 is data that was there from the start."""
        trace, structure = self.trace, self.execution.structure
        row, position = divmod(code, trace.stride)
        parents: list[tuple[int, Cell]] = []
        if row in structure.sender:
            sent = structure.sender[row]
            parents.append((sent * trace.stride + position, trace.carried[sent][position]))
        for origins in (trace.origin.get(row), trace.own.get(row)):
            if origins is not None:
                origin = origins[position]
                parents.append((origin, self._carried(origin)))
        return parents

    def _carried(self, code: int) -> Cell:
        if code < 0:
            return None
        row, position = divmod(code, self.trace.stride)
        return self.trace.carried[row][position]

    def _chain(self, code: int, wanted: int) -> list[int]:
        """Rows that carried a value, last first, following what is wrong (else the message) to its entry."""
        chain = []
        while code >= 0:
            chain.append(code // self.trace.stride)
            parents = [(c, v) for c, v in self._parents(code) if c >= 0]
            bad = [c for c, v in parents if not self._good(v, wanted)]
            if self._good(self._carried(code), wanted):
                code = parents[0][0] if parents else -1
            else:
                code = bad[0] if bad else -1
        return chain

    def _fault(self, row: int, wanted: int) -> str:
        made = self.trace.carried[row]
        odd = next((v for v in made if not self._good(v, wanted)), made[0])
        return f"{self.table.name(row)}, which makes {describe(odd, self.goal)} of what it is given"

    # --- right data did not arrive ---

    def _holders(self, place: int) -> list[tuple[int, int]]:
        """(row, terms) of every unit of that place that a step carried, in order of execution."""
        if self.carriers is None:
            self.carriers = defaultdict(list)
            for row in self.execution.structure.order:
                for value in self.trace.carried.get(row, ()):
                    if isinstance(value, int):
                        self.carriers[value & self.low].append((row, value & ~self.low))
        return self.carriers.get(place, [])

    def _missing(self, rank: int, cell: int, wanted: int, missing: int, head: str, unwritten: bool) -> bool:
        """Blame the steps that last held what is missing, here or elsewhere; whether there were any."""
        holders = [(row, mask) for row, mask in self._holders(wanted & self.low) if mask & missing]
        here = [(row, mask) for row, mask in holders if self.table.rank(row) == rank]
        best: set[int] = set()
        for candidates in (here, holders):
            if candidates:
                most = max((mask & missing).bit_count() for _, mask in candidates)
                best.add(next(row for row, mask in reversed(candidates) if (mask & missing).bit_count() == most))
        for row in sorted(best):
            holder = self.table.name(row)
            self._suspect(row, rank, f"{head}; what is missing was last held by {holder}")
            if self.table.rank(row) != rank:
                continue
            # held here, and no later step moved it on: the step that should have is after the holder
            last = self.table.tb_ptr[self.table.tb_of[row] + 1] - 1
            if last != row:
                self._suspect(last, rank, f"{head}; {holder} held what is missing, and its threadblock ends here")
            for follower in self.waiting[row]:
                self._suspect(follower, rank, f"{head}; {holder} held what is missing, and this step waited for it")
        for row in self.idle.get(rank, ()):
            self._suspect(row, rank, f"{head}; {self.table.name(row)} does nothing")
            best.add(row)
        if unwritten:
            neighbour = self._neighbour(rank, cell)
            if neighbour is not None:
                text = f"{head}; {self.table.name(neighbour)} wrote the units next to it"
                self._suspect(neighbour, rank, text)
                best.add(neighbour)
        return bool(best)

    def _neighbour(self, rank: int, cell: int) -> int | None:
        """The row that wrote the nearest written cell."""
        writer = self.trace.writer[rank]
        for distance in range(1, len(writer)):
            for near in (cell - distance, cell + distance):
                if 0 <= near < len(writer) and writer[near] >= 0:
                    return writer[near] // self.trace.stride
        return None
