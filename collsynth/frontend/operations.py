"""What is recorded: spans of buffers, the operations between them, and the lines that asked for them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Literal

from ..errors import InputError
from ..program import Buffer

#: How a script may name a buffer.
BufferName = Literal["input", "output", "scratch"] | Buffer

_HERE = str(Path(__file__).resolve().parent)


def caller() -> str:
    """file:line of the script: the innermost frame outside this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return "?" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def whole(label: str, value: int, low: int, high: int | None = None) -> int:
    """`value`, if it is a whole number from `low` to below `high`.

    Raises:
        InputError: it is not; names the script's line.
    """
    expected = f"{low} or more" if high is None else f"{low}..{high - 1}"
    try:
        number = value.__index__()
    except AttributeError:
        raise InputError(f"{label} {value!r} is no whole number", where=caller(), expected=expected) from None
    if number < low or (high is not None and number >= high):
        raise InputError(f"{label} {number} is out of range", where=caller(), expected=expected)
    return number


def buffer_of(name: BufferName) -> Buffer:
    """The buffer of that name.

    Raises:
        InputError: no such buffer.
    """
    if isinstance(name, Buffer):
        return name
    try:
        return Buffer[name.upper()]
    except (KeyError, AttributeError):
        raise InputError(f"unknown buffer {name!r}", where=caller(), expected="input, output or scratch") from None


@dataclass(frozen=True, slots=True)
class Span:
    """`count` consecutive units of a rank's buffer, from `index`."""

    rank: int
    buffer: Buffer
    index: int
    count: int

    def __str__(self) -> str:
        last = f"..{self.index + self.count - 1}" if self.count > 1 else ""
        return f"rank {self.rank} {self.buffer.name.lower()}[{self.index}{last}]"


@dataclass(frozen=True, slots=True)
class Hints:
    """What the author wants of the lowering; see `Chunk.copy`."""

    channel: int = 0
    send_tb: int | None = None
    recv_tb: int | None = None
    tb: int | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """One recorded operation: target = source, or target = own + source.

    Attributes:
        source: what is read and, between ranks, travels.
        own: of a reduction, what it is added to (a span of the target's rank); None for a copy.
        target: where the result goes.
        color: input unit that the first value comes from; spreads a pair of ranks over channels.
        hints: channel and threadblocks wanted.
        ways: parallel parts to cut it into.
        where: file:line of the script.
    """

    source: Span
    own: Span | None
    target: Span
    color: int
    hints: Hints
    ways: int
    where: str

    @property
    def remote(self) -> bool:
        """Whether it is a message between two ranks."""
        return self.source.rank != self.target.rank

    def __str__(self) -> str:
        if self.own is None:
            return f"copy {self.source} -> {self.target}"
        return f"reduce {self.own} + {self.source} -> {self.target}"


class Threadblocks:
    """The threadblocks that the author has named, so that contradictions are found at once.

    A threadblock of a rank has one channel, at most one rank it sends to and one it receives from; a
    connection (source, destination, channel) has one threadblock at either end.
    """

    def __init__(self) -> None:
        self._facts: dict[tuple[object, ...], tuple[int, str]] = {}

    def channel(self, rank: int, tb: int) -> int:
        """Channel of a named threadblock, 0 when no message fixed it."""
        return self._facts.get((rank, tb, "channel"), (0, ""))[0]

    def add(self, operation: Operation) -> None:
        """Take note of an operation's hints.

        Raises:
            InputError: they contradict those of an earlier line, or do not apply.
        """
        hints, src, dst = operation.hints, operation.source.rank, operation.target.rank
        if operation.remote and hints.tb is not None:
            raise InputError(
                f"tb={hints.tb} is for operations within a rank", where=operation.where,
                expected="send_tb and recv_tb for a message between ranks",
            )  # fmt: skip
        if not operation.remote:
            if hints.send_tb is not None or hints.recv_tb is not None:
                raise InputError(
                    "send_tb and recv_tb are for messages between ranks", where=operation.where,
                    expected="tb for an operation within a rank",
                )  # fmt: skip
            return
        wanted: list[tuple[tuple[object, ...], int, str]] = []
        for rank, tb, side, peer in ((src, hints.send_tb, "sends to", dst), (dst, hints.recv_tb, "receives from", src)):
            if tb is None:
                continue
            wanted += [
                ((rank, tb, "channel"), hints.channel, f"threadblock {tb} of rank {rank} is on channel"),
                ((rank, tb, side), peer, f"threadblock {tb} of rank {rank} {side} rank"),
                ((rank, peer, hints.channel, side), tb,
                 f"what rank {rank} {side} rank {peer} on channel {hints.channel} runs on threadblock"),
            ]  # fmt: skip
        for key, value, label in wanted:
            known, line = self._facts.get(key, (value, operation.where))
            if known != value:
                raise InputError(
                    f"{label} {known} since {line}, it cannot be {value} here", where=operation.where,
                    hint="another threadblock or channel, or no hint",
                )  # fmt: skip
        for key, value, _ in wanted:
            self._facts.setdefault(key, (value, operation.where))
