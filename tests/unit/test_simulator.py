"""The simulator against times that can be worked out by hand."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collsynth.collective import allgather
from collsynth.errors import DisconnectedError, InputError, RefusedError
from collsynth.program import Buffer, Instruction, Op, Operand, Program, Threadblock
from collsynth.schedule import Schedule, Transfer
from collsynth.simulator import height, makespan, rate, rounds, simulate, steps
from collsynth.topology import Link, Topology, Vertex, VertexKind

GB = 10**9
US = 10**6


def star(n: int, bandwidth: int = 300 * GB, *, latency: int = 350_000, overhead: int = 0, **port: int) -> Topology:
    """n ranks on one switch; link 2i is rank i -> switch, link 2i+1 switch -> rank i."""
    vertices = [Vertex(f"gpu:{i}", rank=i, **port) for i in range(n)] + [Vertex("sw", VertexKind.SWITCH)]
    links = []
    for i in range(n):
        links += [Link(i, n, bandwidth, latency, overhead), Link(n, i, bandwidth, latency, overhead)]
    return Topology.build(f"star:{n}", vertices, links)


def direct(machine: Topology) -> Schedule:
    """Everybody sends its shard to everybody, one peer a level."""
    n = machine.nranks
    rows = [
        Transfer(i, i, (i + d) % n, False, d - 1, (2 * i, 2 * ((i + d) % n) + 1)) for d in range(1, n) for i in range(n)
    ]
    return Schedule.build(machine, allgather(n), rows, method="direct")


def line(*, latency: int, overhead: int = 0) -> Schedule:
    """0 -> 1 -> 2 on 50 GB/s links: two dependent messages."""
    vertices = [Vertex(f"gpu:{i}", rank=i) for i in range(3)]
    machine = Topology.build(
        "line", vertices, [Link(0, 1, 50 * GB, latency, overhead), Link(1, 2, 50 * GB, latency, overhead)]
    )
    rows = [Transfer(0, 0, 1, False, 0, (0,)), Transfer(0, 1, 2, False, 1, (1,))]
    return Schedule.build(machine, allgather(3), rows)


@given(st.integers(2, 9), st.integers(1, 10**6))
def test_direct_on_a_switch_meets_the_port_limit(n: int, shard: int) -> None:
    schedule = direct(star(n))
    assert makespan(schedule) == rate(schedule) == Fraction(n - 1, n * 300 * GB)
    result = simulate(schedule, size=n * shard)
    assert result.time == 2 * 350_000 + Fraction((n - 1) * shard * 10**12, 300 * GB)
    assert result.max_link_utilisation <= 1


def test_store_and_forward_between_ranks_pays_each_hop() -> None:
    result = simulate(line(latency=2 * US, overhead=US), size=3 * 50_000)
    assert result.time == 2 * (US + US + 2 * US)  # overhead + 1 us of bytes + latency, twice
    assert [hop.src for hop in result.critical_path] == [0, 1]


def test_latency_does_not_occupy_a_link_but_overhead_does() -> None:
    vertices = [Vertex("a", rank=0), Vertex("b", rank=1)]
    rows = [Transfer(c, 0, 1, False, c, (0,)) for c in range(4)]
    for latency, overhead, expected in ((5 * US, 0, 9 * US), (0, 5 * US, 24 * US)):
        machine = Topology.build("pair", vertices, [Link(0, 1, 50 * GB, latency, overhead)])
        schedule = Schedule.build(machine, allgather(2, weights=[4, 0]), rows)
        assert simulate(schedule, size=4 * 50_000).time == expected


def test_a_vertex_capacity_is_shared() -> None:
    free, shared = star(4), star(4, in_capacity=100 * GB)
    assert rate(direct(shared)) == 3 * rate(direct(free))
    assert makespan(direct(shared)) >= rate(direct(shared))


def test_one_nanosecond_on_one_link_shows() -> None:
    machine = star(3)
    links = machine.links()
    links[1] = Link(3, 0, 300 * GB, 351_000)
    slower = Topology.build("star", machine.vertices, links)
    assert simulate(direct(slower), size=3).time - simulate(direct(machine), size=3).time == 1000


def test_counts_of_a_schedule() -> None:
    schedule = direct(star(4))
    assert (steps(schedule), height(schedule), rounds(schedule)) == (3, 1, 3)
    assert height(line(latency=0)) == 2


def ping(n_messages: int, *, consume: bool) -> Program:
    """Rank 0 sends n messages to rank 1, which receives them all or only the first."""
    sends = tuple(Instruction(Op.SEND, 1, src=Operand(Buffer.INPUT, i, 1)) for i in range(n_messages))
    receives = tuple(
        Instruction(Op.RECV, 1, dst=Operand(Buffer.OUTPUT, i, 1)) for i in range(n_messages if consume else 1)
    )
    return Program.build(
        [Threadblock(0, 0, 1, None, 0, sends), Threadblock(1, 0, None, 0, 0, receives)],
        name="ping", collective="allgather", nranks=2, nunits=2 * n_messages, nchannels=1,
        input_units=[n_messages] * 2, output_units=[2 * n_messages] * 2, scratch_units=[0, 0],
    )  # fmt: skip


def test_a_program_takes_the_same_time_as_its_schedule() -> None:
    result = simulate(ping(5, consume=True), star(2), size=10 * 300_000)
    assert result.time == 5 * US + 2 * 350_000
    assert result.link_bytes[0] == 5 * 300_000


def test_slots_that_are_never_freed_are_a_deadlock() -> None:
    with pytest.raises(RefusedError, match="rank 0 threadblock 0 never passes step 3"):
        simulate(ping(5, consume=False), star(2), size=1000)


def test_peers_without_a_path_are_named() -> None:
    vertices = [Vertex("a", rank=0), Vertex("b", rank=1)]
    with pytest.raises(DisconnectedError, match=r"rank 0 \(a\) has no path to rank 1"):
        simulate(ping(1, consume=True), Topology.build("apart", vertices, [Link(1, 0, GB)]), size=100)
    with pytest.raises(InputError, match="2 ranks"):
        simulate(ping(1, consume=True), star(3), size=100)
    with pytest.raises(InputError, match="no topology"):
        simulate(ping(1, consume=True), size=100)


def test_messages_that_wait_for_each_other_on_two_links_have_a_finite_path() -> None:
    """0 -> a -> b -> 1 and 2 -> a, 3 -> b: messages meet on both switches' links in different orders."""
    vertices = [Vertex(f"gpu:{i}", rank=i) for i in range(4)]
    vertices += [Vertex("a", VertexKind.SWITCH), Vertex("b", VertexKind.SWITCH)]
    pairs = [
        (0, 4, 9),
        (2, 4, 7),
        (4, 5, 5),
        (5, 4, 5),
        (3, 5, 3),
        (5, 1, 4),
        (4, 2, 6),
        (5, 3, 2),
        (1, 5, 8),
        (4, 0, 3),
    ]
    machine = Topology.build("two switches", vertices, [Link(s, d, b * GB, 1000 * b) for s, d, b in pairs])
    blocks = []
    for rank in range(4):
        for number, peer in enumerate(p for p in range(4) if p != rank):
            send = tuple(Instruction(Op.SEND, 1, src=Operand(Buffer.INPUT, 0, 1)) for _ in range(4))
            receive = tuple(Instruction(Op.RECV, 1, dst=Operand(Buffer.OUTPUT, peer, 1)) for _ in range(4))
            blocks += [Threadblock(rank, 2 * number, peer, None, 0, send)]
            blocks += [Threadblock(rank, 2 * number + 1, None, peer, 0, receive)]
    program = Program.build(
        blocks, name="storm", collective="allgather", nranks=4, nunits=4, nchannels=1,
        input_units=[1] * 4, output_units=[4] * 4, scratch_units=[0] * 4,
    )  # fmt: skip
    result = simulate(program, machine, size=4 * 10**6)
    assert 1 <= len(result.critical_path) <= 48
    assert result.critical_path[-1].delivered == result.time
