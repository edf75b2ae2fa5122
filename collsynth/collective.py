"""What a collective asks for: who holds which chunk before, and who must hold it after.

Sizes are counted in *units*: a chunk weighs a whole number of units, so that shards need not be
equal, and the payload (the size as nccl-tests counts it) weighs `payload_units`.  A chunk of weight
w of a collective of S bytes carries `S * w / payload_units` bytes.

Every chunk has one place in the input buffer of each rank that starts with it and one place in the
output buffer of each rank that ends with it (`input_offset`, `output_offset`, in units).  In a
combining collective the ranks that start with a chunk are its contributors: each holds its own
term, and the postcondition is the sum of all terms, each exactly once.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .errors import InputError

IntArray = NDArray[np.int64]

#: Spelling used everywhere inside and in JSON.
COLLECTIVES = (
    "allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce", "gather", "scatter",
)  # fmt: skip

_ALIASES = {"reducescatter": "reducescatter", "alltoall": "alltoall", "bcast": "broadcast"}


def canonical_name(text: str) -> str:
    """The canonical spelling of a collective: case, `_`, `-` and blanks do not matter.

    Raises:
        InputError: no such collective.
    """
    key = "".join(c for c in text.lower() if c not in "_- ")
    key = _ALIASES.get(key, key)
    if key not in COLLECTIVES:
        close = difflib.get_close_matches(key, COLLECTIVES, n=1)
        raise InputError(
            f"unknown collective {text[:40]!r}", expected="one of " + ", ".join(COLLECTIVES),
            hint=close[0] if close else None,
        )  # fmt: skip
    return key


@dataclass(frozen=True, eq=False)
class RankSets:
    """One set of ranks a chunk, as CSR; `ptr is None` means every chunk's set is all ranks.

    Attributes:
        nchunks, nranks: shape.
        ptr: int64[nchunks + 1] or None.
        ranks: int64 sorted ranks, or empty when ptr is None.
    """

    nchunks: int
    nranks: int
    ptr: IntArray | None
    ranks: IntArray

    @staticmethod
    def everyone(nchunks: int, nranks: int) -> RankSets:
        """Every chunk's set is all ranks."""
        return RankSets(nchunks, nranks, None, np.zeros(0, np.int64))

    @staticmethod
    def single(owner: IntArray, nranks: int) -> RankSets:
        """Chunk c's set is {owner[c]}."""
        return RankSets(len(owner), nranks, np.arange(len(owner) + 1, dtype=np.int64), owner.astype(np.int64))

    @staticmethod
    def from_lists(lists: Sequence[Iterable[int]], nranks: int) -> RankSets:
        """Chunk c's set is lists[c]."""
        rows = [sorted(set(row)) for row in lists]
        ptr = np.concatenate(([0], np.cumsum([len(r) for r in rows]))).astype(np.int64)
        flat = np.array([r for row in rows for r in row], dtype=np.int64)
        return RankSets(len(rows), nranks, ptr, flat)

    @property
    def is_everyone(self) -> bool:
        """Whether every chunk's set is all ranks (held implicitly)."""
        return self.ptr is None

    def of(self, chunk: int) -> IntArray:
        """The ranks of one chunk, sorted."""
        if self.ptr is None:
            return np.arange(self.nranks, dtype=np.int64)
        return self.ranks[self.ptr[chunk] : self.ptr[chunk + 1]]

    def matrix(self) -> NDArray[np.bool_]:
        """Dense bool[nchunks, nranks]."""
        if self.ptr is None:
            return np.ones((self.nchunks, self.nranks), dtype=bool)
        dense = np.zeros((self.nchunks, self.nranks), dtype=bool)
        dense[np.repeat(np.arange(self.nchunks), np.diff(self.ptr)), self.ranks] = True
        return dense


@dataclass(frozen=True, eq=False)
class Collective:
    """A collective over `nranks` ranks, cut into weighted chunks.

    Attributes:
        name: canonical spelling, or `custom`.
        nranks: number of ranks.
        root: root rank of a rooted collective, None otherwise.
        combining: whether contributions are summed.
        weight: int64[nchunks], units of each chunk, all >= 1.
        payload_units: units of the size as nccl-tests counts it.
        sources: ranks that start with the chunk (combining: its contributors).
        destinations: ranks that must end with it.
        owner: int64[nchunks], the rank whose shard a chunk belongs to (allgather: who starts with it;
            reducescatter: who ends with it; alltoall: the sender; allreduce: the rank its piece is
            rooted at by default; rooted: the root, scatter/gather: the peer).
        input_offset, output_offset: int64[nchunks], place in the input / output buffer, in units.
        input_units, output_units: int64[nranks], buffer sizes.

    Raises:
        InputError: shapes differ, a weight is below 1, or a chunk starts nowhere.
    """

    name: str
    nranks: int
    root: int | None
    combining: bool
    weight: IntArray
    payload_units: int
    sources: RankSets
    destinations: RankSets
    owner: IntArray
    input_offset: IntArray
    output_offset: IntArray
    input_units: IntArray
    output_units: IntArray

    def __post_init__(self) -> None:
        n = self.nchunks
        where = f"collective {self.name}"
        if self.nranks < 1:
            raise InputError(f"{self.nranks} ranks", where=where, expected="1 or more")
        if any(len(c) != n for c in (self.owner, self.input_offset, self.output_offset)):
            raise InputError("chunk columns differ in length", where=where)
        if any(len(c) != self.nranks for c in (self.input_units, self.output_units)):
            raise InputError("rank columns differ in length", where=where)
        if n and self.weight.min() < 1:
            raise InputError("a chunk weighs less than one unit", where=where)
        if self.root is not None and not 0 <= self.root < self.nranks:
            raise InputError(f"root {self.root} is out of range", where=where, expected=f"0..{self.nranks - 1}")
        for sets in (self.sources, self.destinations):
            if sets.nchunks != n or sets.nranks != self.nranks:
                raise InputError("rank sets do not fit the chunks", where=where)
        if self.sources.ptr is not None and n and np.diff(self.sources.ptr).min() < 1:
            raise InputError("a chunk starts nowhere", where=where)
        for column in (self.weight, self.owner, self.input_offset, self.output_offset,
                       self.input_units, self.output_units):  # fmt: skip
            column.setflags(write=False)

    @property
    def nchunks(self) -> int:
        """Number of chunks."""
        return len(self.weight)

    def content_hash(self) -> str:
        """SHA-256 of the whole definition."""
        digest = hashlib.sha256(repr((self.name, self.nranks, self.root, self.combining, self.payload_units)).encode())
        for column in (self.weight, self.owner, self.input_offset, self.output_offset,
                       self.input_units, self.output_units):  # fmt: skip
            digest.update(np.ascontiguousarray(column, dtype=np.int64).tobytes())
        for sets in (self.sources, self.destinations):
            digest.update(b"all" if sets.ptr is None else sets.ptr.tobytes() + sets.ranks.tobytes())
        return digest.hexdigest()


def _pieces(weights: Sequence[int] | None, count: int, chunks: int) -> tuple[IntArray, IntArray]:
    """Owner and weight of each piece: `chunks` unit pieces an owner, or `weights[o]` unit pieces."""
    per_owner = [chunks] * count if weights is None else [int(w) for w in weights]
    if len(per_owner) != count or any(w < 0 for w in per_owner) or sum(per_owner) == 0:
        raise InputError("shard weights must be whole numbers, one a rank, not all 0")
    owner = np.repeat(np.arange(count, dtype=np.int64), per_owner)
    return owner, np.ones(len(owner), dtype=np.int64)


def _starts(weight: IntArray) -> IntArray:
    return (np.cumsum(weight) - weight).astype(np.int64)


def allgather(nranks: int, chunks: int = 1, *, weights: Sequence[int] | None = None) -> Collective:
    """AllGather: rank r's shard ends everywhere.

    Args:
        nranks: number of ranks.
        chunks: unit chunks a shard.
        weights: instead of `chunks`, the number of unit chunks of each rank's shard (AllGatherv).
    """
    owner, weight = _pieces(weights, nranks, chunks)
    start = _starts(weight)
    shard = np.bincount(owner, weights=weight, minlength=nranks).astype(np.int64)
    shard_start = (np.cumsum(shard) - shard).astype(np.int64)
    total = int(weight.sum())
    return Collective(
        "allgather", nranks, None, False, weight, total,
        sources=RankSets.single(owner, nranks), destinations=RankSets.everyone(len(owner), nranks), owner=owner,
        input_offset=start - shard_start[owner], output_offset=start,
        input_units=shard, output_units=np.full(nranks, total, dtype=np.int64),
    )  # fmt: skip


def reduce_scatter(nranks: int, chunks: int = 1, *, weights: Sequence[int] | None = None) -> Collective:
    """ReduceScatter: the sum of everybody's shard r ends on rank r (arguments as `allgather`)."""
    gather = allgather(nranks, chunks, weights=weights)
    return Collective(
        "reducescatter", nranks, None, True, gather.weight, gather.payload_units,
        sources=gather.destinations, destinations=gather.sources, owner=gather.owner,
        input_offset=gather.output_offset, output_offset=gather.input_offset,
        input_units=gather.output_units, output_units=gather.input_units,
    )  # fmt: skip


def allreduce(nranks: int, chunks: int = 1, *, weights: Sequence[int] | None = None) -> Collective:
    """AllReduce: the sum of everybody's buffer ends everywhere.

    Args:
        nranks: number of ranks.
        chunks: unit chunks per rank; the buffer has `nranks * chunks` of them, chunk c belongs to
            (is by default rooted at) rank `c // chunks`.
        weights: instead of `chunks`, the number of unit chunks that belong to each rank.
    """
    owner, weight = _pieces(weights, nranks, chunks)
    start, total = _starts(weight), int(weight.sum())
    everyone = RankSets.everyone(len(owner), nranks)
    size = np.full(nranks, total, dtype=np.int64)
    return Collective(
        "allreduce", nranks, None, True, weight, total, sources=everyone, destinations=everyone, owner=owner,
        input_offset=start, output_offset=start.copy(), input_units=size, output_units=size.copy(),
    )  # fmt: skip


def broadcast(nranks: int, chunks: int = 1, *, root: int = 0) -> Collective:
    """Broadcast: the root's buffer, cut into `chunks` unit chunks in all, ends everywhere."""
    owner = np.full(chunks, root, dtype=np.int64)
    weight = np.ones(chunks, dtype=np.int64)
    start = _starts(weight)
    size = np.full(nranks, chunks, dtype=np.int64)
    return Collective(
        "broadcast", nranks, root, False, weight, chunks,
        sources=RankSets.single(owner, nranks), destinations=RankSets.everyone(chunks, nranks), owner=owner,
        input_offset=start, output_offset=start.copy(), input_units=size, output_units=size.copy(),
    )  # fmt: skip


def reduce(nranks: int, chunks: int = 1, *, root: int = 0) -> Collective:
    """Reduce: the sum of everybody's buffer, `chunks` unit chunks in all, ends on the root."""
    cast = broadcast(nranks, chunks, root=root)
    return Collective(
        "reduce", nranks, root, True, cast.weight, cast.payload_units,
        sources=cast.destinations, destinations=cast.sources, owner=cast.owner,
        input_offset=cast.output_offset, output_offset=cast.input_offset,
        input_units=cast.input_units, output_units=cast.output_units,
    )  # fmt: skip


def alltoall(nranks: int, chunks: int = 1) -> Collective:
    """AllToAll: rank s's slice for d ends on d; `chunks` unit chunks a pair (the own slice included)."""
    pair = np.repeat(np.arange(nranks * nranks, dtype=np.int64), chunks)
    piece = np.tile(np.arange(chunks, dtype=np.int64), nranks * nranks)
    sender, receiver = pair // nranks, pair % nranks
    total = nranks * chunks
    size = np.full(nranks, total, dtype=np.int64)
    return Collective(
        "alltoall", nranks, None, False, np.ones(len(pair), dtype=np.int64), total,
        sources=RankSets.single(sender, nranks), destinations=RankSets.single(receiver, nranks), owner=sender,
        input_offset=receiver * chunks + piece, output_offset=sender * chunks + piece,
        input_units=size, output_units=size.copy(),
    )  # fmt: skip


def gather(nranks: int, chunks: int = 1, *, root: int = 0) -> Collective:
    """Gather: every rank's shard of `chunks` unit chunks ends on the root."""
    base = allgather(nranks, chunks)
    output = np.zeros(nranks, dtype=np.int64)
    output[root] = base.payload_units
    return Collective(
        "gather", nranks, root, False, base.weight, base.payload_units, sources=base.sources,
        destinations=RankSets.single(np.full(base.nchunks, root, dtype=np.int64), nranks), owner=base.owner,
        input_offset=base.input_offset, output_offset=base.output_offset,
        input_units=base.input_units, output_units=output,
    )  # fmt: skip


def scatter(nranks: int, chunks: int = 1, *, root: int = 0) -> Collective:
    """Scatter: the root's slice r, `chunks` unit chunks, ends on rank r."""
    base = gather(nranks, chunks, root=root)
    return Collective(
        "scatter", nranks, root, False, base.weight, base.payload_units,
        sources=base.destinations, destinations=base.sources, owner=base.owner,
        input_offset=base.output_offset, output_offset=base.input_offset,
        input_units=base.output_units, output_units=base.input_units,
    )  # fmt: skip


def make(name: str, nranks: int, chunks: int = 1, *, root: int | None = None) -> Collective:
    """The collective of that (any) spelling; `chunks` as in the builder of that name.

    Raises:
        InputError: unknown name, a root given to a rootless collective, or a root out of range.
    """
    key = canonical_name(name)
    rooted = {"broadcast": broadcast, "reduce": reduce, "gather": gather, "scatter": scatter}
    if key in rooted:
        if not 0 <= (root or 0) < nranks:
            raise InputError(f"root {root} is out of range", where="--root", expected=f"0..{nranks - 1}")
        return rooted[key](nranks, chunks, root=root or 0)
    if root is not None:
        raise InputError(f"{key} has no root", where="--root", expected="none, or one of " + ", ".join(rooted))
    rootless = {
        "allgather": allgather, "reducescatter": reduce_scatter, "allreduce": allreduce, "alltoall": alltoall,
    }  # fmt: skip
    return rootless[key](nranks, chunks)


def custom(
    nranks: int,
    wanted: Mapping[tuple[int, int], tuple[int | Sequence[int], int]],
    *,
    units: int | None = None,
) -> Collective:
    """A collective of one's own: what every output unit must hold.

    Every rank's input and output have the same size, the payload; in place, the output is the input.

    Args:
        nranks: number of ranks.
        wanted: (rank, output unit) -> (source rank, input unit), or (source ranks, input unit) for the sum of
            their terms.  Outputs that are not named may hold anything.
        units: units of a buffer; default: as many as are named.

    Raises:
        InputError: nothing is wanted, or a rank or unit is out of range.
    """
    where = "custom collective"
    chunks: dict[tuple[int, int, tuple[int, ...], int], list[int]] = {}
    size = 0
    for (rank, output), (source, place) in wanted.items():
        sources = tuple(sorted(set(source) if isinstance(source, Sequence) else {int(source)}))
        for r in (rank, *sources):
            if not 0 <= r < nranks:
                raise InputError(f"rank {r} is out of range", where=where, expected=f"0..{nranks - 1}")
        if not sources or min(output, place) < 0:
            raise InputError(f"output {output} of rank {rank} has no source, or a unit below 0", where=where)
        chunks.setdefault((sources[0], place, sources, output), []).append(rank)
        size = max(size, output + 1, place + 1)
    if not chunks or (units is not None and units < size):
        raise InputError(f"{size} units are named", where=where, expected=f"1 to {units or 'all'} units")
    # in the order of owners and places, so that units side by side are chunks side by side
    keys = sorted(chunks)
    column = [np.array([key[field] for key in keys], dtype=np.int64) for field in (0, 1, 3)]
    sizes = np.full(nranks, units or size, dtype=np.int64)
    return Collective(
        "custom", nranks, None, any(len(key[2]) > 1 for key in keys), np.ones(len(keys), dtype=np.int64), units or size,
        sources=RankSets.from_lists([key[2] for key in keys], nranks),
        destinations=RankSets.from_lists([chunks[key] for key in keys], nranks),
        owner=column[0], input_offset=column[1], output_offset=column[2], input_units=sizes, output_units=sizes.copy(),
    )  # fmt: skip


#: Collectives whose payload is one shard a rank (nccl-tests' count is one shard's).
SHARDED = frozenset({"allgather", "reducescatter", "alltoall", "gather", "scatter"})


def call_payload(name: str, nranks: int, size: int, element_size: int = 4) -> int:
    """Payload bytes of the call that nccl-tests makes when asked for `size`.

    A shard (or the buffer of an unsharded collective) is a whole number of elements; nccl-tests rounds a
    shard down to 16 bytes, below that here to one element.
    """
    shards = nranks if canonical_name(name) in SHARDED else 1
    shard = size // shards
    grain = max(16, element_size) if shards > 1 and shard >= 16 else element_size
    return shard // grain * grain * shards


def busbw_factor(name: str, nranks: int) -> float:
    """busbw / algbw as nccl-tests defines it."""
    key = canonical_name(name)
    if nranks < 2:
        return 1.0
    if key == "allreduce":
        return 2 * (nranks - 1) / nranks
    if key in ("broadcast", "reduce"):
        return 1.0
    return (nranks - 1) / nranks
