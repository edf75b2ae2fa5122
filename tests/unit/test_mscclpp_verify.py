"""Proof of one-sided programs: what is right passes, and every missing piece is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from one_sided import (
    MEMORY,
    PORT,
    RIGHT,
    SWITCH,
    I,
    O,
    S,
    allgather_puts,
    allreduce_packets,
    alltoall_two_blocks,
    at,
    barrier,
    handshake,
    local,
    packet,
    program,
    put,
    semaphore,
    sync,
)  # fmt: skip

from collsynth.program import TARGETS, Instruction, Op, Program, Space, Threadblock
from collsynth.verifier import Report, verify

Rows = list[Instruction]


def rebuilt(base: Program, change: Callable[[int, int, Rows], Sequence[Instruction]]) -> Program:
    """The program with each threadblock's rows changed."""
    blocks = [
        Threadblock(b.rank, b.id, None, None, 0, tuple(change(b.rank, b.id, list(b.instructions))))
        for b in base.threadblocks()
    ]
    return Program.build(
        blocks, name=base.name, collective=base.collective, nranks=base.nranks, nunits=base.nunits,
        nchannels=base.nchannels, input_units=base.input_units.tolist(), output_units=base.output_units.tolist(),
        scratch_units=base.scratch_units.tolist(), protocol=base.protocol, in_place=base.in_place,
        out_of_place=base.out_of_place, groups=base.groups, semaphore_init=base.semaphore_init,
    )  # fmt: skip


def codes(report: Report) -> set[str]:
    return {finding.code for finding in report.findings}


@pytest.mark.parametrize("name", RIGHT)
def test_right_programs_are_proven_without_a_word(name: str) -> None:
    for target in ("any", "mscclpp"):
        report = verify(RIGHT[name](), target=TARGETS[target])
        assert report.ok and not report.findings, [str(f) for f in report.findings]


@pytest.mark.parametrize("name", RIGHT)
def test_dropping_any_step_is_told(name: str) -> None:
    base = RIGHT[name]()
    for victim in base.threadblocks():
        for index, dropped in enumerate(victim.instructions):

            def change(rank: int, tb: int, rows: Rows, victim: Threadblock = victim, index: int = index) -> Rows:
                if (rank, tb) == (victim.rank, victim.id):
                    del rows[index]
                return rows

            report = verify(rebuilt(base, change))
            if dropped.op is Op.FLUSH:
                assert codes(report) == {"W-END"}
            else:
                assert not report.ok, (victim.rank, victim.id, index)


@pytest.mark.parametrize("kind", [MEMORY, PORT])
def test_data_put_after_its_signal_races(kind: int) -> None:
    def change(rank: int, tb: int, rows: Rows) -> Rows:
        first = next(i for i, r in enumerate(rows) if r.op is Op.PUT)
        signal = next(i for i, r in enumerate(rows) if r.op is Op.SIGNAL)
        rows[first], rows[signal] = rows[signal], rows[first]
        return rows

    report = verify(rebuilt(allgather_puts(2, PORT if kind is PORT else MEMORY), change))
    assert not report.ok
    assert "ends without waiting for" in " ".join(str(f) for f in report.findings)


def test_relaxed_signals_do_not_publish_data() -> None:
    """Data that is read after a relaxed pair need not be there."""
    relaxed = {Op.SIGNAL: Op.RELAXED_SIGNAL, Op.WAIT: Op.RELAXED_WAIT}

    def change(rank: int, tb: int, rows: Rows) -> Rows:
        return [sync(relaxed[r.op], r.peer or 0) if r.op in relaxed else r for r in rows]

    report = verify(rebuilt(alltoall_two_blocks(), change))
    assert "E-RACE" in codes(report)
    assert any("without visibility" in f.message for f in report.findings)


def test_a_rank_must_see_its_output_at_the_end() -> None:
    def change(rank: int, tb: int, rows: Rows) -> Rows:
        return [sync(Op.RELAXED_WAIT, r.peer or 0) if r.op is Op.WAIT else r for r in rows]

    report = verify(rebuilt(allgather_puts(2), change))
    assert {f.code for f in report.errors} == {"E-SIGNAL"}
    assert "rank 0 ends after a relaxed wait for rank 1 tb 0 step 3 (PUT)" in " ".join(f.message for f in report.errors)


def test_the_source_of_a_port_is_in_use_until_it_is_flushed() -> None:
    def ranks(flush: bool) -> list[list[Rows]]:
        sent = [local(Op.COPY, at(I, 0), at(S, 0)), sync(Op.WAIT, 1, kind=PORT), put(at(S, 0), 1, O, 0, 0)]
        sent += [sync(Op.SIGNAL, 1, kind=PORT), *([sync(Op.FLUSH, 1, kind=PORT)] if flush else [])]
        sent += [local(Op.COPY, at(I, 1), at(S, 0)), local(Op.COPY, at(I, 0, 2), at(O, 0, 2))]
        received = [sync(Op.SIGNAL, 0, kind=PORT), sync(Op.WAIT, 0, kind=PORT), local(Op.COPY, at(I, 0), at(S, 0))]
        return [[sent], [received]]

    assert codes(verify(program(ranks(True), "", inputs=2, outputs=2, scratch=1))) == {"E-NOT-JUDGED"}
    report = verify(program(ranks(False), "", inputs=2, outputs=2, scratch=1))
    race = next(f for f in report.findings if f.code == "E-RACE")
    assert "scratch[0] of rank 0" in race.message and "a port does it later" in race.message


def test_a_circle_of_waits_is_printed() -> None:
    ranks = [[[sync(Op.WAIT, 1 - r), sync(Op.SIGNAL, 1 - r), local(Op.COPY, at(I, 0), at(O, 0))]] for r in range(2)]
    report = verify(program(ranks, "", inputs=1, outputs=1))
    text = next(f.message for f in report.findings if f.code == "E-DEADLOCK")
    for step in ("rank 0 tb 0 step 0 (WAIT)", "rank 1 tb 0 step 1 (SIGNAL)", "rank 1 tb 0 step 0 (WAIT)"):
        assert step in text


def test_threadblocks_wait_for_each_other_through_semaphores_both_ways() -> None:
    blocks = [
        [semaphore(Op.ACQUIRE, 0), semaphore(Op.RELEASE, 1)],
        [semaphore(Op.ACQUIRE, 1), semaphore(Op.RELEASE, 0)],
    ]
    assert "E-DEADLOCK" in codes(verify(program([blocks], "", inputs=1, outputs=1, semaphores=2)))


@pytest.mark.parametrize("releases, acquires, ordered", [(2, 2, True), (2, 1, False)])
def test_an_acquire_follows_only_what_it_cannot_do_without(releases: int, acquires: int, ordered: bool) -> None:
    """Two threadblocks write and release; a third acquires once or twice and reads both."""
    writers = [[local(Op.COPY, at(I, t), at(S, t)), semaphore(Op.RELEASE, 0)] for t in range(releases)]
    reader = [semaphore(Op.ACQUIRE, 0)] * acquires + [local(Op.COPY, at(S, 0, 2), at(O, 0, 2))]
    report = verify(program([[*writers, reader]], "", inputs=2, outputs=2, scratch=2, semaphores=1))
    assert (codes(report) <= {"E-NOT-JUDGED"}) is ordered
    if not ordered:
        assert "E-SIGNAL" in codes(report)


def test_one_acquire_among_several_releases_is_not_ordered() -> None:
    """Counts match, but the first reader cannot know whose release it took."""
    writers = [[local(Op.COPY, at(I, t), at(S, t)), semaphore(Op.RELEASE, 0)] for t in range(2)]
    readers = [[semaphore(Op.ACQUIRE, 0), local(Op.COPY, at(S, t), at(O, t))] for t in range(2)]
    report = verify(program([[*writers, *readers]], "", inputs=2, outputs=2, scratch=2, semaphores=1))
    assert "E-RACE" in codes(report)


def test_barrier_faults() -> None:
    copy = local(Op.COPY, at(I, 0), at(O, 0))
    for blocks in ([[barrier(0, 3), copy], [barrier(0, 3)]], [[barrier(0, 2), barrier(0, 2), copy], [barrier(0, 2)]]):
        assert "E-BARRIER" in codes(verify(program([blocks], "", inputs=1, outputs=1)))


def test_two_threadblocks_on_one_channel() -> None:
    ranks = [
        [[sync(Op.SIGNAL, 1)], [sync(Op.SIGNAL, 1)]],
        [[sync(Op.WAIT, 0), sync(Op.WAIT, 0), local(Op.COPY, at(I, 0), at(O, 0))]],
    ]
    report = verify(program(ranks, "", inputs=1, outputs=1))
    assert any(f.code == "E-SIGNAL" and "threadblocks 0, 1 signal on it" in f.message for f in report.findings)


def test_packet_faults() -> None:
    def judged(extra: Instruction) -> set[str]:
        base = allreduce_packets(2)
        return codes(verify(rebuilt(base, lambda r, t, rows: [*rows, extra] if (r, t) == (0, 2) else rows)))

    assert "E-PACKET" in judged(packet(at(I, 0), 1, 0))  # a second packet in one place
    assert "E-PACKET" in judged(local(Op.COPY, at(S, 1), at(O, 1)))  # packets read as data
    assert "E-PACKET" in judged(local(Op.READ_PACKET, at(S, 0), at(O, 1)))  # nobody writes them
    assert "E-PACKET" in judged(local(Op.PUT_PACKET, at(I, 0), at(O, 0)))  # not in scratch


@pytest.mark.parametrize(
    "row, code",
    [
        (put(at(I, 0), 1, O, 7), "E-RANGE"),
        (put(at(I, 7), 1, O, 0), "E-RANGE"),
        (put(at(I, 0), 0, O, 0), "E-PEER"),
        (put(at(I, 0), 5, O, 0), "E-PEER"),
        (Instruction(Op.PUT, 1, at(I, 0), at(O, 0), peer=1, kind=MEMORY), "E-RANGE"),
        (Instruction(Op.PUT, 1, at(I, 0), at(O, 0, 1, Space.REMOTE), peer=1), "E-CHANNEL"),
        (Instruction(Op.GET, 1, at(I, 0, 1, Space.REMOTE), at(O, 0), peer=1, sync=0, kind=PORT), "E-CHANNEL"),
        (Instruction(Op.MULTICAST_STORE, 1, at(I, 0), at(O, 0, 1, Space.MULTICAST), sync=3, kind=SWITCH), "E-CHANNEL"),
        (Instruction(Op.SEND, 1, at(I, 0)), "E-UNSUPPORTED"),
        (sync(Op.FLUSH, 1), "E-CHANNEL"),
        (semaphore(Op.ACQUIRE, 4), "E-SIGNAL"),
        (sync(Op.SIGNAL, 1, 9), "E-SIGNAL"),
        (local(Op.COPY, at(S, 0), at(O, 0)), "E-UNDEFINED-READ"),
        (local(Op.COPY, at(I, 0), at(O, 1)), "E-POST"),
        (local(Op.COPY, at(O, 0), at(I, 0)), "E-CLOBBER"),
    ],
)
def test_faults_of_one_step(row: Instruction, code: str) -> None:
    base = allgather_puts(2)
    base = rebuilt(base, lambda rank, tb, rows: [*rows, row] if rank == 1 - (code != "E-CLOBBER") else rows)
    padded = program([[list(b.instructions) for b in base.threadblocks(r)] for r in range(2)], "allgather", inputs=1,
                     outputs=2, scratch=1)  # fmt: skip
    assert code in codes(verify(padded))


def test_memory_that_is_used_before_its_rank_has_begun() -> None:
    relaxed = (Op.RELAXED_SIGNAL, Op.RELAXED_WAIT)
    base = rebuilt(allgather_puts(2), lambda rank, tb, rows: [r for r in rows if r.op not in relaxed])
    report = verify(base)
    assert report.ok and codes(report) == {"W-START"}


def test_a_member_of_a_group_only() -> None:
    store = Instruction(Op.MULTICAST_STORE, 1, at(I, 0), at(O, 0, 1, Space.MULTICAST), sync=0, kind=SWITCH)
    report = verify(program([[[store]], [[]], [[]]], "", inputs=1, outputs=1, groups=[[1, 2]]))
    assert codes(report) >= {"E-PEER"}


def test_limits_of_the_target() -> None:
    base = program(
        [[[semaphore(Op.RELEASE, 16), semaphore(Op.ACQUIRE, 16), barrier(16, 1), local(Op.COPY, at(I, 0), at(O, 0))]]],
        "", inputs=1, outputs=1, semaphores=17,
    )  # fmt: skip
    assert codes(verify(base)) == {"E-NOT-JUDGED"}
    assert codes(verify(base, target=TARGETS["mscclpp"])) > {"E-LIMIT-SEMAPHORES", "E-LIMIT-BARRIERS"}
    assert "E-LIMIT-OP" in codes(verify(allgather_puts(2), target=TARGETS["msccl"]))
    reduce = Instruction(Op.MULTICAST_REDUCE, 1, at(I, 0, 1, Space.MULTICAST), at(O, 0), sync=0, kind=SWITCH)
    one = program([[[reduce]]], "", inputs=1, outputs=1, groups=[[0]])
    assert "E-LIMIT-OP" in codes(verify(one, target=TARGETS["mscclpp"]))
    many = [[[*(sync(op, 1 - r, c) for op in (Op.SIGNAL, Op.WAIT) for c in range(17))]] for r in range(2)]
    assert "E-LIMIT-TB-CHANNELS" in codes(verify(program(many, "", inputs=1, outputs=1), target=TARGETS["mscclpp"]))


def test_both_modes_are_proven_apart() -> None:
    """Putting straight into the peer's output is right out of place and overwrites what it still sends in place."""
    ranks = []
    for rank in range(2):
        peer = 1 - rank
        rows = [*handshake(rank, [peer]), local(Op.COPY, at(I, rank), at(O, rank)), put(at(I, peer), peer, O, rank)]
        ranks.append([[*rows, sync(Op.SIGNAL, peer), sync(Op.WAIT, peer)]])
    direct = program(ranks, "alltoall", inputs=2, outputs=2)
    assert verify(direct).ok
    report = verify(replace(direct, in_place=True))
    assert not report.ok and all(f.message.startswith("in place: ") for f in report.errors)
    assert verify(replace(allreduce_packets(3), in_place=True)).ok
