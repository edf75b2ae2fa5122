"""Ruin and recreate: take the trees of some chunks out of a schedule and grow them anew in the gaps.

List scheduling times given trees; here the trees themselves follow the free time of the servers.  A
chunk's tree grows by earliest arrival in their calendars (`slots`), in Dijkstra's manner; AllReduce has a
root and a moment for each chunk and grows its sums backwards in time from there, its copies forwards.

A limit shorter than the schedule is set and what breaks it is grown anew, as far as that goes: some ranks
stay without a chunk.  Then, again and again, such a chunk and at times a second one are taken out and grown
anew; a change is kept when no more ranks miss a chunk than before (Schrimpf et al., "Record breaking
optimization results using the ruin and recreate principle", J. Comput. Phys. 159, 2000).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import gcd
from time import perf_counter

from ..schedule import Schedule
from .list_schedule import Plan, Timing
from .machine import Machine
from .slots import Slots, Way
from .tasks import ordered_tasks

#: slots into which the bound is cut at most; coarser slots round times up
_MOST_SLOTS = 6000
#: weights of what a way costs the busy servers, against the time of arrival; drawn for every tree
_WEIGHTS = (0.25, 1.0, 2.0)
#: weights for schedules grown from nothing, and how often each is tried where the first time was a gain
_BUILDS, _ROUNDS = (0.25, 1.0, 2.0, 0.5), 6
#: chance that a chunk of AllReduce keeps its root and moment
_KEEP = 0.9
#: chance that a second chunk makes room
_SECOND = 0.75
#: fruitless changes after which the limit is relaxed
_PATIENCE = 4000

#: servers looked at, at most, once this ratio to the bound is reached; beyond, `_MOST_WORK`
_WORK, _MOST_WORK = ((1.05, 300_000), (1.10, 500_000)), 1_200_000

#: ways with the slots in which a unit starts
Placed = list[tuple[Way, int]]


@dataclass(frozen=True, slots=True)
class Grown:
    """Where a chunk is.

    Attributes:
        root: where its sum is complete, or its owner.
        moment: slot in which that is so.
        sums: transfers towards the root (AllReduce only).
        copies: transfers from the root; in backward time for reductions alone.
        missing: ranks that the trees do not reach.
    """

    root: int
    moment: int
    sums: Placed
    copies: Placed
    missing: int = 0

    def end(self) -> int:
        """The slot in which its last transfer is through."""
        return max((start + way.slots for way, start in (*self.sums, *self.copies)), default=0)


def length(chunks: Sequence[Grown]) -> int:
    """Slots until all chunks are everywhere."""
    return max((chunk.end() for chunk in chunks), default=0)


class Reinsertion:
    """The search on one schedule.

    Args:
        machine: routes and times.
        schedule: whose chunks each travel along trees that reach all ranks once.
        floor: ticks below which no schedule can be.
        exact: no server may be loaded beyond `floor`.
        seed: of all random choices.

    Raises:
        ValueError: the chunks do not travel along such trees, or a route occupies one server twice.
    """

    def __init__(self, machine: Machine, schedule: Schedule, *, floor: int, exact: bool, seed: int) -> None:
        self.machine, self.nranks = machine, machine.nranks
        self.ticks_floor = floor
        self.both = schedule.collective.name == "allreduce"
        # Reductions alone are copies when time runs backwards.
        self.backwards = schedule.collective.name in ("reducescatter", "reduce")
        self.rng = random.Random(seed)
        common = gcd(*machine.ticks)
        self.tick = common * max(1, -(-floor // (common * _MOST_SLOTS)))
        self.floor = -(-floor // self.tick)
        self.slots = Slots([-(-ticks // self.tick) for ticks in machine.ticks])
        self.load = [0] * len(machine.ticks)
        self.most = floor if exact else None
        self.grain = min(self.slots.durations)
        self.ways: dict[tuple[int, ...], Way] = {}
        self.leaving: list[list[Way]] = [[] for _ in range(self.nranks)]
        self.entering: list[list[Way]] = [[] for _ in range(self.nranks)]
        for several in machine.routes.values():
            for route in several:
                way = self._way(route.links)
                self.leaving[way.src].append(way)
                self.entering[way.dst].append(way)
        self.work = 0
        self.chunks = self._read(schedule.expand())
        self.weight, self.bias = 0.0, dict[tuple[int, ...], float]()
        self._weigh()

    def _way(self, links: tuple[int, ...]) -> Way:
        found = self.ways.get(links)
        if found is None:
            route = self.machine.route(links)
            durations = [self.slots.durations[server] for server, _ in route.servers]
            if len({server for server, _ in route.servers}) < len(route.servers):
                raise ValueError("a route occupies a server twice")
            longest = max(durations)
            # Backwards a unit that is through everywhere at once starts on short servers later.
            uses = tuple(
                (server, longest - own if self.backwards else 0)
                for (server, _), own in zip(route.servers, durations, strict=True)
            )
            ends = (route.dst, route.src) if self.backwards else (route.src, route.dst)
            found = self.ways[links] = Way(*ends, links, longest, uses)
        return found

    def _read(self, schedule: Schedule) -> list[Grown]:
        """Put the schedule's transfers, one by one, into the calendars."""
        order = schedule.order().tolist()
        if self.backwards:
            order.reverse()
        chunk_of, reduce = schedule.chunk.tolist(), schedule.reduce.tolist()
        ptr, links = schedule.route_ptr.tolist(), schedule.route_links.tolist()
        parts: list[tuple[Placed, Placed]] = [([], []) for _ in range(schedule.collective.nchunks)]
        ready: dict[tuple[int, int], int] = {}
        for row in order:
            chunk = chunk_of[row]
            way = self._way(tuple(links[ptr[row] : ptr[row + 1]]))
            start = self.slots.earliest(way, ready.get((chunk, way.src), 0))
            self._take(way, start)
            key = (chunk, way.dst)
            ready[key] = max(ready.get(key, 0), start + way.slots)
            parts[chunk][0 if self.both and reduce[row] else 1].append((way, start))
        return [self._grown(*part) for part in parts]

    def _grown(self, sums: Placed, copies: Placed) -> Grown:
        everyone = set(range(self.nranks))
        roots = everyone - {way.dst for way, _ in copies}
        if self.both:
            roots |= everyone - {way.src for way, _ in sums}
        sizes = {len(copies), len(sums) if self.both else len(copies)}
        if len(roots) != 1 or sizes != {self.nranks - 1}:
            raise ValueError("a chunk does not travel along a tree")
        return Grown(roots.pop(), max((start + way.slots for way, start in sums), default=0), sums, copies)

    # --- calendars --------------------------------------------------------------------------------

    def _take(self, way: Way, start: int) -> bool:
        """A unit starts along the way, if that fits; whether it does."""
        if not self.slots.take(way, start):
            return False
        for server, _ in way.uses:
            self.load[server] += self.machine.ticks[server]
        return True

    def _put(self, index: int, chunk: Grown) -> None:
        self.chunks[index] = chunk
        for way, start in (*chunk.sums, *chunk.copies):
            self._take(way, start)

    def _remove(self, index: int) -> Grown:
        """Take a chunk out; its root and moment are kept."""
        chunk = self.chunks[index]
        for way, start in (*chunk.sums, *chunk.copies):
            self.slots.free(way, start)
            for server, _ in way.uses:
                self.load[server] -= self.machine.ticks[server]
        self.chunks[index] = Grown(chunk.root, chunk.moment, [], [], self.nranks - 1)
        return chunk

    def _weigh(self) -> None:
        """What each way costs the servers that are busiest."""
        most = max(self.load, default=0) or 1
        durations = self.slots.durations
        self.bias = {
            links: sum(durations[server] * (self.load[server] / most) ** 2 for server, _ in way.uses)
            for links, way in self.ways.items()
        }

    # --- growing ----------------------------------------------------------------------------------

    def _grow(self, root: int, moment: int, limit: int, *, sums: bool = False) -> tuple[Placed, int]:
        """A tree from `root` at `moment` by earliest arrival, within `limit`; with `sums` towards the root, by
        latest departure, from slot 0 on.

        Returns:
            Its transfers and how many ranks it does not reach.
        """
        slots, most, load, ticks = self.slots, self.most, self.load, self.machine.ticks
        bias, weight, noise, grain = self.bias, self.weight, self.rng.random, self.grain
        near = self.entering if sums else self.leaving
        missing = set(range(self.nranks))
        missing.discard(root)
        placed: Placed = []
        queue: list[tuple[float, int, int, Way, int]] = []
        count = 0

        def offer(way: Way, other: int, time: int) -> None:
            nonlocal count
            count += len(way.uses)
            if sums:
                start = slots.latest(way, time)
                if start < 0:
                    return
                distance = moment - start
            else:
                start = slots.earliest(way, time)
                distance = start + way.slots
                if distance > limit:
                    return
            heappush(queue, (distance + weight * bias[way.links] + grain * noise(), count, other, way, start))

        rank, reached = root, {root: moment}
        while missing:
            for way in near[rank]:
                other = way.src if sums else way.dst
                if other in missing:
                    offer(way, other, reached[rank])
            while queue:
                _, _, other, way, start = heappop(queue)
                if other not in missing:
                    continue
                if most is not None and any(load[server] + ticks[server] > most for server, _ in way.uses):
                    continue
                if self._take(way, start):
                    break
                # Another branch of this tree was faster: look again.
                offer(way, other, reached[way.dst if sums else way.src])
            else:
                break
            placed.append((way, start))
            missing.discard(other)
            reached[other] = start if sums else start + way.slots
            rank = other
        self.work += count
        return placed, len(missing)

    def _place(self, index: int, limit: int) -> int:
        """Grow a chunk that is out as far as that goes; returns how many ranks miss it."""
        root, moment = self.chunks[index].root, min(self.chunks[index].moment, limit)
        sums: Placed = []
        early = 0
        if self.both:
            if self.rng.random() > _KEEP:
                root, moment = self.rng.randrange(self.nranks), self.rng.randint(0, limit)
            sums, early = self._grow(root, moment, limit, sums=True)
        copies, late = self._grow(root, moment, limit)
        self.chunks[index] = Grown(root, moment, sums, copies, early + late)
        return early + late

    # --- search -----------------------------------------------------------------------------------

    def run(self, deadline: float) -> list[Grown]:
        """The best chunks found; no further change is tried after `deadline` (a `time.perf_counter()` value)."""
        best = self.chunks[:] if self.both else self._rebuilt(deadline)
        reach = length(best)
        self._reset(best)
        limit, stalled, total = reach, 0, 0
        while self.work < self._budget(reach) and perf_counter() < deadline:
            if total == 0:
                if length(self.chunks) <= reach:
                    best, reach = self.chunks[:], length(self.chunks)
                if reach <= self.floor:
                    break
                limit = max(self.floor, min(reach - 1, self.floor + (reach - self.floor) * 4 // 5))
                stalled, total = 0, self._tighten(limit)
            elif stalled > _PATIENCE:
                # From the last limit on only where the gap is large: other random choices may do.
                if limit >= reach - 1 and reach * self.tick <= _WORK[-1][0] * self.ticks_floor:
                    break
                self._reset(best)
                limit = min((limit + reach) // 2, reach - 1)
                stalled, total = 0, self._tighten(limit)
            else:
                fewer = self._change(total, limit)
                stalled = 0 if fewer < total else stalled + 1
                total = fewer
        return best

    def _budget(self, reach: int) -> int:
        """How much work a schedule of this length is worth."""
        ratio = reach * self.tick / max(1, self.ticks_floor)
        # Where no server may carry a piece more, longer searches are of little use.
        most = _WORK[-1][1] if self.most is not None else _MOST_WORK
        return next((work for goal, work in _WORK if ratio <= goal), most)

    def _tighten(self, limit: int) -> int:
        """Grow anew what ends after `limit`; returns how many ranks miss a chunk."""
        self._weigh()
        late = [index for index, chunk in enumerate(self.chunks) if chunk.end() > limit]
        for index in late:
            self._remove(index)
        for index in late:
            self.weight = self.rng.choice(_WEIGHTS)
            self._place(index, limit)
        return sum(chunk.missing for chunk in self.chunks)

    def _change(self, total: int, limit: int) -> int:
        """Grow a chunk anew that some ranks miss, at times after a second one; returns the new total of
        missing ranks, which is no larger."""
        victims = [self.rng.choice([index for index, chunk in enumerate(self.chunks) if chunk.missing])]
        if self.rng.random() < _SECOND:
            victims = list(dict.fromkeys((*victims, self.rng.randrange(len(self.chunks)))))
        state, load, chunks = self.slots.save(), self.load[:], self.chunks[:]
        gain = sum(self._remove(index).missing for index in victims)
        for index in victims:
            self.weight = self.rng.choice(_WEIGHTS)
            gain -= self._place(index, limit)
        if gain < 0:
            self.slots.restore(state)
            self.load, self.chunks = load, chunks
            return total
        return total - gain

    def _rebuilt(self, deadline: float) -> list[Grown]:
        """The best of the present chunks and of some schedules grown from nothing, owners taking turns."""
        best, place = self.chunks[:], list[int]()
        turn: dict[int, int] = {}
        for chunk in best:
            place.append(turn.get(chunk.root, 0))
            turn[chunk.root] = place[-1] + 1
        start = length(best)
        for tried, weight in enumerate(_BUILDS * _ROUNDS):
            reach = length(best)
            if tried == len(_BUILDS) and reach == start:
                break
            if reach <= self.floor or self.work > _WORK[0][1] or perf_counter() > deadline:
                break
            for index in range(len(self.chunks)):
                self._remove(index)
            self.weight = weight
            order = list(range(len(place)))
            self.rng.shuffle(order)
            order.sort(key=place.__getitem__)
            if not any(self._place(index, reach - 1) for index in order):
                best = self.chunks[:]
                self._weigh()
        return best

    def _reset(self, chunks: Sequence[Grown]) -> None:
        """Back to these chunks."""
        for index in range(len(self.chunks)):
            self._remove(index)
        for index, chunk in enumerate(chunks):
            self._put(index, chunk)

    # --- result -----------------------------------------------------------------------------------

    def plan(self, chunks: Sequence[Grown]) -> tuple[Plan, Timing, list[int]]:
        """The chunks as tasks with their exact timing, and the root of each; chunks of AllReduce are numbered
        by root."""
        order = list(range(len(chunks)))
        if self.both:
            order.sort(key=lambda index: chunks[index].root)
        rows: list[tuple[int, Way, int, bool]] = []
        for number, index in enumerate(order):
            rows += [(number, way, start, True) for way, start in chunks[index].sums]
            rows += [(number, way, start, self.backwards) for way, start in chunks[index].copies]
        rows.sort(key=lambda row: -row[2] - row[1].slots if self.backwards else row[2])
        tasks = ordered_tasks([(number, self.machine.route(way.links), reduce) for number, way, _, reduce in rows])
        plan = Plan(tasks, len(self.machine.ticks))
        timing = plan.polish(plan.serial(range(len(tasks))), floor=self.ticks_floor)
        return plan, timing, [chunks[index].root for index in order]
