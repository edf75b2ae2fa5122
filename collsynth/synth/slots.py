"""Calendars of servers as bit strings: when can a transfer start, and when at the latest?

One bit is one slot of time.  For each server two whole numbers are kept: the slots in which a transfer
starts, and the slots in which one more could start without overlapping another (all transfers take
equally long on one server).  A route over several servers asks all of them at once by `&`: here a
transfer never waits on its way, so every order of starts is one that the simulator can serve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Way:
    """A route as the calendars see it.

    Attributes:
        src, dst: ranks, in the direction in which time runs here.
        links: link ids of the route, in true direction.
        slots: slots until a unit is through.
        uses: (server, slots after the start at which it begins to be occupied) of every server.
    """

    src: int
    dst: int
    links: tuple[int, ...]
    slots: int
    uses: tuple[tuple[int, int], ...]


State = tuple[list[int], list[int | None]]


class Slots:
    """The calendars of all servers.

    Args:
        durations: slots that one unit occupies each server (1 or more).
    """

    def __init__(self, durations: Sequence[int]) -> None:
        self.durations = list(durations)
        self._starts = [0] * len(durations)
        self._open: list[int | None] = [-1] * len(durations)  # an endless row of ones

    def save(self) -> State:
        """The present state, for `restore`."""
        return self._starts[:], self._open[:]

    def restore(self, state: State) -> None:
        """Back to a saved state (which is used up)."""
        self._starts, self._open = state

    def _window(self, server: int) -> int:
        """The slots in which one more unit could start."""
        found = self._open[server]
        if found is None:
            taken = self._starts[server]
            reach = self.durations[server] - 1
            for up in (True, False):
                done = 0
                while done < reach:
                    step = min(done + 1, reach - done)
                    taken |= taken << step if up else taken >> step
                    done += step
            found = self._open[server] = ~taken
        return found

    def _room(self, way: Way) -> int:
        """The slots in which a unit can start along the way."""
        if len(way.uses) == 1:
            return self._window(way.uses[0][0])
        room = -1
        for server, offset in way.uses:
            found = self._open[server]
            if found is None:
                found = self._window(server)
            room &= found >> offset
        return room

    def earliest(self, way: Way, time: int) -> int:
        """The first slot from `time` on in which a unit can start along the way."""
        room = self._room(way) >> time
        return time + (room & -room).bit_length() - 1

    def latest(self, way: Way, time: int) -> int:
        """The last slot in which a unit can start and be through by `time`; -1 when there is none."""
        count = time - way.slots + 1
        return -1 if count <= 0 else (self._room(way) & ((1 << count) - 1)).bit_length() - 1

    def take(self, way: Way, start: int) -> bool:
        """A unit starts along the way, unless that does not fit; returns whether it does."""
        opened = self._open
        if len(way.uses) == 1:  # by far the most frequent
            only = way.uses[0][0]
            free = self._window(only)
            if not free >> start & 1:
                return False
            self._starts[only] |= 1 << start
            low = max(0, start - way.slots + 1)
            opened[only] = free & ~(((1 << (start + way.slots - low)) - 1) << low)
            return True
        rooms = []
        for server, offset in way.uses:
            room = opened[server]
            if room is None:
                room = self._window(server)
            if not room >> (start + offset) & 1:
                return False
            rooms.append(room)
        for (server, offset), room in zip(way.uses, rooms, strict=True):
            at = start + offset
            self._starts[server] |= 1 << at
            reach = self.durations[server] - 1
            low = at - reach if at > reach else 0
            opened[server] = room & ~(((1 << (at + reach + 1 - low)) - 1) << low)
        return True

    def free(self, way: Way, start: int) -> None:
        """Take a unit out again."""
        for server, offset in way.uses:
            self._starts[server] ^= 1 << (start + offset)
            self._open[server] = None
