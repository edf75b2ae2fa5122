"""Rounds of grouped messages give the program's data, and both ends agree on every group."""

from __future__ import annotations

import numpy as np
import pytest
from collsynth.backends.rounds import STAGING, RankRounds, Slice, rounds
from handmade import all_pairs_allgather, at, exchange_allreduce, pipelined_broadcast, ring_allreduce
from hypothesis import given, settings
from hypothesis import strategies as st

from collsynth.errors import InputError, RefusedError
from collsynth.program import Buffer, Instruction, Op, Program, Protocol, Threadblock


def play(program: Program, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Run all ranks' rounds on int64 arrays; a group reads everything before it writes anything."""
    parts = [rounds(program, rank) for rank in range(program.nranks)]
    assert len({len(part.rounds) for part in parts}) == 1
    memory = [
        [data.copy(), np.full(program.output_units[r], -7), np.full(program.scratch_units[r], -7),
         np.full(parts[r].staging_units, -7)]
        for r, data in enumerate(inputs)
    ]  # fmt: skip

    def view(rank: int, place: Slice) -> np.ndarray:
        assert 0 <= place.begin < place.end <= len(memory[rank][place.buffer])
        return memory[rank][place.buffer][place.begin : place.end]

    for i in range(len(parts[0].rounds)):
        wires: dict[tuple[int, int], list[np.ndarray]] = {}
        touched: list[set[tuple[int, int]]] = [set() for _ in parts]
        for rank, part in enumerate(parts):
            for move in part.rounds[i].sends:
                wires.setdefault((rank, move.peer), []).append(view(rank, move.place).copy())
                touched[rank] |= units(move.place)
        for rank, part in enumerate(parts):
            for move in part.rounds[i].recvs:
                assert not touched[rank] & units(move.place), "a group writes what it also uses"
                touched[rank] |= units(move.place)
                view(rank, move.place)[...] = wires[(move.peer, rank)].pop(0)
        assert not any(wires.values()), "a message is not received in its round"
        for rank, part in enumerate(parts):
            for work in part.rounds[i].work:
                left = view(rank, work.left).copy()
                view(rank, work.target)[...] = left if work.right is None else left + view(rank, work.right)
    return [m[1] for m in memory]


def units(place: Slice) -> set[tuple[int, int]]:
    return {(place.buffer, unit) for unit in range(place.begin, place.end)}


@pytest.mark.parametrize("nranks", [2, 3, 4, 7])
def test_ring_allreduce(nranks: int) -> None:
    program = ring_allreduce(nranks)
    inputs = [np.arange(nranks) * 10 + r for r in range(nranks)]
    for output in play(program, inputs):
        np.testing.assert_array_equal(output, sum(inputs))


def test_a_ring_needs_one_round_a_step() -> None:
    assert len(rounds(ring_allreduce(5), 0).rounds) == 2 * (5 - 1) + 1


def test_all_pairs_is_one_group() -> None:
    part = rounds(all_pairs_allgather(4), 2)
    assert [len(r.sends) for r in part.rounds] == [0, 3]
    assert [len(r.recvs) for r in part.rounds] == [0, 3]


def test_all_pairs_data() -> None:
    for output in play(all_pairs_allgather(4), [np.array([r + 100]) for r in range(4)]):
        assert output.tolist() == [100, 101, 102, 103]


def test_channels_between_one_pair_keep_apart() -> None:
    inputs = [np.array([1, 2, 3, 4, 5, 6]), np.array([10, 20, 30, 40, 50, 60])]
    for output in play(exchange_allreduce(3), inputs):
        np.testing.assert_array_equal(output, inputs[0] + inputs[1])


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 6), st.integers(1, 12), st.sampled_from(list(Protocol)))
def test_pipelines_longer_than_the_fifo(nranks: int, chunks: int, protocol: Protocol) -> None:
    data = np.arange(chunks) + 5
    inputs = [data] + [np.full(chunks, -1)] * (nranks - 1)
    for output in play(pipelined_broadcast(nranks, chunks, protocol), inputs):
        np.testing.assert_array_equal(output, data)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_random_token_passing(data: st.DataObject) -> None:
    """One threadblock a connection, dependencies through scratch: a random walk of copies keeps its data."""
    nranks = data.draw(st.integers(2, 4))
    hops = data.draw(st.lists(st.tuples(st.integers(0, nranks - 1), st.integers(0, nranks - 1)), max_size=12))
    # holder[rank] is whether the rank's unit is set; every hop copies unit -> unit and later hops wait for it.
    rows: dict[tuple[int, int, int], list[Instruction]] = {}
    value = [r + 1 for r in range(nranks)]
    last: dict[int, tuple[tuple[int, int, int], int]] = {}
    for source, target in hops:
        if source == target:
            continue
        out, into = (source, 0, target), (target, 1, source)
        for key, op in ((out, Op.SEND), (into, Op.RECV)):
            block = rows.setdefault(key, [])
            operand = at(Buffer.OUTPUT, 0)
            before = last.get(key[0])
            # The dependency is filled in below, once threadblock ids are known.
            block.append(
                Instruction(op, 1, src=operand if op is Op.SEND else None, dst=operand if op is Op.RECV else None,
                            depends=() if before is None else (before,))  # type: ignore[arg-type]
            )  # fmt: skip
            last[key[0]] = (key, len(block) - 1)
        value[target] = value[source]
    ids: dict[tuple[int, int, int], int] = {}
    for key in sorted(rows):
        ids[key] = 1 + sum(other[0] == key[0] for other in ids)
    blocks = [
        Threadblock(r, 0, None, None, 0, (Instruction(Op.COPY, 1, src=at(Buffer.INPUT, 0), dst=at(Buffer.OUTPUT, 0)),))
        for r in range(nranks)
    ]
    for key in sorted(rows):
        fixed = tuple(
            Instruction(row.op, row.count, row.src, row.dst,
                        tuple((ids[d[0]], d[1]) for d in row.depends) or ((0, 0),))  # type: ignore[index]
            for row in rows[key]
        )  # fmt: skip
        sends = key[1] == 0
        blocks.append(Threadblock(key[0], ids[key], key[2] if sends else None, None if sends else key[2], 0, fixed))
    blocks.sort(key=lambda block: (block.rank, block.id))
    program = Program.build(
        blocks, name="walk", collective="", nranks=nranks, nunits=1, nchannels=1, input_units=[1] * nranks,
        output_units=[1] * nranks, scratch_units=[0] * nranks,
    )  # fmt: skip
    assert [int(o[0]) for o in play(program, [np.array([r + 1]) for r in range(nranks)])] == value


def test_staging_is_reused() -> None:
    """What a ring forwards needs a slot for two rounds, not one for every step."""
    part: RankRounds = rounds(ring_allreduce(16), 3)
    assert part.staging_units <= 3
    assert any(move.place.buffer == STAGING for round_ in part.rounds for move in round_.recvs)


def _two_ranks(first: tuple[Instruction, ...], second: tuple[Instruction, ...]) -> Program:
    blocks = [Threadblock(0, 0, 1, 1, 0, first), Threadblock(1, 0, 0, 0, 0, second)]
    return Program.build(
        blocks, name="pair", collective="", nranks=2, nunits=1, nchannels=1, input_units=[1, 1], output_units=[1, 1],
        scratch_units=[0, 0],
    )  # fmt: skip


def test_a_cycle_is_refused() -> None:
    send, recv = Instruction(Op.SEND, 1, src=at(Buffer.INPUT, 0)), Instruction(Op.RECV, 1, dst=at(Buffer.OUTPUT, 0))
    with pytest.raises(RefusedError, match="deadlocks"):
        rounds(_two_ranks((recv, send), (recv, send)), 0)


def test_unmatched_messages_are_refused() -> None:
    send = Instruction(Op.SEND, 1, src=at(Buffer.INPUT, 0))
    with pytest.raises(InputError, match="rank 0 sends 1 messages to rank 1"):
        rounds(_two_ranks((send,), ()), 0)


def test_one_sided_instructions_are_refused() -> None:
    put = Instruction(Op.PUT, 1, src=at(Buffer.INPUT, 0), dst=at(Buffer.OUTPUT, 0), peer=1, sync=0)
    with pytest.raises(InputError, match="one-sided"):
        rounds(_two_ranks((put,), ()), 0)
