"""Chakra traces: a replay ends with nothing stuck or unread, sizes add up, real files are read."""

from __future__ import annotations

import csv
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_schedules import random_schedule

from collsynth.errors import InputError, RefusedError, VerificationError
from collsynth.formats import chakra
from collsynth.formats.chakra import Node, NodeType
from collsynth.formats.chakra_wire import decode, encode
from collsynth.lowering import lower
from collsynth.program import Buffer, Instruction, Op, Operand, Program, Threadblock

NAMES = ("allgather", "reducescatter", "allreduce", "alltoall", "broadcast", "reduce")


def replay(ranks: list[list[Node]]) -> tuple[int, int]:
    """(stuck, unreceived): nodes that never run, messages that nobody takes."""
    left = [{node.id: node for node in nodes} for nodes in ranks]
    done: list[set[int]] = [set() for _ in ranks]
    under_way: Counter[tuple[int, int, int, int | None]] = Counter()
    moved = True
    while moved:
        moved = False
        for rank, nodes in enumerate(left):
            for node in list(nodes.values()):
                a = node.attributes
                if not done[rank].issuperset(node.depends + node.control):
                    continue
                if node.type is NodeType.COMM_SEND:
                    under_way[rank, a["comm_dst"], a["comm_tag"], a.get("comm_size")] += 1
                elif node.type is NodeType.COMM_RECV:
                    key = (a["comm_src"], rank, a["comm_tag"], a.get("comm_size"))
                    if under_way[key] == 0:
                        continue
                    under_way[key] -= 1
                done[rank].add(node.id)
                del nodes[node.id]
                moved = True
    return sum(map(len, left)), sum(under_way.values())


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(NAMES), nranks=st.integers(2, 5), chunks=st.integers(1, 3), seed=st.integers(0, 10**6),
    size=st.integers(100, 10**7), fuse=st.booleans(),
)  # fmt: skip
def test_traces_run_to_the_end(name: str, nranks: int, chunks: int, seed: int, size: int, fuse: bool) -> None:
    """And keep ASTRA-sim's rules: a tag a message, both ends, positive sizes, ids that exist, no empty rank."""
    program = lower(random_schedule(name, nranks, chunks, seed), fuse=fuse)
    ranks = chakra.traces(program, size=size)
    assert replay(ranks) == (0, 0)
    tags = Counter(n.attributes["comm_tag"] for nodes in ranks for n in nodes if n.type is NodeType.COMM_SEND)
    assert set(tags.values()) <= {1}
    for rank, nodes in enumerate(ranks):
        assert nodes
        assert [n.id for n in nodes] == list(range(len(nodes)))
        for node in nodes:
            a = node.attributes
            assert all(0 <= d < node.id for d in node.depends) and a["is_cpu_op"] is False
            if node.type in (NodeType.COMM_SEND, NodeType.COMM_RECV):
                own = a["comm_src" if node.type is NodeType.COMM_SEND else "comm_dst"]
                assert own == rank and a["comm_src"] != a["comm_dst"] and a["comm_size"] > 0
                assert a["total_chunk_cnt"] == program.nunits and a["msg_chunk_cnt"] >= 1
            else:
                assert node.type is NodeType.COMP and node.duration_us == 0


@pytest.mark.parametrize("size", [100, 101, 1_000_003])
def test_sizes_add_up_exactly(size: int) -> None:
    """AllGather: every rank receives the payload less its own shard, to the byte."""
    program = lower(random_schedule("allgather", 5, 3, 1))
    ranks = chakra.traces(program, size=size)
    bounds = [rank * 3 * size // 15 for rank in range(6)]
    for rank, nodes in enumerate(ranks):
        received = sum(n.attributes["comm_size"] for n in nodes if n.type is NodeType.COMM_RECV)
        assert received == size - (bounds[rank + 1] - bounds[rank])


def test_reductions_take_the_time_that_astra_sim_charges() -> None:
    program = lower(random_schedule("reduce", 3, 1, 0))
    ranks = chakra.traces(program, size=1_000_000, memory_bandwidth=1_000_000_000)
    durations = {n.duration_us for nodes in ranks for n in nodes if n.attributes.get("num_ops")}
    assert durations == {3000}


def test_data_dependencies_only() -> None:
    """Two sends of own data by one threadblock do not wait for each other."""
    ranks = chakra.traces(lower(random_schedule("broadcast", 2, 2, 0), in_place=False), size=64)
    sends = [n for n in ranks[0] if n.type is NodeType.COMM_SEND]
    assert sends and all(not n.depends for n in sends)


def test_empty_messages_are_refused() -> None:
    with pytest.raises(RefusedError, match="without data"):
        chakra.traces(lower(random_schedule("allgather", 4, 2, 0)), size=3)


def local(*rows: Instruction, recv: int | None = None) -> Program:
    return Program.build(
        [Threadblock(0, 0, None, recv, 0, rows)], name="x", collective="allreduce", nranks=2, nunits=1, nchannels=1,
        input_units=[1, 1], output_units=[1, 1], scratch_units=[0, 0],
    )  # fmt: skip


def test_programs_that_do_not_fit_together_are_refused() -> None:
    copy = Instruction(Op.COPY, 1, Operand(Buffer.INPUT, 0, 1), Operand(Buffer.OUTPUT, 0, 1))
    with pytest.raises(VerificationError, match="never ends"):
        chakra.traces(local(replace(copy, depends=((0, 0),))), size=8)
    with pytest.raises(VerificationError, match="does not exist"):
        chakra.traces(local(replace(copy, depends=((4, 0),))), size=8)
    with pytest.raises(VerificationError, match="sends 0 messages to rank 0"):
        chakra.traces(local(Instruction(Op.RECV, 1, None, copy.dst), recv=1), size=8)
    with pytest.raises(RefusedError, match="one-sided"):
        chakra.traces(local(Instruction(Op.PUT, 1, copy.src, copy.dst)), size=8)


def test_files(tmp_path: Path) -> None:
    program = lower(random_schedule("allreduce", 3, 1, 0))
    prefix = tmp_path / "ring"
    paths = chakra.write(program, prefix, size=1 << 20)
    assert [p.name for p in paths] == ["ring.0.et", "ring.1.et", "ring.2.et", "ring.system.json"]
    assert chakra.read(prefix) == chakra.traces(program, size=1 << 20)
    system = json.loads(paths[-1].read_text())
    assert system == {"all-reduce-implementation-custom": [str(prefix)], "preferred-dataset-splits": 1}
    before = [p.read_bytes() for p in paths]
    with pytest.raises(InputError, match="the file exists"):
        chakra.write(program, prefix, size=1 << 20)
    chakra.write(program, prefix, size=1 << 20, force=True)
    assert [p.read_bytes() for p in paths] == before
    version, metadata, _ = decode(before[0])
    assert version == "0.0.4" and metadata["collective"] == "allreduce"
    with pytest.raises(InputError, match=r"other\.0\.et"):
        chakra.read(tmp_path / "other")


def test_idle_ranks_have_a_node() -> None:
    program = lower(random_schedule("broadcast", 2, 1, 0), in_place=True, out_of_place=False)
    units = {name: getattr(program, name).repeat([1, 2]) for name in ("input_units", "output_units", "scratch_units")}
    idle = replace(program, nranks=3, **units)
    assert [n.type for n in chakra.traces(idle, size=64)[2]] == [NodeType.COMP]


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_damaged_files_never_crash(data: st.DataObject) -> None:
    nodes = [Node(0, "a", NodeType.COMP, attributes={"num_ops": 3}), Node(1, "b", NodeType.COMM_SEND, (0,))]
    good = bytearray(encode(nodes, "0.0.4", {"schema": "x"}))
    if data.draw(st.booleans()):
        good = good[: data.draw(st.integers(0, len(good) - 1))]
    for _ in range(data.draw(st.integers(0, 3)) if good else 0):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(good))
    except InputError as error:
        assert error.where


@pytest.mark.corpus
def test_traces_of_others(corpus: Path) -> None:
    """Counts and replay of the corpus agree with its manifest."""
    folder = corpus / "chakra"
    for row in csv.DictReader((folder / "MANIFEST.csv").open()):
        ranks = chakra.read(folder / row["prefix"])
        assert (len(ranks), sum(map(len, ranks))) == (int(row["ranks"]), int(row["nodes"])), row["prefix"]
        assert replay(ranks) == (int(row["stuck"]), int(row["unreceived"])), row["prefix"]
