"""What a program's units hold, as expressions: every sum is a node of two operands, exactly.

A flow runs level by level in columns.  Values are numbers: one for each input unit of each rank (a leaf), and
one for each sum.  At the end equal sums (same two operands, in either order, because addition commutes bit for
bit) are made one node, so that two ranks hold bit-identical results for certain iff they hold the same node.

That every term is in a sum exactly once is proven without sets where the nodes form a forest (each operand is
used once, so that the leaves below a node are distinct); else with one bit set a node.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..collective import Collective, RankSets
from ..program import Op, Program
from .flow import READS, RECEIVES, SENDS, WRITES, Flow
from .memory import Layout

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

#: 64-bit words of bit sets held at once.
_SET_WORDS = 1 << 25


@dataclass(frozen=True, slots=True)
class Moves:
    """The unit moves of a flow in one mode, in the order of levels.

    Attributes:
        row: int64[nmoves], the row of each.
        first, second: what is read: memory cells, then message slots; second is -1 where there is no sum.
        store, forward: cell written, message slot filled; -1 for none.
        level_ptr: moves of level k are level_ptr[k]..level_ptr[k + 1].
        ncells: cells of all ranks; message slots follow them.  nslots: both, and one that nobody reads.
        base: int64[nranks, 3], cell of the first unit of each buffer.
    """

    row: IntArray
    first: IntArray
    second: IntArray
    store: IntArray
    forward: IntArray
    level_ptr: IntArray
    ncells: int
    nslots: int
    base: IntArray


def moves_of(flow: Flow, layout: Layout) -> Moves:
    """Addresses of everything that the rows of a flow read and write."""
    program = flow.program
    start = np.concatenate(([0], np.cumsum(layout.ncells))).astype(np.int64)
    base = np.array(layout.base, dtype=np.int64).reshape(program.nranks, 3) + start[:-1, None]
    ncells = int(start[-1])
    rows = np.flatnonzero(program.op != Op.NOP)
    rows = rows[np.argsort(flow.level[rows], kind="stable")]
    op, count, rank = program.op[rows], program.count[rows], flow.row_rank[rows]
    sends, receives = SENDS[op], RECEIVES[op]
    slot = np.full(program.nrows, -1, dtype=np.int64)
    sent = program.count[rows[sends]]
    slot[rows[sends]] = ncells + np.cumsum(sent) - sent
    source = base[rank, program.src_buffer[rows]] + program.src_index[rows]
    target = base[rank, program.dst_buffer[rows]] + program.dst_index[rows]
    reduces = op == Op.REDUCE
    first = np.where(receives, slot[flow.sender[rows]], source)
    second = np.where(receives & READS[op], source, np.where(reduces, target, -1))
    store = np.where(WRITES[op], target, -1)
    forward = np.where(sends, slot[rows], -1)
    levels = np.searchsorted(flow.level[rows], np.arange(int(flow.level.max()) + 2))
    nslots = ncells + int(sent.sum()) + 1
    if (count == 1).all():
        return Moves(rows, first, second, store, forward, levels, ncells, nslots, base)
    ends = np.cumsum(count)
    inside = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - count, count)

    def units(column: IntArray) -> IntArray:
        wide = np.repeat(column, count)
        return np.where(wide >= 0, wide + inside, -1)

    pointers = np.concatenate(([0], ends))[levels]
    return Moves(
        np.repeat(rows, count),
        units(first),
        units(second),
        units(store),
        units(forward),
        pointers,
        ncells,
        nslots,
        base,
    )


@dataclass(frozen=True, slots=True)
class Result:
    """What memory holds after a run.

    Attributes:
        held: int64[nslots], node of each cell (-1: nothing).
        left, right: int64[nsums], operands of sum i, which is node nleaves + i; operands have lower numbers.
        nleaves: leaf `leaf_start[rank] + unit` is that input unit of that rank.
    """

    held: IntArray
    left: IntArray
    right: IntArray
    nleaves: int


def run(moves: Moves, program: Program, present: BoolArray) -> Result | None:
    """Run the moves; None when something is read that nobody wrote.

    Args:
        moves: of a program without races (within a level, reads come before writes).
        program: the program.
        present: bool[nleaves], input units that hold data.
    """
    nleaves = len(present)
    held = np.full(moves.nslots, -1, dtype=np.int64)
    held[_input_cells(moves, program)] = np.where(present, np.arange(nleaves), -1)
    number, lefts, rights = nleaves, [], []
    adds = moves.second >= 0
    adding = np.concatenate(([0], np.cumsum(adds)))[moves.level_ptr]
    for level, (begin, end) in enumerate(pairwise(moves.level_ptr.tolist())):
        if begin == end:
            continue
        values = held[moves.first[begin:end]]
        if values.min() < 0:
            return None
        if adding[level + 1] > adding[level]:
            where = np.flatnonzero(adds[begin:end])
            other = held[moves.second[begin:end][where]]
            if other.min() < 0:
                return None
            lefts.append(values[where])
            rights.append(other)
            values[where] = np.arange(number, number + len(where))
            number += len(where)
        # an address of -1 is the last slot, which nobody reads
        held[moves.store[begin:end]] = values
        held[moves.forward[begin:end]] = values
    empty = np.zeros(0, dtype=np.int64)
    return Result(held, np.concatenate([empty, *lefts]), np.concatenate([empty, *rights]), nleaves)


def _input_cells(moves: Moves, program: Program) -> IntArray:
    """Cell of every leaf."""
    sizes = program.input_units
    first = np.cumsum(sizes) - sizes
    return np.repeat(moves.base[:, 0] - first, sizes) + np.arange(int(sizes.sum()))


@dataclass(frozen=True, slots=True)
class Aim:
    """What a collective, scaled to a program's units, puts in and wants out, in columns.

    Attributes:
        present: bool[nleaves], input units that hold data.
        rank, unit: int64[nwanted], output units about which something is asked.
        leaf: int64[nwanted], the leaf wanted there (combining: a leaf of the place whose sum is wanted).
        terms: int64[nwanted], terms of the sum that is wanted (1: the leaf itself).
        place: int64[nleaves], input unit of each leaf.  leaf_rank: its rank.
    """

    present: BoolArray
    rank: IntArray
    unit: IntArray
    leaf: IntArray
    terms: IntArray
    place: IntArray
    leaf_rank: IntArray


def aim_of(program: Program, collective: Collective) -> Aim | None:
    """The aim, or None where a unit may come from several places."""
    scale = program.nunits // collective.payload_units
    leaf_start = np.cumsum(program.input_units) - program.input_units
    nleaves = int(program.input_units.sum())
    weight = collective.weight * scale
    into, out = collective.input_offset * scale, collective.output_offset * scale
    chunk, rank, inside = _spread(collective.sources, weight)
    if (into[chunk] < 0).any() or (into[chunk] + inside >= program.input_units[rank]).any():
        return None
    present = np.zeros(nleaves, dtype=bool)
    present[leaf_start[rank] + into[chunk] + inside] = True
    nsources = np.bincount(chunk[inside == 0], minlength=collective.nchunks)
    some_source = np.zeros(collective.nchunks, dtype=np.int64)
    some_source[chunk] = rank
    if collective.combining:
        spans = np.sort(into), (into + weight)[np.argsort(into)]
        if (spans[0][1:] < spans[1][:-1]).any():
            return None
    elif (nsources != 1).any():
        return None
    chunk, rank, inside = _spread(collective.destinations, weight)
    if (out[chunk] < 0).any() or (out[chunk] + inside >= program.output_units[rank]).any():
        return None
    return Aim(
        present, rank, out[chunk] + inside, leaf_start[some_source[chunk]] + into[chunk] + inside,
        nsources[chunk] if collective.combining else np.ones(len(chunk), dtype=np.int64),
        np.arange(nleaves) - np.repeat(leaf_start, program.input_units),
        np.repeat(np.arange(program.nranks), program.input_units),
    )  # fmt: skip


def _spread(sets: RankSets, weight: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """(chunk, rank, unit within the chunk) for every unit of every chunk on every rank of its set."""
    if sets.ptr is None:
        chunk = np.repeat(np.arange(sets.nchunks), sets.nranks)
        rank = np.tile(np.arange(sets.nranks), sets.nchunks)
    else:
        chunk, rank = np.repeat(np.arange(sets.nchunks), np.diff(sets.ptr)), sets.ranks
    times = weight[chunk]
    if (times == 1).all():
        return chunk, rank, np.zeros(len(chunk), dtype=np.int64)
    ends = np.cumsum(times)
    inside = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - times, times)
    return np.repeat(chunk, times), np.repeat(rank, times), inside


@dataclass(frozen=True, slots=True)
class Trees:
    """The distinct sums of a run.

    Attributes:
        node: int64[nleaves + nsums], distinct node of each leaf or sum; leaves keep their numbers.
        left, right: operands of distinct sum i, which is node nleaves + i; sums come in order of depth.
        depth_ptr: sums of depth d + 1 are depth_ptr[d]..depth_ptr[d + 1].
    """

    node: IntArray
    left: IntArray
    right: IntArray
    depth_ptr: list[int]
    nleaves: int

    def depth(self, nodes: IntArray) -> IntArray:
        """Additions on the longest way from a term to each node (0 for a leaf)."""
        return np.searchsorted(np.array(self.depth_ptr), nodes - self.nleaves, side="right")


def trees_of(result: Result) -> Trees:
    """Make equal sums one node (operands in either order), depth by depth."""
    nleaves, nsums = result.nleaves, len(result.left)
    node = np.arange(nleaves + nsums)
    order, bounds = _by_depth(result)
    lefts, rights = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    pointers, number, span = [0], nleaves, nleaves + nsums + 1
    for begin, end in pairwise(bounds):
        sums = order[begin:end]
        one, two = node[result.left[sums]], node[result.right[sums]]
        keys, inverse = np.unique(np.minimum(one, two) * span + np.maximum(one, two), return_inverse=True)
        node[nleaves + sums] = number + inverse
        lefts.append(keys // span)
        rights.append(keys % span)
        number += len(keys)
        pointers.append(number - nleaves)
    return Trees(node, np.concatenate(lefts), np.concatenate(rights), pointers, nleaves)


def _by_depth(result: Result) -> tuple[IntArray, list[int]]:
    """Sums in order of depth, and where each depth begins."""
    nleaves, nsums = result.nleaves, len(result.left)
    if not nsums:
        return np.zeros(0, dtype=np.int64), [0]
    parents_left = np.argsort(result.left, kind="stable")
    parents_right = np.argsort(result.right, kind="stable")
    depth = np.zeros(nsums, dtype=np.int64)
    missing = (result.left >= nleaves).astype(np.int8) + (result.right >= nleaves)
    sides = [
        (by, np.searchsorted(column[by], np.arange(nleaves, nleaves + nsums + 1)))
        for by, column in ((parents_left, result.left), (parents_right, result.right))
    ]
    front, number = np.flatnonzero(missing == 0), 0
    while len(front):
        number += 1
        depth[front] = number
        reached = []
        for by, pointers in sides:
            lengths = pointers[front + 1] - pointers[front]
            if lengths.any():
                inside = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
                parents = by[np.repeat(pointers[front], lengths) + inside]
                np.subtract.at(missing, parents, 1)
                reached.append(parents)
        together = np.concatenate(reached) if reached else front[:0]
        front = np.unique(together[missing[together] == 0])
    order = np.argsort(depth, kind="stable")
    return order, np.searchsorted(depth[order], np.arange(1, number + 2)).tolist()


def sums_are_right(trees: Trees, roots: IntArray, aim: Aim, nranks: int) -> bool:
    """Whether each wanted unit's node is the sum of every term of its place, each once.

    Args:
        trees: the distinct sums.
        roots: int64[nwanted], the node held by each wanted unit.
        aim: what is wanted.
        nranks: ranks of the collective.
    """
    nleaves, nnodes = trees.nleaves, trees.nleaves + len(trees.left)
    reached = np.zeros(nnodes, dtype=bool)
    reached[roots] = True
    spans = list(pairwise(trees.depth_ptr))
    for begin, end in reversed(spans):
        used = begin + np.flatnonzero(reached[nleaves + begin : nleaves + end])
        reached[trees.left[used]] = True
        reached[trees.right[used]] = True
    used = np.flatnonzero(reached[nleaves:])
    uses = np.bincount(trees.left[used], minlength=nnodes) + np.bincount(trees.right[used], minlength=nnodes)
    place = np.concatenate((aim.place, np.full(len(trees.left), -1, dtype=np.int64)))
    size = np.concatenate((np.ones(nleaves, dtype=np.int64), np.zeros(len(trees.left), dtype=np.int64)))
    for begin, end in spans:
        one, two = trees.left[begin:end], trees.right[begin:end]
        place[nleaves + begin : nleaves + end] = np.where(place[one] == place[two], place[one], -1)
        size[nleaves + begin : nleaves + end] = size[one] + size[two]
    if (place[roots] != aim.place[aim.leaf]).any() or (size[roots] != aim.terms).any():
        return False
    # sizes add up and places agree: terms are distinct where no operand is used twice
    return not (uses > 1).any() or _disjoint(trees, used, spans, aim, nranks)


def _disjoint(
    trees: Trees, used: IntArray, spans: list[tuple[int, int]], aim: Aim, nranks: int
) -> bool:  # fmt: skip
    """Whether the two operands of every sum in `used` have no rank's term in common."""
    nleaves, nnodes = trees.nleaves, trees.nleaves + len(trees.left)
    wanted = np.zeros(len(trees.left), dtype=bool)
    wanted[used] = True
    words = (nranks + 63) // 64
    width = max(1, min(words, _SET_WORDS // nnodes))
    for first in range(0, words, width):
        count = min(width, words - first)
        sets = np.zeros((nnodes, count), dtype=np.uint64)
        here = np.flatnonzero((aim.leaf_rank // 64 >= first) & (aim.leaf_rank // 64 < first + count))
        ranks = aim.leaf_rank[here]
        sets[here, ranks // 64 - first] = np.uint64(1) << (ranks % 64).astype(np.uint64)
        for begin, end in spans:
            rows = begin + np.flatnonzero(wanted[begin:end])
            one, two = sets[trees.left[rows]], sets[trees.right[rows]]
            if (one & two).any():
                return False
            sets[nleaves + rows] = one | two
    return True
