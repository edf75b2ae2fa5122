"""Proof of a schedule: every row really moves what it says, and the collective's result comes out.

The state of chunk c on rank v is the set of ranks whose terms the value holds (combining) or whether v
has the chunk at all (copying), as one bit set a (chunk, rank) pair.  Rows of a chunk run in order of
level; all rows of one level send what their sources held before that level.  Chunks do not interact,
so each chunk's levels are renumbered densely and the same dense level of all chunks runs as one
vectorised phase: O(rows) work in at most (distinct levels of one chunk x arrivals at one place) phases.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..collective import Collective, RankSets
from ..errors import InputError
from ..schedule import Schedule
from ..topology import Capability
from .orbits import MAX_EXPANDED_ROWS, Orbits, Symmetry, representative, same_rows
from .report import MAX_PER_CODE, Finding, error, warning

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
WordArray = NDArray[np.uint64]

#: Words of state held at once; more chunks than fit are proven batch by batch.
_STATE_WORDS = 1 << 22


def check_schedule(schedule: Schedule, *, deterministic: bool = False) -> tuple[list[Finding], int | None]:
    """Every finding about a schedule, and the depth of its sums (additions on the longest way, 0 if it only copies).

    Orbit form is proven by `orbits` where that can be; else it is expanded and proven row by row.
    """
    explicit = schedule
    if schedule.generators:
        symmetry = Symmetry.of(schedule) if schedule.group is None else None
        if symmetry is not None:
            explicit = representative(schedule, symmetry)
            again = same_rows(explicit)
            if len(again):
                row = int(again[0])
                message = f"{_name(schedule, row)} is an image of another row that is held: each orbit once"
                return [error("E-SYMMETRY", message, **_at(schedule, row))], None
        else:
            try:
                explicit = _expanded(schedule)
            except InputError as problem:
                return [error("E-SYMMETRY", str(problem))], None
    findings = [*_check_routes(explicit)]
    if explicit.group is not None:
        findings += _check_groups(explicit)
    data, depth = _check_data(explicit, deterministic)
    return findings + data, depth


def _expanded(schedule: Schedule) -> Schedule:
    """All rows, where that can be done.

    Raises:
        InputError: see `Schedule.expand`; or the group is too large to be written out.
    """
    longest = max(
        (np.bincount(Orbits.of([g.vertices]).root).max() for g in schedule.generators if _is_map(g.vertices)), default=1
    )
    if int(longest) * schedule.nrows > MAX_EXPANDED_ROWS:
        raise InputError(
            f"{schedule.nrows} rows under a group of {longest} or more elements are too many to write out",
            expected="generators that commute, keep links and figures, and fix no chunk",
        )
    return schedule.expand()


def _is_map(column: IntArray) -> bool:
    return bool(len(column)) and bool(((column >= 0) & (column < len(column))).all())


def _name(schedule: Schedule, row: int) -> str:
    kind = "reduce" if schedule.reduce[row] else "copy"
    return (
        f"row {row} ({kind} chunk {schedule.chunk[row]}, {schedule.src[row]}->{schedule.dst[row]}, "
        f"level {schedule.level[row]})"
    )


def _at(schedule: Schedule, row: int, side: str = "dst") -> dict[str, int]:
    return {"rank": int(getattr(schedule, side)[row]), "step": int(schedule.level[row])}


def _rows(mask: BoolArray) -> list[int]:
    """Row numbers of a mask (one more than a report lists, so that it can say that there are more)."""
    return [int(i) for i in np.flatnonzero(mask)]


def _check_routes(schedule: Schedule) -> Iterator[Finding]:
    topology = schedule.topology
    for row in _rows(schedule.src == schedule.dst):
        yield error("E-SELF", f"{_name(schedule, row)} goes nowhere", **_at(schedule, row))
    lengths = np.diff(schedule.route_ptr)
    empty = lengths == 0
    for row in _rows(empty & (schedule.src != schedule.dst)):
        yield error("E-ROUTE", f"{_name(schedule, row)} has no route", **_at(schedule, row))
    links = schedule.route_links
    if not len(links):
        return
    tails, heads = topology.link_src[links], topology.link_dst[links]
    full = np.flatnonzero(~empty)
    first, last = schedule.route_ptr[:-1][full], schedule.route_ptr[1:][full] - 1
    row_of = np.repeat(np.arange(schedule.nrows), lengths)
    inner = np.ones(len(links), dtype=bool)
    inner[first] = False
    inner = np.flatnonzero(inner)
    broken = np.zeros(schedule.nrows, dtype=bool)
    broken[full] = (tails[first] != schedule.src[full]) | (heads[last] != schedule.dst[full])
    broken[row_of[inner[heads[inner - 1] != tails[inner]]]] = True
    through_rank = np.zeros(schedule.nrows, dtype=bool)
    through_rank[row_of[inner[tails[inner] < topology.nranks]]] = True

    def path(row: int) -> str:
        names = [topology.link_name(int(k)) for k in links[schedule.route_ptr[row] : schedule.route_ptr[row + 1]]]
        return ", ".join(names)

    for row in _rows(broken):
        message = f"{_name(schedule, row)} is routed over {path(row)}, which is no path from source to destination"
        yield error("E-ROUTE", message, **_at(schedule, row))
    for row in _rows(through_rank & ~broken):
        message = f"{_name(schedule, row)} is routed over {path(row)}, through a rank: that must be two rows"
        yield error("E-ROUTE", message, **_at(schedule, row))


def _check_groups(schedule: Schedule) -> Iterator[Finding]:
    """Rows of one group: one chunk, level and kind, one source (or, reducing, one destination), and a
    switch that can do it on every route."""
    assert schedule.group is not None
    topology = schedule.topology
    can = {
        False: {Capability.MULTICAST, Capability.REDUCE_TO_REQUESTER, Capability.REDUCE_AND_MULTICAST},
        True: {Capability.REDUCE_TO_REQUESTER, Capability.REDUCE_AND_MULTICAST},
    }
    order = np.argsort(schedule.group, kind="stable")
    order = order[schedule.group[order] >= 0]
    for members in np.split(order, np.flatnonzero(np.diff(schedule.group[order])) + 1) if len(order) else ():
        head = int(members[0])
        reducing = bool(schedule.reduce[head])
        same = (schedule.chunk, schedule.level, schedule.reduce, schedule.dst if reducing else schedule.src)
        if any((column[members] != column[head]).any() for column in same):
            text = f"group {schedule.group[head]} mixes chunks, levels, kinds or ends, first {_name(schedule, head)}"
            yield error("E-GROUP", text, **_at(schedule, head))
            continue
        shared: set[int] | None = None
        for row in members:
            links = schedule.route_links[schedule.route_ptr[row] : schedule.route_ptr[row + 1]]
            switches = {int(v) for v in topology.link_dst[links[:-1]]} if len(links) else set()
            shared = switches if shared is None else shared & switches
        if not any(topology.vertices[v].capability in can[reducing] for v in shared or ()):
            verb = "reduces" if reducing else "multicasts"
            text = f"the routes of group {schedule.group[head]} share no switch that {verb}"
            yield error("E-GROUP", text, **_at(schedule, head))


def _bits(sets: RankSets, first: int, last: int, words: int) -> WordArray:
    """uint64[chunks, words], bit r of chunk c set when r is in its set."""
    count = last - first
    bits = np.zeros((count, words), dtype=np.uint64)
    if sets.ptr is None:
        for rank in range(sets.nranks):
            bits[:, rank // 64] |= np.uint64(1) << np.uint64(rank % 64)
        return bits
    ranks = sets.ranks[sets.ptr[first] : sets.ptr[last]]
    chunk = np.repeat(np.arange(count), np.diff(sets.ptr[first : last + 1]))
    np.bitwise_or.at(bits, (chunk, ranks // 64), np.uint64(1) << (ranks % 64).astype(np.uint64))
    return bits


def _membership(sets: RankSets, first: int, last: int) -> BoolArray:
    """bool[chunks, ranks]."""
    if sets.ptr is None:
        return np.ones((last - first, sets.nranks), dtype=bool)
    dense = np.zeros((last - first, sets.nranks), dtype=bool)
    lengths = np.diff(sets.ptr[first : last + 1])
    dense[np.repeat(np.arange(last - first), lengths), sets.ranks[sets.ptr[first] : sets.ptr[last]]] = True
    return dense


def _ranks_of(words: WordArray) -> list[int]:
    return [64 * w + b for w, word in enumerate(words) for b in range(64) if int(word) >> b & 1]


def _sorted_by(*columns: IntArray) -> tuple[IntArray, BoolArray]:
    """Stable order by columns of numbers from 0 (the last one counts first), and where a new combination begins."""
    key, span = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column in reversed(columns):
        width = int(column.max()) + 1
        span *= width
        key = key * width + column
    if span < 1 << 62:
        order = np.argsort(key, kind="stable")
        return order, np.concatenate(([True], np.diff(key[order]) != 0))
    order = np.lexsort(columns)
    fresh = np.zeros(len(order), dtype=bool)
    fresh[0] = True
    for column in columns:
        fresh[1:] |= np.diff(column[order]) != 0
    return order, fresh


def _phases(schedule: Schedule, rows: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Rows ordered by (dense level, chunk, dst), with dense levels and the count of earlier arrivals of the
    same chunk and level at the same rank."""
    chunk, level, dst = schedule.chunk[rows], schedule.level[rows], schedule.dst[rows]
    by_chunk, fresh = _sorted_by(level, chunk)
    new_chunk = np.concatenate(([True], np.diff(chunk[by_chunk]) != 0))
    serial = np.cumsum(fresh)
    start = np.maximum.accumulate(np.where(new_chunk, serial, 0))
    dense = np.empty(len(rows), dtype=np.int64)
    dense[by_chunk] = serial - start
    order, fresh = _sorted_by(dst, chunk, dense)
    index = np.arange(len(rows))
    arrival = index - np.maximum.accumulate(np.where(fresh, index, 0))
    return rows[order], dense[order], arrival


def _check_data(schedule: Schedule, deterministic: bool) -> tuple[list[Finding], int]:
    collective = schedule.collective
    findings: list[Finding] = []
    if not collective.combining:
        for row in _rows(schedule.reduce):
            message = f"{_name(schedule, row)} adds, but {collective.name} only copies"
            findings.append(error("E-REDUCE", message, **_at(schedule, row)))
    words = (collective.nranks + 63) // 64 if collective.combining else 1
    batch = max(1, _STATE_WORDS // (collective.nranks * words))
    by_chunk = np.argsort(schedule.chunk, kind="stable")
    starts = np.searchsorted(schedule.chunk[by_chunk], np.arange(0, collective.nchunks + batch, batch))
    depth, drifting, example = 0, 0, ""
    for number, first in enumerate(range(0, collective.nchunks, batch)):
        last = min(first + batch, collective.nchunks)
        run = _Batch(schedule, first, last, words)
        findings += run.run(by_chunk[starts[number] : starts[number + 1]])
        depth = max(depth, run.deepest)
        drifting += run.drifting
        example = example or run.drift_example
    if drifting:
        message = f"{example}; so for {drifting} chunks of {collective.nchunks}: replicas may differ in the last bits"
        findings.append((error if deterministic else warning)("W-REPLICA-DRIFT", message))
    return findings, depth


def _mix(one: WordArray, two: WordArray) -> WordArray:
    """A hash of two hashes that does not depend on their order (multiply and shift, as in splitmix64)."""
    low, high = np.minimum(one, two), np.maximum(one, two)
    value = low * np.uint64(0x9E3779B97F4A7C15) + (high ^ high >> np.uint64(29)) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ value >> np.uint64(30)) * np.uint64(0x94D049BB133111EB)
    return np.asarray(value ^ value >> np.uint64(31))


class _Batch:
    """The chunks first..last of a schedule and their state while the rows run."""

    def __init__(self, schedule: Schedule, first: int, last: int, words: int) -> None:
        self.schedule, self.first, self.last, self.words = schedule, first, last, words
        self.collective: Collective = schedule.collective
        nranks = self.collective.nranks
        holds = _membership(self.collective.sources, first, last)
        if self.collective.combining:
            own = np.zeros((nranks, words), dtype=np.uint64)
            own[np.arange(nranks), np.arange(nranks) // 64] = np.uint64(1) << (np.arange(nranks) % 64).astype(np.uint64)
            self.state: WordArray = np.where(holds[:, :, None], own[None], np.uint64(0)).reshape(-1, words)
            #: hash of the tree in which a place's sum was added, and the additions on its longest way
            self.tree: WordArray = np.tile(np.arange(1, nranks + 1, dtype=np.uint64), last - first)
            self.depth = np.zeros(len(self.state), dtype=np.int32)
        else:
            self.state = holds.astype(np.uint64).reshape(-1, 1)
        self.deepest, self.drifting, self.drift_example = 0, 0, ""
        self.findings: list[Finding] = []
        #: (place, terms lost, row) of copies that overwrote terms they do not bring
        self.losses: list[tuple[IntArray, WordArray, IntArray]] = []
        self.last_writer: IntArray = np.full(len(self.state), -1, dtype=np.int64)

    def run(self, rows: IntArray) -> list[Finding]:
        """Run the rows and check the postcondition."""
        if len(rows):
            ordered, dense, arrival = _phases(self.schedule, rows)
            bounds = np.concatenate(([0], np.flatnonzero(np.diff(dense)) + 1, [len(ordered)]))
            for begin, end in pairwise(bounds):
                self._level(ordered[begin:end], arrival[begin:end])
        self._postcondition()
        return self.findings

    def _place(self, rows: IntArray, ranks: IntArray) -> IntArray:
        return (self.schedule.chunk[rows] - self.first) * self.collective.nranks + ranks

    def _level(self, rows: IntArray, arrival: IntArray) -> None:
        schedule = self.schedule
        source = self._place(rows, schedule.src[rows])
        sent = self.state[source]
        present = sent.any(axis=1)
        for i in np.flatnonzero(~present)[: MAX_PER_CODE + 1]:
            row = int(rows[i])
            message = f"{_name(schedule, row)}: rank {schedule.src[row]} does not hold the chunk then"
            self.findings.append(error("E-ABSENT", message, **_at(schedule, row, "src")))
        reducing = schedule.reduce[rows] & self.collective.combining
        target = self._place(rows, schedule.dst[rows])
        trees = (self.tree[source], self.depth[source]) if self.collective.combining else None
        if trees is not None and arrival.any():
            # nobody says in which order these are added: the longest way that any order gives
            np.maximum.at(self.depth, target[reducing], trees[1][reducing])
        for turn in range(int(arrival.max()) + 1):
            now = np.flatnonzero(arrival == turn) if arrival.max() else np.arange(len(rows))
            self._arrive(rows[now], target[now], sent[now], reducing[now], turn, rows, target)
            if trees is not None:
                self._grow(target[now], trees[0][now], trees[1][now], reducing[now])
        if trees is not None and arrival.any():
            # and so no two ranks that do this are known to add in one tree
            unordered = np.unique(target[arrival == 1])
            own = (unordered % self.collective.nranks).astype(np.uint64)
            self.tree[unordered] = _mix(self.tree[unordered], ~own)

    def _grow(self, target: IntArray, tree: WordArray, depth: NDArray[np.int32], reducing: BoolArray) -> None:
        """The trees of sums that one arrival a place brings or adds to."""
        self.tree[target] = np.where(reducing, _mix(self.tree[target], tree), tree)
        self.depth[target] = np.where(reducing, np.maximum(self.depth[target], depth) + 1, depth)

    def _arrive(
        self, rows: IntArray, target: IntArray, sent: WordArray, reducing: BoolArray, turn: int,
        level_rows: IntArray, level_target: IntArray,
    ) -> None:  # fmt: skip
        """One arrival a place: rows[i] brings sent[i] to target[i]."""
        schedule, before = self.schedule, self.state[target]
        after = np.where(reducing[:, None], before | sent, np.where(sent.any(axis=1, keepdims=True), sent, before))
        if self.collective.combining:
            overlap = (before & sent).any(axis=1) & reducing
            for i in np.flatnonzero(overlap)[: MAX_PER_CODE + 1]:
                row, twice = int(rows[i]), _ranks_of(before[i] & sent[i])
                message = f"{_name(schedule, row)} adds the terms of ranks {_some(twice)} a second time"
                self.findings.append(error("E-DOUBLE", message, **_at(schedule, row)))
            nothing = ~before.any(axis=1) & reducing & sent.any(axis=1)
            for i in np.flatnonzero(nothing)[: MAX_PER_CODE + 1]:
                row = int(rows[i])
                message = f"{_name(schedule, row)} adds to a value that rank {schedule.dst[row]} does not have"
                self.findings.append(error("E-REDUCE", message, **_at(schedule, row)))
            lost = np.where(reducing[:, None], np.uint64(0), before & ~after)
            losing = np.flatnonzero(lost.any(axis=1))
            if len(losing):
                self.losses.append((target[losing], lost[losing], rows[losing]))
            if turn:
                self._commuting(rows, target, before, after, reducing, level_rows, level_target)
        else:
            for i in np.flatnonzero(before.any(axis=1))[: MAX_PER_CODE + 1]:
                row = int(rows[i])
                message = f"{_name(schedule, row)}: rank {schedule.dst[row]} holds the chunk already"
                self.findings.append(warning("W-REDUNDANT", message, **_at(schedule, row)))
        self.state[target] = after
        self.last_writer[target] = rows

    def _commuting(
        self, rows: IntArray, target: IntArray, before: WordArray, after: WordArray, reducing: BoolArray,
        level_rows: IntArray, level_target: IntArray,
    ) -> None:  # fmt: skip
        """Arrivals of one level commute when all add, or when all copy the same value."""
        copies = np.zeros(len(self.state), dtype=bool)
        copies[level_target[~self.schedule.reduce[level_rows]]] = True
        unclear = copies[target] & (reducing | (before ^ after).any(axis=1))
        for i in np.flatnonzero(unclear)[: MAX_PER_CODE + 1]:
            row = int(rows[i])
            other = next(int(r) for r in level_rows[level_target == target[i]] if r != row)
            message = f"{_name(schedule=self.schedule, row=row)} and {_name(self.schedule, other)} do not commute"
            self.findings.append(error("E-ORDER", message, **_at(self.schedule, row)))

    def _postcondition(self) -> None:
        collective, nranks = self.collective, self.collective.nranks
        wanted = _membership(collective.destinations, self.first, self.last).reshape(-1)
        if collective.combining:
            full = np.repeat(_bits(collective.sources, self.first, self.last, self.words), nranks, axis=0)
            wrong = wanted & (self.state != full).any(axis=1)
            self.deepest = int(self.depth[wanted].max(initial=0))
            self._compare_replicas(wanted)
        else:
            full = np.ones_like(self.state)
            wrong = wanted & (self.state[:, 0] == 0)
        for place in np.flatnonzero(wrong)[: MAX_PER_CODE + 1]:
            chunk, rank = self.first + int(place) // nranks, int(place) % nranks
            self.findings.append(self._explain(chunk, rank, int(place), full[place]))

    def _compare_replicas(self, wanted: BoolArray) -> None:
        """Chunks whose sum is not added in the same tree for every rank that wants it."""
        nranks = self.collective.nranks
        wants, trees = wanted.reshape(-1, nranks), self.tree.reshape(-1, nranks)
        first = trees[np.arange(len(trees)), wants.argmax(axis=1)]
        odd = wants & (trees != first[:, None])
        chunks = np.flatnonzero(odd.any(axis=1))
        self.drifting = len(chunks)
        if len(chunks):
            chunk = int(chunks[0])
            one, two = int(wants[chunk].argmax()), int(odd[chunk].argmax())
            self.drift_example = f"ranks {one} and {two} add the terms of chunk {self.first + chunk} in different trees"

    def _explain(self, chunk: int, rank: int, place: int, full: WordArray) -> Finding:
        writer = int(self.last_writer[place])
        step = int(self.schedule.level[writer]) if writer >= 0 else None
        if not self.collective.combining:
            return error("E-POST", f"chunk {chunk} never reaches rank {rank}", rank=rank, step=step)
        missing = _ranks_of(full & ~self.state[place])
        message = f"chunk {chunk} on rank {rank} lacks the terms of ranks {_some(missing)}"
        for places, lost, rows in reversed(self.losses):
            hits = np.flatnonzero((places == place) & (lost & full & ~self.state[place]).any(axis=1))
            if len(hits):
                return error(
                    "E-POST",
                    f"{message}; {_name(self.schedule, int(rows[hits[0]]))} overwrote some",
                    rank=rank,
                    step=step,
                )
        if writer >= 0:
            message += f"; last written by {_name(self.schedule, writer)}"
        return error("E-POST", message, rank=rank, step=step)


def _some(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
