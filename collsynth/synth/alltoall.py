"""AllToAll: paths for every piece so that no link is busier than need be, then list scheduling.

Pieces are routed one after another along the cheapest path through ranks, where a server's cost grows
exponentially with its load (Garg & Koenemann's lengths); then all pieces are taken out and put back
again, sharper each round, and the best set of paths met is kept.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from math import exp

from ..errors import DisconnectedError
from .list_schedule import Task
from .machine import Machine, Route

#: rip-up rounds; the exponent of the load grows with each
_ROUNDS = (2.0, 6.0, 12.0, 20.0, 30.0, 40.0)


def spread_paths(machine: Machine, pairs: Sequence[tuple[int, int]], *, floor: int, seed: int) -> list[list[Route]]:
    """For each (src, dst) in `pairs` a path as routes, loads balanced over all servers.

    Args:
        floor: ticks below which no busiest server can be (stop there).

    Raises:
        DisconnectedError: a pair has no path.
    """
    rng = random.Random(seed)
    nservers = len(machine.ticks)
    routes = [route for several in machine.routes.values() for route in several]
    out: list[list[int]] = [[] for _ in range(machine.nranks)]
    for number, route in enumerate(routes):
        out[route.src].append(number)
    target = max(1, floor)
    load = [0] * nservers
    paths: list[list[int]] = [[] for _ in pairs]
    best: list[list[int]] | None = None
    best_load = 0
    order = list(range(len(pairs)))
    for sharpness in _ROUNDS:
        rng.shuffle(order)
        price = [_price(machine.ticks[g], load[g], target, sharpness) for g in range(nservers)]
        for item in order:
            touched = set()
            for number in paths[item]:
                for server, ticks in routes[number].servers:
                    load[server] -= ticks
                    touched.add(server)
            for server in touched:
                price[server] = _price(machine.ticks[server], load[server], target, sharpness)
            path = _cheapest(machine.nranks, routes, out, price, *pairs[item])
            paths[item] = path
            for number in path:
                for server, ticks in routes[number].servers:
                    load[server] += ticks
                    price[server] = _price(machine.ticks[server], load[server], target, sharpness)
        worst = max(load, default=0)
        if best is None or worst < best_load:
            best, best_load = [list(p) for p in paths], worst
        if best_load <= floor:
            break
    assert best is not None
    return [[routes[number] for number in path] for path in best]


def _price(ticks: int, load: int, target: int, sharpness: float) -> float:
    return ticks / target * exp(min(600.0, sharpness * (load + ticks) / target))


def _cheapest(
    nranks: int, routes: Sequence[Route], out: Sequence[Sequence[int]], price: Sequence[float], src: int, dst: int
) -> list[int]:
    """Dijkstra over ranks; the numbers of the routes taken."""
    distance = [float("inf")] * nranks
    came: list[int] = [-1] * nranks
    distance[src] = 0.0
    queue = [(0.0, src)]
    while queue:
        d, rank = heapq.heappop(queue)
        if rank == dst:
            break
        if d > distance[rank]:
            continue
        for number in out[rank]:
            route = routes[number]
            total = d
            for server, _ in route.servers:
                total += price[server]
            if total < distance[route.dst]:
                distance[route.dst] = total
                came[route.dst] = number
                heapq.heappush(queue, (total, route.dst))
    if came[dst] < 0:
        raise DisconnectedError(f"rank {src} cannot reach rank {dst}")
    path = []
    rank = dst
    while rank != src:
        path.append(came[rank])
        rank = routes[came[rank]].src
    path.reverse()
    return path


def path_tasks(chunks: Sequence[int], paths: Sequence[Sequence[Route]]) -> list[Task]:
    """Store-and-forward tasks of each chunk along its path."""
    tasks: list[Task] = []
    for chunk, path in zip(chunks, paths, strict=True):
        for hop, route in enumerate(path):
            tasks.append(Task(chunk, route, False, (len(tasks) - 1,) if hop else ()))
    return tasks
