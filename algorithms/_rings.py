"""Hamiltonian cycles over ranks on the actual wires.

A ring's hops are routes that pass no third rank.  The first ring has the best possible bottleneck
(exact up to 16 ranks, within a budget of search nodes beyond); each further ring is found the same
way on the load that the earlier ones leave, so that rings spread over links, NICs and rails.
"""

from __future__ import annotations

from functools import lru_cache

from collsynth.synth.machine import Machine, Route

#: search nodes for one bottleneck value
_BUDGET = 15_000
#: rings searched for at once, so that asking for fewer costs nothing more
_USUAL = 4


def _cycle(machine: Machine, cost: dict[tuple[int, int], int], limit: int, budget: int) -> list[int] | None:
    """A Hamiltonian cycle from rank 0 over hops that cost at most `limit`, cheap hops first."""
    n = machine.nranks
    forward: list[list[int]] = [[] for _ in range(n)]
    backward: list[set[int]] = [set() for _ in range(n)]
    for (src, dst), value in sorted(cost.items(), key=lambda item: (item[1], (item[0][1] - item[0][0]) % n)):
        if value <= limit:
            forward[src].append(dst)
            backward[dst].add(src)
    if any(not forward[v] or not backward[v] for v in range(n)):
        return None
    path, visited = [0], [False] * n
    visited[0] = True
    stack = [iter(forward[0])]
    while stack and budget > 0:
        budget -= 1
        here = next(stack[-1], None)
        if here is None:
            stack.pop()
            visited[path.pop()] = False
            continue
        if visited[here]:
            continue
        if len(path) == n - 1:
            if 0 in forward[here]:
                return [*path, here]
            continue
        # Every rank not yet visited must still be enterable, and rank 0 must stay reachable.
        visited[here] = True
        open_ends = all(visited[v] or any(not visited[u] or u == here for u in backward[v]) for v in range(n)) and any(
            not visited[u] for u in backward[0]
        )
        if not open_ends:
            visited[here] = False
            continue
        path.append(here)
        stack.append(iter(forward[here]))
    return None


def find_rings(machine: Machine, count: int) -> list[list[Route]]:
    """Up to `count` rings as lists of routes, each from rank 0; later rings may share links with earlier ones.

    Empty: there is no ring, or none was found within the budget.
    """
    return _rings(machine, max(count, _USUAL))[:count]


@lru_cache(maxsize=8)
def _rings(machine: Machine, count: int) -> list[list[Route]]:
    n = machine.nranks
    if n == 1:
        return [[]]
    load = [0] * len(machine.ticks)
    rings: list[list[Route]] = []
    while len(rings) < count:
        best: dict[tuple[int, int], tuple[int, Route]] = {}
        for pair, routes in machine.routes.items():
            best[pair] = min(((max(load[g] + t for g, t in r.servers), r) for r in routes), key=lambda item: item[0])
        cost = {pair: value for pair, (value, _) in best.items()}
        order = None
        values = sorted(set(cost.values()))
        low, high = 0, len(values) - 1
        while low <= high:
            middle = (low + high) // 2
            found = _cycle(machine, cost, values[middle], _BUDGET)
            if found is None:
                low = middle + 1
            else:
                order, high = found, middle - 1
        if order is None:
            break
        ring = [best[a, b][1] for a, b in zip(order, [*order[1:], order[0]], strict=True)]
        for server, ticks in enumerate(machine.load(ring)):
            load[server] += ticks
        rings.append(ring)
    return rings


def reversed_ring(machine: Machine, ring: list[Route]) -> list[Route] | None:
    """The same ring the other way round, None where a hop has no way back."""
    back = [machine.routes.get((r.dst, r.src)) for r in reversed(ring)]
    if any(routes is None for routes in back):
        return None
    return [routes[0] for routes in back if routes]
