"""What the closed forms share: pieces of each owner, direct routes, refusals."""

from __future__ import annotations

from collections.abc import Iterable

from collsynth.collective import Collective
from collsynth.errors import RefusedError
from collsynth.synth.machine import Machine, Route


def pieces_of(collective: Collective) -> list[list[int]]:
    """For each rank the chunks that belong to it, in order."""
    pieces: list[list[int]] = [[] for _ in range(collective.nranks)]
    for chunk, owner in enumerate(collective.owner.tolist()):
        pieces[owner].append(chunk)
    return pieces


def missing_pair(machine: Machine, pairs: Iterable[tuple[int, int]]) -> str | None:
    """Why these pairs cannot talk directly, None when they can."""
    for src, dst in pairs:
        if (src, dst) not in machine.routes:
            return f"rank {src} reaches rank {dst} only through other ranks"
    return None


def direct_route(machine: Machine, src: int, dst: int) -> Route:
    """The best route from `src` to `dst`.

    Raises:
        RefusedError: every path passes through a third rank.
    """
    routes = machine.routes.get((src, dst))
    if routes is None:
        raise RefusedError(f"rank {src} reaches rank {dst} only through other ranks in {machine.topology.name}")
    return routes[0]


def require(collective: Collective, names: tuple[str, ...], algorithm: str) -> None:
    """Do nothing if the algorithm knows the collective.

    Raises:
        RefusedError: it does not.
    """
    if collective.name not in names:
        raise RefusedError(f"{algorithm} knows {', '.join(names)}, not {collective.name}")
