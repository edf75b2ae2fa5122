"""The shape of a program: peers, connections, pairing, waits, and the graph of what comes before what.

A connection is (source rank, destination rank, channel), one FIFO.  The k-th message that goes in is the
k-th that comes out.  Edges of the graph: program order of a threadblock; a wait on the step that ends it;
the k-th send before the k-th receive; and, because a FIFO holds `depth` messages, the k-th receive before
the (k + depth)-th send.  The program ends iff this graph has no circle.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from ..program import RECEIVING, SENDING, TWO_SIDED, Op, Program
from .report import Finding, error, warning

_SENDING = frozenset(int(o) for o in SENDING)
_RECEIVING = frozenset(int(o) for o in RECEIVING)
_TWO_SIDED = frozenset(int(o) for o in TWO_SIDED)
#: Spelling of operations in messages (that of MSCCL XML).
OP_NAMES = {
    Op.NOP: "nop", Op.SEND: "s", Op.RECV: "r", Op.COPY: "cpy", Op.REDUCE: "re", Op.RECV_COPY_SEND: "rcs",
    Op.RECV_REDUCE_COPY: "rrc", Op.RECV_REDUCE_SEND: "rrs", Op.RECV_REDUCE_COPY_SEND: "rrcs",
}  # fmt: skip
#: Steps of a circle that a message prints.
_SHOWN_CYCLE = 24


@dataclass(slots=True)
class Table:
    """A program's columns as plain lists, with where each row stands.

    Attributes:
        tb_of: table index of each row's threadblock.  step_of: its step.  first_tb, last_tb: the range of
            threadblock indices of each rank.
    """

    program: Program
    op: list[int] = field(init=False)
    count: list[int] = field(init=False)
    src_buffer: list[int] = field(init=False)
    src_index: list[int] = field(init=False)
    dst_buffer: list[int] = field(init=False)
    dst_index: list[int] = field(init=False)
    tb_ptr: list[int] = field(init=False)
    tb_rank: list[int] = field(init=False)
    tb_id: list[int] = field(init=False)
    tb_of: list[int] = field(init=False)
    step_of: list[int] = field(init=False)

    def __post_init__(self) -> None:
        program = self.program
        for name in ("op", "count", "src_buffer", "src_index", "dst_buffer", "dst_index", "tb_ptr", "tb_rank", "tb_id"):
            setattr(self, name, getattr(program, name).tolist())
        self.tb_of, self.step_of = [], []
        for tb in range(program.ntbs):
            length = self.tb_ptr[tb + 1] - self.tb_ptr[tb]
            self.tb_of.extend([tb] * length)
            self.step_of.extend(range(length))

    def rank(self, row: int) -> int:
        """The rank that runs a row."""
        return self.tb_rank[self.tb_of[row]]

    def at(self, row: int) -> dict[str, int]:
        """The place of a row as keywords of a finding."""
        tb = self.tb_of[row]
        return {"rank": self.tb_rank[tb], "threadblock": self.tb_id[tb], "step": self.step_of[row]}

    def name(self, row: int) -> str:
        """The place of a row in words."""
        tb = self.tb_of[row]
        op = OP_NAMES.get(Op(self.op[row]), Op(self.op[row]).name)
        return f"rank {self.tb_rank[tb]} tb {self.tb_id[tb]} step {self.step_of[row]} ({op})"


@dataclass(slots=True)
class Structure:
    """What comes before what, and what is wrong with the shape.

    Attributes:
        findings: what is wrong.
        sound: whether the data can be followed (no finding makes a message or a wait meaningless).
        waits: row -> rows that its dependencies wait for.
        sender: receive row -> its send row.  receiver: send row -> its receive row.
        room: send row -> the receive row that must have made room, at the protocol's FIFO depth.
        hopeless: rows whose wait nothing ends.
        order: all rows, one after another as they can run; shorter than the program on a deadlock.
    """

    table: Table
    findings: list[Finding] = field(default_factory=list)
    sound: bool = True
    waits: dict[int, list[int]] = field(default_factory=dict)
    sender: dict[int, int] = field(default_factory=dict)
    receiver: dict[int, int] = field(default_factory=dict)
    room: dict[int, int] = field(default_factory=dict)
    hopeless: set[int] = field(default_factory=set)
    order: list[int] = field(default_factory=list)

    def fail(self, finding: Finding) -> None:
        """Record a finding that makes following the data pointless."""
        self.findings.append(finding)
        self.sound = False

    def predecessors(self, row: int, fifo: bool = True) -> list[tuple[int, str]]:
        """Rows that must have ended before `row` can, each with the reason in words."""
        result = []
        if self.table.step_of[row]:
            result.append((row - 1, "comes after"))
        result += [(other, "waits for") for other in self.waits.get(row, ())]
        if row in self.sender:
            result.append((self.sender[row], "receives from"))
        if fifo and row in self.room:
            result.append((self.room[row], "needs the room made by"))
        return result


def build_structure(program: Program, flags: list[bool] | None = None) -> Structure:
    """Check the shape of a program and build its graph.

    Args:
        program: any program.
        flags: whether each row publishes its index (MSCCL's hasdep); None: every row that is waited for does.
    """
    structure = Structure(Table(program))
    _check_operations(structure)
    _check_connections(structure)
    _resolve_waits(structure, flags)
    structure.order, left = topological_order(structure, fifo=True)
    if left:
        _report_deadlock(structure, left)
    return structure


def _check_operations(structure: Structure) -> None:
    table, program = structure.table, structure.table.program
    for row, op in enumerate(table.op):
        if op not in _TWO_SIDED:
            structure.fail(
                error(
                    "E-UNSUPPORTED", f"{Op(op).name} is one-sided; only two-sided programs are proven", **table.at(row)
                )
            )
        elif table.count[row] < 0:
            structure.fail(error("E-RANGE", f"{table.name(row)} moves {table.count[row]} units", **table.at(row)))
        elif table.count[row] == 0 and op != Op.NOP:
            structure.findings.append(warning("W-EMPTY", f"{table.name(row)} moves nothing", **table.at(row)))
    for tb in range(program.ntbs):
        rank, begin, end = table.tb_rank[tb], table.tb_ptr[tb], table.tb_ptr[tb + 1]
        place = {"rank": rank, "threadblock": table.tb_id[tb]}
        channel = int(program.tb_channel[tb])
        local = program.tb_send[tb] < 0 and program.tb_recv[tb] < 0
        if not local and not 0 <= channel < program.nchannels:
            structure.fail(error("E-CHANNEL", f"channel {channel} of {program.nchannels}", **place))
        for label, peer, kinds in (
            ("send", int(program.tb_send[tb]), _SENDING), ("receive", int(program.tb_recv[tb]), _RECEIVING),
        ):  # fmt: skip
            if peer == rank or peer >= program.nranks:
                what = "itself" if peer == rank else f"rank {peer} of {program.nranks}"
                structure.fail(error("E-PEER", f"the {label} peer of rank {rank} is {what}", **place))
            if peer < 0:
                for row in range(begin, end):
                    if table.op[row] in kinds:
                        message = f"{table.name(row)} needs a {label} peer, and its threadblock has none"
                        structure.fail(error("E-PEER", message, **table.at(row)))


def _check_connections(structure: Structure) -> None:
    """One threadblock at each end of a connection, and the same messages at both."""
    table, program = structure.table, structure.table.program
    sends: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    receives: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for tb in range(program.ntbs):
        rank, channel = table.tb_rank[tb], int(program.tb_channel[tb])
        if program.tb_send[tb] >= 0:
            sends[rank, int(program.tb_send[tb]), channel].append(tb)
        if program.tb_recv[tb] >= 0:
            receives[int(program.tb_recv[tb]), rank, channel].append(tb)
    for label, ends in (("sending", sends), ("receiving", receives)):
        for connection, tbs in ends.items():
            for tb in tbs[1:]:
                message = (
                    f"connection {_arrow(connection)} is shared by {label} threadblocks "
                    f"{table.tb_id[tbs[0]]} and {table.tb_id[tb]} of rank {table.tb_rank[tb]}"
                )
                step = 0 if table.tb_ptr[tb + 1] > table.tb_ptr[tb] else None
                structure.fail(
                    error("E-CONN-SHARED", message, rank=table.tb_rank[tb], threadblock=table.tb_id[tb], step=step)
                )
    depth = program.protocol.fifo_depth
    for connection in sorted(sends.keys() | receives.keys()):
        senders, receivers = sends.get(connection, []), receives.get(connection, [])
        if len(senders) > 1 or len(receivers) > 1:
            continue
        out = _messages(table, senders, _SENDING)
        into = _messages(table, receivers, _RECEIVING)
        _check_pairing(structure, connection, senders, receivers, out, into)
        for number, (send, receive) in enumerate(zip(out, into, strict=False)):
            structure.sender[receive] = send
            structure.receiver[send] = receive
            if number + depth < len(out):
                structure.room[out[number + depth]] = receive


def _messages(table: Table, tbs: list[int], kinds: frozenset[int]) -> list[int]:
    return [row for tb in tbs for row in range(table.tb_ptr[tb], table.tb_ptr[tb + 1]) if table.op[row] in kinds]


def _arrow(connection: tuple[int, int, int]) -> str:
    return f"{connection[0]}->{connection[1]} channel {connection[2]}"


def _check_pairing(
    structure: Structure, connection: tuple[int, int, int], senders: list[int], receivers: list[int],
    out: list[int], into: list[int],
) -> None:  # fmt: skip
    """Report at both ends where the k-th messages first differ, and where one end stops too early."""
    table = structure.table
    for number, (send, receive) in enumerate(zip(out, into, strict=False)):
        if table.count[send] != table.count[receive]:
            message = (
                f"message {number} of connection {_arrow(connection)}: {table.name(send)} sends {table.count[send]} "
                f"units, {table.name(receive)} takes {table.count[receive]}"
            )
            structure.fail(error("E-PAIRING", message, **table.at(send)))
            structure.fail(error("E-PAIRING", message, **table.at(receive)))
            break
    if len(out) == len(into):
        return
    message = f"connection {_arrow(connection)}: {len(out)} messages are sent and {len(into)} received"
    longer, common = (out, len(into)) if len(out) > len(into) else (into, len(out))
    verb = "no receive takes" if longer is out else "no send answers"
    structure.fail(error("E-PAIRING", f"{message}; {verb} {table.name(longer[common])}", **table.at(longer[common])))
    for tb in receivers if longer is out else senders:
        # the short end lacks a step somewhere before its last one, where it is noticed
        place = {"rank": table.tb_rank[tb], "threadblock": table.tb_id[tb]}
        steps = table.tb_ptr[tb + 1] - table.tb_ptr[tb]
        structure.fail(
            error(
                "E-PAIRING", f"{message}; this threadblock ends too early", step=steps - 1 if steps else None, **place
            )
        )


def _resolve_waits(structure: Structure, flags: list[bool] | None) -> None:
    """Each dependency becomes an edge from the step that ends the wait."""
    table, program = structure.table, structure.table.program
    index_of = {(rank, tb_id): tb for tb, (rank, tb_id) in enumerate(zip(table.tb_rank, table.tb_id, strict=True))}
    pointers, dep_tbs, dep_steps = program.dep_ptr.tolist(), program.dep_tb.tolist(), program.dep_step.tolist()
    for row in range(program.nrows):
        for dep in range(pointers[row], pointers[row + 1]):
            dep_id, step = dep_tbs[dep], dep_steps[dep]
            tb = index_of.get((table.rank(row), dep_id))
            what = f"{table.name(row)} waits for tb {dep_id} step {step}"
            if tb is None:
                structure.hopeless.add(row)
                structure.fail(error("E-DEP", f"{what}: there is no such threadblock", **table.at(row)))
                continue
            begin, end = table.tb_ptr[tb], table.tb_ptr[tb + 1]
            if not 0 <= step < end - begin:
                structure.hopeless.add(row)
                structure.fail(
                    error("E-DEP", f"{what}: that threadblock has {end - begin} steps", **table.at(row))
                )  # fmt: skip
                continue
            waited = begin + step
            if flags is not None:
                # a threadblock publishes its index only after flagged steps, and a flag on a nop is lost
                while waited < end and not (flags[waited] and table.op[waited] != Op.NOP):
                    waited += 1
            if waited == end:
                structure.hopeless.add(row)
                message = f"{what}: neither it nor a later step there publishes (hasdep=1)"
                structure.fail(error("E-DEP", message, **table.at(row)))
                message = f"{table.name(row)} waits for {table.name(begin + step)}, which does not publish (hasdep=0)"
                structure.fail(error("E-DEP", message, **table.at(begin + step)))
                continue
            structure.waits.setdefault(row, []).append(waited)


def topological_order(structure: Structure, *, fifo: bool) -> tuple[list[int], list[int]]:
    """Rows in an order in which they can run, and those that never can."""
    nrows = structure.table.program.nrows
    missing = [0] * nrows
    after: list[list[int]] = [[] for _ in range(nrows)]
    for row in range(nrows):
        if structure.table.step_of[row]:
            missing[row] = 1
            after[row - 1].append(row)
    for row in structure.hopeless:
        missing[row] += 1
    for row, waited in structure.waits.items():
        missing[row] += len(waited)
        for other in waited:
            after[other].append(row)
    for edges in (structure.sender, structure.room) if fifo else (structure.sender,):
        for row, other in edges.items():
            missing[row] += 1
            after[other].append(row)
    order = [row for row in range(nrows) if not missing[row]]
    for row in order:
        for other in after[row]:
            missing[other] -= 1
            if not missing[other]:
                order.append(other)
    return order, [row for row in range(nrows) if missing[row]]


def _report_deadlock(structure: Structure, left: list[int]) -> None:
    """One finding a circle, and one a wait that nothing ends; says whether deeper FIFOs would open a circle."""
    table = structure.table
    _, without_fifo = topological_order(structure, fifo=False)
    stuck, fifo = (set(without_fifo), False) if without_fifo else (set(left), True)
    for hopeless in sorted(structure.hopeless):
        message = f"{table.name(hopeless)} waits for what never comes; {len(left)} steps of the program never end"
        structure.fail(error("E-DEADLOCK", message, **table.at(hopeless)))
    depth = table.program.protocol.fifo_depth
    blame = f"deadlocks at FIFO depth {depth} ({table.program.protocol.value}), not with unbounded FIFOs" if fifo else (
        "deadlocks with FIFOs of any depth"
    )  # fmt: skip
    # every stuck row but the hopeless ones has a stuck predecessor: following one leads to those or into a circle
    seen: dict[int, int] = {}
    for walk, start in enumerate(sorted(stuck)):
        row: int | None = start
        while row is not None and row not in seen:
            seen[row] = walk
            before = reversed(structure.predecessors(row, fifo))
            row = next((p for p, _ in before if p in stuck), None)
        if row is None or seen[row] != walk:
            continue
        circle, text = [row], [table.name(row)]
        while True:
            previous, reason = next(e for e in reversed(structure.predecessors(circle[-1], fifo)) if e[0] in stuck)
            text.append(f"{reason} {table.name(previous)}")
            if previous == row:
                break
            circle.append(previous)
        shown = text if len(text) <= _SHOWN_CYCLE else [*text[:_SHOWN_CYCLE], f"... ({len(text) - 1} steps in all)"]
        message = f"{blame}; {len(stuck)} steps never end: {', which '.join(shown)}"
        structure.fail(error("E-DEADLOCK", message, **table.at(row)))
