"""Runs of a program on made-up data with known results: what `collsynth run` does with a backend.

Either all ranks are in this process (the numpy backend: one array a rank) or this process is one rank
of a communicator (the other backends).
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from collsynth.errors import InputError
from collsynth.program import Program

from .data import count_wrong, expected_output, make_input, poison
from .executor import Arrays
from .layout import Layout


@dataclass(frozen=True, slots=True)
class Result:
    """One size in one mode.

    Attributes:
        size_bytes: payload as nccl-tests counts it; count: elements as it counts them.
        in_place: mode.
        wrong: wrong elements over all ranks, elements of a changed input (out of place) included.
        seconds: mean time of an iteration, of the slowest rank.
        bytes_sent, messages_sent: for every rank, peer -> what it sent to it in one call (padding
            included); None where the backend does not count.
    """

    size_bytes: int
    count: int
    in_place: bool
    wrong: int
    seconds: float
    bytes_sent: list[dict[int, int]] | None
    messages_sent: list[dict[int, int]] | None


def shards(program: Program) -> int:
    """Shards of the payload: `payload elements = count * shards`."""
    return max(1, program.nunits // Layout.of(program, 1).shard_units)


def require_memory(program: Program, count: int, itemsize: int, *, together: bool) -> None:
    """Do nothing if the buffers of a checked run fit this machine's memory.

    Args:
        program, count, itemsize: the call.
        together: whether all ranks are in this process (else one is).

    Raises:
        InputError: they do not; the system would end the process half-way.
    """
    layout = Layout.of(program, count)
    # Beside the two buffers of a rank: what was given, what is expected, and padded copies.
    ranks = [
        3 * (layout.input_elements(rank) + layout.output_elements(rank)) + layout.scratch_elements(rank)
        for rank in range(program.nranks)
    ]
    need = (sum(ranks) if together else max(ranks)) * itemsize
    have = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if need > have:
        raise InputError(
            f"{count} elements need about {need / 2**30:.3g} GiB of memory {'in all' if together else 'a rank'}",
            where="-s", expected=f"at most {have / 2**30:.3g} GiB, which this machine has", hint="a smaller size",
        )  # fmt: skip


class _Data:
    """One rank's buffers for one call, and what must be in them afterwards."""

    def __init__(self, layout: Layout, rank: int, in_place: bool, dtype: Any, op: str, seed: int, arrays: Arrays):
        self._arrays = arrays
        program = layout.program
        self._root = program.root or 0
        inputs, outputs = layout.input_elements(rank), layout.output_elements(rank)
        given = make_input(rank, inputs, dtype, op, program.nranks, seed=seed)
        self.expected = expected_output(
            program.collective, rank, program.nranks, layout.count, dtype, op, root=self._root, seed=seed
        )
        self.given: np.ndarray | None = None
        one = Layout.of(program, 1)  # a buffer that a call of no elements leaves empty is still given
        has_input, has_output = one.input_elements(rank) > 0, one.output_elements(rank) > 0
        if in_place and has_input and has_output and layout.overlaps(rank):
            buffer = poison(np.empty(max(inputs, outputs), dtype))
            layout.in_place_views(rank, buffer)[0][...] = given
            self.send, self.recv = layout.in_place_views(rank, arrays.from_host(buffer))
        else:
            self.given = given
            self.send = arrays.from_host(given.copy()) if has_input else None
            self.recv = arrays.from_host(poison(np.empty(outputs, dtype))) if has_output else None
        arrays.complete()

    def wrong(self) -> int:
        """Wrong elements, and elements of the input that changed although the call was out of place."""
        wrong = 0
        if self.expected is not None and self.recv is not None:
            wrong += count_wrong(self._arrays.to_host(self.recv), self.expected)
        if self.given is not None and self.send is not None:
            wrong += count_wrong(self._arrays.to_host(self.send), self.given)
        return wrong


def run_in_process(
    program: Program, executable: Any, count: int, in_place: bool, *, dtype: Any, op: str, iters: int, seed: int
) -> Result:
    """One size and mode where the executable takes the buffers of all ranks at once."""
    layout, arrays = Layout.of(program, count), Arrays(np)
    data = [_Data(layout, rank, in_place, dtype, op, seed, arrays) for rank in range(program.nranks)]
    sends, recvs = [d.send for d in data], [d.recv for d in data]
    executable(sends, recvs, op, count=count)
    wrong = sum(d.wrong() for d in data)
    begin = time.perf_counter()
    for _ in range(iters):
        executable(sends, recvs, op, count=count)
    seconds = (time.perf_counter() - begin) / iters
    return Result(count * shards(program) * dtype.itemsize, count, in_place, wrong, seconds, None, None)


def run_on_ranks(
    program: Program, executable: Any, count: int, in_place: bool, *, dtype: Any, op: str, iters: int, seed: int
) -> Result:
    """One size and mode where this process is one rank; every rank calls it and gets the same result.

    The executable has, beside the call, `control` (the control plane), `arrays`, `bytes_sent` and
    `messages_sent`.

    Raises:
        RunError: the run could not go on.
    """
    control = executable.control
    data = _Data(Layout.of(program, count), control.rank, in_place, dtype, op, seed, executable.arrays)
    executable(data.send, data.recv, op)
    mine = (data.wrong(), executable.bytes_sent, executable.messages_sent)
    ranks: Sequence[Any] = control.exchange(mine)
    begin = time.perf_counter()
    for _ in range(iters):
        executable(data.send, data.recv, op)
    seconds = max(control.exchange((time.perf_counter() - begin) / iters))
    return Result(
        count * shards(program) * dtype.itemsize, count, in_place, sum(row[0] for row in ranks), seconds,
        [row[1] for row in ranks], [row[2] for row in ranks],
    )  # fmt: skip
