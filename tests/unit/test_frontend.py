"""Recording: mistakes are errors of the line that made them, and whatever is recorded is lowered rightly."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import collsynth as cs
from collsynth.errors import CollsynthError, InputError, RefusedError, VerificationError
from collsynth.frontend import Chunk, Recording
from collsynth.program import TARGETS, Buffer, Protocol
from collsynth.verifier import verify


def fails(body: Callable[[Recording], object], p: Recording, *words: str) -> InputError:
    """The error of `body(p)`, which must name the body's last line and say all the words."""
    with pytest.raises(InputError) as caught:
        body(p)
    lines, first = inspect.getsourcelines(body)
    assert caught.value.where == f"{Path(__file__)}:{first + len(lines) - 1}"
    for word in words:
        assert word in str(caught.value)
    return caught.value


# --- mistakes ---


def test_a_stale_chunk() -> None:
    def body(p: Recording) -> None:
        old = p.chunk(0, "input", 0)
        old.reduce(p.chunk(1, "input", 0))
        old.copy(1, "scratch", 0)

    line = inspect.getsourcelines(body)[1]
    fails(body, cs.record("allreduce", 2, out_of_place=False), "stale chunk: rank 0 input[0] was taken at",
          f"test_frontend.py:{line + 1} and overwritten at {Path(__file__)}:{line + 2}")  # fmt: skip


def test_a_chunk_that_is_stale_in_place_only() -> None:
    def body(p: Recording) -> None:
        own = p.chunk(0, "input", 1)
        p.chunk(1, "input", 0).copy(0, "output", 1)
        own.copy(1, "output", 0)

    fails(body, cs.record("alltoall", 2), "overwritten (in place)", "in_place=False")
    body(cs.record("alltoall", 2, in_place=False))  # out of place it is right


def test_a_place_that_holds_different_things_in_the_two_modes() -> None:
    def body(p: Recording) -> None:
        p.chunk(0, "input", 0).reduce(p.chunk(1, "input", 0), "output", 0)
        p.chunk(0, "input", 0)

    fails(body, cs.record("allreduce", 2), "unit 0 of ranks 0, 1 in place", "but unit 0 of rank 0 out of place")

    def early(p: Recording) -> None:
        p.chunk(0, "output", 0)

    fails(early, cs.record("allreduce", 2), "in place (the input), but nothing out of place")


def test_copying_onto_oneself_in_place_keeps_chunks() -> None:
    p = cs.record("allgather", 2)
    own = p.chunk(0, "input", 0)
    own.copy(0, "output", 0)
    own.copy(1, "output", 0)
    assert p.chunk(0, "input", 0).values == own.values


def test_reading_what_nobody_wrote() -> None:
    fails(lambda p: p.chunk(0, "scratch", 3), cs.record("allreduce", 2), "rank 0 scratch[3] is read before")


def test_writing_the_input_out_of_place() -> None:
    def body(p: Recording) -> None:
        p.chunk(0, "input", 0).reduce(p.chunk(1, "input", 0))

    fails(body, cs.record("allreduce", 2), "rank 0 input[0] must stay as it is out of place", "out_of_place=False")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (lambda p: p.chunk(2, "input", 0), "rank 2 is out of range; expected 0..1"),
        (lambda p: p.chunk(0, "input", -1), "index -1 is out of range"),
        (lambda p: p.chunk(0, "input", 0.5), "index 0.5 is no whole number"),
        (lambda p: p.chunk(0, "input", 3, 2), "rank 0 input[3..4] leaves the buffer; expected 4 units"),
        (lambda p: p.chunk(0, "input", 0).copy(1, "output", 4), "rank 1 output[4] leaves the buffer"),
        (lambda p: p.chunk(0, "in", 0), "unknown buffer 'in'; expected input, output or scratch"),
        (lambda p: p.chunk(0, "input", 0, 2).copy(0, "output", 1), "overlap in place"),
        (lambda p: p.chunk(0, "input", 0).reduce(p.chunk(1, "input", 1), "output", 0), "unit 1 of rank 1, it cannot"),
        (lambda p: p.chunk(0, "input", 0).reduce(p.chunk(0, "input", 0), "output", 0), "unit 0 of rank 0 a second"),
        (lambda p: p.chunk(0, "input", 0, 2).reduce(p.chunk(1, "input", 0), "output", 0), "differ in size"),
        (lambda p: p.chunk(0, "input", 0).reduce(p.chunk(1, "input", 0), "output"), "both buffer and index"),
        (lambda p: p.chunk(0, "input", 0).reduce(1), "int cannot be added; expected a chunk"),
        (lambda p: p.chunk(0, "input", 0, 3).split(2), "cannot be cut into 2 equal parts"),
        (lambda p: p.chunk(0, "input", 0, 3)[3:], "no units 3:3:1"),
        (lambda p: p.chunk(0, "input", 0).join(p.chunk(0, "input", 2)), "is not right behind"),
        (lambda p: p.chunk(0, "input", 0).copy(1, "output", 0, tb=0), "expected send_tb and recv_tb"),
        (lambda p: p.chunk(0, "input", 0).copy(0, "output", 0, send_tb=0), "expected tb"),
        (lambda p: p.chunk(0, "input", 0).copy(1, "output", 0, channel=-1), "channel -1 is out of range"),
        (lambda p: p.parallel(0), "ways 0 is out of range"),
    ],
)
def test_mistakes_name_the_line(body: Callable[[Recording], object], words: str) -> None:
    p = cs.record("allreduce", 2, 4)
    with pytest.raises(InputError) as caught:
        body(p)
    assert words in str(caught.value)
    assert caught.value.where == f"{Path(__file__)}:{inspect.getsourcelines(body)[1]}"
    assert p.operations == []


def test_a_refused_line_leaves_no_trace() -> None:
    """Both modes, and the hints, are checked before anything changes."""
    p = cs.record("allreduce", 3)
    mine, theirs = p.chunk(0, "input", 0), p.chunk(1, "input", 0)
    with pytest.raises(InputError, match="must stay as it is out of place"):
        mine.reduce(theirs, send_tb=0, recv_tb=0)
    p.chunk(2, "input", 0).copy(0, "scratch", 5, send_tb=0, recv_tb=0)
    with pytest.raises(InputError, match="receives from rank 2"):
        theirs.copy(0, "scratch", 9, send_tb=7, recv_tb=0)
    theirs.copy(2, "scratch", 0, send_tb=8)
    theirs.copy(0, "scratch", 6, send_tb=7)
    assert mine.values == p.chunk(0, "input", 0).values and p.scratch_units == (7, 0, 1)
    assert len(p.operations) == 3


def test_another_recordings_chunk() -> None:
    other = cs.record("allreduce", 2, name="other")

    def body(p: Recording) -> None:
        p.chunk(0, "input", 0).reduce(other.chunk(1, "input", 0), "output", 0)

    fails(body, cs.record("allreduce", 2), "belongs to another recording (other)")


def test_threadblocks_that_contradict_each_other() -> None:
    def two_peers(p: Recording) -> None:
        p.chunk(0, "input", 0).copy(1, "output", 0, send_tb=4)
        p.chunk(0, "input", 0).copy(2, "output", 0, send_tb=4)

    def one_connection(p: Recording) -> None:
        p.chunk(0, "input", 0).copy(1, "output", 0, recv_tb=0)
        p.chunk(0, "input", 1).copy(1, "output", 1, recv_tb=1)

    def two_channels(p: Recording) -> None:
        p.chunk(0, "input", 0).copy(1, "output", 0, recv_tb=0)
        p.chunk(0, "input", 1).copy(1, "output", 1, recv_tb=0, channel=1)

    def reduction(p: Recording) -> None:
        p.chunk(0, "input", 0).copy(1, "output", 0, send_tb=2)
        p.chunk(2, "input", 0).reduce(p.chunk(0, "input", 0), "scratch", 0, send_tb=2)

    line = f"{Path(__file__)}:{inspect.getsourcelines(two_peers)[1] + 1}"
    fails(
        two_peers, cs.record("allgather", 3, 2), f"threadblock 4 of rank 0 sends to rank 1 since {line}", "cannot be 2"
    )
    fails(one_connection, cs.record("allgather", 3, 2), "runs on threadblock 0 since", "cannot be 1 here")
    fails(two_channels, cs.record("allgather", 3, 2), "threadblock 0 of rank 1 is on channel 0 since")
    fails(reduction, cs.record("allreduce", 3), "threadblock 2 of rank 0 sends to rank 1 since")


def test_unfinished_outputs_name_the_line_that_wrote_them() -> None:
    with pytest.raises(VerificationError) as caught, cs.record("allreduce", 2, 2) as p:
        p.chunk(0, "input", 0).reduce(p.chunk(1, "input", 0), "output", 0)
        p.chunk(0, "input", 1).reduce(p.chunk(1, "input", 1), "output", 1).copy(1, "output", 1)
        half = p.chunk(1, "input", 0).copy(1, "output", 0)
    finding = caught.value.findings[-1]
    assert finding.code == "E-POST" and finding.rank == 1
    assert "rank 1 output[0] ends with unit 0 of rank 1 out of place, allreduce asks for" in finding.message
    assert finding.where == half.taken
    with pytest.raises(VerificationError, match="the algorithm is wrong"):
        p.lower()


def test_an_exception_of_the_script_passes() -> None:
    with pytest.raises(ZeroDivisionError), cs.record("allreduce", 2):
        raise ZeroDivisionError


def test_nothing_is_added_to_a_finished_recording() -> None:
    with cs.record("allgather", 1) as p:
        own = p.chunk(0, "input", 0).copy(0, "output", 0)
    with pytest.raises(InputError, match="the recording is finished"):
        own.copy(0, "scratch", 0)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: cs.record("allgathr", 2), "try allgather"),
        (lambda: cs.record("allgather"), "nranks is missing"),
        (lambda: cs.record("allgather", 0), "nranks 0 is out of range"),
        (lambda: cs.record("allgather", 2, 0), "chunks 0 is out of range"),
        (lambda: cs.record("allgather", 2, root=1), "allgather has no root"),
        (lambda: cs.record("broadcast", 2, root=2), "root 2 is out of range"),
        (lambda: cs.record("allgather", 2, in_place=False, out_of_place=False), "neither in place nor out of place"),
        (lambda: cs.record(cs.allgather(2), 2), "the collective's own"),
    ],
)
def test_odd_recordings_are_refused_at_their_line(make: Callable[[], Recording], words: str) -> None:
    with pytest.raises(InputError) as caught:
        make()
    assert words in str(caught.value)
    assert (caught.value.where or "").startswith(str(Path(__file__)))


@pytest.mark.parametrize(
    "wanted",
    [{}, {(0, 0): (2, 0)}, {(2, 0): (0, 0)}, {(0, -1): (0, 0)}, {(0, 0): (0, -1)}, {(0, 0): ((), 0)}],
)  # fmt: skip
def test_odd_custom_collectives_are_refused(wanted: dict[tuple[int, int], tuple[int, int]]) -> None:
    with pytest.raises(InputError, match="custom collective"):
        cs.custom(2, wanted)
    with pytest.raises(InputError, match="2 units are named"):
        cs.custom(2, {(0, 0): (1, 1)}, units=1)


# --- lowering ---


def line_broadcast(nranks: int, chunks: int) -> Recording:
    with cs.record("broadcast", nranks, chunks) as p:
        for c in range(chunks):
            piece = p.chunk(0, "input", c).copy(0, "output", c)
            for rank in range(1, nranks):
                piece = piece.copy(rank, "output", c)
    return p


def test_limits_of_the_target_hold() -> None:
    """More messages than a threadblock holds go over several channels; more than that is refused."""
    p = line_broadcast(3, 200)
    program = p.lower(target=TARGETS["msccl-executor"])
    assert program.nchannels > 1 and np.diff(program.tb_ptr).max() <= 64
    with pytest.raises(RefusedError, match="channels are needed, --max-channels allows 2"):
        p.lower(target=TARGETS["msccl-executor"], max_channels=2)
    with pytest.raises(RefusedError, match="--max-threadblocks allows 1"):
        all_pairs(4).lower(max_threadblocks=1)
    with pytest.raises(InputError, match="0 instances"):
        p.lower(instances=0)


def all_pairs(nranks: int) -> Recording:
    with cs.record("allgather", nranks) as p:
        for rank in range(nranks):
            for peer in range(nranks):
                p.chunk(rank, "input", 0).copy(peer, "output", rank)
    return p


def test_a_root_that_the_target_cannot_express() -> None:
    with cs.record("broadcast", 2, root=1) as p:
        for rank in (0, 1):
            p.chunk(1, "input", 0).copy(rank, "output", 0)
    assert verify(p.program).ok
    with pytest.raises(RefusedError, match="root 0"):
        p.lower(target=TARGETS["msccl-executor"])


def test_a_one_sided_target_is_refused() -> None:
    with pytest.raises(RefusedError, match="mscclpp runs one-sided programs only"):
        all_pairs(2).lower(target=TARGETS["mscclpp"])


def test_lowering_changes_nothing_and_repeats_itself() -> None:
    p = all_pairs(4)
    assert p.lower(instances=2).content_hash() == p.lower(instances=2).content_hash()
    assert p.program is p.program


def test_large_spans_are_cut_at_the_target_count() -> None:
    with cs.record("broadcast", 2, 150, in_place=True) as p:
        whole = p.chunk(0, "input", 0, 150)
        whole.copy(0, "output", 0)
        whole.copy(1, "output", 0)
    assert p.program.count.max() == 150
    program = p.lower(target=TARGETS["msccl-executor"])
    assert program.count.max() == 71


def test_parallel_parts_have_channels_of_their_own() -> None:
    with cs.record("allgather", 2) as p, p.parallel(2), p.parallel(2):
        for rank in (0, 1):
            for peer in (0, 1):
                p.chunk(rank, "input", 0).copy(peer, "output", rank)
    program = p.lower(instances=3)
    assert program.nchannels == 12 and program.nunits == 2 * 12


def test_units_that_chunks_share_in_place_are_cut_alike() -> None:
    """Input and output of a custom collective are one memory: a copy must cut a unit the same way as both."""
    collective = cs.custom(2, {(1, 2): (0, 0), (1, 3): (0, 1), (0, 1): (0, 2)}, units=4)
    with cs.record(collective, out_of_place=False) as p:
        p.chunk(0, "input", 0, 2).copy(1, "output", 2)
        p.chunk(0, "input", 2).copy(0, "output", 1)
    assert verify(p.lower(instances=3), collective=collective).ok


def test_channels_separate_connections() -> None:
    with cs.record("broadcast", 2, 4) as p:
        for c in range(4):
            piece = p.chunk(0, "input", c)
            piece.copy(0, "output", c)
            piece.copy(1, "output", c, channel=c % 2)
    assert p.program.nchannels == 2
    assert sorted(p.program.tb_channel[p.program.tb_recv == 0].tolist()) == [0, 1]


def test_local_operations_run_on_the_named_threadblock() -> None:
    with cs.record("allreduce", 2, out_of_place=False) as p:
        for rank in (0, 1):
            p.chunk(1 - rank, "input", 0).copy(rank, "scratch", 0, send_tb=0, recv_tb=1)
        for rank in (0, 1):
            p.chunk(rank, "input", 0).reduce(p.chunk(rank, "scratch", 0), tb=2)
    program = p.lower()
    assert [len(program.threadblocks(rank)) for rank in (0, 1)] == [3, 3]
    assert sorted(np.diff(program.tb_ptr).tolist()) == [1] * 6


def test_split_slice_and_join() -> None:
    p = cs.record("broadcast", 2, 6)
    whole = p.chunk(0, "input", 0, 6)
    left, right = whole.split(2)
    assert (left.index, left.count, right.index) == (0, 3, 3)
    assert whole[2:4].span.index == 2 and whole[-1:].index == 5
    assert left.join(right).span == whole.span
    assert isinstance(left, Chunk) and left.rank == 0 and left.buffer is Buffer.INPUT


def test_operations_are_readable() -> None:
    p = cs.record("allreduce", 2, 2)
    p.chunk(0, "input", 0, 2).reduce(p.chunk(1, "input", 0, 2), "output", 0).copy(1, "output", 0)
    assert [str(operation) for operation in p.operations] == [
        "reduce rank 0 input[0..1] + rank 1 input[0..1] -> rank 0 output[0..1]",
        "copy rank 0 output[0..1] -> rank 1 output[0..1]",
    ]


# --- anything that can be recorded is lowered rightly ---


def wander(p: Recording, steps: int, seed: int) -> None:
    """Random operations from anywhere to the lower half or scratch; those that are mistakes are left out."""
    rng, units = random.Random(seed), int(p.collective.input_units[0])

    def somewhere(count: int, units: int = units) -> tuple[int, Buffer, int]:
        return rng.randrange(p.nranks), rng.choice(list(Buffer)), rng.randrange(max(1, units - count + 1))

    for _ in range(steps):
        count = rng.randint(1, max(1, units // 2))
        hints = {"channel": rng.randrange(2)}
        if rng.random() < 0.3:
            hints |= {"send_tb": rng.randrange(3), "recv_tb": rng.randrange(3)}
        try:
            with p.parallel(rng.choice((1, 1, 2, 3))):
                source = p.chunk(*somewhere(count), count)
                if rng.random() < 0.4:
                    p.chunk(*somewhere(count), count).reduce(source, *somewhere(count, units // 2)[1:], **hints)
                else:
                    source.copy(*somewhere(count, units // 2), **hints)
        except CollsynthError:
            continue


def start(p: Recording, units: int) -> None:
    """Copy the inputs to the second half of the outputs, so that each is asked for."""
    for rank in range(p.nranks):
        p.chunk(rank, "input", 0, units).copy(rank, "output", units)


@settings(max_examples=60, deadline=None)
@given(
    nranks=st.integers(2, 4), units=st.integers(1, 4), steps=st.integers(0, 40), seed=st.integers(0, 10**9),
    modes=st.sampled_from([(True, True), (True, False), (False, True)]), instances=st.integers(1, 3),
    target=st.sampled_from(["any", "msccl-executor", "rccl"]), fuse=st.booleans(),
    protocol=st.sampled_from(list(Protocol)),
)  # fmt: skip
def test_any_recording_becomes_a_right_program(
    nranks: int, units: int, steps: int, seed: int, modes: tuple[bool, bool], instances: int, target: str, fuse: bool,
    protocol: Protocol,
) -> None:  # fmt: skip
    """What random operations leave in the outputs is asked for as a custom collective; the prover agrees."""
    kept = {(rank, units + unit): (rank, unit) for rank in range(nranks) for unit in range(units)}
    options = {"in_place": modes[0], "out_of_place": modes[1]}
    first = cs.record(cs.custom(nranks, kept, units=2 * units), **options)
    start(first, units)
    wander(first, steps, seed)
    wanted: dict[tuple[int, int], tuple[tuple[int, ...], int]] = {
        place: ((rank,), unit) for place, (rank, unit) in kept.items()
    }  # fmt: skip
    for rank in range(nranks):
        for unit in range(2 * units):
            try:
                value = first.chunk(rank, "output", unit).values[0]
            except InputError:
                wanted.pop((rank, unit), None)
                continue
            shift = (2 * units).bit_length()
            sources = tuple(r for r in range(nranks) if value >> (r + shift) & 1)
            wanted[rank, unit] = (sources, value & ((1 << shift) - 1))
    with cs.record(cs.custom(nranks, wanted, units=2 * units), **options) as second:
        start(second, units)
        wander(second, steps, seed)
    assert [str(o) for o in second.operations] == [str(o) for o in first.operations]
    try:
        program = second.lower(target=TARGETS[target], instances=instances, fuse=fuse, protocol=protocol)
    except RefusedError as refusal:  # many channels and parts at once
        assert "threadblocks" in str(refusal) and not isinstance(refusal, VerificationError)
        return
    assert verify(program, target=TARGETS[target], collective=second.collective).ok
