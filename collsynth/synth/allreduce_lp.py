"""AllReduce's own optimum in whole pieces: who is root how often, and how each link is shared.

Over tree schedules AllReduce is a linear program: root weights w, and for every link a part `a` for
broadcast trees and a part `b` for reduce trees, such that every set X of vertices that holds a rank
satisfies `a(entering X) + w(roots in X) >= w(all)`, and the same for `b` with links turned around; at
switches, which neither copy nor add, as much of `a` (and of `b`) enters as leaves.  By Edmonds' theorem
a whole-numbered solution is a pair of forests (see `packing`).

Cuts are far too many to list, so they are added when a solution breaks them; a max-flow per rank finds
them.  The mixed-integer program is solved by HiGHS, with limits on nodes, not on time, so that the
answer does not depend on the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import require
from .rates import Cut, CutOracle, Graph, contracted, floor_capacities

FloatArray = NDArray[np.float64]

#: Branch-and-bound nodes for one mixed-integer program.
NODE_LIMIT = 200
#: Fractional solutions are scaled to whole numbers by this before cuts are sought.
_SCALE = 1 << 22
_TOLERANCE = _SCALE // 10**5
_ROUNDS = 400
#: Weight of even shares against the objective.
_TIE = 0.01
#: Times (and, for `exact`, numbers of pieces) at which whole numbers are tried after the first that may do.
_TRIES = 12
_CANDIDATES = 4096


@dataclass(frozen=True, slots=True)
class Split:
    """A whole-numbered solution.

    Attributes:
        weights: pieces rooted at each rank.
        broadcast, reduce: pieces per link for the two forests.
    """

    weights: list[int]
    broadcast: list[int]
    reduce: list[int]


class _Solver:
    """HiGHS on one thread; rows may be added between runs (a linear program then goes on from where it was).

    Args:
        objective, lower, upper: per column.
        nwhole: the first so many columns are whole numbers.
    """

    def __init__(self, objective: FloatArray, lower: FloatArray, upper: FloatArray, nwhole: int) -> None:
        highs: Any = require("highspy", "synth", "AllReduce's own optimum")
        self._optimal = highs.HighsModelStatus.kOptimal
        self._solver: Any = highs.Highs()
        options: dict[str, Any] = {"output_flag": False, "threads": 1, "random_seed": 0}
        if nwhole:
            options |= {"mip_max_nodes": NODE_LIMIT, "mip_rel_gap": 0.5}
        for name, value in options.items():
            self._solver.setOptionValue(name, value)
        none = np.zeros(0, dtype=np.int32)
        self._solver.addCols(
            len(objective), objective, lower, upper, 0, np.zeros(len(objective), np.int32), none, np.zeros(0)
        )
        if nwhole:
            kinds = np.full(nwhole, highs.HighsVarType.kInteger)
            self._solver.changeColsIntegrality(nwhole, np.arange(nwhole, dtype=np.int32), kinds)
        self._nwhole = nwhole

    def add_rows(self, rows: Sequence[dict[int, float]], low: FloatArray, high: FloatArray) -> None:
        """Rows as column -> coefficient, with their bounds."""
        starts = np.cumsum([0, *(len(row) for row in rows)], dtype=np.int32)
        columns = np.array([column for row in rows for column in row], dtype=np.int32)
        values = np.array([value for row in rows for value in row.values()], dtype=np.float64)
        self._solver.addRows(len(rows), low, high, len(columns), starts[:-1], columns, values)

    def run(self) -> FloatArray | None:
        """The solution, for whole numbers the best one found; None when there is none."""
        self._solver.run()
        if self._nwhole:
            found = self._solver.getInfo().primal_solution_status == 2
        else:
            found = self._solver.getModelStatus() == self._optimal
        return np.array(self._solver.getSolution().col_value) if found else None


class SplitProgram:
    """The program of one machine; cuts once found serve all later solves.

    Columns: w per rank, a, b and |a - b| per link, U (times the largest bandwidth), and D >= every w (kept
    small so that no rank is root much more often than others).

    Args:
        graph: the machine.
        one_way: only broadcast trees; b is 0.
    """

    def __init__(self, graph: Graph, *, one_way: bool = False) -> None:
        self._links = len(graph.src)
        graph, self._behind = contracted(graph)
        self.graph = graph
        self.one_way = one_way
        self.largest = max(graph.bandwidth)
        self.n, self.m = graph.nranks, len(graph.src)
        self.oracles = (
            CutOracle(graph.nvertices, graph.nranks, graph.src, graph.dst),
            CutOracle(graph.nvertices, graph.nranks, graph.dst, graph.src),
        )
        self.size = self.n + 3 * self.m + 2
        self._rows: list[dict[int, float]] = []
        self._low: list[float] = []
        self._high: list[float] = []
        self._known: set[tuple[int, frozenset[int]]] = set()
        self._fixed_rows()
        for rank in range(self.n):
            for side, ends in enumerate((graph.dst,) if one_way else (graph.dst, graph.src)):
                arcs = tuple(a for a, v in enumerate(ends) if v == rank)
                self._add(side, Cut(frozenset((rank,)), arcs))

    def _row(self, entries: dict[int, float], low: float, high: float) -> None:
        """Bounds are per piece: they are multiplied by the number of pieces when solving."""
        self._rows.append(entries)
        self._low.append(low)
        self._high.append(high)

    def _fixed_rows(self) -> None:
        time, most = self.size - 2, self.size - 1
        for link, bandwidth in enumerate(self.graph.bandwidth):
            self._row({self.n + link: 1, self.n + self.m + link: 1, time: -bandwidth / self.largest}, -np.inf, 0)
        self._row(dict.fromkeys(range(self.n), 1), 1, 1)
        for rank in range(self.n):
            self._row({rank: 1, most: -1}, -np.inf, 0)
        for link in range(self.m):
            a, b, gap = self.n + link, self.n + self.m + link, self.n + 2 * self.m + link
            self._row({a: 1, b: -1, gap: -1}, -np.inf, 0)
            self._row({a: -1, b: 1, gap: -1}, -np.inf, 0)
        for switch in range(self.n, self.graph.nvertices):
            for side in range(2):
                entries = {
                    self.n + side * self.m + link: float((v == switch) - (u == switch))
                    for link, (u, v) in enumerate(zip(self.graph.src, self.graph.dst, strict=True))
                    if switch in (u, v)
                }
                if entries:
                    self._row(entries, 0, 0)

    def _add(self, side: int, cut: Cut) -> bool:
        """Add the row of a cut; False when it is there already."""
        key = (side, cut.inside)
        if key in self._known:
            return False
        self._known.add(key)
        columns = [r for r in cut.inside if r < self.n]
        columns += [self.n + side * self.m + arc for arc in cut.entering]
        self._row(dict.fromkeys(columns, 1), 1, np.inf)
        return True

    def _solve(
        self, pieces: int, *, capacity: Sequence[int] | None, weights: Sequence[int] | None, whole: bool, scale: int
    ) -> FloatArray | None:
        """Solve, adding cuts until none is broken; None when impossible (or a limit was hit).

        Without `capacity` the time is least; with it (pieces per link) the largest root weight is.
        """
        lower, upper = np.zeros(self.size), np.full(self.size, np.inf)
        if self.one_way:
            upper[self.n + self.m : self.n + 2 * self.m] = 0
        if weights is not None:
            lower[: self.n] = upper[: self.n] = weights
        objective = np.zeros(self.size)
        if capacity is None:
            objective[-2] = 1
        else:
            upper[-2] = 0
            objective[-1] = 1
        # Ties go to even shares, which break the fewest cuts and leave the packing most freedom.
        gaps = slice(self.n + 2 * self.m, self.n + 3 * self.m)
        objective[self.n : gaps.start] = -_TIE / sum(self.graph.bandwidth)
        objective[gaps] = 0.5 * _TIE / sum(self.graph.bandwidth)
        solver = _Solver(objective, lower, upper, gaps.start if whole else 0)
        loaded = 0
        for _ in range(_ROUNDS):
            low, high = np.array(self._low[loaded:]) * pieces, np.array(self._high[loaded:]) * pieces
            if capacity is not None and loaded == 0:
                high[: self.m] = capacity
            solver.add_rows(self._rows[loaded:], low, high)
            loaded = len(self._rows)
            answer = solver.run()
            if answer is None:
                return None
            if not self._separate(np.rint(answer * scale).astype(np.int64), 0 if whole else _TOLERANCE * pieces):
                return answer
        return None

    def _separate(self, values: NDArray[np.int64], tolerance: int) -> bool:
        """Add the cuts that `values` (w, a, b) breaks by more than `tolerance`; whether there were any."""
        weights = [max(0, int(x)) for x in values[: self.n]]
        new = False
        for side, oracle in enumerate(self.oracles[:1] if self.one_way else self.oracles):
            start = self.n + side * self.m
            oracle.set([max(0, int(x)) for x in values[start : start + self.m]], weights)
            for cut in oracle.all_violated(tolerance):
                new = self._add(side, cut) or new
        return new

    def least_time(self, weights: Sequence[int] | None = None) -> float:
        """The fractional optimum: least U per piece (with these shares of the ranks as roots)."""
        shares = None if weights is None else [w / sum(weights) for w in weights]
        answer = self._solve(1, capacity=None, weights=shares, whole=False, scale=_SCALE)  # type: ignore[arg-type]
        if answer is None:
            raise AssertionError("the AllReduce program has a solution on every connected machine")
        return float(answer[-2]) / self.largest

    def fractional(self, pieces: int, time: Fraction, weights: Sequence[int] | None = None) -> FloatArray | None:
        """Root weights of a fractional solution within whole pieces per link in `time`, or None."""
        capacity = floor_capacities(self.graph, time)
        answer = self._solve(pieces, capacity=capacity, weights=weights, whole=False, scale=_SCALE)
        return None if answer is None else answer[: self.n]

    def whole(self, pieces: int, time: Fraction, weights: Sequence[int] | None = None) -> Split | None:
        """A whole-numbered solution within `time`, or None when none was found."""
        capacity = floor_capacities(self.graph, time)
        answer = self._solve(pieces, capacity=capacity, weights=weights, whole=True, scale=1)
        if answer is None:
            return None
        values = [int(x) for x in np.rint(answer[: self.n + 2 * self.m])]
        broadcast, reduce = [0] * self._links, [0] * self._links
        for arc, links in enumerate(self._behind):
            for link in links:
                broadcast[link] += values[self.n + arc]
                reduce[link] += values[self.n + self.m + arc]
        return Split(values[: self.n], broadcast, reduce)

    def near(self, pieces: int, time: Fraction, weights: Sequence[int] | None = None) -> Split | None:
        """`whole`, first with the fractional root weights rounded, then with any."""
        shares = self.fractional(pieces, time, weights)
        if shares is None:
            return None
        if weights is not None:
            return self.whole(pieces, time, weights)
        return self.whole(pieces, time, rounded(shares, pieces)) or self.whole(pieces, time)


def rounded(shares: Sequence[float] | FloatArray, pieces: int) -> list[int]:
    """Whole numbers near the shares that sum to `pieces` (largest remainders)."""
    total = float(sum(shares))
    ideal = [float(s) * pieces / total for s in shares]
    result = [int(x + 1e-9) for x in ideal]
    order = sorted(range(len(ideal)), key=lambda i: (round(result[i] - ideal[i], 9), i))
    for i in order[: pieces - sum(result)]:
        result[i] += 1
    return result


def best_split(
    program: SplitProgram, pieces: int, least: Fraction | float, weights: Sequence[int] | None = None
) -> Split | None:
    """The fastest split of `pieces` pieces that is found; `least` is the fractional optimum per piece."""
    bandwidths = sorted(set(program.graph.bandwidth))
    floor = Fraction(least) * pieces * (1 - Fraction(1, 10**9))
    times = _times(bandwidths, floor)
    low, high = 0, len(times) - 1
    while low < high:
        middle = (low + high) // 2
        if program.fractional(pieces, times[middle], weights) is None:
            low = middle + 1
        else:
            high = middle
    step = 0
    for _ in range(_TRIES):
        if low >= len(times):
            return None
        found = program.near(pieces, times[low], weights)
        if found is not None:
            return found
        step = step * 3 // 2 + 1
        low += step
    return None


def _times(bandwidths: Sequence[int], floor: Fraction) -> list[Fraction]:
    """Times from `floor` to twice that at which some link carries one more whole piece, thinned."""
    times = {floor}
    for bandwidth in bandwidths:
        first = -(-floor.numerator * bandwidth // floor.denominator)
        last = 2 * first + 2
        for count in range(first, last, max(1, (last - first) // _CANDIDATES)):
            times.add(Fraction(count, bandwidth))
    ordered = sorted(times)
    return ordered[:: max(1, len(ordered) // _CANDIDATES)]


def exact_split(
    program: SplitProgram, least: Fraction, limit: int, weights: Sequence[int] | None = None
) -> Split | None:
    """A split that reaches the fractional optimum `least` exactly, with few pieces.

    At least as many pieces as ranks (in multiples of the weights), at most `limit`.
    """
    unit = 1 if weights is None else sum(weights)
    first = -(-program.n // unit) * unit
    tries = 0
    for pieces in range(first, limit + 1, unit):
        time = least * pieces
        fixed = None if weights is None else [w * pieces // unit for w in weights]
        if program.fractional(pieces, time, fixed) is None:
            continue
        found = program.near(pieces, time, fixed)
        if found is not None:
            return found
        tries += 1
        if tries > _TRIES:
            return None
    return None
