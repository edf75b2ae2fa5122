"""Pass 1: chunks to atoms, the runs of units that move as one; parallel instances split them.

With `instances` n the payload is cut n times finer and n copies of the schedule run side by side, each
on its own units and channels.  Copy j of a run of chunks that lie side by side in input and output
takes the j-th n-th of the run, so that neighbouring chunks of one copy stay neighbours.  Every atom
then has its own places and every later pass sees only places: copies cannot race by construction
(replicating finished instructions, as others do, spans units of other copies).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..collective import Collective


@dataclass(frozen=True, slots=True)
class Atom:
    """`count` consecutive units of a chunk.

    Attributes:
        chunk, instance: whose part it is.
        color: number of the chunk within its owner's shard.
        input, output: unit in the input and output buffers (of ranks that hold the chunk there).
    """

    chunk: int
    instance: int
    color: int
    input: int
    output: int
    count: int


def atoms(collective: Collective, instances: int, max_count: int | None) -> list[list[Atom]]:
    """The atoms of each chunk, instance by instance, none larger than `max_count` units."""
    weight = [int(w) for w in collective.weight]
    into, out = [int(x) for x in collective.input_offset], [int(x) for x in collective.output_offset]
    owner = [int(x) for x in collective.owner]
    run_start, run_units = runs(collective)
    seen: dict[int, int] = {}
    result: list[list[Atom]] = []
    for chunk, size in enumerate(weight):
        color = seen.get(owner[chunk], 0)
        seen[owner[chunk]] = color + 1
        start = run_start[chunk]
        parts: list[Atom] = []
        for instance in range(instances):
            # units of the run before this chunk, plus the shares of the instances before this one
            inside = into[chunk] - into[start] + instance * run_units[start]
            done = 0
            while done < size:
                count = size - done if max_count is None else min(size - done, max_count)
                parts.append(
                    Atom(chunk, instance, color, instances * into[start] + inside + done,
                         instances * out[start] + inside + done, count)
                )  # fmt: skip
                done += count
        result.append(parts)
    return result


def runs(collective: Collective) -> tuple[list[int], dict[int, int]]:
    """First chunk of each chunk's run, and the units of each run (by its first chunk).

    A run is a row of chunks of one owner that lie side by side in the input and in the output.
    """
    weight = [int(w) for w in collective.weight]
    into, out = [int(x) for x in collective.input_offset], [int(x) for x in collective.output_offset]
    owner = [int(x) for x in collective.owner]
    first: list[int] = []
    units: dict[int, int] = {}
    for chunk in range(len(weight)):
        before = chunk - 1
        joined = chunk > 0 and owner[before] == owner[chunk] and all(
            offset[chunk] == offset[before] + weight[before] for offset in (into, out)
        )  # fmt: skip
        start = first[before] if joined else chunk
        first.append(start)
        units[start] = units.get(start, 0) + weight[chunk]
    return first, units
