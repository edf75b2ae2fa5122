"""The prover of programs: right ones pass, each kind of fault is named at its place."""

from __future__ import annotations

import csv
import random
import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_programs import (
    INPUT,
    OUTPUT,
    SCRATCH,
    direct_reduce_scatter,
    exchange,
    relay_broadcast,
    ring_allreduce,
    small_programs,
    step,
)  # fmt: skip

from collsynth.collective import Collective, RankSets, allreduce
from collsynth.formats import msccl_xml
from collsynth.program import READING, TARGETS, WRITING, Instruction, Op, Program, Protocol, Threadblock
from collsynth.verifier import CODES, Report, verify
from collsynth.verifier.codes import EXPLAINED, READER_EXPLAINED
from collsynth.verifier.races import vector_clocks
from collsynth.verifier.structure import build_structure


def rebuilt(program: Program, blocks: list[Threadblock], **changes: Any) -> Program:
    """The program with other threadblocks."""
    options: dict[str, Any] = {
        key: getattr(program, key)
        for key in ("name", "collective", "nranks", "root", "nunits", "nchannels", "protocol", "in_place",
                    "out_of_place", "min_bytes", "max_bytes")
    }  # fmt: skip
    for key in ("input_units", "output_units", "scratch_units"):
        options[key] = getattr(program, key).tolist()
    return Program.build(blocks, **(options | changes))


def edited(program: Program, rank: int, tb: int, number: int, instruction: Instruction) -> Program:
    """The program with one step replaced."""
    blocks = []
    for block in program.threadblocks():
        if (block.rank, block.id) == (rank, tb):
            steps = list(block.instructions)
            steps[number] = instruction
            block = replace(block, instructions=tuple(steps))
        blocks.append(block)
    return rebuilt(program, blocks)


def found(report: Report, code: str) -> set[tuple[int | None, int | None, int | None]]:
    return {(f.rank, f.threadblock, f.step) for f in report.findings if f.code == code}


@pytest.mark.parametrize("program", small_programs(), ids=lambda p: f"{p.name}-{p.nranks}-{p.nunits}")
def test_right_programs_pass(program: Program) -> None:
    report = verify(program)
    assert report.ok and not report.findings, [str(f) for f in report.findings]
    assert report.stamp == program.content_hash()
    assert verify(program) is report


@pytest.mark.parametrize("nranks", [2, 3, 8, 40])
def test_rings_of_many_sizes(nranks: int) -> None:
    assert verify(ring_allreduce(nranks)).ok
    assert verify(ring_allreduce(nranks), target=TARGETS["msccl-executor"]).ok == (2 * nranks - 1 <= 64)


def test_fifo_depth_decides() -> None:
    """Two unread messages fit a Simple connection, eight an LL one; one more and nobody moves."""
    for protocol, depth in ((Protocol.SIMPLE, 2), (Protocol.LL, 8), (Protocol.LL128, 8)):
        assert verify(exchange(depth, protocol)).ok
        report = verify(exchange(depth + 1, protocol))
        (finding,) = report.findings
        assert finding.code == "E-DEADLOCK" and f"depth {depth}" in finding.message
        assert "not with unbounded FIFOs" in finding.message
        for rank in (0, 1):
            assert f"rank {rank} tb 0 step" in finding.message


def test_circle_of_waits_deadlocks_at_any_depth() -> None:
    program = relay_broadcast(3, 2)
    blocked = edited(program, 1, 0, 0, step(Op.RECV, None, (SCRATCH, 0), after=((1, 0),)))
    report = verify(blocked)
    places = found(report, "E-DEADLOCK")
    assert places and places <= {(1, 0, 0), (1, 1, 0)}
    assert "any depth" in report.findings[0].message


def test_waiting_for_itself_is_a_deadlock() -> None:
    program = relay_broadcast(3, 1)
    assert found(verify(edited(program, 1, 0, 0, step(Op.RECV, None, (SCRATCH, 0), after=((0, 0),)))), "E-DEADLOCK")


def test_waits_must_exist() -> None:
    program = relay_broadcast(3, 2)
    for after in ((7, 0), (0, 9), (0, -1)):
        report = verify(edited(program, 1, 1, 0, step(Op.COPY, (SCRATCH, 0), (OUTPUT, 0), after=(after,))))
        assert found(report, "E-DEP") == {(1, 1, 0)}


def test_pairing_names_both_ends() -> None:
    program = ring_allreduce(3)
    report = verify(edited(program, 1, 0, 0, step(Op.NOP)))
    assert (2, 0, 4) in found(report, "E-PAIRING"), "the receive that no send answers"
    assert (1, 0, 4) in found(report, "E-PAIRING"), "the threadblock that sends too little"
    longer = verify(edited(direct_reduce_scatter(2), 0, 0, 0, step(Op.SEND, (INPUT, 0), count=2)))
    assert found(longer, "E-PAIRING") == {(0, 0, 0), (1, 0, 1)}


def test_connections_belong_to_one_threadblock() -> None:
    program = exchange(1)
    blocks = program.threadblocks()
    shared = [*blocks, Threadblock(0, 1, 1, None, 0, ())]
    assert found(verify(rebuilt(program, shared)), "E-CONN-SHARED") == {(0, 1, None)}
    other_channel = [*blocks, Threadblock(0, 1, 1, None, 1, ())]
    assert verify(rebuilt(program, other_channel, nchannels=2)).ok
    assert found(verify(rebuilt(program, other_channel)), "E-CHANNEL") == {(0, 1, None)}


def test_peers() -> None:
    program = exchange(1)
    first, second = program.threadblocks()
    for peer in (0, 5):
        report = verify(rebuilt(program, [replace(first, send_peer=peer), second]))
        assert (0, 0, None) in found(report, "E-PEER")
    assert (0, 0, 1) in found(verify(rebuilt(program, [replace(first, send_peer=None), second])), "E-PEER")


def test_operands_must_lie_in_their_buffers() -> None:
    program = direct_reduce_scatter(3, 2)
    for index in (5, -1, 100):
        report = verify(edited(program, 1, 0, 0, step(Op.SEND, (INPUT, index), count=2)))
        assert found(report, "E-RANGE") == {(1, 0, 0)}
    assert found(verify(edited(program, 1, 0, 1, step(Op.RECV, None, (SCRATCH, 3), count=2))), "E-RANGE") == {(1, 0, 1)}


def test_undefined_reads() -> None:
    program = ring_allreduce(3)
    blocks = program.threadblocks()
    changed = edited(rebuilt(program, blocks, scratch_units=[1] * 3), 0, 0, 0, step(Op.SEND, (SCRATCH, 0)))
    report = verify(changed)
    assert found(report, "E-UNDEFINED-READ") == {(0, 0, 0)}
    assert found(report, "E-POST")


def test_double_counting_names_the_step() -> None:
    program = direct_reduce_scatter(3)
    report = verify(edited(program, 2, 2, 2, step(Op.REDUCE, (SCRATCH, 0), (OUTPUT, 0), after=((1, 1),))))
    assert found(report, "E-DOUBLE") == {(2, 2, 2)}
    assert (2, 2, 2) in found(report, "E-POST")


def test_mixing_places_names_the_step() -> None:
    report = verify(edited(ring_allreduce(3), 1, 0, 1, step(Op.RECV_REDUCE_SEND, (INPUT, 1))))
    assert (1, 0, 1) in found(report, "E-MIX")


def test_clobbered_input_counts_out_of_place_only() -> None:
    program = direct_reduce_scatter(2)
    into_input = step(Op.COPY, (INPUT, 1), (INPUT, 0))
    blocks = program.threadblocks()
    local = blocks[1]
    assert local.rank == 0 and local.send_peer is None
    blocks[1] = replace(local, instructions=(*local.instructions, into_input))
    report = verify(rebuilt(program, blocks, in_place=False))
    assert found(report, "E-CLOBBER") == {(0, 1, 2)}


def test_races_name_both_steps() -> None:
    program = relay_broadcast(3, 2)
    report = verify(edited(program, 1, 1, 2, step(Op.COPY, (SCRATCH, 1), (OUTPUT, 1))))
    assert found(report, "E-RACE") >= {(1, 1, 2), (1, 0, 1)}
    assert not report.ok


def test_orders_through_other_ranks_count_but_room_does_not() -> None:
    """Rank 0's tb 1 writes what its tb 0 has sent: a message there and back orders them, a full FIFO does not."""
    sending = [step(Op.SEND, (SCRATCH, 0)) for _ in range(3)]
    first = Threadblock(0, 0, 1, None, 0, (step(Op.COPY, (INPUT, 0), (SCRATCH, 0)), *sending))
    reply = Threadblock(0, 1, None, 1, 1, (step(Op.RECV, None, (SCRATCH, 0)),))
    taking = tuple(step(Op.RECV, None, (SCRATCH, 0)) for _ in range(3))
    far = Threadblock(1, 0, None, 0, 0, taking)
    options: dict[str, Any] = {
        "name": "echo", "collective": "", "nranks": 2, "nunits": 1, "nchannels": 2, "input_units": [1, 1],
        "output_units": [1, 1], "scratch_units": [1, 1],
    }  # fmt: skip
    for answered_at, ordered in ((2, True), (0, False)):
        back = Threadblock(1, 1, 0, None, 1, (step(Op.SEND, (INPUT, 0), after=((0, answered_at),)),))
        report = verify(Program.build([first, reply, far, back], **options))
        assert bool(found(report, "E-RACE")) != ordered


def test_clocks_by_groups_of_ranks_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    structures = [build_structure(program) for program in small_programs()]
    whole = [vector_clocks(s) for s in structures]
    monkeypatch.setattr("collsynth.verifier.races._CLOCK_ENTRIES", 1)
    assert [vector_clocks(s) for s in structures] == whole


def test_unknown_collective_is_not_judged_unless_given() -> None:
    program = replace(ring_allreduce(3), collective="")
    report = verify(program)
    assert not report.ok and {f.code for f in report.findings} == {"E-NOT-JUDGED"}
    assert verify(program, collective="all_reduce").ok
    assert verify(program, collective=allreduce(3)).ok
    assert not verify(program, collective="broadcast").ok
    assert {f.code for f in verify(program, collective=allreduce(4)).findings} == {"E-COLLECTIVE"}


def shift(nranks: int) -> Collective:
    """Everybody's input goes to the next rank: a postcondition without a name."""
    ranks = np.arange(nranks)
    zero, one = np.zeros(nranks, np.int64), np.ones(nranks, np.int64)
    return Collective(
        "custom", nranks, None, False, one, 1, RankSets.single(ranks, nranks),
        RankSets.single((ranks + 1) % nranks, nranks), ranks, zero, zero.copy(), one.copy(), one.copy(),
    )  # fmt: skip


@pytest.mark.parametrize("in_place", [True, False])
def test_custom_postconditions(in_place: bool) -> None:
    steps = (step(Op.SEND, (INPUT, 0)), step(Op.RECV, None, (OUTPUT, 0)))
    blocks = [Threadblock(r, 0, (r + 1) % 3, (r - 1) % 3, 0, steps) for r in range(3)]
    program = Program.build(
        blocks, name="shift", collective="", nranks=3, nunits=1, nchannels=1, input_units=[1] * 3,
        output_units=[1] * 3, scratch_units=[0] * 3, in_place=in_place, out_of_place=not in_place,
    )  # fmt: skip
    assert verify(program, collective=shift(3)).ok
    assert not verify(program, collective="broadcast").ok
    back = [replace(b, send_peer=(b.rank - 1) % 3, recv_peer=(b.rank + 1) % 3) for b in blocks]
    assert {f.code for f in verify(rebuilt(program, back), collective=shift(3)).errors} == {"E-POST"}
    two = [replace(b, instructions=(*steps, step(Op.COPY, (OUTPUT, 0), (INPUT, 0)))) for b in blocks]
    assert verify(rebuilt(program, two), collective=shift(3)).ok == in_place, "out of place the input must stay"


def test_either_of_several_sources_will_do() -> None:
    """A chunk that starts on two ranks may come from either of them; a third one's is wrong."""
    zero, one = np.zeros(1, np.int64), np.ones(1, np.int64)
    collective = Collective(
        "custom", 3, None, False, one, 1, RankSets.from_lists([[0, 1]], 3), RankSets.from_lists([[2]], 3), zero, zero,
        zero.copy(), np.ones(3, np.int64), np.ones(3, np.int64),
    )  # fmt: skip
    for source in (0, 1):
        blocks = [
            Threadblock(source, 0, 2, None, 0, (step(Op.SEND, (INPUT, 0)),)),
            Threadblock(2, 0, None, source, 0, (step(Op.RECV, None, (OUTPUT, 0)),)),
        ]
        program = Program.build(
            blocks, name="any", collective="", nranks=3, nunits=1, nchannels=1, input_units=[1] * 3,
            output_units=[1] * 3, scratch_units=[0] * 3,
        )  # fmt: skip
        assert verify(program, collective=collective).ok
    own = [Threadblock(2, 0, None, None, 0, (step(Op.COPY, (INPUT, 0), (OUTPUT, 0)),))]
    assert not verify(rebuilt(program, own), collective=collective).ok


def test_other_collectives_have_other_buffers() -> None:
    """Judged as an allgather, an allreduce's steps leave the smaller input buffer."""
    assert {f.code for f in verify(ring_allreduce(3), collective="allgather").errors} == {"E-RANGE"}


def test_sizes_must_fit_the_collective() -> None:
    program = ring_allreduce(3)
    assert {f.code for f in verify(rebuilt(program, program.threadblocks(), nunits=4)).findings} == {"E-SIZE"}
    odd = rebuilt(program, program.threadblocks(), collective="alltoall", nunits=4)
    assert {f.code for f in verify(odd).findings} == {"E-SIZE"}


def test_modes_are_judged_apart() -> None:
    """A program that leaves its own shard where an in-place call has it is wrong out of place."""
    program = exchange(1)
    blocks = [replace(b, instructions=b.instructions[1:]) for b in program.threadblocks()]
    assert verify(rebuilt(program, blocks, out_of_place=False)).ok
    report = verify(rebuilt(program, blocks))
    assert not report.ok and all(f.message.startswith("out of place: ") for f in report.findings)


def test_target_limits() -> None:
    executor = TARGETS["msccl-executor"]
    program = exchange(2)
    cases = {
        "E-LIMIT-STEPS": replace(executor, max_steps=3), "E-LIMIT-TBS": replace(executor, max_threadblocks=0),
        "E-LIMIT-CHANNELS": replace(executor, max_channels=0), "E-LIMIT-COUNT": replace(executor, max_count=1),
        "E-LIMIT-INDEX": replace(executor, max_index=2), "E-LIMIT-NODES": replace(executor, max_xml_nodes=5),
        "E-LIMIT-TBS-PER-CHANNEL": replace(executor, max_tbs_per_channel=0),
    }  # fmt: skip
    for code, target in cases.items():
        assert {f.code for f in verify(program, target=target).findings} == {code}
    assert {f.code for f in verify(ring_allreduce(3), target=TARGETS["rccl"]).findings} == {"E-LIMIT-FUSED"}
    assert verify(ring_allreduce(3), target=TARGETS["msccl"]).ok
    low = replace(executor, max_dependency_tb=0)
    assert {f.code for f in verify(direct_reduce_scatter(3), target=low).findings} == {"E-LIMIT-DEP-TB"}
    two = step(Op.REDUCE, (SCRATCH, 1), (OUTPUT, 0), after=((0, 1), (1, 1)))
    assert found(verify(edited(direct_reduce_scatter(3), 0, 2, 2, two), target=executor), "E-LIMIT-DEPS") == {(0, 2, 2)}


def test_root_limit() -> None:
    blocks = [
        Threadblock(1, 0, 0, None, 0, (step(Op.SEND, (INPUT, 0)), step(Op.COPY, (INPUT, 0), (OUTPUT, 0)))),
        Threadblock(0, 0, None, 1, 0, (step(Op.RECV, None, (OUTPUT, 0)),)),
    ]
    program = Program.build(
        blocks, name="cast", collective="broadcast", nranks=2, root=1, nunits=1, nchannels=1, input_units=[1, 1],
        output_units=[1, 1], scratch_units=[0, 0],
    )  # fmt: skip
    assert verify(program).ok
    assert {f.code for f in verify(program, target=TARGETS["msccl"]).findings} == {"E-LIMIT-ROOT"}


def test_one_sided_instructions_among_two_sided_ones_are_refused() -> None:
    program = exchange(1)
    assert not verify(edited(program, 0, 0, 0, Instruction(Op.BARRIER, 0, sync=0))).ok


def test_nops() -> None:
    program = direct_reduce_scatter(3)
    block = program.threadblocks()[2]
    assert block.rank == 0 and block.send_peer is None
    waiting = (
        step(Op.COPY, (INPUT, 0), (OUTPUT, 0)), step(Op.NOP, count=0, after=((0, 1),)),
        step(Op.REDUCE, (SCRATCH, 1), (OUTPUT, 0), after=((1, 1),)), step(Op.REDUCE, (SCRATCH, 0), (OUTPUT, 0)),
    )  # fmt: skip
    blocks = [replace(b, instructions=waiting) if b == block else b for b in program.threadblocks()]
    chained = rebuilt(program, blocks)
    assert verify(chained, target=TARGETS["msccl"]).ok
    loose = edited(chained, 0, 2, 2, step(Op.REDUCE, (SCRATCH, 1), (OUTPUT, 0)))
    report = verify(loose, target=TARGETS["msccl"])
    assert found(report, "E-LIMIT-NOP") == {(0, 2, 2)} and found(report, "E-RACE")


def test_every_code_is_explained() -> None:
    """The page has a row with cause and cure for each code that is used, and no other."""
    folder = Path(verify.__code__.co_filename).parent

    def quoted(files: list[Path], kinds: tuple[str, ...]) -> set[str]:
        words = {word for path in files for word in path.read_text().split('"')}
        return {word for word in words if word.startswith(kinds) and re.fullmatch("[A-Z]-[A-Z0-9-]*[A-Z0-9]", word)}

    sources = [path for path in folder.glob("*.py") if path.name not in ("codes.py", "report.py")]
    readers = [path for path in (folder.parent / "formats").glob("*.py") if path.name.startswith(("mscc", "chakra"))]
    used = quoted([*sources, *readers, folder.parent / "cli" / "verify.py"], ("E-", "W-", "X-"))
    used |= {"E-LIMIT-SEMAPHORES", "E-LIMIT-BARRIERS"}  # put together from the limit's name
    assert used == set(CODES)
    page = (Path(__file__).resolve().parents[2] / "docs" / "verification.md").read_text()
    rows = re.findall(r"^\| `([EWX]-[A-Z0-9-]+)` \| ([^|]+) \| ([^|]+) \|$", page, re.MULTILINE)
    assert {code: (meaning, cure) for code, meaning, cure in rows} == EXPLAINED | READER_EXPLAINED
    assert {code: meaning for code, (meaning, _) in (EXPLAINED | READER_EXPLAINED).items()} == CODES


# --- blame -------------------------------------------------------------------------------------


def dependents(program: Program, row: int, flags: list[bool] | None = None) -> set[tuple[int, int, int]]:
    """Places of a row and of everything that comes after it."""
    structure = build_structure(program, flags)
    after = defaultdict(list)
    for other in range(program.nrows):
        for before, _ in structure.predecessors(other):
            after[before].append(other)
    seen, todo = {row}, [row]
    while todo:
        for other in after[todo.pop()]:
            if other not in seen:
                seen.add(other)
                todo.append(other)
    return {tuple(structure.table.at(r).values()) for r in seen}  # type: ignore[misc]


def mutate(program: Program, rng: random.Random) -> tuple[Program, int] | None:
    """One step changed in one attribute, and its row."""
    row = rng.randrange(program.nrows)
    op = int(program.op[row])
    changes: dict[str, Any] = {}

    def put(name: str, position: int, value: int) -> None:
        column = getattr(program, name).copy()
        column[position] = value
        changes[name] = column

    kind = rng.choice(["src_index", "dst_index", "src_buffer", "dst_buffer", "count", "op", "dep_tb", "dep_step"])
    used = READING if kind.startswith("src") else WRITING
    if kind.startswith(("src", "dst")):
        if op not in [int(o) for o in used]:
            return None
        old = int(getattr(program, kind)[row])
        put(kind, row, rng.randrange(3) if kind.endswith("buffer") else max(0, old + rng.choice((-1, 1, 2))))
    elif kind == "count":
        put(kind, row, max(0, int(program.count[row]) + rng.choice((-1, 1))))
    elif kind == "op":
        put(kind, row, rng.randrange(9))
        for buffer, index in (("src_buffer", "src_index"), ("dst_buffer", "dst_index")):
            if getattr(program, buffer)[row] < 0:
                put(buffer, row, 0)
                put(index, row, 0)
    else:
        dep = int(program.dep_ptr[row])
        if dep == program.dep_ptr[row + 1]:
            return None
        put(kind, dep, int(getattr(program, kind)[dep]) + rng.choice((-1, 1)))
    return replace(program, **changes), row


def check_blame(program: Program, rng: random.Random, wanted: int, source: Any = None) -> None:
    """`wanted` refused edits: each time a finding names the edited step or one that depends on it."""
    refused = 0
    while refused < wanted:
        mutant = mutate(program, rng)
        if mutant is None:
            continue
        changed, row = mutant
        text = None if source is None else replace(source, program=changed)
        report = verify(changed, source=text)
        if report.ok:
            continue
        refused += 1
        places = dependents(changed, row, None if source is None else source.flags.tolist())
        named = {(f.rank, f.threadblock, f.step) for f in report.errors}
        assert named & places, (changed.instruction(row), [str(f) for f in report.errors])


@pytest.mark.parametrize("program", small_programs(), ids=lambda p: f"{p.name}-{p.nranks}-{p.nunits}")
def test_findings_name_the_edited_step_or_one_after_it(program: Program) -> None:
    check_blame(program, random.Random(5), 60)


# --- real files --------------------------------------------------------------------------------


def manifest(corpus: Path) -> list[dict[str, str]]:
    with open(corpus / "msccl-xml" / "MANIFEST.csv", newline="") as stream:
        return [row for row in csv.DictReader(stream) if row["outofplace"]]


@pytest.mark.corpus
def test_blame_on_real_files(corpus: Path) -> None:
    rng = random.Random(11)
    files = [row["file"] for row in manifest(corpus) if row["verdict"] == "OK" and row["race"] == "0"]
    for name in rng.sample(files, 10):
        source = msccl_xml.read_source(corpus / "msccl-xml" / name)
        check_blame(source.program, rng, 5, source)


@pytest.mark.corpus
def test_deadlocks_of_older_files_are_found(corpus: Path) -> None:
    names = sorted((corpus / "msccl-xml").glob("dailiuyao*allreduce_ring_node*_mck2_*"))
    assert len(names) >= 7
    for path in names:
        source = msccl_xml.read_source(path)
        report = verify(source.program, source=source)
        assert {f.code for f in report.errors} == {"E-DEADLOCK"}, path.name
        assert "not with unbounded FIFOs" in report.errors[0].message
