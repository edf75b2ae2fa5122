"""Earliest-arrival greedy for collectives that copy: AllGather and Broadcast.

Event driven, in the manner of TACOS (Won et al., MICRO 2024), with links of different speeds and shared
switch ports: whenever a route is free, it takes a chunk that its source has and its target neither has
nor is about to get.  Which one: a chunk new to the target's region first (a scarce link must not carry
what its region already holds: `regions`), then the chunk with the fewest holders in that region, ties at
random.  The best of several seeds is kept; the trees that it implies are then list-scheduled anew.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from .list_schedule import Plan, Task, Timing
from .machine import Machine, Route


@dataclass(frozen=True, slots=True)
class Regions:
    """Two partitions of the ranks, each as the region number of every rank.

    Attributes:
        fine: a route from one fine region into another should bring what the latter has not.
        coarse: the holders of a chunk are counted inside a coarse region.
    """

    fine: tuple[int, ...]
    coarse: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """A greedy's transfers as tasks, with their timing."""

    plan: Plan
    timing: Timing


class Greedy:
    """The greedy for one machine and a set of chunks.

    Args:
        machine: the servers and routes.
        owner: rank that starts with each chunk.
        regions: see `Regions`.
    """

    def __init__(self, machine: Machine, owner: Sequence[int], regions: Regions) -> None:
        self.machine = machine
        self.owner = list(owner)
        self.regions = regions
        self.by_first: dict[int, list[Route]] = {}
        for routes in machine.routes.values():
            for route in routes:
                self.by_first.setdefault(route.servers[0][0], []).append(route)

    def run(self, seed: int, *, limit: int | None = None, patience: float = 0.0) -> list[Task] | None:
        """One greedy pass; None when some rank cannot be complete by `limit` ticks.

        Args:
            seed: of the random choices.
            limit: a transfer that would end later is not started.
            patience: chance that a route into a region idles rather than bring a chunk that is there.
        """
        rng = random.Random(seed)
        n, nchunks = self.machine.nranks, len(self.owner)
        label = list(range(nchunks))
        rng.shuffle(label)
        chunk_of = [0] * nchunks
        for chunk, bit in enumerate(label):
            chunk_of[bit] = chunk
        everything = (1 << nchunks) - 1
        have, coming = [0] * n, [0] * n
        for chunk, rank in enumerate(self.owner):
            have[rank] |= 1 << label[chunk]
        coming = list(have)
        fine, coarse = self.regions.fine, self.regions.coarse
        # holders[g][k]: chunks that k ranks of coarse region g have or will have.
        holders = [[everything] + [0] * (n + 1) for _ in range(max(coarse) + 1)]
        present = [0] * (max(fine) + 1)
        for rank in range(n):
            self._count(holders[coarse[rank]], coming[rank])
            present[fine[rank]] |= coming[rank]
        brought: list[dict[int, int]] = [{} for _ in range(n)]
        tasks: list[Task] = []
        free = [0] * len(self.machine.ticks)
        users: list[list[int]] = [[] for _ in free]
        for first, routes in self.by_first.items():
            for route in routes:
                for server, _ in route.servers:
                    if first not in users[server]:
                        users[server].append(first)
        leaving: list[list[int]] = [[] for _ in range(n)]
        for first, routes in self.by_first.items():
            leaving[routes[0].src].append(first)
        events: list[tuple[int, int, int]] = []
        dirty = set(self.by_first)
        now, missing = 0, sum((everything & ~c).bit_count() for c in coming)
        end_of: list[int] = []
        while missing:
            order = list(dirty)
            order.sort()
            rng.shuffle(order)
            for first in order:
                if free[first] > now:
                    continue
                best: tuple[bool, int, int, float] | None = None
                chosen: tuple[Route, int] | None = None
                for route in self.by_first[first]:
                    dst = route.dst
                    options = have[route.src] & ~coming[dst]
                    if not options:
                        continue
                    if limit is not None and now + route.ticks > limit:
                        continue
                    blocked = False
                    for server, _ in route.servers:
                        if free[server] > now:
                            blocked = True
                            break
                    if blocked:
                        continue
                    stale = False
                    if fine[route.src] != fine[dst]:
                        new = options & ~present[fine[dst]]
                        if new:
                            options = new
                        else:
                            stale = True
                            if patience and rng.random() < patience:
                                continue
                    table = holders[coarse[dst]]
                    k = 0
                    while not options & table[k]:
                        k += 1
                    score = (stale, k, coming[dst].bit_count(), rng.random())
                    if best is None or score < best:
                        best, chosen = score, (route, options & table[k])
                if chosen is None:
                    continue
                route, options = chosen
                shift = rng.randrange(nchunks)
                rotated = options >> shift
                bit = ((rotated & -rotated) << shift) if rotated else options & -options
                dst = route.dst
                index = len(tasks)
                number = bit.bit_length() - 1
                cause = brought[route.src].get(number)
                tasks.append(Task(chunk_of[number], route, False, () if cause is None else (cause,)))
                brought[dst][number] = index
                coming[dst] |= bit
                present[fine[dst]] |= bit
                table, k = holders[coarse[dst]], best[1] if best else 0
                table[k] ^= bit
                table[k + 1] |= bit
                missing -= 1
                heapq.heappush(events, (now + route.ticks, dst, bit))
                end_of.append(now + route.ticks)
                for server, ticks in route.servers:
                    free[server] = now + ticks
                    if ticks != route.ticks:
                        heapq.heappush(events, (now + ticks, -1 - server, 0))
            if not missing:
                break
            if not events:
                return None
            now = events[0][0]
            dirty = set()
            while events and events[0][0] == now:
                _, dst, bit = heapq.heappop(events)
                if dst >= 0:
                    have[dst] |= bit
                    dirty.update(leaving[dst])
            for first in self.by_first:
                if free[first] <= now:
                    dirty.add(first)
        return tasks

    @staticmethod
    def _count(table: list[int], arrived: int) -> None:
        """Move the chunks of `arrived` up one holder."""
        for k in range(len(table) - 2, -1, -1):
            moved = table[k] & arrived
            if moved:
                table[k] ^= moved
                table[k + 1] |= moved


def search(
    machine: Machine, owner: Sequence[int], regions: Sequence[Regions], *, floor: int, seed: int, deadline: float,
    attempts: int = 40,
) -> Found | None:  # fmt: skip
    """The best of several greedy passes, each polished; None when no pass completed.

    Args:
        regions: to try in turn.
        floor: ticks that no schedule can beat.
        deadline: `time.perf_counter()` value after which no further pass begins.
    """
    # One pass of every rule, then the rest of the passes for the two that did best.
    rules = [
        (Greedy(machine, owner, pair), patience)
        for pair in regions
        for patience in ((0.0, 0.5, 1.0) if len(set(pair.fine)) > 1 else (0.0,))
    ]
    best: Found | None = None
    merit: list[tuple[float, int]] = []
    for attempt in range(attempts):
        chosen = attempt if attempt < len(rules) else sorted(merit)[attempt % min(2, len(merit))][1]
        engine, patience = rules[chosen]
        tasks = engine.run(seed * 1000 + attempt, patience=patience)
        reached = float("inf")
        if tasks is not None:
            plan = Plan(tasks, len(machine.ticks))
            timing = plan.polish(plan.serial(range(len(tasks))), floor=floor)
            reached = timing.makespan
            if best is None or timing.makespan < best.timing.makespan:
                best = Found(plan, timing)
        if attempt < len(rules):
            merit.append((reached, attempt))
        if (best is not None and best.timing.makespan <= floor) or perf_counter() > deadline:
            break
    return best
