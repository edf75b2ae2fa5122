"""The simulator against times that can be worked out by hand."""

import random
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


@pytest.mark.parametrize("seed", [3, 11, 12, 16, 18, 19, 30, 39, 40, 56])
def test_the_critical_path_ends_where_messages_wait_for_each_other(seed: int) -> None:
    """Two messages that cross two links may each wait for the other, on different links."""
    rng, n = random.Random(seed), 4
    vertices = [Vertex(f"gpu:{i}", rank=i) for i in range(n)]
    vertices += [Vertex("a", VertexKind.SWITCH), Vertex("b", VertexKind.SWITCH)]
    links = []
    for rank, switch in ((0, 4), (1, 4), (2, 5), (3, 5)):
        for ends in ((rank, switch), (switch, rank)):
            links.append(Link(*ends, rng.choice([1, 2, 3, 5]) * GB, rng.choice([0, US])))
    links += [Link(*ends, rng.choice([1, 2, 3, 5]) * GB) for ends in ((4, 5), (5, 4))]
    counts = (1, 2, 1, 3)
    sends = tuple(Instruction(Op.SEND, c, src=Operand(Buffer.INPUT, 0, c)) for c in counts)
    blocks = []
    for rank in range(n):
        for number, peer in enumerate(p for p in range(n) if p != rank):
            receives = tuple(Instruction(Op.RECV, c, dst=Operand(Buffer.OUTPUT, 4 * peer, c)) for c in counts)
            blocks += [Threadblock(rank, 2 * number, peer, None, 0, sends)]
            blocks += [Threadblock(rank, 2 * number + 1, None, peer, 0, receives)]
    program = Program.build(
        blocks, name="storm", collective="allgather", nranks=n, nunits=16, nchannels=1,
        input_units=[4] * n, output_units=[16] * n, scratch_units=[0] * n,
    )  # fmt: skip
    result = simulate(program, Topology.build("two switches", vertices, links), size=16 * 10**6)
    assert 1 <= len(result.critical_path) <= 48
    assert result.critical_path[-1].delivered == result.time
