"""The whole proof of a right program in columns, some hundred times faster than the one that explains.

It says "proven" or nothing: what is not proven here is looked at row by row (`structure`, `symbolic`, `races`),
where every finding is put into words.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..collective import Collective
from ..program import Buffer, Program
from .expressions import Aim, Moves, Result, aim_of, moves_of, run, sums_are_right, trees_of
from .flow import BoolArray, Flow, IntArray, flow_of
from .memory import Layout, layout_of
from .order import free_of_races


@dataclass(frozen=True, slots=True)
class Drift:
    """Results of one sum that ranks add in different trees, in one mode.

    Attributes:
        in_place: the mode.
        places: input units whose sum differs between ranks.  total: input units whose sum several ranks hold.
        place, one, two: the first such unit, and two ranks that differ.
    """

    in_place: bool
    places: int
    total: int
    place: int
    one: int
    two: int


@dataclass(frozen=True, slots=True)
class Proof:
    """What is known about a program that does what it should.

    Attributes:
        depth: additions on the longest way from a term to a result; 0 when nothing is added.
        drift: for each mode in which ranks add in different trees, where.
    """

    depth: int
    drift: tuple[Drift, ...]


def prove(program: Program, collective: Collective, flags: BoolArray | None, modes: list[bool]) -> Proof | None:
    """The proof that a program does what the collective asks in each mode, without races; None: not proven here.

    Args:
        program: as large as the collective (`memory.fits`).
        collective: what it is judged against.
        flags: publishing rows, see `flow.flow_of`.
        modes: in place (True), out of place (False).
    """
    flow = flow_of(program, flags)
    aim = aim_of(program, collective) if flow is not None else None
    if flow is None or aim is None:
        return None
    depth, drift = 0, []
    for in_place in modes:
        shown = _prove_mode(flow, aim, layout_of(program, in_place=in_place), collective)
        if shown is None:
            return None
        depth = max(depth, shown[0])
        if shown[1] is not None:
            drift.append(shown[1])
    return Proof(depth, tuple(drift))


def _prove_mode(flow: Flow, aim: Aim, layout: Layout, collective: Collective) -> tuple[int, Drift | None] | None:
    program = flow.program
    moves = moves_of(flow, layout)
    result = run(moves, program, aim.present)
    if result is None or not _inputs_kept(result, moves, aim, layout):
        return None
    held = result.held[moves.base[aim.rank, Buffer.OUTPUT] + aim.unit]
    if len(held) and held.min() < 0:
        return None
    depth, drift = 0, None
    if not collective.combining:
        if (held != aim.leaf).any():
            return None
    else:
        trees = trees_of(result)
        roots = trees.node[held]
        if not sums_are_right(trees, roots, aim, program.nranks):
            return None
        depth = int(trees.depth(roots).max(initial=0))
        drift = _drift(roots, aim, layout.in_place)
    return (depth, drift) if free_of_races(flow, moves) else None


def _inputs_kept(result: Result, moves: Moves, aim: Aim, layout: Layout) -> bool:
    leaves = np.flatnonzero(aim.present & np.array(layout.keeps_input)[aim.leaf_rank])
    cells = moves.base[aim.leaf_rank[leaves], Buffer.INPUT] + aim.place[leaves]
    return bool((result.held[cells] == leaves).all())


def _drift(roots: IntArray, aim: Aim, in_place: bool) -> Drift | None:
    """The first place whose sum is not the same tree everywhere."""
    place = aim.place[aim.leaf]
    order = np.lexsort((aim.rank, place))
    place, roots, rank = place[order], roots[order], aim.rank[order]
    same_place = place[1:] == place[:-1]
    odd = np.flatnonzero(same_place & (roots[1:] != roots[:-1]))
    if not len(odd):
        return None
    first = int(odd[0])
    return Drift(
        in_place, len(np.unique(place[odd])), len(np.unique(place[1:][same_place])), int(place[first]),
        int(rank[first]), int(rank[first + 1]),
    )  # fmt: skip
