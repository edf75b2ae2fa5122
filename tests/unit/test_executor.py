"""The interpreter and the rings, with ranks as threads of one process (no MPI)."""

from __future__ import annotations

import mmap
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collsynth.backends.cupy_backend import StagedArrays, local_rank, pick_device
from collsynth.backends.executor import (
    Arrays,
    Executor,
    RecvEnd,
    SendEnd,
    Transport,
    check_connections,
    decode,
    largest_count,
    slice_widths,
)
from collsynth.backends.layout import Buffers
from collsynth.backends.transport import Ring, SharedRecv, SharedSend, Slots, pretend_host
from hypothesis import given, settings
from hypothesis import strategies as st

from collsynth.errors import InputError, RunError
from collsynth.program import Buffer, Instruction, Op, Operand, Program, Protocol, Threadblock

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "mpi"))
import programs  # noqa: E402


class ThreadTransport(Transport):
    """Rings in one anonymous map, shared by threads; the first failure stops everybody."""

    def __init__(self, rank: int, rings: dict[tuple[int, int, int], Slots], limit: int, failed: list[str]) -> None:
        self.message_bytes = limit
        self._failed = failed
        self._sends = {key: SharedSend(key[1], key[2], slots) for key, slots in rings.items() if key[0] == rank}
        self._recvs = {key: SharedRecv(key[0], key[2], slots) for key, slots in rings.items() if key[1] == rank}
        self._rank = rank

    def send_end(self, peer: int, channel: int) -> SendEnd:
        return self._sends[self._rank, peer, channel]

    def recv_end(self, peer: int, channel: int) -> RecvEnd:
        return self._recvs[peer, self._rank, channel]

    def begin(self, dtype: np.dtype[Any], widths: Any) -> None:
        for end in (*self._sends.values(), *self._recvs.values()):
            end.dtype = dtype

    def check(self) -> None:
        if self._failed:
            raise RunError("another rank gave up: " + self._failed[0])

    def fail(self, reason: str) -> None:
        self._failed.append(reason)


def run_threads(
    program: Program,
    unit_elements: int,
    *,
    dtype: Any = np.float32,
    op: str = "sum",
    in_place: bool = False,
    limit: int = 1 << 16,
    timeout: float = 20.0,
) -> tuple[list[np.ndarray], list[np.ndarray], list[Executor], list[BaseException]]:
    """Run all ranks as threads; inputs, outputs, executors and what was raised."""
    depth = program.protocol.fifo_depth
    slot = -(-max(limit, largest_count(program) * 8) // 64) * 64
    rings: dict[tuple[int, int, int], Slots] = {}
    for tb in range(program.ntbs):
        if program.tb_send[tb] >= 0:
            ring = Ring(0, depth, slot)
            key = (int(program.tb_rank[tb]), int(program.tb_send[tb]), int(program.tb_channel[tb]))
            rings[key] = Slots(mmap.mmap(-1, ring.nbytes), ring)
    random = np.random.default_rng(1)
    inputs = [
        random.integers(1, 3, (int(program.input_units[r]), unit_elements)).astype(dtype) for r in range(program.nranks)
    ]
    outputs: list[Any] = [
        np.full((int(program.output_units[r]), unit_elements), 77, dtype) for r in range(program.nranks)
    ]
    failed: list[str] = []
    raised: list[BaseException] = []
    executors: list[Any] = [None] * program.nranks

    def work(rank: int) -> None:
        transport = ThreadTransport(rank, rings, slot, failed)
        try:
            executor = executors[rank] = Executor(program, rank, transport, Arrays(np))
            widths = slice_widths(unit_elements, np.dtype(dtype).itemsize, largest_count(program), slot)
            if in_place:
                outputs[rank] = inputs[rank].copy()
            given_ = outputs[rank] if in_place else inputs[rank]
            scratch = np.zeros((int(program.scratch_units[rank]), unit_elements), dtype)
            executor.run(
                Buffers(given_.ravel(), outputs[rank].ravel(), scratch.ravel()), op, widths=widths, timeout=timeout
            )
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(program.nranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    return inputs, outputs, executors, raised


REDUCTIONS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


@pytest.mark.parametrize("op", sorted(REDUCTIONS))
@pytest.mark.parametrize("in_place", [False, True])
def test_ring_allreduce_is_right_in_every_operation_and_mode(op: str, in_place: bool) -> None:
    program = programs.ring_allreduce(4, channels=2)
    inputs, outputs, executors, raised = run_threads(program, 100, op=op, in_place=in_place, dtype=np.int32)
    assert not raised
    expected = REDUCTIONS[op].reduce(np.stack(inputs))
    for rank in range(4):
        np.testing.assert_array_equal(outputs[rank], expected)
        # 2(n-1) messages a channel, each of one unit.
        assert executors[rank].bytes_sent == {(rank + 1) % 4: 2 * 6 * 100 * 4}
        assert executors[rank].messages_sent == {(rank + 1) % 4: 12}


@pytest.mark.parametrize("unit_elements", [1, 7, 1000, 4099])
@pytest.mark.parametrize("protocol", list(Protocol))
def test_large_units_run_in_slices(unit_elements: int, protocol: Protocol) -> None:
    program = programs.ring_allreduce(3, protocol=protocol)
    inputs, outputs, executors, raised = run_threads(program, unit_elements, limit=512)
    assert not raised
    for output in outputs:
        np.testing.assert_array_equal(output, np.sum(inputs, axis=0))
    slices = len(slice_widths(unit_elements, 4, 1, 512))
    assert executors[0].messages_sent == {1: 4 * slices}
    assert executors[0].bytes_sent == {1: 4 * unit_elements * 4}


def test_scratch_dependencies_and_local_instructions() -> None:
    inputs, outputs, _, raised = run_threads(programs.scratch_allreduce(), 5000, limit=256)
    assert not raised
    for output in outputs:
        np.testing.assert_array_equal(output, inputs[0] + inputs[1])


def test_allgather_copies_the_own_shard() -> None:
    inputs, outputs, _, raised = run_threads(programs.direct_allgather(5), 33)
    assert not raised
    for output in outputs:
        np.testing.assert_array_equal(output, np.concatenate(inputs))


def test_no_elements_is_no_work() -> None:
    _, _, executors, raised = run_threads(programs.ring_allreduce(2), 0)
    assert not raised
    assert executors[0].messages_sent == {1: 0}


def test_a_deadlock_ends_in_a_message_that_names_who_waits_for_whom() -> None:
    _, _, _, raised = run_threads(programs.deadlocked(), 4, timeout=0.3)
    texts = [str(error) for error in raised]
    assert len(texts) == 2
    assert any("rank 0 waited 0.3 s in vain: threadblock 0, step 0" in text for text in texts) or any(
        "rank 1 waited 0.3 s in vain: threadblock 0, step 0" in text for text in texts
    )
    assert any("for a message from rank" in text for text in texts)


def test_a_message_of_another_size_is_an_error() -> None:
    slots = Slots(mmap.mmap(-1, 1 << 16), Ring(0, 2, 1024))
    send, recv = SharedSend(1, 0, slots), SharedRecv(0, 0, slots)
    assert recv.peek(1, 4) is None
    message = send.reserve(1, 5)
    assert message is not None
    send.commit()
    with pytest.raises(RunError, match="rank 0 sent a message of 5 bytes on channel 0 where 4 were expected"):
        recv.peek(1, 4)


def test_a_ring_holds_depth_messages_and_no_more() -> None:
    slots = Slots(mmap.mmap(-1, 1 << 16), Ring(0, 2, 1024))
    send, recv = SharedSend(1, 0, slots), SharedRecv(0, 0, slots)
    for value in (1, 2):
        message = send.reserve(1, 1)
        assert message is not None
        message[...] = value
        send.commit()
    assert send.reserve(1, 1) is None
    taken = recv.peek(1, 1)
    assert taken is not None and taken[0, 0] == 1
    recv.release()
    assert send.reserve(1, 1) is not None


@pytest.fixture
def fake_cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "fakes"))
    sys.modules.pop("cupy", None)
    import cupy

    yield cupy
    sys.modules.pop("cupy", None)


def test_device_arrays_do_not_mix_with_host_arrays(fake_cupy: Any) -> None:
    device = fake_cupy.zeros((2, 2), np.float32)
    with pytest.raises(TypeError):
        device[...] = np.ones((2, 2), np.float32)
    with pytest.raises(TypeError):
        np.add(device, 1)
    arrays = StagedArrays(fake_cupy)
    message = np.full((2, 2), 3, np.float32)
    arrays.take(device, message)
    # Not synchronised yet: the copy has not happened, and a slot given back now would be lost.
    assert device._memory[0, 0] == 0
    arrays.complete()
    assert device._memory[0, 0] == 3
    out = np.zeros((2, 2), np.float32)
    arrays.combine_out(fake_cupy.add, out, message, device)
    assert (out == 6).all()


@pytest.mark.parametrize(
    ("program", "match"),
    [
        (
            [Threadblock(0, 0, None, None, 0, (Instruction(Op.PUT, 1, src=Operand(Buffer.INPUT, 0, 1), peer=1),))],
            "rank 0, threadblock 0, step 0: PUT is not run",
        ),
        (
            [Threadblock(0, 0, 1, None, 0, (Instruction(Op.SEND, 2, src=Operand(Buffer.INPUT, 1, 2)),))],
            "units 1..2 of input do not exist",
        ),
        (
            [Threadblock(0, 0, None, None, 0, (Instruction(Op.SEND, 1, src=Operand(Buffer.INPUT, 0, 1)),))],
            "SEND in a threadblock without that peer",
        ),
        (
            [Threadblock(0, 0, None, None, 0, (Instruction(Op.NOP, 0, depends=((3, 0),)),))],
            "waits for threadblock 3 step 0",
        ),
    ],
)
def test_what_cannot_be_run_is_refused_with_its_place(program: list[Threadblock], match: str) -> None:
    built = Program.build(
        program, name="bad", collective="", nranks=2, nunits=2, nchannels=1, input_units=[2, 2], output_units=[2, 2],
        scratch_units=[0, 0],
    )  # fmt: skip
    with pytest.raises(InputError, match=match):
        decode(built, 0)


def test_connections_need_both_ends_and_one_owner_each() -> None:
    send = (Instruction(Op.SEND, 1, src=Operand(Buffer.INPUT, 0, 1)),)
    recv = (Instruction(Op.RECV, 1, dst=Operand(Buffer.OUTPUT, 0, 1)),)

    def built(blocks: list[Threadblock]) -> Program:
        return Program.build(
            blocks, name="bad", collective="", nranks=2, nunits=1, nchannels=1, input_units=[1, 1],
            output_units=[1, 1], scratch_units=[0, 0],
        )  # fmt: skip

    with pytest.raises(InputError, match="no threadblock receives on connection 0 -> 1, channel 0"):
        check_connections(built([Threadblock(0, 0, 1, None, 0, send)]))
    with pytest.raises(InputError, match="no threadblock sends on connection 0 -> 1, channel 0"):
        check_connections(built([Threadblock(1, 0, None, 0, 0, recv)]))
    twice = [Threadblock(0, 0, 1, None, 0, send), Threadblock(0, 1, 1, None, 0, send)]
    with pytest.raises(InputError, match="two threadblocks of rank 0 sends to rank 1"):
        check_connections(built([*twice, Threadblock(1, 0, None, 0, 0, recv)]))
    check_connections(programs.ring_allreduce(4))


@settings(deadline=None)
@given(st.integers(0, 10**4), st.sampled_from([1, 2, 4, 8]), st.integers(1, 64), st.integers(1, 1 << 20))
def test_slices_cover_every_element_and_keep_the_limit(elements: int, itemsize: int, count: int, limit: int) -> None:
    widths = slice_widths(elements, itemsize, count, limit)
    assert sum(widths) == elements
    assert all(width >= 1 for width in widths)
    # One element of every unit is the least that can be moved.
    assert all(width * count * itemsize <= limit or width == 1 for width in widths)
    if widths:
        assert max(widths) - min(widths) <= 1


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 5), st.integers(1, 2), st.integers(0, 50), st.sampled_from(list(Protocol)), st.booleans())
def test_rings_of_any_size_are_right(n: int, channels: int, unit: int, protocol: Protocol, in_place: bool) -> None:
    program = programs.ring_allreduce(n, channels=channels, protocol=protocol)
    inputs, outputs, _, raised = run_threads(program, unit, in_place=in_place, limit=64)
    assert not raised
    for output in outputs:
        np.testing.assert_array_equal(output, np.sum(inputs, axis=0))


def test_local_rank_comes_from_the_launcher_and_picks_the_device() -> None:
    assert local_rank({}) is None
    assert local_rank({"SLURM_LOCALID": "3"}) == 3
    assert pick_device(4, 9, {"OMPI_COMM_WORLD_LOCAL_RANK": "5"}) == 1
    assert pick_device(1, 9, {"OMPI_COMM_WORLD_LOCAL_RANK": "5"}) == 0
    assert pick_device(8, 9, {}) == 1


def test_pretended_hosts_are_blocks_of_ranks() -> None:
    assert [pretend_host(rank, 5, 2) for rank in range(5)] == ["#0", "#0", "#0", "#1", "#1"]
    assert pretend_host(3, 5, None) == ""
    with pytest.raises(InputError, match="6 hosts for 5 ranks"):
        pretend_host(0, 5, 6)
