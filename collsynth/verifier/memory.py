"""Where a program's buffers lie, what they hold at the start, and what they must hold at the end.

All cells (units) of a rank form one list: input, output and scratch, overlapping where an in-place run
lets them.  A value is one integer: the unit's place in the input buffer in the low bits, and above it a
bit for each rank whose term it holds.  So adding two values of one place with distinct terms is `a | b`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from .. import collective as collectives
from ..collective import Collective
from ..errors import InputError
from ..program import Buffer, Program


@dataclass(frozen=True, slots=True)
class Layout:
    """The cells of each rank in one mode.

    Attributes:
        in_place: whether input and output overlap.
        base: base[rank][buffer], first cell of each buffer.  size: size[rank][buffer] in units.
        ncells: cells of each rank.
        keeps_input: ranks whose input must be intact at the end.
    """

    in_place: bool
    base: list[tuple[int, int, int]]
    size: list[tuple[int, int, int]]
    ncells: list[int]
    keeps_input: list[bool]


def layout_of(program: Program, *, in_place: bool) -> Layout:
    """The cells of a program's ranks, in place or out of place.

    In place, the output is the input, except that a rank's allgather input is its own slice of the output,
    and its reducescatter output its own slice of the input (gather and scatter alike, at the root).
    """
    inputs, outputs = program.input_units.tolist(), program.output_units.tolist()
    scratch = program.scratch_units.tolist()
    in_start = [0, *accumulate(inputs)]
    out_start = [0, *accumulate(outputs)]
    base, size, ncells, keeps = [], [], [], []
    for rank in range(program.nranks):
        nin, nout = inputs[rank], outputs[rank]
        kind, here = program.collective, in_place
        if kind in ("gather", "scatter"):
            here = in_place and rank == (program.root or 0)
        if not here:
            first_in, first_out, total = 0, nin, nin + nout
        elif kind in ("allgather", "gather"):
            first_in, first_out = in_start[rank], 0
            total = max(nout, first_in + nin)
        elif kind in ("reducescatter", "scatter"):
            first_in, first_out = 0, out_start[rank]
            total = max(nin, first_out + nout)
        else:
            first_in, first_out, total = 0, 0, max(nin, nout)
        base.append((first_in, first_out, total))
        size.append((nin, nout, scratch[rank]))
        ncells.append(total + scratch[rank])
        keeps.append(not here)
    return Layout(in_place, base, size, ncells, keeps)


def collective_of(program: Program) -> Collective | None:
    """The collective that a program's name, sizes and root describe, in units; None when it is custom.

    Raises:
        InputError: the number of units does not fit the collective.
    """
    n, units, name = program.nranks, program.nunits, program.collective
    if not name:
        return None
    root = program.root or 0
    if not 0 <= root < n:
        raise InputError(f"root {root} of {n} ranks")
    if name == "allreduce":
        return collectives.allreduce(n, weights=[units] + [0] * (n - 1))
    if name in ("broadcast", "reduce"):
        return (collectives.broadcast if name == "broadcast" else collectives.reduce)(n, units, root=root)
    shards = (program.output_units if name == "reducescatter" else program.input_units).tolist()
    if name in ("allgather", "reducescatter") and sum(shards) == units:
        build = collectives.allgather if name == "allgather" else collectives.reduce_scatter
        return build(n, weights=shards)
    if units % n:
        raise InputError(f"{units} units cannot be cut into the {n} equal shards of {name}")
    return collectives.make(name, n, units // n, root=root if name in ("gather", "scatter") else None)


@dataclass(frozen=True, slots=True)
class Goal:
    """What a collective, scaled to a program's units, puts in and wants out.

    Attributes:
        shift: bits of a value that hold the place.
        start: start[rank][input unit], a value or None where the input holds nothing.
        want: want[rank][output unit], a value or None where anything may be.
        judged: whether anything is wanted; if not, the output may be where the input comes from, so what it
            holds at the start is not known rather than undefined.
        others: (rank, output unit) -> further values that are as good (several ranks start with a chunk).
    """

    shift: int
    start: list[list[int | None]]
    want: list[list[int | None]]
    others: dict[tuple[int, int], frozenset[int]]
    judged: bool = True


def goal_of(program: Program, collective: Collective | None) -> Goal:
    """Start and goal values.  Without a collective every input unit holds data and nothing is wanted."""
    inputs, outputs = program.input_units.tolist(), program.output_units.tolist()
    shift = max([1, *inputs]).bit_length()
    start: list[list[int | None]] = [[None] * n for n in inputs]
    want: list[list[int | None]] = [[None] * n for n in outputs]
    others: dict[tuple[int, int], frozenset[int]] = {}
    if collective is None:
        for rank, cells in enumerate(start):
            cells[:] = [1 << (rank + shift) | unit for unit in range(len(cells))]
        return Goal(shift, start, want, others, judged=False)
    scale = program.nunits // collective.payload_units
    for chunk in range(collective.nchunks):
        weight = int(collective.weight[chunk]) * scale
        first_in = int(collective.input_offset[chunk]) * scale
        first_out = int(collective.output_offset[chunk]) * scale
        sources = collective.sources.of(chunk).tolist()
        everyone = 0
        for rank in sources:
            bit = 1 << (rank + shift)
            everyone |= bit
            start[rank][first_in : first_in + weight] = [bit | u for u in range(first_in, first_in + weight)]
        mask = everyone if collective.combining else 1 << (sources[0] + shift)
        values = [mask | unit for unit in range(first_in, first_in + weight)]
        for rank in collective.destinations.of(chunk).tolist():
            want[rank][first_out : first_out + weight] = values
            if not collective.combining and len(sources) > 1:
                for unit in range(weight):
                    others[rank, first_out + unit] = frozenset(
                        1 << (source + shift) | (first_in + unit) for source in sources
                    )
    return Goal(shift, start, want, others)


def fits(program: Program, collective: Collective) -> str | None:
    """Why a program's buffers are not those of the collective (scaled to its units), or None."""
    if collective.nranks != program.nranks:
        return f"the program has {program.nranks} ranks, the collective {collective.nranks}"
    if program.nunits % collective.payload_units:
        return f"the program's {program.nunits} units are no multiple of the collective's {collective.payload_units}"
    scale = program.nunits // collective.payload_units
    for label, own, asked in (
        ("input", program.input_units, collective.input_units * scale),
        ("output", program.output_units, collective.output_units * scale),
    ):
        for rank in range(program.nranks):
            if own[rank] != asked[rank]:
                return (
                    f"the {label} buffer of rank {rank} has {own[rank]} units, {collective.name} makes it {asked[rank]}"
                )
    return None


def cell_name(layout: Layout, rank: int, cell: int) -> str:
    """`output[3]`: the buffer and unit of a cell (output first where buffers overlap)."""
    for buffer in (Buffer.OUTPUT, Buffer.INPUT, Buffer.SCRATCH):
        offset = cell - layout.base[rank][buffer]
        if 0 <= offset < layout.size[rank][buffer]:
            return f"{buffer.name.lower()}[{offset}]"
    return f"cell {cell}"
