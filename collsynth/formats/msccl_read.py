"""MSCCL XML to Program, with everything that a target's own parser would stumble over.

The runtimes parse with NCCL's small tokenizer, not with an XML parser, and check little.  This
reader takes well-formed XML (no DOCTYPE, no entities), gives operands and dependencies the meaning
that the runtimes' interpreters give them, and notes every departure from what the tokenizers and
parsers accept in `ProgramSource.syntax`, so that `verify --target` can report it.

Facts: the three runtimes' sources as collected in docs/formats.md.  The main ones:

* every operand is local to the rank that owns the step, whatever the generator meant;
* an operand that the step's type does not use is ignored;
* a dependency names a threadblock and a step by the runtime's own counter, which is the position
  in the threadblock (a nop counts; a nop without a dependency vanishes);
* the buffers are as large as the collective makes them; `i_chunks` and `o_chunks` only serve checks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat

import numpy as np
from numpy.typing import NDArray

from ..collective import canonical_name
from ..errors import InputError
from ..program import Op, Program, Protocol
from .files import read_bytes

IntArray = NDArray[np.int64]

RUNTIMES = ("msccl-executor", "msccl", "rccl")
STEP_TYPES = {
    "s": Op.SEND, "r": Op.RECV, "cpy": Op.COPY, "re": Op.REDUCE, "nop": Op.NOP, "rcs": Op.RECV_COPY_SEND,
    "rrc": Op.RECV_REDUCE_COPY, "rrs": Op.RECV_REDUCE_SEND, "rrcs": Op.RECV_REDUCE_COPY_SEND,
}  # fmt: skip
#: Step types that use the source / destination operand (the other one is ignored by the runtimes).
USES_SOURCE = frozenset({"s", "cpy", "re", "rrc", "rrs", "rrcs"})
USES_DESTINATION = frozenset({"r", "cpy", "re", "rcs", "rrc", "rrcs"})
BUFFERS = {"i": 0, "o": 1, "s": 2}
#: Collective names of each runtime's parser.
COLL_SPELLINGS = {
    "msccl": frozenset({"allreduce", "allgather", "reduce", "broadcast", "alltoall", "reduce_scatter", "custom"}),
    "msccl-executor": frozenset({"reduce", "broadcast", "allreduce", "reducescatter", "allgather", "send", "recv",
                                 "gather", "scatter", "alltoall", "alltoallv"}),
}  # fmt: skip
COLL_SPELLINGS["rccl"] = COLL_SPELLINGS["msccl-executor"]
_ALGO_REQUIRED = {
    "name": ("msccl",), "ngpus": RUNTIMES, "nchunksperloop": RUNTIMES, "nchannels": RUNTIMES, "proto": RUNTIMES,
    "coll": RUNTIMES, "inplace": RUNTIMES, "outofplace": ("msccl-executor", "rccl"),
    "minBytes": ("msccl-executor", "rccl"), "maxBytes": ("msccl-executor", "rccl"),
}  # fmt: skip
_GPU_REQUIRED = ("id", "i_chunks", "o_chunks", "s_chunks")
_TB_REQUIRED = ("id", "send", "recv", "chan")
_STEP_REQUIRED = ("s", "type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt", "depid", "deps", "hasdep")
MAX_ATTRIBUTES = 16
MAX_CHILDREN = 1024
MAX_RANKS = 1 << 20
_MAX_INT = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class SyntaxNote:
    """Something in the text that a runtime's parser refuses or reads otherwise.

    Attributes:
        code: stable code, `X-...`.
        severity: `error` (the file is refused or never selected) or `warning`.
        line: line number, from 1.
        message: what, in one sentence.
        targets: the runtimes that it concerns; empty: every reader (the file contradicts itself).
        rank, threadblock, step: where in the program, None when not within one.
    """

    code: str
    severity: str
    line: int
    message: str
    targets: tuple[str, ...] = RUNTIMES
    rank: int | None = None
    threadblock: int | None = None
    step: int | None = None


@dataclass(frozen=True, eq=False)
class ProgramSource:
    """A program with the text it was read from.

    Attributes:
        program: what the text says.
        path: file name for messages.
        lines: int64[nrows], line of each instruction.
        tb_lines: int64[ntbs], line of each threadblock; gpu_lines: int64[nranks], 0 when absent.
        flags: bool[nrows], the step's hasdep: a threadblock publishes its progress only after flagged
            steps, so a wait on an unflagged one is met by a later flagged step or never.
        declared: int64[nranks, 3], i_chunks, o_chunks, s_chunks as written (the parsers check operand
            offsets against these).
        attributes: the attributes of `<algo>` as written.
        syntax: what runtimes' parsers would object to.
    """

    program: Program
    path: str
    lines: IntArray
    tb_lines: IntArray
    gpu_lines: IntArray
    flags: NDArray[np.bool_]
    declared: IntArray
    attributes: dict[str, str]
    syntax: tuple[SyntaxNote, ...] = ()

    def where(self, rank: int | None = None, threadblock: int | None = None, step: int | None = None) -> str:
        """`file:line` of a step, threadblock or rank; of the best known part when it does not exist."""
        line = 1
        if rank is not None and 0 <= rank < len(self.gpu_lines):
            line = int(self.gpu_lines[rank]) or 1
            if threadblock is not None:
                program = self.program
                found = np.flatnonzero((program.tb_rank == rank) & (program.tb_id == threadblock))
                if len(found):
                    index = int(found[0])
                    line = int(self.tb_lines[index])
                    row = -1 if step is None else int(program.tb_ptr[index]) + step
                    if step is not None and step >= 0 and row < int(program.tb_ptr[index + 1]):
                        line = int(self.lines[row])
        return f"{self.path}:{line}"


@dataclass(slots=True)
class _Block:
    """A threadblock while it is read."""

    rank: int
    id: int
    send: int
    recv: int
    channel: int
    line: int
    rows: list[tuple[int, ...]] = field(default_factory=list)
    after_nop: int = 0
    nsteps: int = 0
    ignored: int = 0


class _Reader:
    """Expat handlers that collect rows.  One instance reads one text."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self.start
        self.parser.EndElementHandler = self.end
        self.parser.StartDoctypeDeclHandler = self.refuse_doctype
        self.parser.EntityDeclHandler = self.refuse_entity
        self.parser.XmlDeclHandler = self.declaration
        self.parser.ProcessingInstructionHandler = self.instruction
        self.depth: list[str] = []
        self.children: list[int] = []
        self.algo: dict[str, str] | None = None
        self.algo_line = 1
        self.gpus: dict[int, tuple[int, int, int, int]] = {}  # rank -> line, i, o, s chunks
        self.rank = -1
        self.block: _Block | None = None
        self.blocks: list[_Block] = []
        self.notes: list[SyntaxNote] = []
        self.ignored: dict[str, int] = {}

    # --- small helpers ---

    @property
    def line(self) -> int:
        return self.parser.CurrentLineNumber

    def fail(self, what: str, expected: str | None = None) -> InputError:
        return InputError(what, where=f"{self.path}:{self.line}", expected=expected)

    def note(self, code: str, message: str, targets: tuple[str, ...] = RUNTIMES, severity: str = "error") -> None:
        if sum(n.code == code for n in self.notes[-64:]) < 8:  # a few of a kind say it all
            block = self.block
            self.notes.append(
                SyntaxNote(code, severity, self.line, message, targets, self.rank if self.rank >= 0 else None,
                           None if block is None else block.id, None if block is None else block.nsteps)
            )  # fmt: skip

    def integer(self, attributes: dict[str, str], name: str, default: int | None = None, limit: int = _MAX_INT) -> int:
        text = attributes.get(name)
        if text is None:
            if default is None:
                raise self.fail(f"<{self.depth[-1]}> has no attribute {name}")
            return default
        if text.isascii() and text.removeprefix("-").isdigit() and len(text) < 20:
            value = int(text)
            if text.removeprefix("-").startswith("0") and len(text.removeprefix("-")) > 1:
                if not re.fullmatch("-?[0-7]+", text):
                    raise self.fail(f"{name}={text!r} is not an integer", "an integer without leading zeros")
                value = int(text, 8)  # C's strtol with base 0
                self.note("X-NUMBER", f"{name}={text!r} is octal for the runtimes: {value}")
        elif re.fullmatch(r"-?0[xX][0-9a-fA-F]{1,15}", text):
            value = int(text, 16)
        else:
            raise self.fail(
                f"{name}={text[:40]!r} is not an integer", "a decimal integer (the runtimes misread others)"
            )
        if abs(value) > limit:
            raise self.fail(f"{name}={text} is out of range", f"at most {limit}")
        return value

    # --- expat handlers ---

    def refuse_doctype(self, *_: object) -> None:
        raise self.fail("a DOCTYPE is not allowed", "plain MSCCL XML, which has none")

    def refuse_entity(self, *_: object) -> None:
        raise self.fail("an entity declaration is not allowed", "plain MSCCL XML, which has none")

    def declaration(self, *_: object) -> None:
        self.note("X-PROLOG", "an XML declaration: the runtimes' tokenizer stops at '?'")

    def instruction(self, *_: object) -> None:
        self.note("X-PROLOG", "a processing instruction: the runtimes' tokenizer stops at '?'")

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        parent = self.depth[-1] if self.depth else ""
        self.depth.append(tag)
        if self.children:
            self.children[-1] += 1
            if self.children[-1] == MAX_CHILDREN + 1:
                self.note("X-CHILDREN", f"<{parent}> has more than {MAX_CHILDREN} children, the runtimes' fixed table")
        self.children.append(0)
        if len(attributes) > MAX_ATTRIBUTES:
            self.note("X-ATTRIBUTES", f"{len(attributes)} attributes; the runtimes keep {MAX_ATTRIBUTES}")
        if tag == "step" and parent == "tb":
            self.step(attributes)
        elif tag == "tb" and parent == "gpu":
            self.threadblock(attributes)
        elif tag == "gpu" and parent == "algo":
            self.gpu(attributes)
        elif not parent:
            if tag != "algo":
                raise self.fail(f"the root element is <{tag[:40]}>", "<algo>")
            self.algo, self.algo_line = attributes, self.line
        elif tag in ("step", "tb", "gpu", "algo"):
            raise self.fail(f"<{tag}> inside <{parent[:40]}>", "algo > gpu > tb > step")
        else:
            self.ignored[tag] = self.ignored.get(tag, 0) + 1
            self.note("X-ELEMENT", f"<{tag[:40]}> is skipped by every runtime: it has no effect", severity="warning")

    def end(self, tag: str) -> None:
        self.depth.pop()
        self.children.pop()
        if tag == "gpu" and len(self.depth) == 1:
            self.rank = -1
        elif tag == "tb" and len(self.depth) == 2:
            self.block = None

    def gpu(self, attributes: dict[str, str]) -> None:
        for name in _GPU_REQUIRED:
            if name not in attributes:
                self.note("X-MISSING", f"<gpu> has no {name}")
        rank = self.integer(attributes, "id", limit=MAX_RANKS)
        if rank < 0 or rank in self.gpus:
            raise self.fail(f"gpu id {rank} {'appears twice' if rank in self.gpus else 'is negative'}")
        sizes = [self.integer(attributes, name, 0) for name in ("i_chunks", "o_chunks", "s_chunks")]
        if min(sizes) < 0:
            raise self.fail("a chunk count is negative")
        self.rank = rank
        self.gpus[rank] = (self.line, sizes[0], sizes[1], sizes[2])

    def threadblock(self, attributes: dict[str, str]) -> None:
        for name in _TB_REQUIRED:
            if name not in attributes:
                self.note("X-MISSING", f"<tb> has no {name}")
        block = _Block(
            self.rank, self.integer(attributes, "id"), self.integer(attributes, "send", -1),
            self.integer(attributes, "recv", -1), self.integer(attributes, "chan", 0), self.line,
        )  # fmt: skip
        if block.id < 0:
            raise self.fail(f"threadblock id {block.id} is negative")
        for label, peer in (("send", block.send), ("recv", block.recv)):
            if peer < -1:
                raise self.fail(f"{label} peer {peer}", "a rank, or -1 for none")
        self.block = block
        self.blocks.append(block)

    def step(self, attributes: dict[str, str]) -> None:
        block = self.block
        assert block is not None
        if len(attributes) < len(_STEP_REQUIRED):
            for name in _STEP_REQUIRED:
                if name not in attributes:
                    self.note("X-MISSING", f"<step> has no {name}")
        kind = attributes.get("type", "")
        op = STEP_TYPES.get(kind)
        if op is None:
            hint = " (no runtime executes it)" if kind == "ra" else ""
            raise self.fail(f"step type {kind[:40]!r}{hint}", "one of " + ", ".join(STEP_TYPES))
        dep_tb = self.integer(attributes, "depid", -1)
        dep_step = self.integer(attributes, "deps", -1)
        flag = self.integer(attributes, "hasdep", 0)
        if flag not in (0, 1):
            self.note("X-FLAG", f"hasdep={flag}, not 0 or 1")
        number = self.integer(attributes, "s", block.nsteps)
        if number != block.nsteps + block.ignored:
            self.note(
                "X-STEP-NUMBER", f"s={number}, but the runtimes count: this is step {block.nsteps}", (), "warning"
            )
        if op == Op.NOP:
            if dep_tb < 0:
                # it vanishes at run time; later steps keep the runtime's counter, not the file's
                block.ignored += 1
                self.note("X-NOP", "a nop without a dependency vanishes and shifts later step numbers", (), "warning")
                return
            if flag:
                self.note("X-NOP-FLAG", "hasdep on a nop is lost", severity="warning")
            block.after_nop = self.line
        else:
            if block.after_nop and dep_tb < 0:
                self.note("X-NOP-CHAIN", "the step after a nop carries no dependency: the parsers refuse the file")
            block.after_nop = 0
        src = dst = src_index = dst_index = -1
        if kind in USES_SOURCE:
            src, src_index = self.operand(attributes, "src")
        if kind in USES_DESTINATION:
            dst, dst_index = self.operand(attributes, "dst")
        for name in ("srcbuf", "dstbuf"):
            if attributes.get(name, "i") not in BUFFERS:
                self.note("X-BUFFER", f"{name}={attributes[name][:40]!r} is no buffer letter (i, o, s)")
        count = self.integer(attributes, "cnt", 0 if op == Op.NOP else None)
        if count < 0:
            raise self.fail(f"cnt={count}", "0 or more")
        block.rows.append((int(op), src, src_index, dst, dst_index, count, dep_tb, dep_step, flag, self.line))
        block.nsteps += 1

    def operand(self, attributes: dict[str, str], side: str) -> tuple[int, int]:
        letter = attributes.get(side + "buf")
        if letter not in BUFFERS:
            raise self.fail(f"{side}buf={letter!r}", "i, o or s")
        return BUFFERS[letter], self.integer(attributes, side + "off")

    # --- the whole ---

    def run(self, data: bytes) -> ProgramSource:
        try:
            self.parser.Parse(data, True)
        except expat.ExpatError as error:
            raise InputError(
                f"not well-formed XML: {expat.errors.messages[error.code]}",
                where=f"{self.path}:{error.lineno}", expected="MSCCL XML",
            ) from error  # fmt: skip
        except (ValueError, LookupError) as error:  # an encoding that Python does not know
            raise InputError(f"not readable: {error}", where=f"{self.path}:1") from error
        assert self.algo is not None
        self.rank, self.block = -1, None
        return self.finish(self.algo, _lexical(data))

    def finish(self, algo: dict[str, str], lexical: list[SyntaxNote]) -> ProgramSource:
        where = f"{self.path}:{self.algo_line}"
        self.depth.append("algo")

        def note(code: str, message: str, targets: tuple[str, ...] = RUNTIMES, severity: str = "error") -> None:
            self.notes.append(SyntaxNote(code, severity, self.algo_line, message, targets))

        def number(name: str, default: int, limit: int = _MAX_INT) -> int:
            try:
                return self.integer(algo, name, default, limit)
            except InputError as error:
                raise InputError(error.what, where=where, expected=error.expected) from None

        for name, targets in _ALGO_REQUIRED.items():
            if name not in algo:
                note("X-MISSING", f"<algo> has no {name}", targets)
        nranks = number("ngpus", max(self.gpus, default=0) + 1, MAX_RANKS)
        nunits = number("nchunksperloop", 0)
        if nranks < 1 or nunits < 1:
            raise InputError(f"ngpus={nranks}, nchunksperloop={nunits}", where=where, expected="1 or more of each")
        outside = [r for r in self.gpus if r >= nranks]
        if outside:
            raise InputError(f"gpu id {outside[0]} of {nranks} ranks", where=f"{self.path}:{self.gpus[outside[0]][0]}")
        missing = nranks - len(self.gpus)
        if missing:
            note("X-GPUS", f"{missing} of {nranks} ranks have no <gpu>", ())
        coll = algo.get("coll", "")
        for target in RUNTIMES:
            if "coll" in algo and coll not in COLL_SPELLINGS[target]:
                known = ", ".join(sorted(COLL_SPELLINGS[target]))
                note("X-COLL", f"coll={coll[:40]!r} is not a collective of {target} ({known})", (target,))
        try:
            collective = canonical_name(coll) if coll else ""
        except InputError:
            collective = ""
        try:
            protocol = Protocol(algo.get("proto", "Simple"))
        except ValueError:
            raise InputError(
                f"proto={algo['proto'][:40]!r}", where=where, expected="Simple, LL or LL128 (case matters)"
            ) from None
        in_place = number("inplace", 0) != 0
        # files without outofplace are used in the one mode that inplace names
        out_of_place = number("outofplace", int(not in_place)) != 0
        if not in_place and not out_of_place:
            note("X-MODES", "inplace and outofplace are both 0: nothing selects it")
        minimum, maximum = number("minBytes", 0, 1 << 62), number("maxBytes", 0, 1 << 62)
        if "maxBytes" in algo and maximum == 0:
            note("X-WINDOW", "maxBytes=0 means no limit here, but msccl never selects such a file", ("msccl",))
        elif "maxBytes" in algo and not 0 <= minimum <= maximum:
            note("X-WINDOW", f"no size lies in minBytes={minimum}..maxBytes={maximum}")
        return self.assemble(
            algo, lexical, collective, nranks, nunits, number("nchannels", 1), protocol, (in_place, out_of_place),
            (minimum or None, maximum or None),
        )  # fmt: skip

    def assemble(
        self, algo: dict[str, str], lexical: list[SyntaxNote], collective: str, nranks: int, nunits: int,
        nchannels: int, protocol: Protocol, modes: tuple[bool, bool], window: tuple[int | None, int | None],
    ) -> ProgramSource:  # fmt: skip
        declared = np.zeros((nranks, 3), dtype=np.int64)
        gpu_lines = np.zeros(nranks, dtype=np.int64)
        for rank, (line, *sizes) in self.gpus.items():
            declared[rank] = sizes
            gpu_lines[rank] = line
        inputs, outputs = self.buffer_sizes(collective, nranks, nunits, declared)
        blocks = sorted(self.blocks, key=lambda b: (b.rank, b.id))
        expected = 0
        for before, block in zip([None, *blocks], blocks, strict=False):
            expected = 0 if before is None or before.rank != block.rank else expected + 1
            if before is not None and (before.rank, before.id) == (block.rank, block.id):
                raise InputError(
                    f"rank {block.rank} has two threadblocks {block.id}", where=f"{self.path}:{block.line}",
                    expected=f"unique ids (the other one is in line {before.line})",
                )  # fmt: skip
            if block.id != expected:
                message = f"threadblock ids of rank {block.rank} are not 0, 1, 2 ...: {expected} is missing"
                self.notes.append(
                    SyntaxNote("X-TB-ID", "error", block.line, message, RUNTIMES, block.rank, block.id)
                )  # fmt: skip
                expected = block.id
        flat = [row for block in blocks for row in block.rows]
        table = np.array(flat, dtype=np.int64).reshape(len(flat), 10)
        column = np.ascontiguousarray(table.T)
        op, src, src_index, dst, dst_index, count, dep_tb, dep_step, flags, lines = column
        has_dep = dep_tb >= 0
        notes = tuple(f"{n} <{tag}> elements were ignored" for tag, n in sorted(self.ignored.items()))

        def of_blocks(values: list[int]) -> IntArray:
            return np.array(values, dtype=np.int64)

        zeros, none = np.zeros(len(flat), dtype=np.int64), np.full(len(flat), -1, dtype=np.int64)
        program = Program(
            name=algo.get("name", ""), collective=collective, nranks=nranks,
            root=0 if collective in ("broadcast", "reduce", "gather", "scatter") else None,
            nunits=nunits, nchannels=max(nchannels, 0), protocol=protocol, in_place=modes[0], out_of_place=modes[1],
            min_bytes=window[0], max_bytes=window[1],
            input_units=inputs, output_units=outputs, scratch_units=declared[:, 2].copy(),
            tb_rank=of_blocks([b.rank for b in blocks]), tb_id=of_blocks([b.id for b in blocks]),
            tb_send=of_blocks([b.send for b in blocks]), tb_recv=of_blocks([b.recv for b in blocks]),
            tb_channel=of_blocks([b.channel for b in blocks]),
            tb_ptr=np.concatenate(([0], np.cumsum([len(b.rows) for b in blocks]))).astype(np.int64),
            op=op.copy(), src_space=zeros, src_buffer=src.copy(), src_index=src_index.copy(),
            dst_space=zeros.copy(), dst_buffer=dst.copy(), dst_index=dst_index.copy(), count=count.copy(),
            peer=none, sync=none.copy(),
            dep_ptr=np.concatenate(([0], np.cumsum(has_dep))).astype(np.int64),
            dep_tb=dep_tb[has_dep], dep_step=dep_step[has_dep], notes=notes,
        )  # fmt: skip
        syntax = sorted([*lexical, *self.notes], key=lambda n: (n.line, n.code))
        return ProgramSource(
            program, self.path, lines.copy(), of_blocks([b.line for b in blocks]), gpu_lines,
            flags.astype(bool), declared, dict(algo), tuple(syntax),
        )  # fmt: skip

    def buffer_sizes(self, collective: str, nranks: int, nunits: int, declared: IntArray) -> tuple[IntArray, IntArray]:
        """Input and output units: what the collective makes them, or as declared when it is unknown."""
        whole = np.full(nranks, nunits, dtype=np.int64)
        shard = np.full(nranks, nunits // nranks, dtype=np.int64)
        at_root = np.where(np.arange(nranks) == 0, nunits, 0).astype(np.int64)
        # msccl holds a custom program's buffers to the whole payload, though their sizes are as declared
        sizes = {
            "allgather": (shard, whole), "reducescatter": (whole, shard),
            "gather": (shard, at_root), "scatter": (at_root, shard),
        }.get(collective, (whole, whole))  # fmt: skip
        if collective in ("allgather", "reducescatter", "alltoall", "gather", "scatter") and nunits % nranks:
            message = f"nchunksperloop={nunits} is not a multiple of the {nranks} ranks of {collective}"
            self.notes.append(SyntaxNote("X-CHUNKS", "error", self.algo_line, message, ()))
        for index, (label, size) in enumerate(zip(("i_chunks", "o_chunks"), sizes, strict=True)):
            odd = np.flatnonzero((declared[:, index] != 0) & (declared[:, index] != size))
            if len(odd):
                rank = int(odd[0])
                whose = collective or "a program"
                message = f"{label}={declared[rank, index]}, but {whose} of {nunits} chunks makes it {size[rank]}"
                self.notes.append(
                    SyntaxNote("X-CHUNKS", "error", self.gpus[rank][0], message, ("msccl",), rank)
                )  # fmt: skip
        return (sizes[0].copy(), sizes[1].copy()) if collective else (declared[:, 0].copy(), declared[:, 1].copy())


_GOOD_TAG = re.compile(rb'<(?:/\w+|\w+(?: \w+="[^"<&]*")*(?: ?/)?)>')
_TAG = re.compile(rb"<[A-Za-z_/](?:\"[^\"]*\"|'[^']*'|[^'\">])*>")
_COMMENT = re.compile(rb"<!--.*?-->", re.DOTALL)


def _lexical(data: bytes) -> list[SyntaxNote]:
    """What the runtimes' tokenizer stumbles over in well-formed XML."""
    notes: list[SyntaxNote] = []
    if b"<!--" in data:
        data = _COMMENT.sub(lambda m: b"\n" * m.group().count(b"\n"), data)

    def note(code: str, offset: int, message: str) -> None:
        if sum(n.code == code for n in notes) < 8:
            notes.append(SyntaxNote(code, "error", data.count(b"\n", 0, offset) + 1, message))

    if data[:3] == b"\xef\xbb\xbf" or data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        note("X-ENCODING", 0, "a byte-order mark before the first '<'")
    for match in re.finditer(rb"<!\[CDATA\[", data):
        note("X-TEXT", match.start(), "a CDATA section")
    for match in re.finditer(rb'="([^"]{255,})"', data):
        note("X-LENGTH", match.start(), "a value of 255 or more bytes overflows the runtimes' field")
    if not _GOOD_TAG.sub(b"", data).translate(None, b" \r\n"):
        return notes  # only good tags and blanks: the usual case, one pass
    for match in re.finditer(rb"\t[ \r\n\t]*<", data):
        note("X-TAB", match.start(), "a tab before '<'")
    for match in re.finditer(rb">[^<>]*[^<>\s][^<>]*(?=<)", data):
        note("X-TEXT", match.start(), "text between elements")
    for match in _TAG.finditer(data):
        tag = match.group()
        if _GOOD_TAG.fullmatch(tag):
            continue
        bare = re.sub(rb"\"[^\"]*\"", b'""', tag)
        if b"'" in bare:
            note("X-QUOTE", match.start(), "a value in single quotes, which the runtimes misread")
        elif b"&" in tag:
            note("X-ENTITY", match.start(), "an entity reference, which the runtimes take literally")
        elif re.search(rb"[\t\r\n]", bare):
            note("X-TAG-BREAK", match.start(), "a tab or line break inside a tag")
        else:
            note("X-TAG-SPACE", match.start(), "attributes must be separated by one space, without blanks around '='")
    return notes


def looks_like(data: bytes) -> bool:
    """Whether the content is (meant to be) MSCCL XML."""
    head = data[:4096].lstrip(b"\xef\xbb\xbf \t\r\n")
    return head.startswith(b"<") and re.search(rb"<algo[\s>/]", data[: 1 << 16]) is not None


def parse(data: bytes | str, path: str = "<text>") -> ProgramSource:
    """The program in a text, with its lines and what targets would object to.

    Args:
        data: the whole text.
        path: file name for messages.

    Raises:
        InputError: not well-formed, a DOCTYPE, or a value that gives no program; `where` is file:line.
    """
    return _Reader(path).run(data.encode() if isinstance(data, str) else data)


def read_source(path: str | Path) -> ProgramSource:
    """`parse` of a file (`-`: standard input)."""
    return parse(read_bytes(path), "standard input" if str(path) == "-" else str(path))


def read(path: str | Path) -> Program:
    """The program in an MSCCL XML file (`-`: standard input); see `read_source` for its lines.

    Raises:
        InputError: not readable as MSCCL XML; the message starts with file:line.
    """
    return read_source(path).program
