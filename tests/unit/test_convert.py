"""`collsynth convert` and the formats that are written only: what is lost is said, what cannot be said is refused."""

from __future__ import annotations

import itertools
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import networkx
import numpy as np
import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st
from random_schedules import complete, random_schedule
from small_programs import direct_reduce_scatter, exchange, relay_broadcast, ring_allreduce, small_programs

from collsynth import collective as collectives
from collsynth.cli import cli
from collsynth.cli.convert import FORMATS
from collsynth.errors import CollsynthError, InputError, RefusedError
from collsynth.formats import (
    astra,
    astra_network,
    chakra_trace,
    graph_export,
    load_topology,
    msccl_xml,
    nccl_graph,
    nccl_tuner,
    paths,
    read,
    sched,
    write,
)
from collsynth.formats.chakra_wire import NodeType, decode
from collsynth.formats.listing import listing
from collsynth.formats.losses import differences, of_xml
from collsynth.lowering import lower
from collsynth.program import Program, Protocol
from collsynth.schedule import Schedule, Transfer
from collsynth.topology import Link, Topology, Vertex, VertexKind

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "convert"


def run(*arguments: object, code: int = 0) -> Result:
    """The command line in this process; an expected error is its exit code and message."""
    result = CliRunner().invoke(cli, ["convert", *map(str, arguments)], standalone_mode=False)
    if result.exception is not None and isinstance(result.exception, CollsynthError):
        assert result.exception.exit_code == code, result.exception
    else:
        assert result.exception is None and code == 0, result.exception
    return result


def refusal(*arguments: object, code: int = 1) -> str:
    return str(run(*arguments, code=code).exception)


def ring_schedule(nranks: int, name: str = "allgather") -> Schedule:
    """A ring on a ring of links."""
    machine = load_topology(f"ring:{nranks}")
    link = {(int(s), int(d)): i for i, (s, d) in enumerate(zip(machine.link_src, machine.link_dst, strict=True))}
    rows = []
    for chunk in range(nranks):
        hops = [(chunk + k) % nranks for k in range(nranks)]
        moves = list(itertools.pairwise(hops))
        passes = (
            [(False, moves)] if name == "allgather" else [(True, moves), (False, [(hops[-1], hops[0]), *moves[:-1]])]
        )
        level = 0
        for reduces, steps in passes:
            for src, dst in steps:
                rows.append(Transfer(chunk, src, dst, reduces, level, (link[src, dst],)))
                level += 1
    return Schedule.build(machine, collectives.make(name, nranks), rows, method="ring")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """a.sched, a.prog, a.xml of one small AllReduce, and its traces t.*.et."""
    program = replace(ring_allreduce(3), max_bytes=1 << 20)
    write(ring_schedule(3, "allreduce"), tmp_path / "a.sched")
    write(program, tmp_path / "a.prog")
    write(program, tmp_path / "a.xml")
    write(program, tmp_path / "t.et", size=3000)
    return tmp_path


# --- the verb ------------------------------------------------------------------------------------

#: what is read -> formats that it can be written in (mscclpp apart: those programs are one-sided)
_FROM = {
    "a.sched": set(FORMATS) - {"mscclpp"}, "a.prog": set(FORMATS) - {"mscclpp", "sched"},
    "a.xml": set(FORMATS) - {"mscclpp", "sched"}, "t": set(FORMATS) - {"mscclpp", "sched"},
}  # fmt: skip


@pytest.mark.parametrize("name", list(_FROM))
def test_every_pair_of_formats(files: Path, name: str) -> None:
    """It is written, or refused with a reason; what is written and can be read again is the same program."""
    program = ring_allreduce(3)
    for to in FORMATS:
        if to == "mscclpp":
            continue
        place = ["-d", files / f"{to}-dir"] if to == "astra-sim" else [files / f"out-{to}"]
        arguments = [files / name, *place, "--to", to, "-s", "3000", "--json"]
        if to not in _FROM[name]:
            assert "cannot be written" in refusal(*arguments)
            continue
        document = json.loads(run(*arguments).stdout)
        assert document["to"] == to and document["from"] in FORMATS
        assert document["output"] and all(Path(path).is_file() for path in document["output"])
        if name != "a.sched" and to in ("msccl-xml", "prog"):
            assert document["losses"] == [] or name == "t"
            again = read(document["output"][0])
            assert isinstance(again, Program)
            assert again.content_hash() == replace(program, max_bytes=1 << 20).content_hash()


def test_round_trip_through_traces(files: Path) -> None:
    run(files / "a.xml", files / "u.et", "-s", "6000")
    result = run(files / "u.1.et", files / "b.xml")
    assert "nothing lost" in result.stdout
    assert (files / "b.xml").read_bytes() == (files / "a.xml").read_bytes()


def test_losses_are_said(files: Path) -> None:
    """On stderr, a line each; in JSON under `losses`."""
    text = (files / "a.xml").read_text()
    text = text.replace("<algo ", '<algo redop="sum" ').replace("</gpu>", '<copy i_off="0" o_off="0"/></gpu>', 1)
    text = text.replace('hasdep="0"', 'hasdep="1"', 1)
    (files / "odd.xml").write_text(text)
    result = run(files / "odd.xml", files / "odd.prog")
    assert "lost: 1 <copy> elements were ignored" in result.stderr
    assert "lost: attributes of <algo>: redop" in result.stderr
    assert "lost: hasdep on 1 steps that nobody waits for" in result.stderr
    assert re.search(r"odd\.prog \(prog\), \d losses$", result.stdout.strip())


def test_bad_usage(files: Path) -> None:
    for arguments, words in (
        (["a.xml"], "no place to write to"),
        (["a.xml", "b.xml", "-d", "x"], "exclude each other"),
        (["a.xml", "b.what"], "cannot tell the format from the name"),
        (["a.xml", ""], "the name is empty"),
        (["a.xml", "-", "--to", "prog"], "cannot be written to standard output"),
        (["a.xml", "-", "--to", "listing", "--json"], "both want standard output"),
        (["a.xml", "b", "--to", "astra-sim"], "needs several files; expected -d DIR"),
        (["a.xml", "-d", "x", "--to", "dot"], "dot is one file"),
        (["a.xml", "b.et"], "-s: a Chakra trace carries byte counts"),
        (["a.xml", "a.xml"], "the file exists"),
        (["a.xml", "b.dot", "--target", "nothing"], "unknown target"),
        (["a.xml", "b.xml", "-c", "allreduce"], "only traces need to be told"),
        (["a.xml", "b.xml", "--group", "0,1"], "only ASTRA-sim's files have communicators"),
        (["nothing.xml", "b.prog"], "no such file, no prefix of Chakra traces and no built-in machine"),
    ):
        before = os.getcwd()
        os.chdir(files)
        try:
            assert words in refusal(*arguments, code=2), arguments
        finally:
            os.chdir(before)


def test_machines_have_pictures_only(files: Path) -> None:
    assert "dgx-a100" in run("dgx-a100", "-", "--to", "listing").stdout
    assert "is a machine" in refusal("ring:4", files / "m.xml")


def test_standard_input_and_output(files: Path) -> None:
    result = CliRunner().invoke(
        cli, ["convert", "-", "-", "--to", "msccl-xml"], input=(files / "a.prog").read_bytes(), standalone_mode=False
    )
    assert result.exception is None and result.stdout == (files / "a.xml").read_text()


def test_targets_are_obeyed(files: Path) -> None:
    """A program that rccl does not run is refused; a schedule is lowered so that it does."""
    assert "fused steps" in refusal(files / "a.xml", files / "r.xml", "--target", "rccl")
    run(files / "a.sched", files / "r.xml", "--target", "rccl")
    assert not re.search('type="rr', (files / "r.xml").read_text())
    result = run(files / "a.sched", files / "m.xml", "--target", "msccl")
    assert "assumed: a file serves one mode of msccl: in place" in result.stderr


# --- losses --------------------------------------------------------------------------------------


def test_differences() -> None:
    program = replace(ring_allreduce(3), notes=("one",))
    assert differences(program, program) == []
    assert differences(program, replace(program, notes=())) == ["notes: one"]
    assert differences(program, replace(program, name="x", max_bytes=5)) == [
        "name is written as x, not ring", "max_bytes is written as 5, not None"
    ]  # fmt: skip
    assert differences(program, replace(program, count=program.count + 1)) == ["these columns are other ones: count"]


@settings(max_examples=30, deadline=None)
@given(name=st.sampled_from(("allgather", "allreduce", "reduce")), seed=st.integers(0, 10**6))
def test_several_waits_become_nops(name: str, seed: int) -> None:
    """The only difference of a lowered program in XML, besides its name and window."""
    program = replace(lower(random_schedule(name, 4, 2, seed)), name="x")
    lost = differences(program, msccl_xml.parse(msccl_xml.render(program)).program)
    assert all("written as nops" in text for text in lost), lost
    assert bool(lost) == bool((np.diff(program.dep_ptr) > 1).any())


def test_flags_that_are_lost() -> None:
    text = msccl_xml.render(direct_reduce_scatter(2))
    source = msccl_xml.parse(text.replace('hasdep="1"', 'hasdep="0"'))
    assert any("are waited for but have no hasdep" in text for text in of_xml(source))
    assert of_xml(msccl_xml.parse(text)) == []


# --- ASTRA-sim -----------------------------------------------------------------------------------


def test_directory_for_astra_sim(files: Path) -> None:
    """The smallest file set with which ASTRA-sim runs, names relative to the directory."""
    folder = files / "sim"
    run(files / "a.sched", "-d", folder, "-s", "3000")
    names = {path.name for path in folder.iterdir()}
    assert names == {"README.txt", "system.json", "network.yml", "memory.json"} | {
        f"{stem}.{rank}.et" for stem in ("workload", "allreduce") for rank in range(3)
    }
    system = json.loads((folder / "system.json").read_text())
    assert system == {"all-reduce-implementation-custom": ["allreduce"], "preferred-dataset-splits": 1}
    assert json.loads((folder / "memory.json").read_text()) == {"memory-type": "NO_MEMORY_EXPANSION"}
    network = yaml.safe_load((folder / "network.yml").read_text())
    assert network["topology"] == ["Ring"] and network["npus_count"] == [3] and network["latency"] == [500.0]
    assert network["bandwidth"][0] * (1 << 30) == pytest.approx(50e9, rel=1e-12)
    version, _, nodes = decode((folder / "workload.2.et").read_bytes())
    assert version == "0.0.4" and [node.type for node in nodes] == [NodeType.COMM_COLL]
    assert nodes[0].attributes == {"is_cpu_op": False, "comm_type": 0, "comm_size": 3000}
    trace = chakra_trace.read(folder / "allreduce")
    end = chakra_trace.replay(trace.ranks)
    assert end.stuck == [[], [], []] and end.unreceived == 0 and not chakra_trace.faults(trace.ranks)
    readme = (folder / "README.txt").read_text()
    assert "--workload-configuration=workload --system-configuration=system.json" in readme and "3 lines" in readme
    assert "the file exists" in refusal(files / "a.sched", "-d", folder, "-s", "3000", code=2)
    run(files / "a.sched", "-d", folder, "-s", "3000", "-f")


def test_groups_share_one_set_of_traces() -> None:
    """Ranks in the traces are positions; NPUs outside of all groups idle."""
    machine = load_topology("ring:8")
    contents = astra.files(exchange(1), machine, size=64, groups=[(0, 4), (6, 2)])
    assert json.loads(contents["groups.json"]) == {"0": [0, 4], "1": [6, 2]}
    kinds = [decode(contents[f"workload.{npu}.et"])[2][0] for npu in range(8)]
    assert [node.attributes.get("pg_name") for node in kinds] == ["0", None, "1", None, "0", None, "1", None]
    assert [node.type is NodeType.COMP for node in kinds] == [False, True] * 4
    assert kinds[0].attributes["comm_size"] == 32  # AllGather: what one NPU contributes
    assert {name for name in contents if name.startswith("allgather.")} == {"allgather.0.et", "allgather.1.et"}
    assert b"groups.json" in contents["README.txt"]
    for groups, words in (
        ([(0, 1, 2)], "3 members"), ([(0, 1), (1, 2)], "comes twice"), ([(0, 8)], "out of range"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=words):
            astra.files(exchange(1), machine, size=64, groups=groups)
    with pytest.raises(InputError, match="the program has 2 ranks, the machine 8"):
        astra.files(exchange(1), machine, size=64)
    with pytest.raises(InputError, match="no custom broadcast"):
        astra.files(relay_broadcast(3, 1), None, size=64)
    assert "network.yml" not in astra.files(exchange(1), None, size=64)


@pytest.mark.parametrize(
    ("name", "kinds", "sides"),
    [
        ("ring:2", ["FullyConnected"], [2]), ("ring:8", ["Ring"], [8]), ("torus:4x5", ["Ring", "Ring"], [5, 4]),
        ("torus:4x2x3", ["Ring", "FullyConnected", "Ring"], [3, 2, 4]), ("switch:6", ["Switch"], [6]),
        ("fully-connected:5", ["FullyConnected"], [5]), ("dgx-a100", ["Switch"], [8]),
        ("hypercube:3", ["FullyConnected"] * 3, [2, 2, 2]), ("torus:16x32", ["Ring", "Ring"], [32, 16]),
    ],
)  # fmt: skip
def test_networks(name: str, kinds: list[str], sides: list[int]) -> None:
    found = astra_network.dimensions(load_topology(name))
    assert ([part.kind for part in found], [part.ranks for part in found]) == (kinds, sides)


def product(*, break_: str = "") -> Topology:
    """A ring of 3 times a switch of 2: rank = place in the ring + 3 · place at the switch."""
    vertices = [Vertex(f"gpu:{r}", rank=r) for r in range(6)]
    vertices += [Vertex(f"switch:{i}", VertexKind.SWITCH) for i in range(3)]
    speed = 10 if break_ == "speed" else 20
    links = [Link(3 * s + i, 3 * s + j, 10, 5) for s in range(2) for i in range(3) for j in range(3) if i != j]
    for i in range(3):
        for s in range(2):
            links += [Link(3 * s + i, 6 + i, speed if i else 20, 7), Link(6 + i, 3 * s + i, 20, 7)]
    if break_ == "order":
        vertices[1], vertices[3] = replace(vertices[1], name="x"), replace(vertices[3], name="y")
        swap = {1: 3, 3: 1}
        links = [replace(k, src=swap.get(k.src, k.src), dst=swap.get(k.dst, k.dst)) for k in links]
    if break_ == "one way":
        links.pop()
    if break_ == "overhead":
        links[0] = replace(links[0], overhead=1)
    if break_ == "unknown":
        links[0] = replace(links[0], bandwidth=None)
    if break_ == "twice":
        links.append(links[0])
    if break_ == "capacity":
        vertices[0] = replace(vertices[0], in_capacity=5)
    return Topology.build("product", vertices, links)


def test_networks_of_several_kinds() -> None:
    found = astra_network.dimensions(product())
    assert [(p.kind, p.ranks, p.bandwidth, p.latency) for p in found] == [("Ring", 3, 10, 5), ("Switch", 2, 20, 7)]
    for reason, words in (
        ("order", "not those of a product"), ("speed", "not those of a product"), ("one way", "one direction only"),
        ("overhead", "overhead"), ("unknown", "is not known"), ("twice", "two links join"), ("capacity", "capacity"),
    ):  # fmt: skip
        with pytest.raises(RefusedError, match=words):
            astra_network.dimensions(product(break_=reason))
    for name in ("mesh:4x4", "dgx-v100", "mi250", "dgx-a100:nodes=2"):
        with pytest.raises(RefusedError, match="network file cannot express"):
            astra_network.dimensions(load_topology(name))


# --- NCCL ----------------------------------------------------------------------------------------


def test_rings_and_chains_are_found() -> None:
    assert paths.find(ring_schedule(4)) == paths.Paths("ring", ((0, 1, 2, 3),))
    assert paths.find(ring_schedule(4, "allreduce")) == paths.Paths("ring", ((0, 1, 2, 3),))
    assert paths.find(ring_allreduce(3)) == paths.Paths("ring", ((0, 1, 2),))
    assert paths.find(relay_broadcast(4, 2)) == paths.Paths("ring", ((0, 1, 2, 3),))
    machine = complete(4)
    link = {(int(s), int(d)): i for i, (s, d) in enumerate(zip(machine.link_src, machine.link_dst, strict=True))}
    order = (2, 0, 3, 1)
    up = [Transfer(0, a, b, True, i, (link[a, b],)) for i, (a, b) in enumerate(itertools.pairwise(order))]
    down = [Transfer(0, b, a, False, 9 - i, (link[b, a],)) for i, (a, b) in enumerate(itertools.pairwise(order))]
    chain = Schedule.build(machine, collectives.allreduce(4, weights=[1, 0, 0, 0]), [*up, *down], method="chain")
    assert paths.find(chain) == paths.Paths("chain", ((1, 3, 0, 2),))
    assert 'id="1" pattern="3"' in nccl_graph.render(chain).text
    assert ",tree,simple,1,1,4,-1,-1" in nccl_tuner.render(chain).text


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (random_schedule("alltoall", 4, 1, 0), "chunk|row"), (random_schedule("broadcast", 5, 3, 7), "sends to"),
        (direct_reduce_scatter(3), "joins|sends to"),
    ],
)  # fmt: skip
def test_what_nccl_does_not_do_is_refused(value: Schedule | Program, words: str) -> None:
    with pytest.raises(RefusedError, match=words):
        nccl_graph.render(value)
    with pytest.raises(RefusedError):
        nccl_tuner.render(value)


def ring_of_nodes(order: list[int]) -> tuple[Schedule, Topology]:
    """A ring over the ranks of two nodes with three GPUs and three NICs each."""
    vertices = [Vertex(f"gpu:{r}", rank=r, node=r // 3, rail=r % 3) for r in range(6)]
    vertices += [Vertex(f"nic:{r}", VertexKind.NIC, node=r // 3, rail=r % 3) for r in range(6)]
    vertices.append(Vertex("switch:0", VertexKind.SWITCH))
    links = [Link(a, b, 60 * 10**9, kind="nvlink") for a in range(6) for b in range(6) if a != b and a // 3 == b // 3]
    for r in range(6):
        links += [Link(r, 6 + r, 20 * 10**9, kind="pcie"), Link(6 + r, r, 20 * 10**9, kind="pcie"),
                  Link(6 + r, 12, 10 * 10**9, kind="ib"), Link(12, 6 + r, 10 * 10**9, kind="ib")]  # fmt: skip
    machine = Topology.build("nodes", vertices, links)
    at = {(k.src, k.dst): i for i, k in enumerate(machine.links())}
    rows = []
    for begin in range(6):
        turned = order[begin:] + order[:begin]
        for level, (a, b) in enumerate(itertools.pairwise(turned)):
            way = [a, b] if a // 3 == b // 3 else [a, 6 + a, 12, 6 + b, b]
            route = tuple(at[pair] for pair in itertools.pairwise(way))
            rows.append(Transfer(turned[0], a, b, False, level, route))
    return Schedule.build(machine, collectives.allgather(6), rows, method="ring"), machine


def test_graph_of_several_nodes() -> None:
    """One file for all nodes: local devices between the NICs by which a node is entered and left."""
    schedule, machine = ring_of_nodes([1, 0, 2, 4, 3, 5])
    lines = [line.strip() for line in nccl_graph.render(schedule).text.splitlines()]
    head = next(line for line in lines if line.startswith("<graph "))
    assert 'crossnic="1" nchannels="1" speedintra="60" speedinter="10"' in head and 'typeintra="NVL"' in head
    assert lines[3:8] == [
        '<net dev="0x1"/>', '<gpu dev="0x1"/>', '<gpu dev="0"/>', '<gpu dev="0x2"/>', '<net dev="0x2"/>'
    ]  # fmt: skip
    assert ",ring,simple,1,2,6,-1,-1" in nccl_tuner.render(schedule).text
    with pytest.raises(RefusedError, match="the order inside the nodes differs"):
        nccl_graph.render(ring_of_nodes([1, 0, 2, 3, 4, 5])[0])
    with pytest.raises(RefusedError, match="visits each node once; this ring does so 4 times"):
        nccl_graph.render(ring_of_nodes([0, 1, 3, 4, 2, 5])[0])
    with pytest.raises(InputError, match="the machine has 6 ranks; expected 3"):
        nccl_graph.render(ring_allreduce(3), machine)


def test_graph_obeys_the_tokenizer() -> None:
    """No declaration, no tabs, single blanks, double quotes, hexadecimal devices."""
    text = nccl_graph.render(ring_schedule(18)).text
    assert text.startswith("<graphs ") and "\t" not in text and "'" not in text and "<?" not in text
    for line in text.splitlines():
        assert re.fullmatch(r' *<(?:/\w+|\w+(?: \w+="[^"<>&]{0,254}")*/?)>', line), line
        assert line.count('="') <= 16
    devices = [int(dev, 16) for dev in re.findall(r'<gpu dev="(\w+)"', text)]
    assert devices == list(range(18)) and '"0x11"' in text


def test_tuner_lines() -> None:
    program = replace(ring_allreduce(4, Protocol.LL128), min_bytes=1024, max_bytes=4096, nchannels=3)
    rendered = nccl_tuner.render(program, load_topology("ring:4"))
    comment, line = rendered.text.splitlines()
    assert comment.startswith("#") and line == "allreduce,1024,4096,ring,ll128,3,1,4,-1,-1"
    assert any("any number of nodes" in text for text in nccl_tuner.render(program).assumptions)
    with pytest.raises(RefusedError, match="not about alltoall"):
        nccl_tuner.render(random_schedule("alltoall", 3, 1, 0))


# --- graphs and listings -------------------------------------------------------------------------


@pytest.mark.parametrize("index", range(len(small_programs())))
def test_graphs_of_programs(index: int, tmp_path: Path) -> None:
    """As networkx reads it: a node for each instruction, acyclic, an edge for each message."""
    program = small_programs()[index]
    (tmp_path / "p.graphml").write_text(graph_export.graphml(graph_export.graph_of(program)))
    graph = networkx.read_graphml(tmp_path / "p.graphml")
    assert graph.number_of_nodes() == program.nrows and networkx.is_directed_acyclic_graph(graph)
    kinds = [data["kind"] for _, _, data in graph.edges(data=True)]
    waits, orders = len(program.dep_tb), program.nrows - program.ntbs
    assert (kinds.count("order"), kinds.count("wait")) == (orders, waits)
    assert {data["count"] for _, data in graph.nodes(data=True)} <= set(program.count.tolist())


def test_graph_of_a_machine(tmp_path: Path) -> None:
    odd = Topology.build(
        'a "b" <&> \x01', [Vertex('g"\\<&>\n', rank=0, node=1), Vertex("b", rank=1, rail=2, in_capacity=5 * 10**9)],
        [Link(0, 1, None, 500_000), Link(1, 0, 25 * 10**9, 0, 1000, 2, "nvlink")],
    )  # fmt: skip
    graph = graph_export.graph_of(odd)
    (tmp_path / "m.graphml").write_text(graph_export.graphml(graph), encoding="utf-8")
    back = networkx.read_graphml(tmp_path / "m.graphml", force_multigraph=True)
    assert back.nodes["v0"]["label"].startswith('g"\\<&>') and back.nodes["v1"]["in_capacity_GBps"] == 5.0
    assert back.edges["v1", "v0", 0]["bandwidth_GBps"] == 25.0 and "bandwidth_GBps" not in back.edges["v0", "v1", 0]
    text = graph_export.dot(graph)
    assert 'label="g\\"\\\\<&>\\n"' in text and text.count("->") == 2
    assert text.count('"') % 2 == text.count('\\"') % 2


def test_pictures_of_one_sided_programs() -> None:
    """A listing shows them; a graph of messages cannot."""
    from collsynth.program import Buffer, ChannelKind, Instruction, Op, Operand, Space, Threadblock

    put = Instruction(
        Op.PUT, 1, Operand(Buffer.INPUT, 0, 1), Operand(Buffer.OUTPUT, 1, 1, Space.REMOTE), peer=1, sync=-1,
        kind=ChannelKind.MEMORY,
    )  # fmt: skip
    signal = Instruction(Op.SIGNAL, 0, peer=1, sync=3, kind=ChannelKind.MEMORY)
    program = Program.build(
        [Threadblock(0, 0, None, None, 0, (put, signal))], name="one", collective="allgather", nranks=2, nunits=2,
        nchannels=1, input_units=[1, 1], output_units=[2, 2], scratch_units=[0, 0],
    )  # fmt: skip
    text = listing(program)
    assert "put rank 1 out[1] <- in[0] (rank 1, memory" in text and "signal (rank 1, memory, #3)" in text
    with pytest.raises(RefusedError, match="one-sided"):
        graph_export.graph_of(program)
    with pytest.raises(RefusedError, match="one-sided"):
        paths.find(program)


def test_golden_files(tmp_path: Path) -> None:
    """One text of each format, byte for byte.  UPDATE_GOLDEN=1 writes them anew."""
    program, schedule = replace(ring_allreduce(3), max_bytes=1 << 20), ring_schedule(4)
    contents = astra.files(program, load_topology("ring:3"), size=3000)
    trace = chakra_trace.Trace("ring", ("0.0.4",) * 3, ({},) * 3, tuple(
        tuple(decode(contents[f"allreduce.{rank}.et"])[2]) for rank in range(3)))  # fmt: skip
    texts: dict[str, bytes] = {
        "program.txt": listing(program).encode(), "schedule.txt": listing(schedule).encode(),
        "machine.txt": listing(load_topology("switch:3")).encode(), "trace.txt": listing(trace).encode(),
        "program.dot": graph_export.dot(graph_export.graph_of(program)).encode(),
        "schedule.graphml": graph_export.graphml(graph_export.graph_of(schedule)).encode(),
        "trace.dot": graph_export.dot(graph_export.graph_of(trace)).encode(),
        "graph.xml": nccl_graph.render(schedule).text.encode(), "tuner.csv": nccl_tuner.render(schedule).text.encode(),
        "program.prog": sched.dumps(program), "schedule.sched": sched.dumps(schedule),
        **{f"astra-{name}": contents[name] for name in
           ("README.txt", "network.yml", "system.json", "memory.json", "workload.0.et", "allreduce.0.et")},
    }  # fmt: skip
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.mkdir(exist_ok=True)
        for name, data in texts.items():
            (GOLDEN / name).write_bytes(data)
    assert {path.name for path in GOLDEN.iterdir()} == set(texts)
    for name, data in texts.items():
        assert data == (GOLDEN / name).read_bytes(), name
