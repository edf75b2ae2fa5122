"""Lowering: whatever the schedule, the program is right in every mode, keeps limits, and cannot hang."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_schedules import complete, random_schedule

from collsynth import collective as collectives
from collsynth.errors import InputError, RefusedError, VerificationError
from collsynth.limits import longest_threadblock
from collsynth.lowering import DEFAULT_MAX_BYTES, lower
from collsynth.program import TARGETS, Buffer, Op, Program, Protocol
from collsynth.schedule import Schedule, Transfer
from collsynth.verifier import verify

NAMES = ("allgather", "reducescatter", "allreduce", "alltoall", "broadcast", "reduce")
TARGET_NAMES = ("any", "msccl-executor", "rccl")
MODES = ((True, True), (True, False), (False, True))


def operations(program: Program) -> set[Op]:
    return {Op(op) for op in program.op.tolist()}


def relay_line(chunks: int) -> Schedule:
    """Broadcast 0 -> 1 -> 2 of `chunks` chunks, all on the same two levels."""
    topology = complete(3)
    link = {(int(s), int(d)): i for i, (s, d) in enumerate(zip(topology.link_src, topology.link_dst, strict=True))}
    rows = [
        Transfer(c, a, a + 1, False, 2 * c + a, (link[a, a + 1],)) for c in range(chunks) for a in (0, 1)
    ]  # fmt: skip
    return Schedule.build(topology, collectives.broadcast(3, chunks), rows, method="line")


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(NAMES), nranks=st.integers(2, 6), chunks=st.integers(1, 3), seed=st.integers(0, 10**6),
    modes=st.sampled_from(MODES), instances=st.integers(1, 3), target=st.sampled_from(TARGET_NAMES),
    protocol=st.sampled_from(list(Protocol)), fuse=st.booleans(),
)  # fmt: skip
def test_any_right_schedule_becomes_a_right_program(
    name: str, nranks: int, chunks: int, seed: int, modes: tuple[bool, bool], instances: int, target: str,
    protocol: Protocol, fuse: bool,
) -> None:  # fmt: skip
    schedule = random_schedule(name, nranks, chunks, seed)
    program = lower(
        schedule, target=TARGETS[target], in_place=modes[0], out_of_place=modes[1], instances=instances,
        protocol=protocol, fuse=fuse,
    )  # fmt: skip
    report = verify(program, target=TARGETS[target], collective=schedule.collective)
    assert report.ok, [str(f) for f in report.findings]
    assert (program.in_place, program.out_of_place) == modes
    assert program.nunits == schedule.collective.payload_units * instances
    assert not (program.dst_buffer == int(Buffer.INPUT)).any(), "the input is never written"
    if not fuse or target == "rccl":
        assert not operations(program) & {Op.RECV_COPY_SEND, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND}
    if target == "rccl":
        assert Op.RECV_REDUCE_COPY not in operations(program)


@settings(max_examples=30, deadline=None)
@given(name=st.sampled_from(NAMES), nranks=st.integers(2, 6), chunks=st.integers(1, 3), seed=st.integers(0, 10**6))
def test_unfused_programs_are_right_at_fifo_depth_one(name: str, nranks: int, chunks: int, seed: int) -> None:
    """The linear order's promise: no connection needs more than one slot."""
    from collsynth.backends import data, numpy_backend

    program = lower(random_schedule(name, nranks, chunks, seed), fuse=False, in_place=False)
    count, dtype = 3, np.dtype("int32")
    inputs = [x if len(x) else None for x in data.inputs_of(name, nranks, count, dtype, "sum")]
    sizes = [data.output_elements(name, r, nranks, count) for r in range(nranks)]
    outputs = [np.zeros(size, dtype) if size else None for size in sizes]
    numpy_backend.load(program, fifo_depth=1, seed=seed)(inputs, outputs, count=count)
    for rank, output in enumerate(outputs):
        expected = data.expected_output(name, rank, nranks, count, dtype, "sum")
        assert output is None or expected is None or data.count_wrong(output, expected) == 0


@settings(max_examples=25, deadline=None)
@given(weights=st.lists(st.integers(1, 90), min_size=2, max_size=4), seed=st.integers(0, 1000))
def test_heavy_chunks_are_cut_at_the_target_count(weights: list[int], seed: int) -> None:
    """A chunk of more than 71 units travels in several messages."""
    nranks = len(weights)
    base = random_schedule("allreduce", nranks, 1, seed)
    weight = np.array(weights, dtype=np.int64)
    start = np.cumsum(weight) - weight
    size = np.full(nranks, weight.sum(), dtype=np.int64)
    collective = replace(
        base.collective, weight=weight, payload_units=int(weight.sum()), input_offset=start, output_offset=start.copy(),
        input_units=size, output_units=size.copy(),
    )  # fmt: skip
    schedule = replace(base, collective=collective)
    program = lower(schedule, target=TARGETS["msccl-executor"])
    assert program.count.max() <= 71
    assert verify(program, target=TARGETS["msccl-executor"]).ok


def test_lowering_is_deterministic() -> None:
    schedule = random_schedule("allreduce", 5, 2, 7)
    assert lower(schedule).content_hash() == lower(schedule).content_hash()


def test_both_partners_of_an_exchange_keep_their_old_value() -> None:
    """Recursive doubling: each sends the value it had when the level began."""
    topology = complete(4)
    link = {(int(s), int(d)): i for i, (s, d) in enumerate(zip(topology.link_src, topology.link_dst, strict=True))}
    rows = [
        Transfer(0, rank, rank ^ bit, True, level, (link[rank, rank ^ bit],))
        for level, bit in enumerate((1, 2)) for rank in range(4)
    ]  # fmt: skip
    schedule = Schedule.build(topology, collectives.allreduce(4, weights=[1, 0, 0, 0]), rows)
    for fuse in (True, False):
        program = lower(schedule, fuse=fuse)
        assert verify(program).ok
        assert program.scratch_units.max() > 0


def test_ring_fuses_and_stores_no_partial_sums() -> None:
    """A chain of reductions becomes rrs without scratch."""
    topology = complete(4)
    link = {(int(s), int(d)): i for i, (s, d) in enumerate(zip(topology.link_src, topology.link_dst, strict=True))}
    rows = [Transfer(0, r, r - 1, True, 3 - r, (link[r, r - 1],)) for r in (3, 2, 1)]
    schedule = Schedule.build(topology, collectives.reduce(4, 1), rows)
    program = lower(schedule)
    assert operations(program) == {Op.SEND, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY}
    assert program.scratch_units.tolist() == [0, 0, 0, 0]
    plain = lower(schedule, fuse=False)
    assert operations(plain) == {Op.SEND, Op.RECV_REDUCE_COPY} and plain.scratch_units.tolist() == [0, 1, 1, 0]


def test_neighbouring_chunks_join_only_where_nobody_passes_them_on() -> None:
    topology = complete(3)
    link = {(int(s), int(d)): i for i, (s, d) in enumerate(zip(topology.link_src, topology.link_dst, strict=True))}
    rows = [Transfer(c, 0, r, False, 0, (link[0, r],)) for c in range(6) for r in (1, 2)]
    leaf = lower(Schedule.build(topology, collectives.broadcast(3, 6), rows))
    assert sorted(set(leaf.count.tolist())) == [6]
    assert set(lower(relay_line(6), in_place=False).count[:].tolist()) == {1, 6}  # 6: the root's own copy


def test_scratch_is_reused() -> None:
    """A relay outside the destinations holds one chunk at a time."""
    topology = complete(3)
    link = {(int(s), int(d)): i for i, (s, d) in enumerate(zip(topology.link_src, topology.link_dst, strict=True))}
    collective = collectives.alltoall(3, 4)
    rows = []
    for chunk in range(collective.nchunks):
        src, dst = int(collective.owner[chunk]), int(collective.destinations.of(chunk)[0])
        if (src, dst) == (0, 2):
            level = 3 * (chunk % 4)
            rows += [Transfer(chunk, 0, 1, False, level, (link[0, 1],))]
            rows += [Transfer(chunk, 1, 2, False, level + 1, (link[1, 2],))]
        elif src != dst:
            rows.append(Transfer(chunk, src, dst, False, 0, (link[src, dst],)))
    program = lower(Schedule.build(topology, collective, rows), in_place=False)
    assert program.scratch_units.tolist() == [0, 1, 0]


def test_in_place_exchange_detours_only_half() -> None:
    program = lower(random_schedule("alltoall", 2, 1, 0))
    assert program.scratch_units.sum() == 1
    assert lower(random_schedule("alltoall", 2, 1, 0), in_place=False).scratch_units.sum() == 0


def test_long_connections_spread_over_channels() -> None:
    schedule = relay_line(150)
    program = lower(schedule, target=TARGETS["msccl-executor"])
    assert longest_threadblock(program)[0] <= 64 and program.nchannels >= 3
    assert lower(schedule).nchannels == 1
    with pytest.raises(RefusedError, match=r"channels are needed, --max-channels allows 2"):
        lower(schedule, target=TARGETS["msccl-executor"], max_channels=2)


def test_many_peers_spread_over_channels() -> None:
    """At most 32 receiving threadblocks of a rank on one channel."""
    nranks = 40
    topology = complete(nranks)
    link = {(int(s), int(d)): i for i, (s, d) in enumerate(zip(topology.link_src, topology.link_dst, strict=True))}
    rows = [Transfer(0, r, 0, True, 0, (link[r, 0],)) for r in range(1, nranks)]
    program = lower(Schedule.build(topology, collectives.reduce(nranks, 1), rows), target=TARGETS["msccl-executor"])
    assert program.nchannels == 2
    assert verify(program, target=TARGETS["msccl-executor"]).ok


def test_threadblocks_share_when_there_are_too_many() -> None:
    schedule = random_schedule("allgather", 6, 2, 3)
    most = int(np.bincount(lower(schedule, fuse=False).tb_rank).max())
    tight = lower(schedule, fuse=False, max_threadblocks=most - 1)
    assert np.bincount(tight.tb_rank).max() <= most - 1
    with pytest.raises(RefusedError, match=r"rank \d needs \d+ threadblocks, --max-threadblocks allows 1"):
        lower(schedule, max_threadblocks=1)


def test_nops_carry_further_waits() -> None:
    """One wait an instruction where the target wants that; the same program otherwise."""
    schedule = random_schedule("allgather", 6, 2, 11)  # in place, the own copy waits for all who send the shard
    free, single = lower(schedule, fuse=False), lower(schedule, fuse=False, target=TARGETS["msccl"])
    assert np.diff(free.dep_ptr).max() > 1
    assert np.diff(single.dep_ptr).max() == 1 and Op.NOP in operations(single)
    assert (single.op != int(Op.NOP)).sum() == free.nrows


def test_size_window() -> None:
    schedule = random_schedule("allreduce", 3, 1, 0)
    assert lower(schedule).max_bytes == DEFAULT_MAX_BYTES
    assert lower(schedule, size=1 << 20).max_bytes == 2 << 20
    assert lower(schedule, size=0).max_bytes == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"instances": 0}, "0 instances"),
        ({"in_place": False, "out_of_place": False}, "neither in place nor out of place"),
        ({"max_channels": 0}, "too few"),
        ({"max_threadblocks": -1}, "too few"),
    ],
)
def test_bad_arguments(options: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        lower(random_schedule("allgather", 3, 1, 0), **options)  # type: ignore[arg-type]


def test_a_wrong_schedule_is_refused() -> None:
    right = random_schedule("allgather", 3, 1, 0)
    wrong = Schedule.build(right.topology, right.collective, right.rows()[1:])
    with pytest.raises(VerificationError):
        lower(wrong)


def test_other_roots_are_refused_by_runtimes() -> None:
    schedule = random_schedule("broadcast", 3, 2, 0, root=1)
    assert lower(schedule).root == 1
    with pytest.raises(RefusedError, match="can only mean root 0, not 1"):
        lower(schedule, target=TARGETS["msccl"])


def test_one_rank() -> None:
    for name in NAMES:
        program = lower(Schedule.build(complete(1), collectives.make(name, 1), []))
        assert verify(program).ok


@pytest.mark.parametrize(("in_place", "out_of_place"), MODES)
def test_custom_collectives_may_overwrite_what_is_still_sent(in_place: bool, out_of_place: bool) -> None:
    """Every buffer moves to the next rank of a ring: in place each arrives where another one still is."""
    topology = complete(4)
    link = {(int(s), int(d)): i for i, (s, d) in enumerate(zip(topology.link_src, topology.link_dst, strict=True))}
    collective = collectives.custom(4, {((r + 1) % 4, unit): (r, unit) for r in range(4) for unit in range(3)})
    hops = [(chunk, int(owner), (int(owner) + 1) % 4) for chunk, owner in enumerate(collective.owner)]
    rows = [Transfer(chunk, src, dst, False, 0, (link[src, dst],)) for chunk, src, dst in hops]
    schedule = Schedule.build(topology, collective, rows)
    for instances in (1, 2):
        program = lower(schedule, in_place=in_place, out_of_place=out_of_place, instances=instances)
        assert program.collective == "" and verify(program, collective=collective).ok
        assert bool(program.scratch_units.any()) == in_place
