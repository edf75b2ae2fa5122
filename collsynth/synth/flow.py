"""Max-flow for the packing engines: one network, many capacities.

The solver is OR-Tools' push-relabel (`SimpleMaxFlow`, exact 64-bit integers).  It is fed by arrays and
keeps its arcs between solves, because packing asks for thousands of flows in nearly the same network.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, require

IntArray = NDArray[np.int64]

#: Capacities must stay below this so that sums over a cut fit into 64 bits.
LARGEST = 1 << 56


class FlowNetwork:
    """A network whose arcs are fixed and whose capacities may change.

    Attributes:
        narcs: number of arcs, in the order of `src` and `dst`.
    """

    def __init__(self, src: Sequence[int] | IntArray, dst: Sequence[int] | IntArray) -> None:
        solver = require("ortools.graph.python.max_flow", "synth", "tree packing")
        self.narcs = len(src)
        self._all = np.arange(self.narcs, dtype=np.int32)
        self._solver = solver.SimpleMaxFlow()  # type: ignore[attr-defined]
        if self.narcs:
            tails, heads = np.asarray(src, dtype=np.int32), np.asarray(dst, dtype=np.int32)
            self._solver.add_arcs_with_capacity(tails, heads, np.zeros(self.narcs, dtype=np.int64))

    def set_capacities(self, capacities: Sequence[int] | IntArray) -> None:
        """Replace every capacity.

        Raises:
            InputError: a capacity does not fit (bandwidths or weights without a common measure).
        """
        if len(capacities) and max(capacities) >= LARGEST:
            raise InputError("bandwidths or weights are too unround for exact arithmetic", hint="rounder numbers")
        if self.narcs:
            self._solver.set_arcs_capacity(self._all, np.asarray(capacities, dtype=np.int64))

    def set_capacity(self, arc: int, capacity: int) -> None:
        """Replace one capacity."""
        self._solver.set_arc_capacity(arc, capacity)

    def solve(self, source: int, sink: int) -> int:
        """The value of a maximum flow."""
        status = self._solver.solve(source, sink)
        if status != self._solver.OPTIMAL:
            if source >= self._solver.num_nodes() or sink >= self._solver.num_nodes():
                return 0  # a vertex without any arc
            raise InputError("bandwidths or weights are too unround for exact arithmetic", hint="rounder numbers")
        return int(self._solver.optimal_flow())

    def sink_side(self) -> list[int]:
        """Vertices from which the sink can still be reached: the sink's side of a minimum cut."""
        return [int(v) for v in self._solver.get_sink_side_min_cut()]

    def source_side(self) -> list[int]:
        """Vertices that the source can still reach: the source's side of a minimum cut."""
        return [int(v) for v in self._solver.get_source_side_min_cut()]
