"""User buffers of any length, as the equal units that a program moves.

A program cuts each shard (allgather, reducescatter, alltoall, gather, scatter: one rank's shard; else the
whole buffer) into u units.  A shard of e elements is padded to u * ceil(e / u) elements, so every count
runs.  Where u divides e nothing is copied: the internal buffers are views of the user's.

In place, the output is the input (allreduce, broadcast, reduce, alltoall); a rank's allgather input is its
own slice of the output, its reducescatter output its own slice of the input; gather and scatter likewise
at the root.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from collsynth.errors import InputError, RefusedError
from collsynth.program import Program

#: Collectives whose input / output consists of one shard a rank (the others: one shard in all).
_SHARDED_INPUT = frozenset({"reducescatter", "alltoall", "scatter"})
_SHARDED_OUTPUT = frozenset({"allgather", "alltoall", "gather"})


@dataclass(frozen=True, slots=True)
class Buffers:
    """The three internal buffers of a rank, flat arrays of whole units; input and output overlap in place.

    Index with `Buffer`: `buffers[Buffer.INPUT]`.
    """

    input: Any
    output: Any
    scratch: Any

    def __getitem__(self, buffer: int) -> Any:
        return (self.input, self.output, self.scratch)[buffer]


@dataclass(frozen=True, slots=True)
class Layout:
    """How one call's elements lie in a program's units.

    Attributes:
        program: what runs.
        count: elements as nccl-tests counts them: allgather, what each rank sends; reducescatter, what each
            receives; alltoall, gather, scatter, what goes between a pair; else the whole buffer.
        unit: elements of one unit, padding included.
        shard_units: units of one shard.
    """

    program: Program
    count: int
    unit: int
    shard_units: int

    @staticmethod
    def of(program: Program, count: int) -> Layout:
        """The layout of a call of `count` elements.

        Raises:
            InputError: the count is negative, or the program's shards are not equal.
        """
        if count < 0:
            raise InputError(f"count {count} is negative")
        name, nranks = program.collective, program.nranks
        if name in _SHARDED_INPUT or name in _SHARDED_OUTPUT:
            sizes = program.output_units if name == "reducescatter" else program.input_units
            equal = len(set(sizes.tolist())) == 1 or name in ("gather", "scatter")
            if not equal or program.nunits % nranks:
                raise InputError(
                    f"program {program.name} cuts {name} into unequal shards",
                    expected="equal shards for a call with one count",
                )
            shard_units = program.nunits // nranks
        elif not name:
            # a custom program: the buffer of a rank is one shard
            shard_units = max(1, int(program.input_units.max()), int(program.output_units.max()))
        else:
            shard_units = program.nunits
        return Layout(program, count, -(-count // shard_units), shard_units)

    @property
    def exact(self) -> bool:
        """Whether the units hold exactly the user's elements (no padding, no copy)."""
        return self.unit * self.shard_units == self.count

    def input_elements(self, rank: int) -> int:
        """Elements of the user's send buffer on a rank (0: not significant)."""
        return self._shards(rank, self.program.input_units) * self.count

    def output_elements(self, rank: int) -> int:
        """Elements of the user's receive buffer on a rank (0: not significant)."""
        return self._shards(rank, self.program.output_units) * self.count

    def scratch_elements(self, rank: int) -> int:
        """Elements of the scratch buffer on a rank."""
        return int(self.program.scratch_units[rank]) * self.unit

    def _shards(self, rank: int, units: Sequence[int] | np.ndarray) -> int:
        return -(-int(units[rank]) // self.shard_units)

    def own_slice(self, rank: int) -> tuple[str, int]:
        """In place: which user buffer holds the other, and at which element the rank's own shard begins.

        `("output", k)`: the input is the output from element k on; `("input", k)` the other way round.
        """
        name = self.program.collective
        if name in ("allgather", "gather"):
            return "output", rank * self.count
        if name in ("reducescatter", "scatter"):
            return "input", rank * self.count
        return "output", 0

    def overlaps(self, rank: int) -> bool:
        """Whether the buffers of this rank overlap in an in-place call (gather, scatter: the root's only)."""
        return self.program.collective not in ("gather", "scatter") or rank == (self.program.root or 0)

    def in_place_views(self, rank: int, buffer: Any) -> tuple[Any, Any]:
        """(send, receive) views of the one user buffer of an in-place call."""
        holder, start = self.own_slice(rank)
        inner = self.input_elements(rank) if holder == "output" else self.output_elements(rank)
        part = buffer[start : start + inner]
        return (part, buffer) if holder == "output" else (buffer, part)

    def require_mode(self, in_place: bool) -> None:
        """Do nothing if the program may run in this mode.

        Raises:
            RefusedError: it is only right in the other one.
        """
        if not (self.program.in_place if in_place else self.program.out_of_place):
            mine, other = ("in place", "out of place") if in_place else ("out of place", "in place")
            raise RefusedError(f"program {self.program.name} runs {other} only; this call is {mine}")

    def pack(
        self, rank: int, sendbuf: Any, recvbuf: Any, *, in_place: bool, scratch: Any = None, xp: Any = np
    ) -> Buffers:
        """The internal buffers of a call: views of the user's where no padding is needed, else filled copies.

        Args:
            rank: whose.
            sendbuf, recvbuf: flat user arrays of `input_elements` and `output_elements`; None where the
                collective gives that rank none.  In place, as `in_place_views` has them.
            in_place: whether they overlap.
            scratch: flat array of at least `scratch_elements`, or None to make one.
            xp: array module (numpy, cupy).

        Raises:
            InputError: a buffer is missing, or its length does not fit.
        """
        self._check(rank, sendbuf, self.input_elements(rank), "send")
        self._check(rank, recvbuf, self.output_elements(rank), "receive")
        # A call of no elements may come without any buffer.
        dtype = next((b.dtype for b in (sendbuf, recvbuf) if b is not None), np.dtype(np.uint8))
        padded = {
            "input": int(self.program.input_units[rank]) * self.unit,
            "output": int(self.program.output_units[rank]) * self.unit,
        }
        if scratch is None:
            scratch = xp.zeros(self.scratch_elements(rank), dtype=dtype)
        if in_place and self.overlaps(rank):
            holder, start = self.own_slice(rank)
            user, inner = (recvbuf, "input") if holder == "output" else (sendbuf, "output")
            if user is None:  # reduce: only the root's receive buffer is significant
                user = sendbuf if holder == "output" else recvbuf
            whole = user if self.exact else self._padded(user, padded[holder], xp)
            begin = start // self.count * self.shard_units * self.unit if self.count else 0
            part = whole[begin : begin + padded[inner]]
            first, second = (part, whole) if holder == "output" else (whole, part)
            return Buffers(first, second, scratch)
        sides = []
        for user, size in ((sendbuf, padded["input"]), (recvbuf, padded["output"])):
            if user is None:
                sides.append(xp.zeros(size, dtype=dtype))
            else:
                sides.append(user if self.exact else self._padded(user, size, xp))
        return Buffers(sides[0], sides[1], scratch)

    def unpack(self, rank: int, buffers: Buffers, sendbuf: Any, recvbuf: Any, *, in_place: bool) -> None:
        """Copy results back into the user's buffers (nothing to do where `exact`).

        The input comes back too when the buffers overlap, as it does in an unpadded in-place call.
        """
        if self.exact:
            return
        if recvbuf is not None:
            self._strip(buffers.output, recvbuf)
        if in_place and self.overlaps(rank) and self.own_slice(rank)[0] == "input" and sendbuf is not None:
            self._strip(buffers.input, sendbuf)

    def _check(self, rank: int, user: Any, elements: int, label: str) -> None:
        if user is None:
            return
        if user.ndim != 1 or len(user) != elements:
            raise InputError(
                f"the {label} buffer of rank {rank} has shape {tuple(user.shape)}", expected=f"({elements},)"
            )  # fmt: skip

    def _padded(self, user: Any, size: int, xp: Any) -> Any:
        whole = xp.zeros(size, dtype=user.dtype)
        if self.count and len(user):
            shards = len(user) // self.count
            whole.reshape(shards, -1)[:, : self.count] = user.reshape(shards, self.count)
        return whole

    def _strip(self, whole: Any, user: Any) -> None:
        if self.count and len(user):
            shards = len(user) // self.count
            user.reshape(shards, self.count)[:] = whole.reshape(shards, -1)[:, : self.count]


def is_in_place(sendbuf: Any, recvbuf: Any, layout: Layout, rank: int) -> bool:
    """Whether a call's buffers overlap the way in-place calls of this collective do (by address)."""
    if sendbuf is None or recvbuf is None:
        return False
    holder, start = layout.own_slice(rank)
    outer, inner = (recvbuf, sendbuf) if holder == "output" else (sendbuf, recvbuf)
    return len(outer) > 0 and address(inner) == address(outer) + start * outer.dtype.itemsize


def address(array: Any) -> int:
    """Where an array's memory begins."""
    interface = getattr(array, "__cuda_array_interface__", None) or array.__array_interface__
    return int(interface["data"][0])
