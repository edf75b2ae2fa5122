"""What a plain Chakra trace does to data, inferred and then proven.

A node of a plain trace says how many bytes move between which ranks and after which other nodes, not which data
they are.  Data can be followed along dependencies, though: a send that depends on a receive or on a reduction
forwards what that gave, and a reduction adds what was received to what the rank holds.  All messages that are
joined so carry one chunk.  From where each chunk starts and ends the collective follows, and the numbering of
chunks from their owners.  The result is a schedule, and the prover decides: a guess that does not do the
collective is refused, with what is not known.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import accumulate
from math import gcd

from .. import collective as collectives
from ..collective import Collective
from ..errors import RefusedError
from ..schedule import Schedule, Transfer
from ..topology import Link, LinkState, Topology, Vertex
from ..verifier import verify
from .chakra_trace import Trace, _key, replay, require_runnable
from .chakra_wire import Node, NodeType

#: More rows than that are not written out.
_MAX_ROWS = 1 << 22
_Place = tuple[int, int]


@dataclass(slots=True)
class _Chunk:
    """Messages that are joined by dependencies: (src, dst, reduces, level)."""

    size: int
    moves: list[tuple[int, int, bool, int]] = field(default_factory=list)

    @property
    def receivers(self) -> set[int]:
        return {dst for _, dst, _, _ in self.moves}

    @property
    def starts(self) -> set[int]:
        """Ranks that send before they receive anything."""
        first: dict[int, int] = {}
        for _, dst, _, level in self.moves:
            first[dst] = min(first.get(dst, level), level)
        return {src for src, _, _, level in self.moves if level <= first.get(src, level)}


@dataclass(frozen=True, slots=True)
class Inferred:
    """A schedule out of a trace: its payload in bytes, and what was assumed."""

    schedule: Schedule
    size: int
    losses: tuple[str, ...]


def infer(trace: Trace, collective: str | None = None) -> Inferred:
    """The schedule that does what a trace does.

    Args:
        trace: of any origin.
        collective: its name, where it is known; it is refused if the trace does another one.

    Raises:
        VerificationError: the trace does not run to its end, or messages do not pair.
        RefusedError: it cannot be known which data move; the message says why.
    """
    require_runnable(trace)
    if any(node.type is NodeType.COMM_COLL for nodes in trace.ranks for node in nodes):
        raise _refusal(trace, "it asks for collectives and does not say how they are done")
    chunks = _chunks(trace)
    if not chunks:
        raise _refusal(trace, "it sends nothing")
    sizes = {chunk.size for chunk in chunks}
    unit = gcd(*sizes)
    wanted = None if collective is None else collectives.canonical_name(collective)
    name, chunks, owners = _what(trace, chunks, wanted)
    goal = _goal(trace, name, trace.nranks, owners, [chunk.size // unit for chunk in chunks])
    schedule = _schedule(trace, goal, name, owners, chunks, unit)
    report = verify(schedule)
    if not report.ok:
        problem = next(finding for finding in report.findings if finding.severity == "error")
        raise _refusal(trace, f"taken as {name}, it is not right ({problem.message})")
    size = unit * goal.payload_units
    losses = (
        f"which data messages carry was inferred from dependencies and proven: {name} of {size} bytes, "
        f"{len(chunks)} chunks",
        "the machine is not in the trace: its links are assumed, with unknown speeds",
        "durations and tags",
    )  # fmt: skip
    return Inferred(schedule, size, losses)


def _refusal(trace: Trace, why: str) -> RefusedError:
    return RefusedError(
        f"{trace.prefix}: which data its messages carry cannot be known: {why}; "
        "listings and graphs (--to listing, dot, graphml) show what the trace does say"
    )


def _chunks(trace: Trace) -> list[_Chunk]:
    """The messages, joined where one forwards what another brought."""
    parent: dict[_Place, _Place] = {}

    def find(place: _Place) -> _Place:
        root = place
        while parent.setdefault(root, root) != root:
            root = parent[root]
        while parent[place] != root:
            parent[place], place = root, parent[place]
        return root

    tables = [{node.id: node for node in nodes} for nodes in trace.ranks]
    sends, receives = defaultdict(list), defaultdict(list)
    order = replay(trace.ranks).order
    for rank, number in order:
        node = tables[rank][number]
        if node.type is NodeType.COMM_SEND:
            sends[_key(rank, node)].append((rank, number))
        elif node.type is NodeType.COMM_RECV:
            receives[_key(rank, node)].append((rank, number))
    partner = {into: out for key in receives for out, into in zip(sends[key], receives[key], strict=True)}
    reducing: set[_Place] = set()
    for rank, nodes in enumerate(trace.ranks):
        for node in nodes:
            for other in _data_of(node, tables[rank]):
                parent[find((rank, other))] = find((rank, node.id))
                adds = node.type is NodeType.COMP and node.integer("num_ops") != 0  # 0: a local copy
                if adds and tables[rank][other].type is NodeType.COMM_RECV:
                    reducing.add((rank, other))
    for into, out in partner.items():
        parent[find(into)] = find(out)
    level = _levels(tables, order, partner)
    groups: dict[_Place, _Chunk] = {}
    for into, out in sorted(partner.items(), key=lambda pair: (level[pair[0]], pair)):
        node = tables[into[0]][into[1]]
        size = node.integer("comm_size")
        if size is None:
            raise _refusal(trace, "messages have no size in bytes (comm_size)")
        chunk = groups.setdefault(find(into), _Chunk(size))
        if chunk.size != size:
            raise _refusal(
                trace, f"{trace.where(into[0], node)} has {size} bytes but depends on a message of {chunk.size}"
            )
        chunk.moves.append((out[0], into[0], into in reducing, level[into]))
    return list(groups.values())


def _data_of(node: Node, table: dict[int, Node]) -> list[int]:
    """The nodes whose result a node uses: receives and reductions that a send or reduction depends on."""
    if node.type not in (NodeType.COMM_SEND, NodeType.COMP):
        return []
    giving = (NodeType.COMM_RECV, NodeType.COMP)
    return [other for other in node.depends + node.control if table[other].type in giving]


def _levels(
    tables: list[dict[int, Node]], order: list[_Place], partner: dict[_Place, _Place]
) -> dict[_Place, int]:  # fmt: skip
    """For each receive how many messages must have come before the one it takes, along the longest way."""
    depth: dict[_Place, int] = {}
    for place in order:
        rank, number = place
        node = tables[rank][number]
        before = max((depth[rank, other] for other in node.depends + node.control), default=0)
        if node.type is NodeType.COMM_RECV:
            before = max(before, depth[partner[place]]) + 1
        depth[place] = before
    return {into: depth[into] - 1 for into in partner}


def _what(trace: Trace, chunks: list[_Chunk], wanted: str | None) -> tuple[str, list[_Chunk], list[int]]:
    """The collective, its chunks, and the owner of each (for alltoall: sender·n + receiver).

    Raises:
        RefusedError: no collective fits, or two do.
    """
    reduces = any(move[2] for chunk in chunks for move in chunk.moves)
    fitting = _combining(chunks, trace.nranks) if reduces else _moving(trace, chunks)
    if wanted is not None:
        fitting = {name: found for name, found in fitting.items() if name == wanted}
    if not fitting:
        raise _refusal(trace, f"it does no {wanted or 'collective that could be told'}")
    if len(fitting) > 1:
        raise _refusal(trace, f"it may be {' or '.join(fitting)}, which send the same bytes; -c tells")
    return next((name, *found) for name, found in fitting.items())


def _combining(chunks: list[_Chunk], nranks: int) -> dict[str, tuple[list[_Chunk], list[int]]]:
    everybody = set(range(nranks))
    owners = [_last_reduction(chunk) for chunk in chunks]
    if any(not reduces for chunk in chunks for _, _, reduces, _ in chunk.moves) or all(
        chunk.receivers == everybody for chunk in chunks
    ):
        return {"allreduce": (chunks, owners)}
    found = {"reduce" if len(set(owners)) == 1 else "reducescatter": (chunks, owners)}
    # everybody may send the same data to everybody, who add it for themselves
    merged = _merged(chunks, [0] * len(chunks), everybody)
    if merged is not None:
        found["allreduce"] = (merged[0], [index % nranks for index in range(len(merged[0]))])
    return found


def _moving(trace: Trace, chunks: list[_Chunk]) -> dict[str, tuple[list[_Chunk], list[int]]]:
    everybody = set(range(trace.nranks))
    starts = [chunk.starts for chunk in chunks]
    if any(len(start) != 1 for start in starts):
        raise _refusal(trace, "a chunk starts on several ranks and is not reduced")
    owners = [next(iter(start)) for start in starts]
    found: dict[str, tuple[list[_Chunk], list[int]]] = {}
    merged = _merged(chunks, owners, everybody)
    if merged is not None:
        found["broadcast" if len(set(merged[1])) == 1 else "allgather"] = merged
    ends = [max(chunk.moves, key=lambda move: move[3])[1] for chunk in chunks]
    pairs = Counter(zip(owners, ends, strict=True))
    if len(pairs) == trace.nranks * (trace.nranks - 1) and len(set(pairs.values())) == 1:
        found["alltoall"] = (
            chunks, [owner * trace.nranks + end for owner, end in zip(owners, ends, strict=True)]
        )  # fmt: skip
    return found


def _merged(
    chunks: list[_Chunk], owners: list[int], everybody: set[int]
) -> tuple[list[_Chunk], list[int]] | None:  # fmt: skip
    """Chunks of one owner put together until each reaches everybody; None if that does not come out even.

    What a rank sends first to several ranks may be the same data: nothing in the trace joins it.
    """
    whole: list[_Chunk] = []
    whole_owners: list[int] = []
    for owner in sorted(set(owners)):
        open_: list[_Chunk] = []
        for chunk, own in zip(chunks, owners, strict=True):
            if own != owner:
                continue
            fit = next(
                (o for o in open_ if o.size == chunk.size and not (o.receivers - chunk.starts) & chunk.receivers), None
            )
            if fit is None:
                open_.append(_Chunk(chunk.size, list(chunk.moves)))
            else:
                fit.moves.extend(chunk.moves)
        if any(chunk.receivers | chunk.starts != everybody for chunk in open_):
            return None
        whole += open_
        whole_owners += [owner] * len(open_)
    return whole, whole_owners


def _last_reduction(chunk: _Chunk) -> int:
    reductions = [move for move in chunk.moves if move[2]]
    return max(reductions, key=lambda move: move[3])[1] if reductions else chunk.moves[0][0]


def _goal(trace: Trace, name: str, nranks: int, owners: list[int], weights: list[int]) -> Collective:
    """The collective in units that all chunks consist of."""
    if name == "alltoall":
        pairs: dict[int, int] = defaultdict(int)
        for owner, weight in zip(owners, weights, strict=True):
            pairs[owner] += weight
        if len(set(pairs.values())) != 1 or len(pairs) != nranks * (nranks - 1):
            raise _refusal(trace, "taken as alltoall, not every rank has as much for every other")
        return collectives.alltoall(nranks, next(iter(pairs.values())))
    shares = [0] * nranks
    for owner, weight in zip(owners, weights, strict=True):
        shares[owner] += weight
    if name in ("broadcast", "reduce"):
        return collectives.make(name, nranks, sum(shares), root=owners[0])
    builders = {
        "allgather": collectives.allgather, "reducescatter": collectives.reduce_scatter,
        "allreduce": collectives.allreduce,
    }  # fmt: skip
    if name != "allreduce" and len(set(shares)) != 1:
        raise _refusal(trace, f"taken as {name}, the ranks' shares differ")
    return builders[name](nranks, weights=shares)


def _schedule(
    trace: Trace, goal: Collective, name: str, owners: list[int], chunks: list[_Chunk], unit: int
) -> Schedule:  # fmt: skip
    """The rows: each chunk is as many units of its owner's share, in the order of the chunks."""
    nranks = trace.nranks
    if sum(len(chunk.moves) * (chunk.size // unit) for chunk in chunks) > _MAX_ROWS:
        raise _refusal(trace, f"sizes have so small a common divisor ({unit} bytes) that there were too many rows")
    links: dict[tuple[int, int], int] = {}
    for chunk in chunks:
        for src, dst, _, _ in chunk.moves:
            links.setdefault((src, dst), len(links))
    topology = Topology.build(
        "trace", [Vertex(f"gpu:{rank}", rank=rank, node=0) for rank in range(nranks)],
        [Link(src, dst, None, provenance="a message of the trace", state=LinkState.ASSUMED) for src, dst in links],
        assumptions=["a link wherever the trace has a message; speeds are not known"],
    )  # fmt: skip
    if name == "alltoall":
        first = {owner: owner * (goal.nchunks // (nranks * nranks)) for owner in set(owners)}
    else:
        counts = [int((goal.owner == rank).sum()) for rank in range(nranks)]
        first = dict(enumerate([0, *accumulate(counts)]))
    rows = []
    for owner, chunk in zip(owners, chunks, strict=True):
        begin, count = first[owner], chunk.size // unit
        first[owner] += count
        rows += [
            Transfer(begin + piece, src, dst, reduces, level, (links[src, dst],))
            for piece in range(count)
            for src, dst, reduces, level in chunk.moves
        ]
    return Schedule.build(topology, goal, rows, method="trace")
