"""The reference: all ranks in one process, real data, messages through FIFOs of the real depth.

Steps run one at a time, in a fixed order or in a random one (`seed`), so that every order that a real run
may show can be tried.  Scratch and outputs are poisoned first: who reads what nobody wrote gets NaN.
What this backend gives is the right answer by definition of the instructions in `collsynth.program`.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collsynth.errors import InputError, RunError
from collsynth.program import READING, RECEIVING, SENDING, TWO_SIDED, WRITING, Op, Program, Target

from . import data
from .layout import Buffers, Layout, is_in_place
from .numpy_onesided import OneSidedRun, runs

#: No limits of its own: it runs every program.
limits = Target("numpy")

_READING = frozenset(int(o) for o in READING)
_WRITING = frozenset(int(o) for o in WRITING)
_SENDING = frozenset(int(o) for o in SENDING)
_RECEIVING = frozenset(int(o) for o in RECEIVING)

Array = NDArray[Any]


def unavailable() -> str | None:
    """Why it cannot run here: it always can."""
    return None


def load(
    program: Program, comm: Any = None, *, seed: int | None = None, fifo_depth: int | None = None
) -> NumpyExecutable:
    """Make a program callable.

    Args:
        program: any program, two-sided or one-sided (a wrong one too: wrong data or a stuck run is what shows).
        comm: not used; all ranks run in this process.
        seed: None: threadblocks run as far as they can, in order; else steps of random threadblocks.
        fifo_depth: messages that a connection holds; None: what the program's protocol gives.

    Raises:
        InputError: the program mixes one-sided instructions with sends and receives.
    """
    return NumpyExecutable(program, seed, program.protocol.fifo_depth if fifo_depth is None else fifo_depth)


class NumpyExecutable:
    """A program bound to this process.  Call it with one send and one receive buffer a rank."""

    def __init__(self, program: Program, seed: int | None, fifo_depth: int) -> None:
        two_sided = {int(o) for o in TWO_SIDED}
        self._one_sided = not set(program.op.tolist()) <= two_sided
        if self._one_sided and not runs(program):
            raise InputError(f"program {program.name} mixes one-sided instructions with sends and receives")
        if fifo_depth < 1:
            raise InputError(f"a FIFO of {fifo_depth} messages", expected="1 or more")
        self.program, self.fifo_depth = program, fifo_depth
        self._random = None if seed is None else random.Random(seed)
        self._closed = False

    def __call__(
        self, sendbufs: Sequence[Array | None], recvbufs: Sequence[Array | None], op: str = "sum",
        *, count: int | None = None,
    ) -> None:  # fmt: skip
        """Run once.

        Args:
            sendbufs, recvbufs: one flat array a rank (None where the collective gives it none), in place when
                they overlap the way this collective's in-place calls do.
            op: sum, prod, max, min, avg.
            count: elements as nccl-tests counts them; None: from the buffers.

        Raises:
            InputError: closed, or buffers do not fit.
            RefusedError: the program is not for this mode.
            RunError: the run got stuck, or left messages behind; names rank, threadblock and step.
        """
        if self._closed:
            raise InputError("the executable is closed")
        program, nranks = self.program, self.program.nranks
        if len(sendbufs) != nranks or len(recvbufs) != nranks:
            raise InputError(f"{len(sendbufs)} send and {len(recvbufs)} receive buffers", expected=f"{nranks} of each")
        layout = Layout.of(program, self._count(sendbufs, recvbufs) if count is None else count)
        in_place = any(is_in_place(sendbufs[r], recvbufs[r], layout, r) for r in range(nranks) if layout.overlaps(r))
        layout.require_mode(in_place)
        memory = []
        for rank in range(nranks):
            buffers = layout.pack(rank, sendbufs[rank], recvbufs[rank], in_place=in_place)
            memory.append(self._poison(rank, buffers, layout, in_place, sendbufs[rank] is None))
        with np.errstate(all="ignore"):
            combine = data.combine(op)
            if self._one_sided:
                OneSidedRun(program, memory, layout.unit, combine, self._random).run()
            else:
                _Run(program, memory, layout.unit, combine, self.fifo_depth, self._random).run()
            for rank in range(nranks):
                layout.unpack(rank, memory[rank], sendbufs[rank], recvbufs[rank], in_place=in_place)
                received = recvbufs[rank]
                if received is not None and program.collective in data.COMBINING:
                    received[...] = data.finish(op, received, nranks)

    def close(self) -> None:
        """Nothing is held; a later call is an error."""
        self._closed = True

    def _count(self, sendbufs: Sequence[Array | None], recvbufs: Sequence[Array | None]) -> int:
        """The count that the buffers' lengths give."""
        single = Layout.of(self.program, 1)
        for rank in range(self.program.nranks):
            for buffer, shards in (
                (sendbufs[rank], single.input_elements(rank)), (recvbufs[rank], single.output_elements(rank)),
            ):  # fmt: skip
                if buffer is not None and shards:
                    return len(buffer) // shards
        raise InputError("no rank has a buffer")

    def _poison(self, rank: int, buffers: Buffers, layout: Layout, in_place: bool, no_input: bool) -> Buffers:
        """Poison everything that holds no input; the caller's send buffers stay as they are."""
        data.poison(buffers.scratch)
        program = self.program
        holds_input = not no_input and (program.collective != "broadcast" or rank == (program.root or 0))
        if not holds_input:
            # Out of place the array may be the caller's own, insignificant here but not ours to write.
            shared = in_place and layout.overlaps(rank)
            stand_in = buffers.input if shared else np.empty_like(buffers.input)
            buffers = replace(buffers, input=data.poison(stand_in))
        if not (in_place and layout.overlaps(rank)):
            data.poison(buffers.output)
        elif layout.own_slice(rank)[0] == "output" and holds_input:
            own = buffers.input.copy()
            data.poison(buffers.output)
            buffers.input[...] = own
        return buffers


class _Run:
    """One execution: the state of every threadblock and connection."""

    def __init__(
        self, program: Program, memory: list[Buffers], unit: int, combine: Any, depth: int, rng: random.Random | None
    ) -> None:
        self.program, self.memory, self.unit, self.combine = program, memory, unit, combine
        self.depth, self.rng = depth, rng
        for name in ("op", "count", "src_buffer", "src_index", "dst_buffer", "dst_index", "dep_ptr", "dep_tb",
                     "dep_step", "tb_rank", "tb_id", "tb_ptr", "tb_send", "tb_recv", "tb_channel"):  # fmt: skip
            setattr(self, f"_{name}", getattr(program, name).tolist())
        self.at: list[int] = self._tb_ptr[:-1]  # next row of each threadblock
        index = {(r, i): t for t, (r, i) in enumerate(zip(self._tb_rank, self._tb_id, strict=True))}
        self.index = index
        fifos: dict[tuple[int, int, int], deque[Array]] = {}
        self.out, self.into = [], []  # the FIFO that a threadblock sends into / receives from
        self.out_key, self.into_key = [], []
        for tb, rank in enumerate(self._tb_rank):
            channel = self._tb_channel[tb]
            self.out_key.append((rank, self._tb_send[tb], channel))
            self.into_key.append((self._tb_recv[tb], rank, channel))
            self.out.append(fifos.setdefault(self.out_key[tb], deque()))
            self.into.append(fifos.setdefault(self.into_key[tb], deque()))
        self.fifos = fifos
        self.sleepers: dict[Any, list[int]] = {}

    _op: list[int]
    _count: list[int]
    _src_buffer: list[int]
    _src_index: list[int]
    _dst_buffer: list[int]
    _dst_index: list[int]
    _dep_ptr: list[int]
    _dep_tb: list[int]
    _dep_step: list[int]
    _tb_rank: list[int]
    _tb_id: list[int]
    _tb_ptr: list[int]
    _tb_send: list[int]
    _tb_recv: list[int]
    _tb_channel: list[int]

    def run(self) -> None:
        """Run every threadblock to its end.

        Raises:
            RunError: stuck, or messages left behind.
        """
        awake = [tb for tb in range(self.program.ntbs) if self.at[tb] < self._tb_ptr[tb + 1]]
        if self.rng is None:
            awake.reverse()
        while awake:
            position = len(awake) - 1 if self.rng is None else self.rng.randrange(len(awake))
            tb = awake[position]
            obstacle = self._obstacle(tb)
            if obstacle is None:
                awake += self._step(tb)
                if self.at[tb] < self._tb_ptr[tb + 1]:
                    continue
            else:
                self.sleepers.setdefault(obstacle, []).append(tb)
            awake[position] = awake[-1]
            awake.pop()
        self._check_end()

    def _obstacle(self, tb: int) -> Any:
        """What the next step of a threadblock waits for: a key of `sleepers`, or None."""
        row = self.at[tb]
        for dep in range(self._dep_ptr[row], self._dep_ptr[row + 1]):
            other = self.index.get((self._tb_rank[tb], self._dep_tb[dep]))
            if other is None:
                raise RunError(f"{self._name(tb)} waits for tb {self._dep_tb[dep]}, which does not exist")
            if self.at[other] - self._tb_ptr[other] <= self._dep_step[dep]:
                return ("progress", other)
        op = self._op[row]
        if op in _RECEIVING and not self.into[tb]:
            return ("message", self.into_key[tb])
        if op in _SENDING and len(self.out[tb]) >= self.depth:
            return ("room", self.out_key[tb])
        return None

    def _view(self, tb: int, buffer: int, index: int, count: int) -> Array:
        part: Array = self.memory[self._tb_rank[tb]][buffer][index * self.unit : (index + count) * self.unit]
        if index < 0 or len(part) != count * self.unit:
            raise RunError(f"{self._name(tb)} uses units {index}..{index + count - 1}, outside its buffer")
        return part

    def _step(self, tb: int) -> list[int]:
        """Run one step; returns the threadblocks that may go on because of it."""
        row = self.at[tb]
        op, count = self._op[row], self._count[row]
        woken = []
        values: Array | None = None
        if op in _RECEIVING:
            values = self.into[tb].popleft()
            if len(values) != count * self.unit:
                raise RunError(
                    f"{self._name(tb)} takes {count} units, but the message from rank {self._tb_recv[tb]} on channel "
                    f"{self._tb_channel[tb]} has {len(values) // max(1, self.unit)}"
                )
            woken += self.sleepers.pop(("room", self.into_key[tb]), [])
        if op in _READING:
            local = self._view(tb, self._src_buffer[row], self._src_index[row], count)
            values = local if values is None else self.combine(values, local)
        if op in _WRITING:
            place = self._view(tb, self._dst_buffer[row], self._dst_index[row], count)
            place[...] = self.combine(place, values) if op == Op.REDUCE else values
        if op in _SENDING:
            assert values is not None
            if self._tb_send[tb] < 0:
                raise RunError(f"{self._name(tb)} sends, but its threadblock has no send peer")
            self.out[tb].append(values.copy())
            woken += self.sleepers.pop(("message", self.out_key[tb]), [])
        self.at[tb] = row + 1
        woken += self.sleepers.pop(("progress", tb), [])
        return woken

    def _name(self, tb: int) -> str:
        row = self.at[tb]
        step = f" step {row - self._tb_ptr[tb]} ({Op(self._op[row]).name})" if row < self._tb_ptr[tb + 1] else ""
        return f"rank {self._tb_rank[tb]} tb {self._tb_id[tb]}{step}"

    def _check_end(self) -> None:
        stuck = [tb for tb in range(self.program.ntbs) if self.at[tb] < self._tb_ptr[tb + 1]]
        if stuck:
            lines = []
            for tb in stuck[:8]:
                kind, what = self._obstacle(tb)
                reason = {
                    "progress": lambda tb=tb, what=what: f"waits for {self._name(what)}",
                    "message": lambda tb=tb, what=what: f"waits for a message from rank {self._tb_recv[tb]}",
                    "room": lambda tb=tb, what=what: f"waits until rank {self._tb_send[tb]} takes a message",
                }[kind]()
                lines.append(f"{self._name(tb)} {reason}")
            more = f"\n  and {len(stuck) - 8} more" if len(stuck) > 8 else ""
            raise RunError(
                f"the run is stuck with {self.depth} messages a connection:\n  " + "\n  ".join(lines) + more
            )  # fmt: skip
        left = {key: len(fifo) for key, fifo in self.fifos.items() if fifo}
        if left:
            (src, dst, channel), number = next(iter(left.items()))
            raise RunError(f"{number} messages from rank {src} to rank {dst} on channel {channel} were never taken")
