"""One wait an instruction: nops in front, step numbers that follow."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from random_schedules import random_schedule

from collsynth.limits import longest_threadblock
from collsynth.lowering import lower
from collsynth.nops import extra_waits, single_waits
from collsynth.program import Buffer, Instruction, Op, Operand, Program, Threadblock
from collsynth.verifier import verify


def test_numbers_follow_the_nops() -> None:
    copy = Instruction(Op.COPY, 1, Operand(Buffer.INPUT, 0, 1), Operand(Buffer.SCRATCH, 0, 1))
    waits = Instruction(Op.COPY, 1, copy.src, Operand(Buffer.SCRATCH, 1, 1), depends=((0, 0), (1, 1)))
    last = Instruction(Op.COPY, 1, copy.src, Operand(Buffer.OUTPUT, 0, 1), depends=((2, 1),))
    program = Program.build(
        [
            Threadblock(0, 0, None, None, 0, (copy, last)), Threadblock(0, 1, None, None, 0, (copy, copy)),
            Threadblock(0, 2, None, None, 0, (copy, waits)),
        ],
        name="x", collective="allreduce", nranks=1, nunits=1, nchannels=1, input_units=[1], output_units=[1],
        scratch_units=[2],
    )  # fmt: skip
    single = single_waits(program)
    assert extra_waits(program).tolist() == [0, 0, 0, 0, 0, 1]
    assert longest_threadblock(program) == (3, 0, 2) == longest_threadblock(single)
    third = single.threadblock(2).instructions
    assert [i.op for i in third] == [Op.COPY, Op.NOP, Op.COPY]
    assert [i.depends for i in third] == [(), ((0, 0),), ((1, 1),)]
    assert single.threadblock(0).instructions[1].depends == ((2, 2),), "the waited step moved from 1 to 2"
    assert single_waits(single) is single


@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(["allgather", "allreduce", "alltoall", "reducescatter"]), nranks=st.integers(3, 6),
    chunks=st.integers(1, 3), seed=st.integers(0, 10**6),
)  # fmt: skip
def test_the_program_stays_right(name: str, nranks: int, chunks: int, seed: int) -> None:
    program = lower(random_schedule(name, nranks, chunks, seed), fuse=False)
    single = single_waits(program)
    assert np.diff(single.dep_ptr).max(initial=0) <= 1
    assert single.nrows == program.nrows + extra_waits(program).sum()
    assert verify(single).ok
