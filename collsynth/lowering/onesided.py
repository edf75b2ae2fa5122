"""Schedule to one-sided Program (MSCCL++): data is put where it is wanted, and read where it is added.

* A copied chunk is put into the receiver's output (scratch only where the receiver just relays it, or where
  an in-place call still holds input there), followed by a signal.  The receiver waits where it needs the data:
  before it sends it on or adds to it, else at its end.
* A term of a sum stays where it is: its owner signals, and the receiver reads and adds it (READ_REDUCE), all
  terms of a sum together.  Across nodes, and where the sender's value changes before the receiver can know,
  the term is put into scratch of its own and added there.
* Nothing is acknowledged: no place is written twice by others without an order that the data itself gives.
  Before a peer is written, it signals that it has begun; a rank whose memory is read is told when that is over;
  what a port moves is flushed before its source changes and before the rank ends.

Threadblocks.  Transfers that depend on each other on some rank (what arrives and what is sent on, terms of one
sum) form a flow, and a flow runs in one threadblock of every rank that it touches; so threadblocks never wait
for each other.  Flows are spread over as many threadblocks as a rank has peers, more where the operations of a
threadblock would not fit.  Only in-place exchanges meet once, at a barrier between sending and overwriting.

No deadlock: take all sends of a level before its arrivals.  Puts and signals never block; a wait stands after
its signal in this one linear order of all ranks, and moving it later (to its first use) only frees others.
"""

from __future__ import annotations

from collections import defaultdict

from ..errors import InputError, RefusedError
from ..program import TARGETS, Program, Target
from ..schedule import Schedule
from ..topology import Topology
from ..verifier import require_verified
from .onesided_weave import Block, Flow, Piece, Transfer, Weaver, operations

#: The number of threadblocks grows by one in so many, and one, until their operations fit.
_GROWTH = 4


def lower_onesided(
    schedule: Schedule,
    *,
    target: Target = TARGETS["mscclpp"],
    in_place: bool = False,
    instances: int = 1,
    name: str | None = None,
    max_threadblocks: int | None = None,
    max_channels: int | None = None,
    size: int | None = None,
) -> Program:
    """The one-sided program that runs a schedule, for one mode.

    Args:
        schedule: explicit or in orbit form (it is written out).
        target: whose limits to keep.
        in_place: the mode in which the program is to be called (a plan serves one).
        instances: cut every chunk into so many parts, which may run in threadblocks of their own.
        name: label; default: the collective and the schedule's method.
        max_threadblocks: the user's own limit for one rank.
        max_channels: the user's own limit for a pair of ranks and a kind of channel.
        size: payload in bytes that the program is meant for; selected from 0 to twice that (None: no limit).

    Returns:
        A verified program.

    Raises:
        RefusedError: a limit would be broken; the message has the figure.
        VerificationError: the schedule is wrong.
        InputError: an argument is out of range.
    """
    if instances < 1:
        raise InputError(f"{instances} instances", where="--instances", expected="1 or more")
    if max_threadblocks is not None and max_threadblocks < 1:
        raise InputError(f"{max_threadblocks} is too few", where="--max-threadblocks", expected="1 or more")
    if target.one_sided is False:
        raise RefusedError(f"target {target.name} runs two-sided programs only")
    collective = schedule.collective
    if target.root_is_zero and collective.root not in (None, 0):
        raise RefusedError(f"target {target.name} can only mean root 0, not {collective.root}")
    if collective.name == "custom":
        raise RefusedError("a custom collective has no one-sided lowering, only the named ones have")
    require_verified(schedule)
    explicit = schedule.expand()
    pieces, transfers = _pieces(explicit, instances)
    flows = _flows(pieces, transfers)
    program = _fit(
        Weaver(collective, instances, pieces, transfers, _nodes(explicit.topology), in_place), flows, target,
        max_threadblocks, name or f"{collective.name} {schedule.method}".strip(),
        None if size is None else max(2 * size, 1),
    )  # fmt: skip
    if max_channels is not None and program.nchannels > max_channels:
        raise RefusedError(f"two ranks need {program.nchannels} channels of one kind, the limit is {max_channels}")
    require_verified(program, target=target)
    return program


def _nodes(topology: Topology) -> list[int]:
    """The host machine of each rank: between two of them data goes through ports."""
    return [-1 if v.node is None else v.node for v in topology.vertices[: topology.nranks]]


def _pieces(schedule: Schedule, instances: int) -> tuple[list[Piece], list[Transfer]]:
    """Chunks that lie side by side and take the same ways at the same time are one piece; instances split them."""
    collective = schedule.collective
    rows: dict[int, list[tuple[int, int, int, int, bool]]] = defaultdict(list)
    for number, row in enumerate(schedule.order().tolist()):
        rows[int(schedule.chunk[row])].append(
            (
                int(schedule.level[row]),
                number,
                int(schedule.src[row]),
                int(schedule.dst[row]),
                bool(schedule.reduce[row]),
            )
        )
    joined: list[tuple[list[int], int]] = []  # chunks of a piece, its units
    last: tuple[object, ...] | None = None
    for chunk in range(collective.nchunks):
        sources, wanted = collective.sources.of(chunk).tolist(), collective.destinations.of(chunk).tolist()
        ways = [(level, src, dst, add) for level, _, src, dst, add in rows[chunk]]
        start = (int(collective.input_offset[chunk]), int(collective.output_offset[chunk]))
        weight = int(collective.weight[chunk])
        key = (sources, wanted, ways)
        if last is not None and last[0] == key and last[1] == start:
            joined[-1] = ([*joined[-1][0], chunk], joined[-1][1] + weight)
        else:
            joined.append(([chunk], weight))
        last = (key, (start[0] + weight, start[1] + weight))
    pieces: list[Piece] = []
    transfers: list[Transfer] = []
    for chunks, units in joined:
        first = chunks[0]
        sources = frozenset(collective.sources.of(first).tolist())
        wanted = frozenset(collective.destinations.of(first).tolist())
        for instance in range(instances):
            offset = instance * units
            number = len(pieces)
            pieces.append(
                Piece(int(collective.input_offset[first]) * instances + offset,
                      int(collective.output_offset[first]) * instances + offset, units, sources, wanted)
            )  # fmt: skip
            for level, order, src, dst, add in rows[first]:
                transfers.append(Transfer(number, level, order, src, dst, add))
    transfers.sort(key=lambda t: (t.level, t.order, t.piece))
    return pieces, transfers


def _flows(pieces: list[Piece], transfers: list[Transfer]) -> list[Flow]:
    """Transfers that must share a threadblock wherever they meet, in order of their first transfer."""
    leader = list(range(len(transfers)))

    def find(item: int) -> int:
        while leader[item] != item:
            leader[item] = leader[leader[item]]
            item = leader[item]
        return item

    at: dict[tuple[int, int], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for number, transfer in enumerate(transfers):
        at[transfer.piece, transfer.dst][0].append(number)
        at[transfer.piece, transfer.src][1].append(number)
    for arrivals, sends in at.values():
        if any(transfers[a].reduce for a in arrivals):
            group = arrivals + sends
        else:
            latest = max((transfers[s].level for s in sends), default=-1)
            early = [a for a in arrivals if transfers[a].level < latest]
            first = min((transfers[a].level for a in early), default=0)
            group = early + [s for s in sends if early and transfers[s].level > first]
        for other in group[1:]:
            leader[find(other)] = find(group[0])
    flows: dict[int, Flow] = {}
    for number, transfer in enumerate(transfers):
        flows.setdefault(find(number), Flow([])).transfers.append(transfer)
    return list(flows.values())


def _color(flows: list[Flow], ncolors: int) -> None:
    """Give every flow a threadblock number, so that the busiest threadblock that it touches stays short."""
    load: dict[tuple[int, int], int] = defaultdict(int)
    for flow in flows:
        cost: dict[int, int] = defaultdict(int)
        for transfer in flow.transfers:
            cost[transfer.src] += 2  # a put, a signal
            cost[transfer.dst] += 2 if transfer.reduce else 1
        best = min(range(ncolors), key=lambda k: (max(load[r, k] + c for r, c in cost.items()),
                                                  sum(load[r, k] for r in cost), k))  # fmt: skip
        for rank, rows in cost.items():
            load[rank, best] += rows
        for transfer in flow.transfers:
            transfer.color = best


def _fit(
    weaver: Weaver, flows: list[Flow], target: Target, max_threadblocks: int | None, name: str, max_bytes: int | None
) -> Program:
    """The program with the fewest threadblocks (but one for each peer) that keeps the target's limits."""
    peers: dict[int, set[int]] = defaultdict(set)
    for flow in flows:
        for transfer in flow.transfers:
            peers[transfer.src].add(transfer.dst)
    most = max(1, min(len(flows), max_threadblocks or len(flows)))
    ncolors = min(most, max((len(p) for p in peers.values()), default=1))
    while True:
        _color(flows, ncolors)
        blocks = weaver.weave()
        complaint = _complaint(blocks, target)
        if complaint is None:
            return weaver.program(blocks, name, max_bytes)
        if ncolors >= most:
            raise RefusedError(f"target {target.name} refuses: {complaint}, with {ncolors} threadblocks a rank")
        ncolors = min(most, ncolors + 1 + ncolors // _GROWTH)


def _complaint(blocks: dict[tuple[int, int], Block], target: Target) -> str | None:
    """Which limit of a threadblock is broken, and by how much; None when all are kept."""
    for (rank, color), block in blocks.items():
        steps = operations(block.rows)
        if target.max_steps is not None and steps > target.max_steps:
            return f"a threadblock ({color}) of rank {rank} needs {steps} operations, the limit is {target.max_steps}"
        for kind, channels in block.channels().items():
            if target.max_tb_channels is not None and channels > target.max_tb_channels:
                return (f"a threadblock ({color}) of rank {rank} needs {channels} {kind.name.lower()} channels, "
                        f"the limit is {target.max_tb_channels}")  # fmt: skip
    return None
