"""The shape of a one-sided program: operands, channels, semaphores, barriers, packets, and what comes before what.

Nodes of the graph are the rows, and for each row that a PORT does later (`collsynth.program.Op`) a second node
on a pseudo-threadblock of its channel.  A barrier's round is one node more.  An edge either makes earlier
writes visible or only orders.  The program ends iff this graph has no circle and every wait has its signal.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from ..program import Buffer, ChannelKind, Op, Program, Space
from .report import Finding, error, warning
from .structure import Table

_L, _R, _M = frozenset({Space.LOCAL}), frozenset({Space.REMOTE}), frozenset({Space.MULTICAST})
_NONE: frozenset[Space] = frozenset()
#: Spaces that the source and the destination of an operation may have (none: it has no such operand).
OPERANDS: dict[Op, tuple[frozenset[Space], frozenset[Space]]] = {
    Op.NOP: (_NONE, _NONE), Op.COPY: (_L, _L), Op.REDUCE: (_L, _L), Op.PUT: (_L, _R), Op.GET: (_R, _L),
    Op.READ_REDUCE: (_R, _L), Op.PUT_PACKET: (_L, _L | _R | _M), Op.FORWARD_PACKET: (_L, _R | _M),
    Op.READ_PACKET: (_L, _L), Op.READ_PACKET_REDUCE: (_L, _L), Op.MULTICAST_STORE: (_L, _M),
    Op.MULTICAST_REDUCE: (_M, _L | _M),
    **dict.fromkeys((Op.SIGNAL, Op.WAIT, Op.RELAXED_SIGNAL, Op.RELAXED_WAIT, Op.FLUSH, Op.BARRIER, Op.ACQUIRE,
                     Op.RELEASE), (_NONE, _NONE)),
}  # fmt: skip
SIGNALS = (Op.SIGNAL, Op.RELAXED_SIGNAL)
WAITS = (Op.WAIT, Op.RELAXED_WAIT)
PACKET_READS = frozenset({Op.READ_PACKET, Op.READ_PACKET_REDUCE, Op.FORWARD_PACKET})
PACKET_WRITES = frozenset({Op.PUT_PACKET, Op.FORWARD_PACKET})
_PORT_OPS = frozenset({Op.PUT, Op.FORWARD_PACKET, Op.SIGNAL, Op.RELAXED_SIGNAL, Op.FLUSH})
_CHANNEL_OPS = frozenset({*SIGNALS, *WAITS, Op.FLUSH})
_SHOWN_CYCLE = 24

Connection = tuple[int, int, ChannelKind, int]


def arrow(connection: Connection) -> str:
    """`0->1 memory channel 2`."""
    source, target, kind, number = connection
    return f"{source}->{target} {kind.name.lower()} channel {number}"


@dataclass(slots=True)
class Graph:
    """A one-sided program's shape.

    Attributes:
        table: the rows.
        findings, sound: what is wrong, and whether the data can be followed nevertheless.
        row_of: row of each node (a barrier's round: its first row).
        thread_of: thread of each node: threadblock index, or one for each port channel, or one a barrier.
        later: row -> node at which a PORT does it.
        before: for each node, (node before, whether it makes writes visible, the reason in words).
        order: nodes in an order in which they can be done; shorter than the program on a deadlock.
    """

    table: Table
    findings: list[Finding] = field(default_factory=list)
    sound: bool = True
    row_of: list[int] = field(default_factory=list)
    thread_of: list[int] = field(default_factory=list)
    nthreads: int = 0
    later: dict[int, int] = field(default_factory=dict)
    before: list[list[tuple[int, bool, str]]] = field(default_factory=list)
    order: list[int] = field(default_factory=list)
    kind: list[int] = field(default_factory=list)
    peer: list[int] = field(default_factory=list)
    sync: list[int] = field(default_factory=list)
    src_space: list[int] = field(default_factory=list)
    dst_space: list[int] = field(default_factory=list)

    def fail(self, code: str, row: int, message: str) -> None:
        """Record something that makes following the data pointless."""
        self.findings.append(error(code, message, **self.table.at(row)))
        self.sound = False

    def add_node(self, row: int, thread: int) -> int:
        """A further node."""
        self.row_of.append(row)
        self.thread_of.append(thread)
        self.before.append([])
        return len(self.row_of) - 1

    def done(self, row: int) -> int:
        """The node at which a row's transfer or signal is done."""
        return self.later.get(row, row)

    def members(self, row: int, space: int) -> tuple[int, ...]:
        """Ranks whose memory an operand of that space names."""
        if space == Space.LOCAL:
            return (self.table.rank(row),)
        return (self.peer[row],) if space == Space.REMOTE else self.table.program.groups[self.sync[row]]


def build_graph(program: Program) -> Graph:
    """Check the shape of a one-sided program and build its graph."""
    graph = Graph(Table(program))
    for name in ("peer", "sync", "src_space", "dst_space"):
        setattr(graph, name, getattr(program, name).tolist())
    graph.kind = program.kinds.tolist()
    for row in range(program.nrows):
        _check_row(graph, row)
        graph.add_node(row, graph.table.tb_of[row])
    graph.nthreads = program.ntbs
    if not graph.sound:
        return graph
    _program_order(graph)
    _port_channels(graph)
    _dependencies(graph)
    _signals(graph)
    _semaphores(graph)
    _barriers(graph)
    _packets(graph)
    graph.order, stuck = _topological(graph)
    if stuck:
        _report_circles(graph, stuck)
    return graph


# --- rows ------------------------------------------------------------------------------------------------


def _check_row(graph: Graph, row: int) -> None:
    table, program = graph.table, graph.table.program
    op, name, rank = Op(table.op[row]), table.name(row), table.rank(row)
    if op not in OPERANDS:
        graph.fail("E-UNSUPPORTED", row, f"{name} uses a FIFO, which a one-sided program has not")
        return
    kind, peer, sync = ChannelKind(graph.kind[row]), graph.peer[row], graph.sync[row]
    spaces = []
    for label, allowed, buffer, space in (
        ("source", OPERANDS[op][0], table.src_buffer[row], graph.src_space[row]),
        ("destination", OPERANDS[op][1], table.dst_buffer[row], graph.dst_space[row]),
    ):
        if not allowed:
            continue
        if buffer < 0 or Space(space) not in allowed:
            words = " or ".join(sorted(s.name.lower() for s in allowed))
            graph.fail("E-RANGE", row, f"{name} has no {label} operand that is {words}")
            return
        spaces.append(Space(space))
    if Space.REMOTE in spaces or op in _CHANNEL_OPS:
        if not 0 <= peer < program.nranks or peer == rank:
            graph.fail("E-PEER", row, f"{name} names peer {peer}; it needs another rank below {program.nranks}")
            return
        if kind not in (ChannelKind.MEMORY, ChannelKind.PORT) or (kind is ChannelKind.PORT and op not in
                                                                 (*_PORT_OPS, *WAITS)):  # fmt: skip
            graph.fail("E-CHANNEL", row, f"{name} through a channel of kind {kind.name}")
            return
        if (kind is ChannelKind.PORT or op in _CHANNEL_OPS) and sync < 0:
            graph.fail("E-CHANNEL", row, f"{name} names no channel number")
            return
        if op is Op.FLUSH and kind is not ChannelKind.PORT:
            graph.fail("E-CHANNEL", row, f"{name} of a channel that is no port")
            return
    if Space.MULTICAST in spaces:
        if kind is not ChannelKind.SWITCH or not 0 <= sync < len(program.groups):
            graph.fail("E-CHANNEL", row, f"{name} names group {sync} of {len(program.groups)}")
            return
        if rank not in program.groups[sync]:
            graph.fail("E-PEER", row, f"{name} uses group {sync}, of which rank {rank} is no member")
            return
    if op in (Op.ACQUIRE, Op.RELEASE, Op.BARRIER) and sync < 0:
        graph.fail("E-CHANNEL", row, f"{name} names no number")
        return
    if op in PACKET_READS and table.src_buffer[row] != Buffer.SCRATCH:
        graph.fail("E-PACKET", row, f"{name} reads packets in {Buffer(table.src_buffer[row]).name.lower()}")
    if op in PACKET_WRITES and table.dst_buffer[row] != Buffer.SCRATCH:
        graph.fail("E-PACKET", row, f"{name} writes packets into {Buffer(table.dst_buffer[row]).name.lower()}; "
                                    "packets are in scratch")  # fmt: skip
    _check_ranges(graph, row, spaces)


def _check_ranges(graph: Graph, row: int, spaces: list[Space]) -> None:
    table, program, name = graph.table, graph.table.program, graph.table.name(row)
    count = table.count[row]
    if spaces and not count:
        graph.findings.append(warning("W-EMPTY", f"{name} moves nothing", **table.at(row)))
    op = Op(table.op[row])
    sizes = (program.input_units, program.output_units, program.scratch_units)
    for used, label, buffer, index, space in (
        (OPERANDS[op][0], "source", table.src_buffer[row], table.src_index[row], graph.src_space[row]),
        (OPERANDS[op][1], "destination", table.dst_buffer[row], table.dst_index[row], graph.dst_space[row]),
    ):
        for rank in graph.members(row, space) if used else ():
            size = int(sizes[buffer][rank])
            if index < 0 or index + count > size:
                place = f"{Buffer(buffer).name.lower()}[{index}..{index + count - 1}] of rank {rank}"
                graph.fail("E-RANGE", row, f"{name}: its {label} is {place}, which has {size} units")
                break


# --- edges -----------------------------------------------------------------------------------------------


def _program_order(graph: Graph) -> None:
    table = graph.table
    for row in range(table.program.nrows):
        if table.step_of[row]:
            graph.before[row].append((row - 1, True, "comes after"))


def _port_channels(graph: Graph) -> None:
    """What a port does later, in the order of issue on one channel, and the flushes that wait for it."""
    table = graph.table
    threads: dict[Connection, int] = {}
    last: dict[Connection, int] = {}
    owner: dict[Connection, int] = {}
    for row in range(table.program.nrows):
        op = Op(table.op[row])
        if graph.kind[row] != ChannelKind.PORT or op not in _PORT_OPS:
            continue
        connection = (table.rank(row), graph.peer[row], ChannelKind.PORT, graph.sync[row])
        first = owner.setdefault(connection, row)
        if table.tb_of[first] != table.tb_of[row]:
            message = f"{table.name(row)} uses {arrow(connection)}, which tb {table.tb_id[table.tb_of[first]]} uses too"
            graph.fail("E-CONN-SHARED", row, f"{message}: in which order is not defined")
            continue
        if op is Op.FLUSH:
            if connection in last:
                graph.before[row].append((last[connection], True, "waits for what was issued by"))
            continue
        if connection not in threads:
            threads[connection] = graph.nthreads
            graph.nthreads += 1
        node = graph.add_node(row, threads[connection])
        graph.later[row] = node
        graph.before[node].append((row, True, "was issued by"))
        if connection in last:
            graph.before[node].append((last[connection], True, "comes after"))
        last[connection] = node


def _dependencies(graph: Graph) -> None:
    table, program = graph.table, graph.table.program
    index_of = {(rank, tb_id): tb for tb, (rank, tb_id) in enumerate(zip(table.tb_rank, table.tb_id, strict=True))}
    pointers = program.dep_ptr.tolist()
    for row in range(program.nrows if len(program.dep_tb) else 0):
        for dep in range(pointers[row], pointers[row + 1]):
            dep_id, step = int(program.dep_tb[dep]), int(program.dep_step[dep])
            tb = index_of.get((table.rank(row), dep_id))
            if tb is None or not 0 <= step < table.tb_ptr[tb + 1] - table.tb_ptr[tb]:
                graph.fail("E-DEP", row, f"{table.name(row)} waits for tb {dep_id} step {step}, which does not exist")
            else:
                graph.before[row].append((table.tb_ptr[tb] + step, True, "waits for"))


def _signals(graph: Graph) -> None:
    """The k-th wait of each channel after its k-th signal, at each end in one threadblock."""
    table = graph.table
    ends: dict[Connection, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for row, op in enumerate(table.op):
        kind = ChannelKind(graph.kind[row])
        if op in SIGNALS:
            ends[table.rank(row), graph.peer[row], kind, graph.sync[row]][0].append(row)
        elif op in WAITS:
            ends[graph.peer[row], table.rank(row), kind, graph.sync[row]][1].append(row)
    for connection, (signals, waits) in sorted(ends.items()):
        for label, rows in (("signal", signals), ("wait", waits)):
            blocks = sorted({table.tb_of[row] for row in rows})
            if len(blocks) > 1:
                names = ", ".join(str(table.tb_id[tb]) for tb in blocks[:4])
                row = next(r for r in rows if table.tb_of[r] == blocks[1])
                graph.fail("E-SIGNAL", row, f"{arrow(connection)}: threadblocks {names} {label} on it, so which "
                                            f"{label} is the k-th is not defined")  # fmt: skip
        if len(signals) != len(waits):
            message = f"{arrow(connection)}: {len(signals)} signals and {len(waits)} waits"
            longer, common = (signals, len(waits)) if len(signals) > len(waits) else (waits, len(signals))
            verb = "nobody waits for" if longer is signals else "never ends:"
            graph.fail("E-SIGNAL", longer[common], f"{message}; {verb} {table.name(longer[common])}")
            shorter = waits if longer is signals else signals
            if shorter:
                graph.fail("E-SIGNAL", shorter[-1], f"{message}; the last one here is {table.name(shorter[-1])}")
        for signal, wait in zip(signals, waits, strict=False):
            visible = table.op[signal] == Op.SIGNAL and table.op[wait] == Op.WAIT
            graph.before[wait].append((graph.done(signal), visible, "waits for the signal of"))


def _semaphores(graph: Graph) -> None:
    """Each acquire after the releases without which it cannot have ended."""
    table, program = graph.table, graph.table.program
    uses: dict[tuple[int, int], tuple[dict[int, list[int]], dict[int, list[int]]]] = defaultdict(lambda: ({}, {}))
    for row, op in enumerate(table.op):
        if op in (Op.RELEASE, Op.ACQUIRE):
            side = uses[table.rank(row), graph.sync[row]][op == Op.ACQUIRE]
            side.setdefault(table.tb_of[row], []).append(row)
    for (rank, number), (releases, acquires) in sorted(uses.items()):
        known = program.semaphore_init[rank] if program.semaphore_init else ()
        first = min(rows[0] for side in (releases, acquires) for rows in side.values())
        if number >= len(known):
            graph.fail("E-SIGNAL", first, f"{table.name(first)} uses semaphore {number} of rank {rank}, which has "
                                          f"{len(known)}")  # fmt: skip
            continue
        total = sum(map(len, releases.values()))
        taken = sum(map(len, acquires.values()))
        if total != taken:
            what = (
                "some acquire never ends"
                if total + known[number] < taken
                else "the next launch starts with another value"
            )
            graph.fail("E-SIGNAL", first, f"semaphore {number} of rank {rank} is released {total} times and acquired "
                                          f"{taken} times: {what}")  # fmt: skip
        for rows in acquires.values():
            for nth, row in enumerate(rows, 1):
                missing = total - (nth - known[number])
                for released in releases.values():
                    # all others may have come first: of this threadblock's at least so many had to
                    sure = len(released) - missing
                    if 0 < sure <= len(released):
                        graph.before[row].append((released[sure - 1], True, "waits for the release of"))


def _barriers(graph: Graph) -> None:
    table = graph.table
    uses: dict[tuple[int, int], dict[int, list[int]]] = defaultdict(dict)
    for row, op in enumerate(table.op):
        if op == Op.BARRIER:
            uses[table.rank(row), graph.sync[row]].setdefault(table.tb_of[row], []).append(row)
    for (rank, number), blocks in sorted(uses.items()):
        rows = [row for each in blocks.values() for row in each]
        wrong = [row for row in rows if table.count[row] != len(blocks)]
        rounds = {len(each) for each in blocks.values()}
        if wrong or len(rounds) > 1:
            text = (
                f"waits for {table.count[wrong[0]]} threadblocks, and {len(blocks)} come" if wrong
                else f"is passed {min(rounds)} to {max(rounds)} times by its threadblocks"
            )  # fmt: skip
            graph.fail("E-BARRIER", (wrong or rows)[0], f"barrier {number} of rank {rank} {text}")
            continue
        thread = graph.nthreads
        graph.nthreads += 1
        for arrivals in zip(*blocks.values(), strict=True):
            node = graph.add_node(arrivals[0], thread)
            graph.before[node] += [(row, True, "is a barrier that waits for") for row in arrivals]
            for row in arrivals:
                after = row + 1
                if after < table.tb_ptr[table.tb_of[row] + 1]:
                    graph.before[after].append((node, True, "comes after"))


def _packets(graph: Graph) -> None:
    """Packet reads wait for the one write of their units; packet units hold nothing else."""
    table, program = graph.table, graph.table.program
    written: list[dict[int, int]] = [{} for _ in range(program.nranks)]
    for row, op in enumerate(table.op):
        if op not in PACKET_WRITES:
            continue
        begin, own = table.dst_index[row], table.rank(row)
        for rank in graph.members(row, graph.dst_space[row]):
            if op == Op.FORWARD_PACKET and rank == own and table.src_index[row] == begin:
                continue  # a multicast group's own member gets what it has
            cells = written[rank]
            for cell in range(begin, begin + table.count[row]):
                other = cells.setdefault(cell, row)
                if other != row:
                    graph.fail("E-PACKET", row, f"{table.name(row)} writes packets into scratch[{cell}] of rank {rank}"
                                                f", where {table.name(other)} does")  # fmt: skip
                    break
    for row, op in enumerate(table.op):
        begin, end = table.src_index[row], table.src_index[row] + table.count[row]
        if op in PACKET_READS:
            cells = written[table.rank(row)]
            writers = {cells.get(cell) for cell in range(begin, end)}
            if None in writers:
                cell = next(c for c in range(begin, end) if c not in cells)
                graph.fail("E-PACKET", row, f"{table.name(row)} waits for packets in scratch[{cell}] of rank "
                                            f"{table.rank(row)}, which nobody writes")  # fmt: skip
            reason = "reads the packets of"
            graph.before[row] += [(graph.done(w), False, reason) for w in sorted(w for w in writers if w is not None)]
        _check_plain(graph, row, written)


def _check_plain(graph: Graph, row: int, written: list[dict[int, int]]) -> None:
    table, op = graph.table, Op(graph.table.op[row])
    sides = (
        (OPERANDS[op][0] and op not in PACKET_READS, table.src_buffer[row], table.src_index[row], graph.src_space[row]),
        (
            OPERANDS[op][1] and op not in PACKET_WRITES,
            table.dst_buffer[row],
            table.dst_index[row],
            graph.dst_space[row],
        ),
    )
    for plain, buffer, index, space in sides:
        if not plain or buffer != Buffer.SCRATCH:
            continue
        for rank in graph.members(row, space):
            cells = written[rank]
            hit = next((c for c in range(index, index + table.count[row]) if c in cells), None) if cells else None
            if hit is not None:
                graph.fail("E-PACKET", row, f"{table.name(row)} uses scratch[{hit}] of rank {rank} as data, where "
                                            f"{table.name(cells[hit])} writes packets")  # fmt: skip


# --- order -----------------------------------------------------------------------------------------------


def _topological(graph: Graph) -> tuple[list[int], set[int]]:
    missing = [len(edges) for edges in graph.before]
    after: list[list[int]] = [[] for _ in missing]
    for node, edges in enumerate(graph.before):
        for other, _, _ in edges:
            after[other].append(node)
    order = [node for node, number in enumerate(missing) if not number]
    for node in order:
        for other in after[node]:
            missing[other] -= 1
            if not missing[other]:
                order.append(other)
    return order, {node for node, number in enumerate(missing) if number}


def _report_circles(graph: Graph, stuck: set[int]) -> None:
    """One finding a circle; every stuck node has a stuck one before it, so following leads into a circle."""
    table = graph.table
    seen: dict[int, int] = {}
    for walk, start in enumerate(sorted(stuck)):
        node = start
        while node not in seen:
            seen[node] = walk
            node = next(other for other, _, _ in reversed(graph.before[node]) if other in stuck)
        if seen[node] != walk:
            continue
        current, text = node, [table.name(graph.row_of[node])]
        while True:
            other, _, reason = next(edge for edge in reversed(graph.before[current]) if edge[0] in stuck)
            text.append(f"{reason} {table.name(graph.row_of[other])}")
            current = other
            if other == node:
                break
        shown = text if len(text) <= _SHOWN_CYCLE else [*text[:_SHOWN_CYCLE], f"... ({len(text) - 1} steps in all)"]
        rows = len({graph.row_of[n] for n in stuck})
        graph.fail("E-DEADLOCK", graph.row_of[node], f"deadlocks; {rows} steps never end: {', which '.join(shown)}")
