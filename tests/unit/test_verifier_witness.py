"""Two legal interleavings with different results for every seeded race, judged by an interpreter of its own."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from collsynth.backends import data, numpy_backend
from collsynth.backends.layout import Layout
from random_schedules import random_schedule
from small_programs import (
    INPUT,
    OUTPUT,
    SCRATCH,
    direct_reduce_scatter,
    exchange,
    relay_broadcast,
    ring_allreduce,
    step,
)

from collsynth.errors import InputError
from collsynth.lowering import lower
from collsynth.program import READING, RECEIVING, SENDING, WRITING, Op, Program, Threadblock
from collsynth.verifier import Witness, race_witness, verify
from collsynth.verifier.memory import layout_of

Place = tuple[int, int, int]


def without_wait(program: Program, dep: int) -> Program:
    """The program with one dependency less."""
    row = int(np.searchsorted(program.dep_ptr, dep, side="right")) - 1
    pointers = program.dep_ptr.copy()
    pointers[row + 1 :] -= 1
    return replace(
        program, dep_ptr=pointers, dep_tb=np.delete(program.dep_tb, dep), dep_step=np.delete(program.dep_step, dep)
    )


def interpret(program: Program, order: tuple[Place, ...], *, in_place: bool, depth: int | None) -> list[list[Any]]:
    """Run the steps in that order on random numbers; fails where the order is not one that can happen."""
    layout = layout_of(program, in_place=in_place)
    rng = random.Random(3)
    memory: list[list[Any]] = []
    for rank, cells in enumerate(layout.ncells):
        # what nobody wrote is noise of its own
        memory.append([rng.randrange(1 << 40) for _ in range(cells)])
        assert len(memory[rank]) == cells
    fifos: dict[tuple[int, int, int], list[list[Any]]] = {}
    begun = [0] * program.ntbs
    index = {(int(r), int(t)): i for i, (r, t) in enumerate(zip(program.tb_rank, program.tb_id, strict=True))}
    twice = {place for place in order if order.count(place) > 1}
    torn: list[Any] | None = None
    for rank, block, number in order:
        tb = index[rank, block]
        if torn is not None and (rank, block, number) in twice:
            instruction = program.instruction(int(program.tb_ptr[tb]) + number)
            assert instruction.dst is not None and instruction.op not in SENDING
            first = layout.base[rank][instruction.dst.buffer] + instruction.dst.index
            memory[rank][first : first + instruction.count] = torn
            continue
        assert begun[tb] == number, "program order"
        begun[tb] += 1
        row = int(program.tb_ptr[tb]) + number
        instruction = program.instruction(row)
        for other, waited in instruction.depends:
            assert begun[index[rank, other]] > waited, "a wait is over"
        op, count, base, cells = instruction.op, instruction.count, layout.base[rank], memory[rank]
        channel = int(program.tb_channel[tb])
        values = [0] * count
        if op in RECEIVING:
            values = fifos[int(program.tb_recv[tb]), rank, channel].pop(0)
        if op in READING:
            assert instruction.src is not None
            first = base[instruction.src.buffer] + instruction.src.index
            values = [a + b for a, b in zip(values, cells[first : first + count], strict=True)]
        if op in WRITING:
            assert instruction.dst is not None
            first = base[instruction.dst.buffer] + instruction.dst.index
            if op is Op.REDUCE:
                values = [a + b for a, b in zip(values, cells[first : first + count], strict=True)]
            if (rank, block, number) in twice:
                torn = values  # read now, stored later
                continue
            cells[first : first + count] = values
        if op in SENDING:
            queue = fifos.setdefault((rank, int(program.tb_send[tb]), channel), [])
            queue.append(values)
            assert depth is None or len(queue) <= depth, "room in the FIFO"
    assert sum(begun) == program.nrows and not any(fifos.values())
    return memory


def check(program: Program, witness: Witness) -> None:
    depth = program.protocol.fifo_depth if witness.bounded else None
    ends = [
        interpret(program, order, in_place=witness.in_place, depth=depth) for order in (witness.first, witness.second)
    ]
    assert witness.differences and ends[0] != ends[1]


def seeded() -> list[Program]:
    bases = [relay_broadcast(3, 2), direct_reduce_scatter(3, 2)]
    for name, seed in (("allreduce", 1), ("allgather", 2), ("reducescatter", 3), ("broadcast", 5)):
        bases.append(lower(random_schedule(name, 3, 2, seed), fuse=seed % 2 == 0))
    return bases


def test_every_dropped_wait_that_races_has_two_outcomes() -> None:
    racy = 0
    for base in seeded():
        for dep in range(len(base.dep_tb)):
            program = without_wait(base, dep)
            report = verify(program)
            races = [f for f in report.findings if f.code == "E-RACE"]
            assert bool(races) == report.race
            if not races:
                continue
            racy += 1
            check(program, race_witness(program, races[0]))
    assert racy >= 30


def test_room_in_a_fifo_is_what_keeps_these_apart() -> None:
    """Two messages fit, so that rank 0 sends the third one after rank 1 took the first one, and the fourth one, on
    another channel, waits for the third one.  A deeper FIFO would let the fourth one overtake the first one."""
    sends = tuple(step(Op.SEND, (INPUT, 0)) for _ in range(3))
    takes = tuple(step(Op.RECV, None, place) for place in ((OUTPUT, 0), (SCRATCH, 0), (SCRATCH, 0)))
    options: dict[str, Any] = {
        "name": "room", "collective": "", "nranks": 2, "nunits": 2, "nchannels": 2, "input_units": [2, 2],
        "output_units": [2, 2], "scratch_units": [1, 1],
    }  # fmt: skip
    blocks = [
        Threadblock(0, 0, 1, None, 0, sends),
        Threadblock(0, 1, 1, None, 1, (step(Op.SEND, (INPUT, 1), after=((0, 2),)),)),
        Threadblock(1, 0, None, 0, 0, takes),
        Threadblock(1, 1, None, 0, 1, (step(Op.RECV, None, (OUTPUT, 0)),)),
    ]
    program = Program.build(blocks, **options)
    races = [f for f in verify(program).findings if f.code == "E-RACE"]
    assert {(f.rank, f.threadblock, f.step) for f in races} == {(1, 0, 0), (1, 1, 0)}
    for finding in races:
        witness = race_witness(program, finding)
        assert not witness.bounded
        check(program, witness)


def test_the_backend_shows_both_outcomes() -> None:
    """A race of a real program: the numpy backend's random interleavings give right and wrong results."""
    program = without_wait(relay_broadcast(3, 2), 0)
    assert verify(program).race
    expected = data.expected_output("broadcast", 0, 3, 8, np.dtype("int64"), "sum")
    outcomes = set()
    for seed in range(24):
        send = [data.make_input(rank, 8, np.dtype("int64"), "sum", 3) for rank in range(3)]
        received = [np.zeros(8, np.int64) for _ in range(3)]
        numpy_backend.load(program, seed=seed)(send, received)
        outcomes.add(all(data.count_wrong(b, expected) == 0 for b in received))
    assert Layout.of(program, 8) and outcomes == {True, False}


def test_what_is_no_race_has_no_witness() -> None:
    program = exchange(3)
    finding = verify(program).findings[0]
    with pytest.raises(InputError, match="no race"):
        race_witness(program, finding)
    racy = without_wait(relay_broadcast(3, 2), 0)
    race = next(f for f in verify(racy).findings if f.code == "E-RACE")
    with pytest.raises(InputError):
        race_witness(ring_allreduce(3), race)
    with pytest.raises(InputError):
        race_witness(relay_broadcast(3, 2), race)
