"""What runs, on what buffers, and how long it takes: one rank's side of the benchmark."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from collsynth.backends.control import Control
from collsynth.backends.data import count_wrong, expected_output, input_elements, make_input, output_elements, poison
from collsynth.backends.executor import Arrays

from collsynth.collective import busbw_factor
from collsynth.formats.msccl_xml import selection
from collsynth.program import TARGETS, Program

from .options import Options
from .table import Side

Array = Any

#: Collectives whose count is one rank's shard.
SHARDED = frozenset({"allgather", "reducescatter", "alltoall", "gather", "scatter"})

#: Interleaved rounds of a comparison; the median counts.
ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the table, before it is measured: sizes in bytes and elements as nccl-tests counts them."""

    collective: str
    nranks: int
    count: int
    dtype: np.dtype[Any]
    datatype: str
    op: str
    root: int

    @staticmethod
    def of(collective: str, nranks: int, size: int, dtype: np.dtype[Any], datatype: str, op: str, root: int) -> Case:
        """The case of an asked size: shards are rounded down to multiples of 16 bytes, as nccl-tests does."""
        count = size // dtype.itemsize
        if collective in SHARDED:
            count //= nranks
            count -= count % max(1, 16 // dtype.itemsize)
        return Case(collective, nranks, count, dtype, datatype, op, root)

    @property
    def size(self) -> int:
        """Payload bytes."""
        return self.count * self.dtype.itemsize * (self.nranks if self.collective in SHARDED else 1)

    @property
    def combining(self) -> bool:
        """Whether the reduction means something."""
        return self.collective in ("allreduce", "reduce", "reducescatter")

    @property
    def rooted(self) -> bool:
        """Whether the root means something."""
        return self.collective in ("broadcast", "reduce", "gather", "scatter")


class Contender(Protocol):
    """Something that runs a collective: a program, or the library's own."""

    label: str

    def supports(self, dtype: np.dtype[Any], in_place: bool) -> str | None:
        """Why it cannot run this, or None."""

    def __call__(self, send: Array | None, recv: Array | None, op: str, in_place: bool) -> None:
        """Run it once."""


class ProgramContender:
    """A loaded program.

    Args:
        program: what runs.
        executable: its executable on this rank.
    """

    def __init__(self, program: Program, executable: Any) -> None:
        self.program, self._executable = program, executable
        self.label = f"program:{program.name}"

    def supports(self, dtype: np.dtype[Any], in_place: bool) -> str | None:
        """Why it cannot run this, or None."""
        if not (self.program.in_place if in_place else self.program.out_of_place):
            return "the program runs " + ("out of place only" if in_place else "in place only")
        return None

    def unselected(self, case: Case) -> str | None:
        """Why a runtime would not choose the program for this case, or None.

        This is the file's own window; divisibility is not asked for, since the executors here pad.
        """
        reason = selection(self.program, TARGETS["any"], case.size, case.dtype.itemsize, not self.program.out_of_place)
        if reason:
            return reason
        if case.rooted and case.root != (self.program.root or 0):
            return f"the program's root is {self.program.root or 0}"
        return None

    def __call__(self, send: Array | None, recv: Array | None, op: str, in_place: bool) -> None:
        """Run it once."""
        self._executable(send, recv, op)

    def close(self) -> None:
        """Free its connections."""
        self._executable.close()


class Buffers:
    """One rank's arrays for one case and mode; they overlap in place the way NCCL has it."""

    def __init__(self, case: Case, rank: int, in_place: bool, arrays: Arrays) -> None:
        self._case, self._rank, self._arrays = case, rank, arrays
        shape = (case.collective, rank, case.nranks, case.count)
        self._inputs = input_elements(*shape, root=case.root)
        self._outputs = output_elements(*shape, root=case.root)
        self._overlap = in_place and self._inputs > 0 and self._outputs > 0
        self.in_place = in_place
        self.send: Array | None = None
        self.recv: Array | None = None
        self.fill(0)

    def fill(self, seed: int) -> None:
        """Fresh input, and an output that holds nothing right."""
        case, arrays = self._case, self._arrays
        given = make_input(self._rank, self._inputs, case.dtype, case.op, case.nranks, seed=seed)
        if not self._overlap:
            self.send = arrays.from_host(given) if self._inputs else None
            self.recv = arrays.from_host(poison(np.empty(self._outputs, case.dtype))) if self._outputs else None
        else:
            buffer = poison(np.empty(max(self._inputs, self._outputs), case.dtype))
            own = slice(0, len(buffer))
            if self._inputs != self._outputs:
                own = slice(self._rank * case.count, (self._rank + 1) * case.count)
            inner_is_input = self._inputs <= self._outputs
            (buffer[own] if inner_is_input else buffer)[...] = given
            whole = arrays.from_host(buffer)
            self.send, self.recv = (whole[own], whole) if inner_is_input else (whole, whole[own])
        arrays.complete()

    def wrong(self, seed: int) -> int:
        """Elements of the output that are not what inputs of `seed` must give."""
        case = self._case
        expected = expected_output(
            case.collective, self._rank, case.nranks, case.count, case.dtype, case.op, root=case.root, seed=seed
        )
        if expected is None or self.recv is None:
            return 0
        return count_wrong(self._arrays.to_host(self.recv), expected)


class Stopwatch:
    """Times contenders with the other ranks.

    Args:
        control: the control plane (its barrier is point-to-point).
        options: how often.
        arrays: array operations of the backend.
        beat: called whenever something moved, for the watchdog.
    """

    def __init__(self, control: Control, options: Options, arrays: Arrays, beat: Any) -> None:
        self._control, self._options, self._arrays, self._beat = control, options, arrays, beat

    def sides(self, case: Case, contenders: Sequence[Contender], in_place: bool) -> list[Side | None]:
        """One measurement a contender, interleaved when there are several; None where one cannot run this."""
        able = [c.supports(case.dtype, in_place) is None for c in contenders]
        if not any(able):
            return [None] * len(contenders)
        if case.count == 0:
            checked = 0 if self._options.check else None
            return [Side(0.0, 0.0, 0.0, checked) if ok else None for ok in able]
        buffers = Buffers(case, self._control.rank, in_place, self._arrays)
        active = [c for c, ok in zip(contenders, able, strict=True) if ok]
        for contender in active:
            self._run(contender, buffers, case, self._options.warmup)
        rounds = 1 if len(active) == 1 else min(ROUNDS, self._options.iters)
        iters = -(-self._options.iters // rounds)
        times: list[list[float]] = [[] for _ in active]
        for _ in range(rounds):
            for i, contender in enumerate(active):
                times[i].append(self._timed(contender, buffers, case, iters))
        measured = iter(
            self._side(case, statistics.median(mine), self._wrong(contender, buffers, case))
            for contender, mine in zip(active, times, strict=True)
        )
        return [next(measured) if ok else None for ok in able]

    def _run(self, contender: Contender, buffers: Buffers, case: Case, times: int) -> None:
        # Data of repeated in-place sums grow without meaning; only the time counts here.
        with np.errstate(all="ignore"):
            for _ in range(times):
                contender(buffers.send, buffers.recv, case.op, buffers.in_place)
                self._beat()

    def _timed(self, contender: Contender, buffers: Buffers, case: Case, iters: int) -> float:
        """Seconds of one launch, over ranks as `-a` says."""
        aggregate = self._options.aggregate
        self._run(contender, buffers, case, 1)
        self._arrays.complete()
        self._control.barrier()
        begin = time.perf_counter()
        self._run(contender, buffers, case, iters * aggregate)
        self._arrays.complete()
        mine = (time.perf_counter() - begin) / (iters * aggregate)
        every = self._control.exchange(mine)
        return float((every[0], statistics.fmean(every), min(every), max(every))[self._options.average])

    def _wrong(self, contender: Contender, buffers: Buffers, case: Case) -> int | None:
        """Wrong elements over all ranks and checked launches, None when not checked."""
        if not self._options.check:
            return None
        wrong = 0
        for seed in range(1, self._options.check + 1):
            buffers.fill(seed)
            self._control.barrier()
            self._run(contender, buffers, case, 1)
            wrong += buffers.wrong(seed)
            self._beat()
        return int(sum(self._control.exchange(wrong)))

    def _side(self, case: Case, seconds: float, wrong: int | None) -> Side:
        algbw = case.size / seconds / 1e9
        return Side(seconds, algbw, algbw * float(busbw_factor(case.collective, case.nranks)), wrong)
