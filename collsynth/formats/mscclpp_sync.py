"""Where the threads of a block must meet (`nop`) between two operations of an MSCCL++ threadblock.

The executor runs an operation's elements on all threads of a block and synchronises nothing by itself: a
`signal` right after a `put` leaves while other threads still store, and data read right after a `wait` is
read by threads that did not wait.  `nop` and `barrier` are the meeting points.  A `Program` means program
order, so the writer puts the meeting points in, and the reader takes them out and tells where one is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..program import ChannelKind, Instruction, Op, Operand, Space

_LEAVING = frozenset({Op.SIGNAL, Op.RELAXED_SIGNAL, Op.RELEASE})
_COMING = frozenset({Op.WAIT, Op.RELAXED_WAIT, Op.ACQUIRE, Op.FLUSH})
_PACKET_SOURCE = frozenset({Op.READ_PACKET, Op.READ_PACKET_REDUCE, Op.FORWARD_PACKET})
_PACKET_RESULT = frozenset({Op.PUT_PACKET, Op.FORWARD_PACKET})
_ADDING = frozenset({Op.REDUCE, Op.READ_REDUCE, Op.READ_PACKET_REDUCE})
#: How elements go to threads: 8 bytes a thread where packets are involved, 16 elsewhere.
_PACKETS = _PACKET_SOURCE | _PACKET_RESULT

#: (cell of the first unit, units, whether it is written, whether packets are involved)
_Access = tuple[int, int, bool, bool]
Cells = Callable[[Operand], int]


def _few_threads(row: Instruction) -> bool:
    """Whether only the first threads of the block do this (one for each channel or semaphore)."""
    port = row.kind is ChannelKind.PORT and row.op in (Op.PUT, Op.FORWARD_PACKET)
    return port or row.op in _LEAVING or row.op in _COMING


def _moves(row: Instruction) -> bool:
    return row.src is not None or row.dst is not None


def _accesses(row: Instruction, cells: Cells) -> list[_Access]:
    """The plain accesses to the own rank's memory (packets wait for themselves)."""
    packets, found = row.op in _PACKETS, []
    if row.src is not None and row.src.space is not Space.REMOTE and row.op not in _PACKET_SOURCE:
        found.append((cells(row.src), row.count, False, packets))
    if row.dst is not None and row.dst.space is not Space.REMOTE and row.op not in _PACKET_RESULT:
        found.append((cells(row.dst), row.count, True, packets))
    return found


def _collide(one: Sequence[_Access], two: Sequence[_Access]) -> bool:
    return any(
        (a[2] or b[2]) and a[0] < b[0] + b[1] and b[0] < a[0] + a[1] and (a[0], a[1], a[3]) != (b[0], b[1], b[3])
        for a in one
        for b in two
    )


class BlockSync:
    """What the operations since the last meeting point did.

    Args:
        cells: cell of an operand of the own rank, the same for two names of one place.
    """

    def __init__(self, cells: Cells) -> None:
        self.cells = cells
        self.pending: list[tuple[Sequence[Instruction], list[_Access]]] = []

    def meet(self) -> None:
        """The threads meet."""
        self.pending.clear()

    def missing(self, rows: Sequence[Instruction]) -> str | None:
        """Why the threads must meet before the operation that `rows` are, None when they need not.

        The operation is then among those that later ones are compared with.
        """
        accesses = [access for row in rows for access in _accesses(row, self.cells)]
        reason = next((text for before, old in self.pending if (text := self._conflict(before, old, rows, accesses))),
                      None)  # fmt: skip
        self.pending.append((rows, accesses))
        return reason

    @staticmethod
    def _conflict(
        before: Sequence[Instruction], old: list[_Access], rows: Sequence[Instruction], accesses: list[_Access]
    ) -> str | None:
        first, second = before[-1], rows[0]
        if any(row.op is Op.BARRIER for row in (first, second)):
            return None  # a barrier is a meeting point itself
        if first.op in _COMING:
            if _moves(second) and not (_few_threads(second) and len(before) == 1 and len(rows) == 1):
                return "threads that did not wait go on"
            if second.op in _LEAVING and not len(before) == len(rows) == 1:
                return "a thread that did not wait signals"
        elif _moves(first) and _few_threads(first):
            if second.op in _LEAVING and second.kind is ChannelKind.PORT and not len(before) == len(rows) == 1:
                return "a thread signals before another one has issued its transfer"
        elif _moves(first) and (second.op in _LEAVING or _few_threads(second)) and second.op not in _COMING:
            if second.op not in _LEAVING and not _moves(first):
                return None
            return "other threads still move data"
        if _collide(old, accesses):
            return "other threads still use the same data"
        return None


def place_nops(operations: Sequence[Sequence[Instruction]], cells: Cells) -> list[bool]:
    """For each operation of a threadblock (the rows that it is), whether a `nop` must stand before it."""
    sync, needed = BlockSync(cells), []
    for rows in operations:
        if rows[0].op is Op.BARRIER:
            sync.meet()
            needed.append(False)
            continue
        wanted = sync.missing(rows) is not None
        if wanted:
            sync.meet()
            sync.missing(rows)
        needed.append(wanted)
    return needed
