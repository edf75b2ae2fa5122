"""The central types: what their constructors refuse, and what their views and operations give."""

import numpy as np
import pytest

from collsynth.collective import COLLECTIVES, allgather, allreduce, call_payload, canonical_name, make
from collsynth.errors import InputError, UnknownSpeedError
from collsynth.program import Buffer, Instruction, Op, Operand, Program, Threadblock
from collsynth.schedule import Schedule, SymmetryElement, Transfer
from collsynth.topology import Link, Topology, Vertex, VertexKind

GB = 10**9


def ring(n: int, *, bandwidth: int | None = 50 * GB) -> Topology:
    """A directed ring with one link each way; link 2i is i -> i+1, link 2i+1 the way back."""
    links = []
    for i in range(n):
        links += [Link(i, (i + 1) % n, bandwidth), Link((i + 1) % n, i, bandwidth)]
    return Topology.build(f"ring:{n}", [Vertex(f"gpu:{i}", rank=i) for i in range(n)], links)


def ring_allgather(n: int) -> Schedule:
    """Every shard walks around the ring."""
    rows = [
        Transfer(c, (c + s) % n, (c + s + 1) % n, False, s, (2 * ((c + s) % n),))
        for s in range(n - 1)
        for c in range(n)
    ]
    return Schedule.build(ring(n), allgather(n), rows, method="ring")


def test_ranks_come_first() -> None:
    with pytest.raises(InputError, match="ranks 0"):
        Topology.build("t", [Vertex("sw", VertexKind.SWITCH), Vertex("gpu:0", rank=0)], [])


@pytest.mark.parametrize(
    ("links", "message"),
    [([Link(0, 0, GB)], "itself"), ([Link(0, 5, GB)], "does not exist"), ([Link(0, 1, GB, latency=-1)], "negative")],
)
def test_bad_links_are_refused(links: list[Link], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Topology.build("t", [Vertex("a", rank=0), Vertex("b", rank=1)], links)


def test_names_are_unique_and_ranks_needed() -> None:
    with pytest.raises(InputError, match="this name"):
        Topology.build("t", [Vertex("a", rank=0), Vertex("a", rank=1)], [])
    with pytest.raises(InputError, match="no ranks"):
        Topology.build("t", [Vertex("a")], [])


def test_declared_symmetry_is_checked() -> None:
    good = ring(4)
    rotated = Topology.build(good.name, good.vertices, good.links(), symmetry=[[1, 2, 3, 0]])
    assert len(rotated.symmetry) == 1
    with pytest.raises(InputError, match="equal links"):
        Topology.build(good.name, good.vertices, good.links()[:-1], symmetry=[[1, 2, 3, 0]])
    with pytest.raises(InputError, match="permutation"):
        Topology.build(good.name, good.vertices, good.links(), symmetry=[[1, 1, 3, 0]])


def test_unknown_speeds_are_named() -> None:
    unknown = ring(3, bandwidth=None)
    assert len(unknown.unknown_speeds()) == 6
    assert unknown.link(0).bandwidth is None
    with pytest.raises(UnknownSpeedError, match=r"gpu:0->gpu:1.*--gpu-model"):
        unknown.require_speeds()


def test_subset_renumbers_and_may_relay() -> None:
    machine = ring(5)
    small = machine.subset([2, 3, 4])
    assert small.nranks == 3 and small.nlinks == 4 and small.vertices[0].name == "gpu:2"
    relayed = machine.subset([2, 4], relay=True)
    assert relayed.nranks == 2 and relayed.nlinks == machine.nlinks
    for ranks in ([], [0, 0], [9]):
        with pytest.raises(InputError, match="rank"):
            machine.subset(ranks)


def test_reverse_twice_is_the_same() -> None:
    machine = ring(4)
    assert machine.reverse().reverse().content_hash() == machine.content_hash()
    assert machine.reverse().link(0) == Link(1, 0, 50 * GB)


def test_vertex_capacities_become_links() -> None:
    machine = Topology.build(
        "t", [Vertex("a", rank=0, out_capacity=GB), Vertex("b", rank=1, in_capacity=2 * GB)], [Link(0, 1, 5 * GB)]
    )
    plain = machine.without_vertex_capacities()
    assert sorted(plain.link_bandwidth.tolist()) == [GB, 2 * GB, 5 * GB]
    assert plain.nranks == 2 and len(plain.vertices) == 4
    assert [c for c, _ in machine.capacity_groups()] == [5 * GB, GB, 2 * GB]


@pytest.mark.parametrize("name", COLLECTIVES)
def test_every_collective_places_each_chunk_once(name: str) -> None:
    collective = make(name, 4, 3)
    for sets, offset, size in (
        (collective.sources, collective.input_offset, collective.input_units),
        (collective.destinations, collective.output_offset, collective.output_units),
    ):
        for rank in range(4):
            used = np.zeros(int(size[rank]), dtype=int)
            for chunk in np.flatnonzero(sets.matrix()[:, rank]):
                used[offset[chunk] : offset[chunk] + collective.weight[chunk]] += 1
            whole = not (name in ("broadcast", "gather", "reduce", "scatter") and not used.any())
            assert (used == 1).all() if whole else not used.any()


def test_collective_names() -> None:
    for text in ("all_reduce", "AllReduce", "all-reduce"):
        assert canonical_name(text) == "allreduce"
    with pytest.raises(InputError, match="unknown collective"):
        canonical_name("allfoo")
    with pytest.raises(InputError, match="root"):
        make("broadcast", 4, root=4)
    with pytest.raises(InputError, match="no root"):
        make("allreduce", 4, root=0)


def test_uneven_shards() -> None:
    gather = allgather(3, weights=[2, 0, 1])
    assert gather.payload_units == 3 and gather.input_units.tolist() == [2, 0, 1]
    assert gather.input_offset.tolist() == [0, 1, 0]
    assert allreduce(2, weights=[3, 1]).owner.tolist() == [0, 0, 0, 1]


def test_schedule_columns_are_checked_and_frozen() -> None:
    schedule = ring_allgather(4)
    assert schedule.nrows == 12 and schedule.row(0).route == (0,)
    with pytest.raises(ValueError, match="read-only"):
        schedule.chunk[0] = 3
    with pytest.raises(InputError, match="chunk is out of range"):
        Schedule.build(ring(4), allgather(4), [Transfer(9, 0, 1, False, 0, (0,))])


def test_orbit_form_expands_to_the_whole_schedule() -> None:
    n = 6
    machine = ring(n)
    rows = [Transfer(0, s, s + 1, False, s, (2 * s,)) for s in range(n - 1)]
    shift = np.roll(np.arange(n), -1)
    base = Schedule.build(machine, allgather(n), rows)
    orbit = Schedule(
        machine, base.collective, base.chunk, base.src, base.dst, base.reduce, base.level, base.route_ptr,
        base.route_links, generators=(SymmetryElement(shift, shift),),
    )  # fmt: skip
    full = orbit.expand()
    key = lambda t: (t.level, t.chunk, t.src, t.dst, t.route)  # noqa: E731
    assert sorted(map(key, full.rows())) == sorted(map(key, ring_allgather(n).rows()))


def test_program_round_trips_through_its_views() -> None:
    send = Instruction(Op.SEND, 2, src=Operand(Buffer.INPUT, 0, 2), depends=((1, 0),))
    copy = Instruction(Op.COPY, 1, src=Operand(Buffer.INPUT, 0, 1), dst=Operand(Buffer.OUTPUT, 1, 1))
    blocks = [
        Threadblock(1, 0, None, 0, 0, ()),
        Threadblock(0, 0, 1, None, 0, (send,)),
        Threadblock(0, 1, None, None, 0, (copy,)),
    ]
    program = Program.build(
        blocks, name="p", collective="allgather", nranks=2, nunits=2, nchannels=1, input_units=[1, 1],
        output_units=[2, 2], scratch_units=[0, 0],
    )  # fmt: skip
    assert program.threadblocks(0) == blocks[1:] and program.threadblocks(1) == blocks[:1]
    assert program.instruction(0) == send
    with pytest.raises(InputError, match="nunits"):
        Program.build(
            [],
            name="p",
            collective="",
            nranks=1,
            nunits=0,
            nchannels=1,
            input_units=[0],
            output_units=[0],
            scratch_units=[0],
        )


@pytest.mark.parametrize(
    ("name", "nranks", "size", "payload"),
    [
        ("allgather", 5, 64 << 20, 5 * ((64 << 20) // 5 // 16 * 16)),
        ("alltoall", 16, 64 << 20, 64 << 20),
        ("allreduce", 5, 1000, 1000),
        ("allreduce", 5, 1003, 1000),
        ("reducescatter", 8, 100, 96),
        ("allgather", 8, 7, 0),
    ],
)
def test_the_payload_of_a_call_is_nccl_tests_own(name: str, nranks: int, size: int, payload: int) -> None:
    assert call_payload(name, nranks, size) == payload
