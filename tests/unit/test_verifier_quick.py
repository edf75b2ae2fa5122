"""The proof in columns says what the proof row by row says; sums are trees of which depth and drift are known."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_schedules import random_schedule
from small_programs import INPUT, OUTPUT, SCRATCH, ring_allreduce, small_programs, step
from test_verifier_program import mutate

from collsynth import collective as collectives
from collsynth.lowering import lower
from collsynth.program import TARGETS, Op, Program, Threadblock
from collsynth.schedule import Schedule, Transfer
from collsynth.verifier import expressions, order, quick, verify
from collsynth.verifier import program as slow
from collsynth.verifier.flow import flow_of
from collsynth.verifier.memory import collective_of
from collsynth.verifier.structure import build_structure

NAMES = ("allgather", "reducescatter", "allreduce", "alltoall", "broadcast", "reduce")


def verdicts(program: Program) -> tuple[bool, bool]:
    """(row by row, in columns)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slow, "prove", lambda *_: None)
        patch.setattr(slow, "free_of_races", lambda *_: False)
        by_row = slow.verify_program(program, TARGETS["any"], None, None, "")
    collective = None
    try:
        collective = collective_of(program)
    except Exception:
        assert not by_row.ok
    modes = [m for m, on in ((True, program.in_place), (False, program.out_of_place)) if on]
    proof = None if collective is None else quick.prove(program, collective, None, modes)
    return by_row.ok, proof is not None


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(NAMES), nranks=st.integers(2, 5), chunks=st.integers(1, 3), seed=st.integers(0, 10**6),
    fuse=st.booleans(), edits=st.integers(0, 2),
)  # fmt: skip
def test_columns_and_rows_agree(name: str, nranks: int, chunks: int, seed: int, fuse: bool, edits: int) -> None:
    rng = random.Random(seed)
    program = lower(random_schedule(name, nranks, chunks, seed), fuse=fuse)
    for _ in range(edits):
        mutant = mutate(program, rng)
        program = program if mutant is None else mutant[0]
    by_row, in_columns = verdicts(program)
    assert by_row == in_columns


@pytest.mark.parametrize("program", small_programs(), ids=lambda p: f"{p.name}-{p.nranks}-{p.nunits}")
def test_edits_of_small_programs(program: Program) -> None:
    rng = random.Random(7)
    seen = {verdicts(program)}
    for _ in range(40):
        mutant = mutate(program, rng)
        if mutant is not None:
            seen.add(verdicts(mutant[0]))
    assert seen == {(True, True), (False, False)}


def test_small_batches_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clocks and sets in many passes of one column each."""
    programs = [lower(random_schedule(name, 4, 2, 3), fuse=False) for name in NAMES]
    rng = random.Random(3)
    programs += [m[0] for m in (mutate(p, rng) for p in programs for _ in range(6)) if m is not None]
    whole = [verdicts(p)[1] for p in programs]
    monkeypatch.setattr(order, "_CLOCK_ENTRIES", 1)
    monkeypatch.setattr(expressions, "_SET_WORDS", 1)
    monkeypatch.setattr(order, "_waited_for", lambda flow, before, after: np.zeros(len(before), dtype=bool))
    assert [verdicts(p)[1] for p in programs] == whole and True in whole and False in whole


def test_levels_are_an_order_of_the_same_graph() -> None:
    for program in small_programs():
        flow, structure = flow_of(program), build_structure(program)
        assert flow is not None
        for row in range(program.nrows):
            before = [p for p, _ in structure.predecessors(row)]
            assert int(flow.level[row]) == 1 + max((int(flow.level[p]) for p in before), default=-1)


def direct_allreduce(nranks: int, *, sorted_sums: bool) -> Program:
    """Everybody sends everything to everybody and adds by itself: in its own order, or all in order of rank."""
    blocks = []
    for rank in range(nranks):
        others = [(rank + k) % nranks for k in range(1, nranks)]
        for number, peer in enumerate(others):
            moves = (step(Op.SEND, (INPUT, 0)), step(Op.RECV, None, (SCRATCH, peer)))
            blocks.append(Threadblock(rank, number, peer, peer, 0, moves))
        terms = sorted([rank, *others]) if sorted_sums else [rank, *others]
        adding = [step(Op.COPY, (INPUT, 0), (SCRATCH, rank))]
        for place, peer in enumerate(terms):
            after = () if peer == rank else ((others.index(peer), 1),)
            op = Op.REDUCE if place else Op.COPY
            adding.append(step(op, (SCRATCH, peer), (OUTPUT, 0), after=after))
        blocks.append(Threadblock(rank, nranks - 1, None, None, 0, tuple(adding)))
    return Program.build(
        blocks, name="direct", collective="allreduce", nranks=nranks, nunits=1, nchannels=1, in_place=False,
        input_units=[1] * nranks, output_units=[1] * nranks, scratch_units=[nranks] * nranks,
    )  # fmt: skip


def test_replicas_that_add_in_different_trees_are_told() -> None:
    for nranks in (3, 4, 70):
        report = verify(direct_allreduce(nranks, sorted_sums=False))
        assert report.ok and [f.code for f in report.findings] == ["W-REPLICA-DRIFT"]
        assert "ranks 0 and 1" in report.findings[0].message and report.reduction_depth == nranks - 1
        assert not verify(direct_allreduce(nranks, sorted_sums=False), deterministic=True).ok
        same = verify(direct_allreduce(nranks, sorted_sums=True), deterministic=True)
        assert same.ok and not same.findings and same.reduction_depth == nranks - 1
    # two terms are one sum in either order
    assert not verify(direct_allreduce(2, sorted_sums=False)).findings


def test_depth_of_sums() -> None:
    assert verify(ring_allreduce(8)).reduction_depth == 7
    assert verify(lower(random_schedule("allgather", 4, 1, 0))).reduction_depth == 0
    wrong = replace(ring_allreduce(3), src_index=np.roll(ring_allreduce(3).src_index, 1))
    assert verify(wrong).reduction_depth is None


def doubling(nranks: int) -> Schedule:
    """AllReduce in which partners exchange their sums: log2(nranks) additions, one tree."""
    full = random_schedule("allreduce", nranks, 1, 0)
    topology = full.topology
    link = {(int(s), int(d)): i for i, (s, d) in enumerate(zip(topology.link_src, topology.link_dst, strict=True))}
    rows = [
        Transfer(0, rank, rank ^ bit, True, level, (link[rank, rank ^ bit],))
        for level, bit in enumerate(1 << i for i in range(nranks.bit_length() - 1))
        for rank in range(nranks)
    ]
    collective = collectives.allreduce(nranks, weights=[1] + [0] * (nranks - 1))
    return Schedule.build(topology, collective, rows)


def test_schedules_have_depth_and_drift_too() -> None:
    report = verify(doubling(8), deterministic=True)
    assert report.ok and not report.findings and report.reduction_depth == 3
    base = doubling(4)
    rows = [r for r in base.rows() if r.level == 0]
    link = {(r.src, r.dst): r.route[0] for r in random_schedule("allreduce", 4, 1, 0).rows()}
    full = random_schedule("allreduce", 4, 1, 0).topology
    link = {(int(s), int(d)): i for i, (s, d) in enumerate(zip(full.link_src, full.link_dst, strict=True))}
    rows = [Transfer(0, a, b, True, 0, (link[a, b],)) for b in range(4) for a in range(4) if a != b]
    drifting = verify(Schedule.build(full, base.collective, rows))
    assert drifting.ok and [f.code for f in drifting.findings] == ["W-REPLICA-DRIFT"]
    assert drifting.reduction_depth == 3
    assert not verify(Schedule.build(full, base.collective, rows), deterministic=True).ok
    for name in ("allreduce", "reduce", "reducescatter"):
        schedule = random_schedule(name, 4, 2, 5)
        assert verify(schedule).reduction_depth == verify(lower(schedule)).reduction_depth


def test_sums_that_share_parts_need_sets() -> None:
    """A partial sum used by two different sums is no forest; each term is still there once."""
    blocks = [
        Threadblock(0, 0, 1, 1, 0, (step(Op.SEND, (INPUT, 0)), step(Op.RECV, None, (OUTPUT, 0)))),
        Threadblock(1, 0, 0, 0, 0, (step(Op.RECV, None, (SCRATCH, 0)), step(Op.SEND, (OUTPUT, 0), after=((2, 3),)))),
        Threadblock(1, 1, 2, 2, 0, (step(Op.RECV, None, (SCRATCH, 1)), step(Op.SEND, (OUTPUT, 0), after=((2, 3),)))),
        Threadblock(1, 2, None, None, 0, (
            step(Op.COPY, (INPUT, 0), (OUTPUT, 0)), step(Op.NOP, count=0, after=((0, 0),)),
            step(Op.REDUCE, (SCRATCH, 0), (OUTPUT, 0)), step(Op.REDUCE, (SCRATCH, 1), (OUTPUT, 0), after=((1, 0),)),
            step(Op.COPY, (OUTPUT, 0), (OUTPUT, 0)),
        )),
        Threadblock(2, 0, 1, 1, 0, (step(Op.SEND, (INPUT, 0)), step(Op.RECV, None, (OUTPUT, 0)))),
    ]  # fmt: skip
    program = Program.build(
        blocks, name="shared", collective="allreduce", nranks=3, nunits=1, nchannels=1, input_units=[1] * 3,
        output_units=[1] * 3, scratch_units=[2] * 3,
    )  # fmt: skip
    assert verdicts(program) == (True, True)
    drifting = direct_allreduce(5, sorted_sums=False)
    assert verdicts(drifting) == (True, True)
    twice = replace(drifting, src_index=np.where(drifting.src_index == 3, 2, drifting.src_index))
    assert verdicts(twice) == (False, False)
