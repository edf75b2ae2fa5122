"""Linear programs shrunk by colour refinement before they are solved.

Rows and columns are coloured by hashing the multiset of (colour of the other side, coefficient) until
no colour splits.  Such an equitable partition keeps the optimum: averaging a solution over the
classes is again a solution (Grohe, Kersting, Mladenov, Selman, "Dimension reduction via colour
refinement", ESA 2014).  Machines are full of alike links, so programs shrink by orders of magnitude.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import require

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(slots=True)
class LinearProgram:
    """Maximise `gain . x` subject to rows of `A x = rhs` or `A x <= rhs`, and x >= 0, built row block by row block.

    Attributes:
        ncolumns: number of variables.
        gain: objective coefficient of each variable.
    """

    ncolumns: int
    gain: FloatArray
    _rows: list[IntArray] = field(default_factory=list)
    _columns: list[IntArray] = field(default_factory=list)
    _values: list[FloatArray] = field(default_factory=list)
    _rhs: list[FloatArray] = field(default_factory=list)
    _equal: list[NDArray[np.bool_]] = field(default_factory=list)
    nrows: int = 0

    def add_rows(self, rhs: FloatArray, *, equal: bool) -> IntArray:
        """New rows with these right-hand sides; returns their ids."""
        ids = np.arange(self.nrows, self.nrows + len(rhs), dtype=np.int64)
        self._rhs.append(np.asarray(rhs, dtype=np.float64))
        self._equal.append(np.full(len(rhs), equal))
        self.nrows += len(rhs)
        return ids

    def add_entries(self, rows: IntArray, columns: IntArray, value: float) -> None:
        """Coefficients `value` at (rows[i], columns[i]); each place at most once."""
        rows, columns = np.broadcast_arrays(rows, columns)
        self._rows.append(rows.ravel().astype(np.int64))
        self._columns.append(columns.ravel().astype(np.int64))
        self._values.append(np.full(rows.size, value, dtype=np.float64))

    def add_values(self, rows: IntArray, columns: IntArray, values: FloatArray) -> None:
        """Coefficients `values[i]` at (rows[i], columns[i])."""
        self._rows.append(rows.astype(np.int64))
        self._columns.append(columns.astype(np.int64))
        self._values.append(values.astype(np.float64))

    def columns(self) -> tuple[IntArray, IntArray, FloatArray, FloatArray, NDArray[np.bool_]]:
        """(row, column, value) of all entries, right-hand sides, and which rows are equations."""
        return (
            np.concatenate(self._rows),
            np.concatenate(self._columns),
            np.concatenate(self._values),
            np.concatenate(self._rhs),
            np.concatenate(self._equal),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """Optimum, a primal solution and a dual one (>= 0 on inequality rows), at the size of the full program."""

    optimum: float
    primal: FloatArray
    dual: FloatArray


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = x ^ (x >> np.uint64(33))
    x = x * np.uint64(0xFF51AFD7ED558CCD)
    x = x ^ (x >> np.uint64(33))
    x = x * np.uint64(0xC4CEB9FE1A85EC53)
    return x ^ (x >> np.uint64(33))


def _classes(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return np.unique(keys, return_inverse=True)[1].ravel().astype(np.uint64)


def equitable_classes(
    rows: IntArray, columns: IntArray, values: FloatArray, row_colour: IntArray, column_colour: IntArray
) -> tuple[IntArray, IntArray]:
    """Coarsest equitable colours of rows and columns of a sparse matrix that refine the given ones."""
    with np.errstate(over="ignore"):
        return _equitable_classes(rows, columns, values, row_colour, column_colour)


def _equitable_classes(
    rows: IntArray, columns: IntArray, values: FloatArray, row_colour: IntArray, column_colour: IntArray
) -> tuple[IntArray, IntArray]:
    entry = _mix(values.view(np.uint64) + np.uint64(0x9E3779B97F4A7C15))
    row_class, column_class = row_colour.astype(np.uint64), column_colour.astype(np.uint64)
    count = (0, 0)
    while True:
        gathered = np.zeros(len(row_class), dtype=np.uint64)
        np.add.at(gathered, rows, _mix(_mix(column_class + np.uint64(17))[columns] + entry))
        row_class = _classes(_mix(row_class + np.uint64(99)) + gathered)
        gathered = np.zeros(len(column_class), dtype=np.uint64)
        np.add.at(gathered, columns, _mix(_mix(row_class + np.uint64(31))[rows] + entry))
        column_class = _classes(_mix(column_class + np.uint64(77)) + gathered)
        now = (int(row_class.max()) + 1, int(column_class.max()) + 1)
        if now == count:
            return row_class.astype(np.int64), column_class.astype(np.int64)
        count = now


def maximise(program: LinearProgram) -> Solution:
    """Solve the program (HiGHS on the shrunken one).

    Raises:
        MissingDependencyError: SciPy is not installed.
        ArithmeticError: the solver found no optimum.
    """
    optimize: Any = require("scipy.optimize", "synth", "this bound")
    sparse: Any = require("scipy.sparse", "synth", "this bound")
    rows, columns, values, rhs, equal = program.columns()
    row_class, column_class = equitable_classes(
        rows, columns, values,
        np.unique(np.stack((rhs, equal.astype(np.float64))), axis=1, return_inverse=True)[1].ravel(),
        np.unique(program.gain, return_inverse=True)[1].ravel(),
    )  # fmt: skip
    nrows, ncolumns = int(row_class.max()) + 1, int(column_class.max()) + 1
    # One row stands for its class; a column class's coefficient in it is the sum over the class.
    chosen = np.zeros(nrows, dtype=np.int64)
    chosen[row_class[::-1]] = np.arange(program.nrows)[::-1]
    kept = chosen[row_class[rows]] == rows
    matrix = sparse.csr_array(
        (values[kept], (row_class[rows[kept]], column_class[columns[kept]])), shape=(nrows, ncolumns)
    )
    gain = np.bincount(column_class, weights=program.gain, minlength=ncolumns)
    is_equal = equal[chosen]
    result = optimize.linprog(
        -gain,
        A_ub=matrix[~is_equal], b_ub=rhs[chosen[~is_equal]],
        A_eq=matrix[is_equal], b_eq=rhs[chosen[is_equal]],
        method="highs",
    )  # fmt: skip
    if result.status != 0:
        raise ArithmeticError(f"the linear program was not solved: {result.message}")
    price = np.zeros(nrows)
    price[~is_equal] = -result.ineqlin.marginals
    price[is_equal] = -result.eqlin.marginals
    size = np.bincount(row_class, minlength=nrows)
    return Solution(-float(result.fun), result.x[column_class], (price / size)[row_class])
