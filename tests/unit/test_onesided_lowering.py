"""One-sided programs from schedules: proven, written and read back, small, and right on real data."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from collsynth.backends import numpy_backend
from hypothesis import given, settings
from hypothesis import strategies as st
from one_sided import PORT, RIGHT, I, O, at, local, program, put, sync
from test_numpy_backend import wrong_elements

from collsynth import collective as collectives
from collsynth.cli import cli
from collsynth.errors import InputError, RefusedError, RunError
from collsynth.formats import load_topology, mscclpp, read
from collsynth.lowering import lower
from collsynth.lowering.onesided import lower_onesided
from collsynth.lowering.onesided_weave import operations
from collsynth.program import TARGETS, ChannelKind, Instruction, Op, Program, Protocol, Target
from collsynth.schedule import Schedule, Transfer
from collsynth.synth import synthesize
from collsynth.verifier import verify

MSCCLPP = TARGETS["mscclpp"]
COLLECTIVES = ("allgather", "reducescatter", "allreduce", "alltoall", "broadcast")


@cache
def schedule(machine: str, collective: str) -> Schedule:
    found = synthesize(load_topology(machine), collective).schedule
    assert found is not None
    return found


def counts(made: Program) -> Counter[Op]:
    return Counter(Op(op) for op in made.op.tolist())


@pytest.mark.parametrize(
    ("machine", "collective", "in_place"),
    [
        *(("ring:4", c, mode) for c in COLLECTIVES for mode in (False, True)),
        *(("mesh:2x3", c, c == "alltoall") for c in COLLECTIVES),
        *(("dgx-a100", c, True) for c in COLLECTIVES[:4]),
        ("dgx-v100", "allgather", False), ("dgx-v100", "allreduce", True), ("dgx-v100", "alltoall", True),
    ],
)  # fmt: skip
def test_proven_written_and_right_on_data(machine: str, collective: str, in_place: bool, tmp_path: Path) -> None:
    made = lower_onesided(schedule(machine, collective), in_place=in_place, name="x")
    assert verify(made, target=MSCCLPP).findings == ()
    path = tmp_path / "x.json"
    mscclpp.write(made, path)
    assert read(path).content_hash() == made.content_hash()
    plan = mscclpp.plan_of(made)
    for gpu in plan["gpus"]:
        rows = made.threadblocks(gpu["id"])
        for block, views in zip(gpu["threadblocks"], rows, strict=True):
            assert len(block["ops"]) <= operations(list(views.instructions)) <= 64
    assert not len(made.dep_tb)
    assert wrong_elements(made, 37, "float32", "sum", in_place=in_place) == 0
    assert wrong_elements(made, 1, "int32", "max", in_place=in_place, seed=5) == 0


@pytest.mark.parametrize("collective", ["allgather", "allreduce"])
def test_between_nodes_data_goes_through_ports(collective: str) -> None:
    machine = load_topology("dgx-a100:nodes=2")
    made = lower_onesided(schedule("dgx-a100:nodes=2", collective), in_place=False)
    rank_of = np.repeat(made.tb_rank, np.diff(made.tb_ptr))
    node = np.array([v.node for v in machine.vertices[: machine.nranks]])
    linked = made.peer >= 0
    across = node[rank_of[linked]] != node[made.peer[linked]]
    assert across.any() and (~across).any()
    assert (made.kinds[linked] == np.where(across, ChannelKind.PORT, ChannelKind.MEMORY)).all()
    assert counts(made)[Op.FLUSH] > 0
    assert verify(made, target=MSCCLPP).findings == ()
    assert wrong_elements(made, 5, "float32", "sum", in_place=False, seed=2) == 0


def test_direct_forms_move_every_byte_once_and_acknowledge_nothing() -> None:
    gather = counts(lower_onesided(schedule("dgx-a100", "allgather"), in_place=True))
    # one put and one signal for each of 56 pairs, beside the handshake at the start
    assert gather == {
        Op.PUT: 56, Op.SIGNAL: 56, Op.WAIT: 56, Op.RELAXED_SIGNAL: 56, Op.RELAXED_WAIT: 56,
    }  # fmt: skip
    scatter = lower_onesided(schedule("dgx-a100", "reducescatter"), in_place=True)
    assert counts(scatter)[Op.READ_REDUCE] == 56 and not counts(scatter)[Op.PUT] and not scatter.scratch_units.any()
    reduce = lower_onesided(schedule("dgx-a100", "allreduce"), in_place=True)
    assert counts(reduce)[Op.READ_REDUCE] == counts(reduce)[Op.PUT] == 56 and not reduce.scratch_units.any()
    # a sum of eight terms and its first put are one operation
    names = [
        op["name"] for gpu in mscclpp.plan_of(reduce)["gpus"] for tb in gpu["threadblocks"] for op in tb["ops"]
    ]  # fmt: skip
    assert names.count("rres") == 8 and not {"rre", "re", "copy"} & set(names)


def test_an_exchange_of_sums_goes_through_scratch() -> None:
    """Recursive doubling: both partners send the value that the other's term is added to."""
    machine = load_topology("fully-connected:4")
    link = {(s, d): i for i, (s, d) in enumerate(zip(machine.link_src, machine.link_dst, strict=True))}
    rows = [
        Transfer(0, rank, rank ^ bit, True, level, (link[rank, rank ^ bit],))
        for level, bit in enumerate((1, 2))
        for rank in range(4)
    ]
    whole = collectives.allreduce(4, weights=[1, 0, 0, 0])
    for in_place in (False, True):
        made = lower_onesided(Schedule.build(machine, whole, rows, method="doubling"), in_place=in_place)
        assert counts(made)[Op.REDUCE] == 8 and not counts(made)[Op.READ_REDUCE]
        assert wrong_elements(made, 11, "float32", "sum", in_place=in_place, seed=1) == 0


def test_instances_spread_a_chunk_over_threadblocks() -> None:
    one, three = (lower_onesided(schedule("ring:4", "allgather"), instances=n) for n in (1, 3))
    assert three.nunits == 3 * one.nunits and three.nchannels > one.nchannels
    assert wrong_elements(three, 97, "float32", "sum", in_place=False, seed=3) == 0


def test_limits_are_refused_with_the_figure() -> None:
    made = schedule("ring:4", "allgather")
    with pytest.raises(RefusedError, match=r"needs \d+ operations, the limit is 64, with 1 threadblocks a rank"):
        lower_onesided(schedule("ring:4", "broadcast"), max_threadblocks=1)
    with pytest.raises(RefusedError, match="needs 2 memory channels, the limit is 1"):
        lower_onesided(made, target=replace(MSCCLPP, max_tb_channels=1))
    with pytest.raises(RefusedError, match="need 2 channels of one kind, the limit is 1"):
        lower_onesided(made, max_channels=1)
    with pytest.raises(RefusedError, match="one mode"):
        lower(made, target=MSCCLPP)
    with pytest.raises(RefusedError, match="not LL"):
        lower(made, target=MSCCLPP, in_place=False, protocol=Protocol.LL)
    with pytest.raises(RefusedError, match="two-sided programs only"):
        lower_onesided(made, target=TARGETS["msccl"])
    with pytest.raises(InputError, match="0 instances"):
        lower_onesided(made, instances=0)
    rooted = synthesize(load_topology("ring:4"), "broadcast", root=2).schedule
    assert rooted is not None
    with pytest.raises(RefusedError, match="root 0, not 2"):
        lower_onesided(rooted)
    assert lower_onesided(rooted, target=Target("free")).root == 2


@pytest.mark.parametrize("name", list(RIGHT))
def test_hand_written_programs_run(name: str) -> None:
    made = RIGHT[name]()
    for in_place in (m for m, declared in ((False, made.out_of_place), (True, made.in_place)) if declared):
        for seed in (None, 0, 1, 2):
            assert wrong_elements(made, 41, "float32", "sum", in_place=in_place, seed=seed) == 0


def _two(rows: list[list[list[Instruction]]]) -> Program:
    return program(rows, "allgather", inputs=1, outputs=2)


def test_a_missing_wait_shows_in_some_order() -> None:
    sound = RIGHT["allgather-port"]()
    blocks = [
        replace(b, instructions=tuple(r for r in b.instructions if r.op is not Op.WAIT or b.rank))
        for b in sound.threadblocks()
    ]
    broken = Program.build(
        blocks, name="b", collective="allgather", nranks=sound.nranks, nunits=sound.nunits, nchannels=1,
        input_units=sound.input_units.tolist(), output_units=sound.output_units.tolist(),
        scratch_units=sound.scratch_units.tolist(),
    )  # fmt: skip
    assert not verify(broken).ok
    with pytest.raises(RunError, match="never waited for"):
        wrong_elements(broken, 4, "float32", "sum", in_place=False, seed=0)


def test_a_port_takes_its_source_late() -> None:
    """Overwritten without a flush, the source is wrong in some order and right with the flush in all."""

    def made(flush: bool) -> Program:
        ranks = []
        for rank in (0, 1):
            peer = 1 - rank
            rows = [local(Op.COPY, at(I, 0), at(O, rank)), sync(Op.SIGNAL, peer, 1), sync(Op.WAIT, peer, 1)]
            rows += [put(at(O, rank), peer, O, rank, 0), sync(Op.SIGNAL, peer, 0, PORT)]
            rows += [sync(Op.FLUSH, peer, 0, PORT)] if flush else []
            rows += [local(Op.REDUCE, at(I, 0), at(O, rank)), local(Op.COPY, at(I, 0), at(O, rank))]
            ranks.append([[*rows, sync(Op.WAIT, peer, 0, PORT)]])
        return _two(ranks)

    right, wrong = (
        [wrong_elements(made(flush), 3, "float32", "sum", in_place=False, seed=seed) for seed in range(40)]
        for flush in (True, False)
    )
    assert not any(right) and any(wrong)


def test_stuck_runs_and_strange_operands_are_told() -> None:
    stuck = _two([[[sync(Op.WAIT, 1)]], [[local(Op.COPY, at(I, 0), at(O, 1))]]])
    with pytest.raises(RunError, match=r"rank 0 tb 0 step 0 \(WAIT\) waits for a signal of rank 1"):
        wrong_elements(stuck, 2, "float32", "sum", in_place=False)
    outside = _two([[[put(at(I, 0), 1, O, 7)]], []])
    with pytest.raises(RunError, match="outside its buffer"):
        wrong_elements(outside, 2, "float32", "sum", in_place=False)
    both = _two([[[put(at(I, 0), 1, O, 0), sync(Op.SIGNAL, 1)]], []])
    op = both.op.copy()
    op[0] = Op.SEND
    with pytest.raises(InputError, match="mixes"):
        numpy_backend.load(replace(both, op=op))


@settings(max_examples=10, deadline=None)
@given(
    st.sampled_from(COLLECTIVES), st.booleans(), st.integers(0, 40), st.integers(0, 1 << 30), st.sampled_from([1, 2])
)
def test_any_order_gives_the_right_data(
    collective: str, in_place: bool, count: int, seed: int, instances: int
) -> None:  # fmt: skip
    made = lower_onesided(schedule("ring:4", collective), in_place=in_place, instances=instances)
    assert wrong_elements(made, count, "float32", "sum", in_place=in_place, seed=seed) == 0


def test_command_line(tmp_path: Path) -> None:
    run = CliRunner()
    path = str(tmp_path / "a.json")
    first = run.invoke(cli, ["synth", "allreduce", "-t", "dgx-a100", "-s", "1M", "-o", path])
    assert first.exit_code == 0, first.output
    assert run.invoke(cli, ["verify", "--target", "mscclpp", path]).exit_code == 0
    second = run.invoke(cli, ["run", path, "--backend", "numpy", "--count", "1003", "--iters", "1"])
    assert second.exit_code == 0, second.output
    refused = run.invoke(cli, ["synth", "allreduce", "-t", "dgx-a100", "-s", "1000", "-o", str(tmp_path / "b.json")])
    assert refused.exit_code == 1 and "no multiple of" in str(refused.exception)
    assert not (tmp_path / "b.json").exists()
