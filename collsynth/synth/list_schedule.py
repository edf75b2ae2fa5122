"""List scheduling: when does each transfer of a fixed set start, so that the last one ends early?

The transfers form a graph (a transfer waits for those that bring its data); each occupies the
servers of its route.  `Plan.serial` is the simulator's own pass over a given order; `Plan.parallel`
builds an order by priorities without idling; `improve` turns time around again and again: the order
of latest possible starts, seen from the end, is the next pass's order (forward-backward improvement
of project scheduling, Li & Willis 1992), from several priority rules and random perturbations.
"""

from __future__ import annotations

import heapq
import random
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from .assemble import Row
from .machine import Route

#: `Plan.shaken` moves this share of the tasks, by at most so many times the longest task
_SHARE, _SHIFT = 0.3, 0.5


@dataclass(frozen=True, slots=True)
class Task:
    """One transfer: `after` are the indices of the tasks that must be delivered first."""

    chunk: int
    route: Route
    reduce: bool
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Timing:
    """Start and end tick of every task, the largest end, and the order in which tasks were served."""

    start: list[int]
    end: list[int]
    makespan: int
    order: list[int]


class Plan:
    """A fixed set of tasks on servers.

    Args:
        tasks: the transfers; `after` may name any task, without cycles.
        nservers: number of servers.
    """

    def __init__(self, tasks: Sequence[Task], nservers: int) -> None:
        self.tasks = list(tasks)
        self.nservers = nservers
        self.after = [task.after for task in self.tasks]
        succ: list[list[int]] = [[] for _ in self.tasks]
        for index, task in enumerate(self.tasks):
            for before in task.after:
                succ[before].append(index)
        self.succ = [tuple(s) for s in succ]
        # Routes with one server are by far the most frequent: they get a short way.
        self.single = [r.servers[0] if len(r.servers) == 1 else None for r in (t.route for t in self.tasks)]
        self.stages = [t.route.stages for t in self.tasks]
        self.back_stages = [tuple(reversed(s)) for s in self.stages]
        self.topological = self._topological()
        self.tail = self._tails()

    def _topological(self) -> list[int]:
        missing = [len(a) for a in self.after]
        order = [i for i, m in enumerate(missing) if m == 0]
        for index in order:
            for later in self.succ[index]:
                missing[later] -= 1
                if missing[later] == 0:
                    order.append(later)
        if len(order) != len(self.tasks):
            raise AssertionError("tasks wait for one another in a circle")
        return order

    def _tails(self) -> list[int]:
        """Ticks from a task's start to the end of the longest chain that it begins."""
        tail = [0] * len(self.tasks)
        for index in reversed(self.topological):
            tail[index] = self.tasks[index].route.ticks + max((tail[s] for s in self.succ[index]), default=0)
        return tail

    def serial(self, order: Sequence[int], *, backward: bool = False) -> Timing:
        """The simulator's pass: tasks are served in this order, each as soon as data and servers allow.

        `backward` runs the turned-around problem (successors first, routes from their far end).
        """
        free = [0] * self.nservers
        waits = self.succ if backward else self.after
        stages = self.back_stages if backward else self.stages
        single = self.single
        starts, ends = [0] * len(self.tasks), [0] * len(self.tasks)
        for index in order:
            ready = 0
            for before in waits[index]:
                if ends[before] > ready:
                    ready = ends[before]
            one = single[index]
            if one is not None:
                server, ticks = one
                if free[server] > ready:
                    ready = free[server]
                starts[index] = ready
                ready += ticks
                free[server] = ready
                ends[index] = ready
                continue
            end, first = 0, True
            for ticks, groups in stages[index]:
                for server, _ in groups:
                    if free[server] > ready:
                        ready = free[server]
                for server, occupied in groups:
                    free[server] = ready + occupied
                if first:
                    starts[index], first = ready, False
                if ready + ticks > end:
                    end = ready + ticks
            ends[index] = end
        return Timing(starts, ends, max(ends, default=0), list(order))

    def parallel(self, priority: Sequence[float]) -> list[int]:
        """An order without needless idling: whenever a route is free, the waiting task of the smallest
        priority value starts."""
        free = [0] * self.nservers
        missing = [len(a) for a in self.after]
        bucket_of = [s[0][1][0][0] for s in self.stages]
        waiting: dict[int, list[tuple[float, int]]] = {b: [] for b in set(bucket_of)}
        blocked: list[set[int]] = [set() for _ in range(self.nservers)]
        events: list[tuple[int, int]] = []
        dirty: set[int] = set()
        for index, count in enumerate(missing):
            if count == 0:
                insort(waiting[bucket_of[index]], (priority[index], index))
                dirty.add(bucket_of[index])
        order: list[int] = []
        now = 0
        while True:
            # (priority, task, bucket, position): the best startable task of each dirty bucket.
            heap: list[tuple[float, int, int, int]] = []
            for bucket in dirty:
                if waiting[bucket]:
                    p, index = waiting[bucket][0]
                    heap.append((p, index, bucket, 0))
            heapq.heapify(heap)
            while heap:
                _, index, bucket, position = heapq.heappop(heap)
                busy = -1
                for server, _ in self.tasks[index].route.servers:
                    if free[server] > now:
                        busy = server
                        break
                queue = waiting[bucket]
                if busy >= 0:
                    blocked[busy].add(bucket)
                    if busy == bucket or position + 1 >= len(queue):
                        continue
                    p, following = queue[position + 1]
                    heapq.heappush(heap, (p, following, bucket, position + 1))
                    continue
                del queue[position]
                order.append(index)
                blocked[bucket].add(bucket)
                done = now + self.tasks[index].route.ticks
                heapq.heappush(events, (done, index))
                for server, ticks in self.tasks[index].route.servers:
                    free[server] = now + ticks
                    heapq.heappush(events, (now + ticks, -1 - server))
            dirty = set()
            if not events:
                break
            now = events[0][0]
            while events and events[0][0] == now:
                _, what = heapq.heappop(events)
                if what < 0:
                    server = -1 - what
                    if free[server] <= now:
                        dirty |= blocked[server]
                        blocked[server] = set()
                    continue
                for later in self.succ[what]:
                    missing[later] -= 1
                    if missing[later] == 0:
                        insort(waiting[bucket_of[later]], (priority[later], later))
                        dirty.add(bucket_of[later])
        return order

    def polish(self, timing: Timing, *, floor: int = 0, rounds: int = 40) -> Timing:
        """Forward-backward passes from a timing until nothing gets better (or `floor` is reached)."""
        best, current, idle = timing, timing, 0
        for _ in range(rounds):
            if best.makespan <= floor or idle > 0:
                break
            end = current.end
            back = self.serial(sorted(range(len(end)), key=lambda i: -end[i]), backward=True)
            back_end = back.end
            current = self.serial(sorted(range(len(end)), key=lambda i: -back_end[i]))
            if current.makespan < best.makespan:
                best, idle = current, 0
            else:
                idle += 1
        return best

    def shaken(self, timing: Timing, *, floor: int, seed: int, attempts: int) -> Timing:
        """Hill climbing from a timing: some tasks, at random, are served a little later; what is no worse stays."""
        rng = random.Random(seed)
        reach = _SHIFT * max((task.route.ticks for task in self.tasks), default=0)
        for _ in range(attempts):
            if timing.makespan <= floor:
                break
            key = [start + rng.random() * reach if rng.random() < _SHARE else start for start in timing.start]
            order = sorted(self.topological, key=key.__getitem__)
            place = {task: index for index, task in enumerate(order)}
            if any(place[before] > place[task] for task in order for before in self.after[task]):
                order = self.parallel(key)
            other = self.polish(self.serial(order), floor=floor)
            if other.makespan <= timing.makespan:
                timing = other
        return timing

    def rows(self, timing: Timing) -> list[Row]:
        """The tasks as rows with start times, in the order of service (by start time where that costs nothing)."""
        by_start = self.serial(sorted(timing.order, key=timing.start.__getitem__))
        kept = by_start if by_start.makespan <= timing.makespan else timing
        rows = []
        for index in kept.order:
            task = self.tasks[index]
            route = task.route
            rows.append(Row(task.chunk, route.src, route.dst, task.reduce, kept.start[index], route.links))
        return rows


def improve(plan: Plan, *, wave: Sequence[float], floor: int, seed: int, deadline: float, attempts: int) -> Timing:
    """The best timing found by priority rules, forward-backward passes and hill climbing.

    A task's priority is `offset of its chunk - tail`.  Offsets start as waves (chunks of one owner follow
    one another, so that a pipeline fills and drains quickly) of several steepnesses; then single
    chunks, mostly ones that end last, are moved, and what is no worse is kept.

    Args:
        wave: for each chunk its place among its owner's, 0 <= wave < 1.
        floor: no timing can be shorter (stop there).
        seed: of the random moves.
        deadline: `time.perf_counter()` value after which no further attempt begins.
        attempts: priority lists tried at most.
    """
    rng = random.Random(seed)
    span = float(max(floor, max(plan.tail, default=1)))
    chunk_of = [task.chunk for task in plan.tasks]

    def timed(offset: Sequence[float]) -> Timing:
        order = plan.parallel([offset[c] - t for c, t in zip(chunk_of, plan.tail, strict=True)])
        return plan.polish(plan.serial(order), floor=floor)

    starts = [[steepness * span * w for w in wave] for steepness in (0.0, 0.25, 0.5, 1.0)]
    best: Timing | None = None
    current, current_offset = None, starts[0]
    for attempt in range(max(1, attempts)):
        if best is not None and (best.makespan <= floor or perf_counter() > deadline):
            break
        if attempt < len(starts):
            offset = starts[attempt]
        else:
            assert current is not None
            offset = list(current_offset)
            late = [chunk_of[i] for i, end in enumerate(current.end) if end == current.makespan]
            for _ in range(rng.choice((1, 1, 2, 4))):
                chunk = rng.choice(late) if rng.random() < 0.6 else rng.choice(chunk_of)
                if rng.random() < 0.5:
                    other = rng.choice(chunk_of)
                    offset[chunk], offset[other] = offset[other], offset[chunk]
                else:
                    offset[chunk] += (rng.random() - 0.7) * 0.3 * span
        timing = timed(offset)
        if best is None or timing.makespan < best.makespan:
            best = timing
        if current is None or timing.makespan <= current.makespan:
            current, current_offset = timing, offset
    assert best is not None
    return best


def waves(owners: Sequence[int]) -> list[float]:
    """For each chunk its place among the chunks of its owner, 0 for the first, below 1 for the last."""
    count: dict[int, int] = {}
    place = []
    for owner in owners:
        place.append(count.get(owner, 0))
        count[owner] = place[-1] + 1
    return [p / count[owner] for p, owner in zip(place, owners, strict=True)]
