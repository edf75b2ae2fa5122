"""The one table of everything people add: topologies, algorithms, backends.

Built-ins are rows of `BUILT_IN`, lazy "module:name" strings (a plain "module" means the module
itself), so that listing imports nothing.  Other distributions add entries by entry points of the
groups `collsynth.topologies`, `collsynth.algorithms`, `collsynth.backends`.

What an entry must be: a topology is a function of the parameters in its signature (see
`collsynth.parameters`) that returns a `Topology`; an algorithm is `f(topology, collective, ...) ->
Schedule`; a backend is a module or object with `unavailable`, `limits` and `load`.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from .errors import CollsynthError, InputError

BUILT_IN: dict[str, dict[str, str]] = {
    "topologies": {
        "dgx-v100": "collsynth.topologies.dgx:dgx_v100",
        "dgx-a100": "collsynth.topologies.dgx:dgx_a100",
        "dgx-h100": "collsynth.topologies.dgx:dgx_h100",
        "dgx2": "collsynth.topologies.dgx:dgx2",
        "mi250": "collsynth.topologies.mi250:mi250",
        "ring": "collsynth.topologies.regular:ring",
        "torus": "collsynth.topologies.regular:torus",
        "mesh": "collsynth.topologies.regular:mesh",
        "hypercube": "collsynth.topologies.regular:hypercube",
        "fully-connected": "collsynth.topologies.regular:fully_connected",
        "switch": "collsynth.topologies.regular:switch",
    },
    "algorithms": {
        "direct": "collsynth.algorithms.direct:direct",
        "ring": "collsynth.algorithms.ring:ring",
        "halving-doubling": "collsynth.algorithms.halving_doubling:halving_doubling",
        "binomial": "collsynth.algorithms.binomial:binomial",
    },
    "backends": {
        "numpy": "collsynth.backends.numpy_backend",
        "mpi": "collsynth.backends.mpi_backend",
        "cupy": "collsynth.backends.cupy_backend",
        "nccl": "collsynth.backends.nccl_backend",
    },
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One row: its name, what it loads ("module:name" or "module"), and who brought it."""

    name: str
    target: str
    provider: str


def _provider(point: EntryPoint) -> str:
    distribution = getattr(point, "dist", None)
    return distribution.name if distribution is not None else "an unknown distribution"


def entries(group: str) -> dict[str, Entry]:
    """All entries of a group by name, built-ins first in the order of the table, then strangers by name.

    Raises:
        InputError: two entries have one name (the message names both).
    """
    table = {name: Entry(name, target, "collsynth") for name, target in BUILT_IN[group].items()}
    for point in sorted(entry_points(group=f"collsynth.{group}"), key=lambda p: (p.name, p.value)):
        entry = Entry(point.name, point.value, _provider(point))
        known = table.get(point.name)
        if known is not None and known.target != entry.target:
            raise InputError(
                f"two {group} are called {point.name!r}: {known.target} of {known.provider} "
                f"and {entry.target} of {entry.provider}",
                hint="to uninstall one of them",
            )
        table.setdefault(point.name, entry)
    return table


def names(group: str) -> list[str]:
    """The names of a group, in the order of `entries`."""
    return list(entries(group))


def load(group: str, name: str) -> object:
    """Import and return the entry `name` of `group`.

    Raises:
        InputError: there is no such name (the message lists all and the closest), two entries have
            one name, or a stranger's entry cannot be imported.
    """
    table = entries(group)
    if name not in table:
        close = difflib.get_close_matches(name, table, n=1, cutoff=0.5)
        raise InputError(
            f"{name[:80]!r} is not in {group}",
            expected=f"one of {', '.join(table)}" if table else "none is known",
            hint=close[0] if close else None,
        )
    entry = table[name]
    module_name, _, attribute = entry.target.partition(":")
    try:
        loaded: object = import_module(module_name)
        for part in filter(None, attribute.split(".")):
            loaded = getattr(loaded, part)
    except CollsynthError:
        raise
    except Exception as error:
        if entry.provider == "collsynth":
            raise
        raise InputError(f"{name!r} of {entry.provider} cannot be loaded from {entry.target}: {error}") from error
    return loaded
