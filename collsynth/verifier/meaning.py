"""Whether a collective is the one that its name says.

A schedule brings its own collective; a file could name it `allreduce` and ask for less.  Here the
definition of each name is written out once more, from the standard's words and not from the builders:
who contributes, who must end with it, and that the chunks fill every buffer exactly, each at the place
that the name gives it.
"""

from __future__ import annotations

import numpy as np

from ..collective import Collective, RankSets

#: name -> (rooted, combining, who starts with a chunk, who ends with it); "one": one rank of its own
_ROLES = {
    "allreduce": (False, True, "all", "all"),
    "allgather": (False, False, "one", "all"),
    "reducescatter": (False, True, "all", "one"),
    "alltoall": (False, False, "one", "one"),
    "broadcast": (True, False, "root", "all"),
    "reduce": (True, True, "all", "root"),
    "gather": (True, False, "one", "root"),
    "scatter": (True, False, "root", "one"),
}


def wrong_meaning(collective: Collective) -> str | None:
    """Why the collective is not what its name says, or None (also for `custom`, which says nothing)."""
    c = collective
    if c.name == "custom" or c.nchunks == 0:
        return None
    if c.name not in _ROLES:
        return f"there is no collective {c.name!r}"
    rooted, combining, start, end = _ROLES[c.name]
    if rooted != (c.root is not None):
        return f"{c.name} has {'a root' if rooted else 'no root'}, this one has {c.root}"
    if combining != c.combining:
        return f"{c.name} {'sums' if combining else 'does not sum'}, this one {'sums' if c.combining else 'does not'}"
    for role, sets, side in ((start, c.sources, "start"), (end, c.destinations, "end")):
        if not _has_role(sets, role, c.root):
            who = {"all": "all ranks", "root": "the root alone", "one": "one rank"}[role]
            return f"a chunk of {c.name} must {side} on {who}"
    return (
        _unfilled(c, c.sources, c.input_offset, c.input_units, "input")
        or _unfilled(c, c.destinations, c.output_offset, c.output_units, "output")
        or _misplaced(c, start, end)
    )


def _has_role(sets: RankSets, role: str, root: int | None) -> bool:
    if sets.ptr is None:
        return role == "all" or sets.nranks == 1
    sizes = np.diff(sets.ptr)
    if role == "all":
        return bool((sizes == sets.nranks).all())
    return bool((sizes == 1).all()) and (role == "one" or bool((sets.ranks == root).all()))


def _unfilled(c: Collective, sets: RankSets, offset: np.ndarray, units: np.ndarray, side: str) -> str | None:
    """Chunks must cover each rank's buffer once, from its first unit to its last."""
    if sets.ptr is None:  # all ranks hold the same
        chunk, rank = np.arange(c.nchunks), np.zeros(c.nchunks, dtype=np.int64)
    else:
        chunk, rank = np.repeat(np.arange(c.nchunks), np.diff(sets.ptr)), sets.ranks
    order = np.lexsort((offset[chunk], rank))
    chunk, rank = chunk[order], rank[order]
    begins, ends = offset[chunk], offset[chunk] + c.weight[chunk]
    first = np.concatenate(([True], rank[1:] != rank[:-1]))
    gap = begins != np.where(first, 0, np.concatenate(([0], ends[:-1])))
    filled = np.zeros(c.nranks, dtype=np.int64)
    np.maximum.at(filled, rank, ends)
    held = np.zeros(c.nranks, dtype=bool)  # as MPI has it: the send buffer of a broadcast off its root does not count
    held[rank] = True
    if sets.ptr is None:
        filled[:], held[:] = filled[0], True
    wrong = held & (units != filled)
    wrong[rank[gap]] = True
    if not wrong.any():
        return None
    return f"chunks of {c.name} do not fill the {side} buffer of rank {int(np.flatnonzero(wrong)[0])} exactly"


def _misplaced(c: Collective, start: str, end: str) -> str | None:
    """Where a chunk lies in the output follows from where it lay in the input."""
    source = c.sources.ranks if start == "one" else None
    target = c.destinations.ranks if end == "one" else None
    moved = c.output_offset - c.input_offset
    if source is None and target is None:
        right = moved == 0
    elif source is not None and target is None:
        shard = np.bincount(source, weights=c.weight, minlength=c.nranks).astype(np.int64)
        right = moved == (np.cumsum(shard) - shard)[source]
    elif source is None and target is not None:
        shard = np.bincount(target, weights=c.weight, minlength=c.nranks).astype(np.int64)
        right = -moved == (np.cumsum(shard) - shard)[target]
    else:
        assert source is not None and target is not None
        pair = np.zeros((c.nranks, c.nranks), dtype=np.int64)
        np.add.at(pair, (source, target), c.weight)
        in_start = (np.cumsum(pair, axis=1) - pair)[source, target]
        out_start = (np.cumsum(pair, axis=0) - pair)[source, target]
        right = c.input_offset - in_start == c.output_offset - out_start
    if right.all():
        return None
    chunk = int(np.flatnonzero(~right)[0])
    return (
        f"chunk {chunk} of {c.name} goes from unit {int(c.input_offset[chunk])} of the input to unit "
        f"{int(c.output_offset[chunk])} of the output, which is not its place"
    )
