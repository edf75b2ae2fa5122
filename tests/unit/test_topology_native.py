"""The native format: round trips, the schema, and every kind of broken file."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from collsynth.errors import InputError
from collsynth.formats import decode, load_topology, read, topology_native, write
from collsynth.formats.topology_native import document, parse, render
from collsynth.topology import Capability, Link, LinkState, Topology, Vertex, VertexKind

HEAD = "collsynth-topology: 1\n"
SCHEMA = json.loads(files("collsynth.formats").joinpath("topology.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

names = st.text(st.characters(blacklist_categories=["Cs", "Cc"]), min_size=1, max_size=8)
bandwidths = st.none() | st.integers(1, 2**59)


@st.composite
def machines(draw: st.DrawFn) -> Topology:
    """Any machine the type can hold."""
    labels = draw(st.lists(names, min_size=2, max_size=6, unique=True))
    nranks = draw(st.integers(1, len(labels)))
    small = st.none() | st.integers(0, 3)
    vertices = [
        Vertex(
            label,
            draw(st.sampled_from(VertexKind)),
            rank=index if index < nranks else None,
            node=draw(small),
            rail=draw(small),
            in_capacity=draw(bandwidths),
            out_capacity=draw(bandwidths),
            total_capacity=draw(bandwidths),
            capability=draw(st.sampled_from(Capability)),
        )
        for index, label in enumerate(labels)
    ]
    ends = st.integers(0, len(labels) - 1)
    links = draw(
        st.lists(
            st.builds(
                Link,
                src=ends,
                dst=ends,
                bandwidth=bandwidths,
                latency=st.integers(0, 2**40),
                overhead=st.integers(0, 2**40),
                count=st.integers(1, 20),
                kind=st.sampled_from(["nvlink", "pcie", "link"]),
                provenance=names,
                state=st.sampled_from(LinkState),
            ).filter(lambda link: link.src != link.dst),
            max_size=8,
        )
    )
    twins = [
        Link(k.dst, k.src, k.bandwidth, k.latency, k.overhead, k.count, k.kind, k.provenance, k.state) for k in links
    ]
    rows = [row for pair in zip(links, twins, strict=True) for row in pair] if draw(st.booleans()) else links
    return Topology.build(draw(names), vertices, rows, assumptions=draw(st.lists(names, max_size=2)))


def same(a: Topology, b: Topology) -> bool:
    return (
        (a.name, a.vertices, a.links(), a.assumptions, a.warnings)
        == (b.name, b.vertices, b.links(), b.assumptions, b.warnings)
        and a.content_hash() == b.content_hash()
        and len(a.symmetry) == len(b.symmetry)
        and all(np.array_equal(x, y) for x, y in zip(a.symmetry, b.symmetry, strict=True))
    )


@given(machines(), st.booleans())
def test_what_is_written_reads_back_equal_and_meets_the_schema(machine: Topology, as_json: bool) -> None:
    text = render(machine, as_json=as_json)
    assert same(parse(text), machine)
    VALIDATOR.validate(document(machine))
    assert (json.loads(text) if as_json else yaml.safe_load(text)) == document(machine)


@pytest.mark.parametrize("name", ["dgx-v100:nodes=2", "dgx-h100:nodes=2:nvls", "torus:3x3:bw=123456789B/s"])
@pytest.mark.parametrize("suffix", [".yaml", ".json"])
def test_built_ins_survive_a_file(tmp_path: Path, name: str, suffix: str) -> None:
    machine, path = load_topology(name), tmp_path / f"m{suffix}"
    write(machine, path)
    assert same(load_topology(path), machine)
    loaded = read(path)
    assert isinstance(loaded, Topology) and same(loaded, machine)
    with pytest.raises(InputError, match="the file exists"):
        write(machine, path)
    write(machine, path, force=True)
    with pytest.raises(InputError, match=r"not written as \.xml"):
        write(machine, tmp_path / "m.xml")


def test_compact_forms() -> None:
    text = HEAD + "ranks: 3\ndevices: [sw]\nlinks:\n- {src: ['gpu:0', 'gpu:1', 'gpu:2'], dst: sw, bandwidth: 12.5}\n"
    machine = parse(text, "box.yaml")
    assert [v.name for v in machine.vertices] == ["gpu:0", "gpu:1", "gpu:2", "sw"]
    assert machine.nlinks == 6 and set(machine.link_bandwidth.tolist()) == {12_500_000_000}
    assert machine.name == "box" and machine.link_provenance[0] == "box.yaml:5"
    mesh = parse(
        HEAD + "ranks: [a, b, c]\nlinks: [{src: [a, b, c], dst: [a, b, c], bandwidth: 200Gb/s, latency: 700ns}]"
    )
    assert mesh.nlinks == 6 and set(mesh.link_latency.tolist()) == {700_000}
    one_way = parse(HEAD + "ranks: [a, b]\nlinks: [{src: a, dst: b, both: false}]")
    assert one_way.nlinks == 1 and one_way.unknown_speeds() == [0]


def test_json_may_be_indented_with_tabs_and_yaml_have_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text('{\n\t"collsynth-topology": 1,\n\t"ranks": ["a", "b"]\n}')
    assert load_topology(tmp_path / "t.json").nranks == 2
    (tmp_path / "b.yaml").write_bytes(b"\xef\xbb\xbf" + (HEAD + "ranks: 2").encode())
    assert load_topology(tmp_path / "b.yaml").nranks == 2
    assert decode("é".encode("utf-16"), "x") == "é"


def test_multicast_is_turned_on_at_nvlink_switches_only() -> None:
    text = HEAD + "ranks: 2\ndevices: [nv, net]\nlinks:\n- {src: [gpu:0, gpu:1], dst: nv, kind: nvlink}\n"
    text += "- {src: [gpu:0, gpu:1], dst: net, kind: ib}\n"
    from collsynth.formats import parse_topology

    machine = parse_topology(text, "x", multicast=True)
    assert [v.capability for v in machine.vertices[2:]] == [Capability.REDUCE_TO_REQUESTER, Capability.NONE]
    with pytest.raises(InputError, match="has no NVLink switch"):
        parse_topology(HEAD + "ranks: 2", "x", multicast=True)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("ranks: 2\nranks: 3\n", "f:3: the key 'ranks' is repeated"),
        ("a: &a [x, x]\nranks: *a\n", "f:2: anchors and aliases are not read"),
        ("ranks: !!python/object/apply:os.system ['true']\n", "f:2: the tag .* is not read"),
        ("ranks: " + "[" * 5000, "f:2: .*"),
        ("ranks: " + "[" * 40 + "]" * 40, "nested too deeply"),
        ("ranks: 2\nlinks: [{src: 'gpu:0'", "f:3: .*complete"),
        ("ranks: 2\n---\nranks: 3\n", "second document"),
        ("", "there are no ranks"),
        ("ranks: 0\n", "ranks 0 is not right"),
        ("ranks: []\n", "there are no ranks"),
        ("ranks: 2000000000\n", "too many"),
        ("ranks: [a, a]\n", "two vertices are called 'a'"),
        ("ranks: [{node: 0}]\n", "a rank has no name"),
        ("ranks: [{name: a, node: -1}]\n", "node -1 is not right"),
        ("ranks: [{name: a, kind: cpu}]\n", "unknown kind 'cpu'; expected one of gpu"),
        ("ranks: [{name: a, in_capacity: 0}]\n", "in_capacity: bandwidth 0 is not positive"),
        ("ranks: 2\nlinks: [{src: gpu:0, dst: gpu:1, bandwidth: 0}]\n", "f:3: bandwidth: .*not positive"),
        ("ranks: 2\nlinks: [{src: gpu:0, dst: gpu:1, bandwidth: -4GB/s}]\n", "not positive"),
        ("ranks: 2\nlinks: [{src: gpu:0, dst: gpu:1, bandwidth: .inf}]\n", "is not a bandwidth"),
        ("ranks: 2\nlinks: [{src: gpu:0, dst: gpu:1, latency: -1}]\n", "negative"),
        ("ranks: 2\nlinks: [{src: gpu:0, dst: gpu:1, count: 0}]\n", "count 0 is not right"),
        ("ranks: 2\nlinks: [{src: gpu:0, dst: gpu:1, both: 3}]\n", "expected true or false"),
        ("ranks: 2\nlinks: [{src: gpu:0, dst: gpu:0}]\n", "with itself"),
        ("ranks: 2\nlinks: [{src: gpu:0, dst: gpu:7}]\n", "no vertex is called 'gpu:7'"),
        ("ranks: 2\nlinks: [{src: gpu:0}]\n", "a link has no dst"),
        ("ranks: 2\nlinks: {a: b}\n", "links is not a list"),
        ("ranks: 2\nlinkz: []\n", "unknown key 'linkz'"),
        ("ranks: 2\nsymmetry: [{gpu:0: gpu:1}]\n", "not a permutation"),
        ("ranks: 2\nsymmetry: [{gpu:0: x}]\n", "no vertex is called 'x'"),
        ("ranks: [a, b]\nlinks: [{src: a, dst: b, both: false}]\nsymmetry: [{a: b, b: a}]\n", "onto equal links"),
        ("ranks: 2\nname: [1]\n", "name is not a text"),
        ("{: [}", "f:[23]"),
    ],
)
def test_broken_files_say_where_and_what(body: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse(HEAD + body, "f")


def test_all_problems_are_told_at_once() -> None:
    text = HEAD + "ranks: 2\nlinks:\n- {src: gpu:0, dst: gpu:1, bandwidth: 0}\n- {src: gpu:0, dst: gpu:9, latenzy: 1}\n"
    with pytest.raises(InputError) as caught:
        parse(text, "m.yaml")
    lines = str(caught.value).split("\n")
    assert [line.split(" ")[0] for line in lines] == ["m.yaml:4:", "m.yaml:5:", "m.yaml:5:"]


def test_another_version_is_refused() -> None:
    with pytest.raises(InputError, match="the version is 2; expected collsynth-topology: 1"):
        parse("collsynth-topology: 2\nranks: [{new: thing}]\n")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is empty"),
        (b"\x00\x01\x02" * 100, "is binary"),
        (b"\xff\xfa\xc3\x28", "not UTF-8"),
        (b"<system version='1'/>", "XML that begins with"),
        (b"hello\nworld", "it begins with 'hello'"),
    ],
)
def test_other_content_says_what_was_seen(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        load_topology(path)


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "huge.yaml"
    with path.open("wb") as stream:
        stream.truncate((256 << 20) + 1)
    with pytest.raises(InputError, match="at most 268435456"):
        load_topology(path)
    monkeypatch.setattr(topology_native, "MAX_VALUES", 10)
    with pytest.raises(InputError, match="more than 10 values"):
        parse(HEAD + "ranks: [a, b, c, d, e, f, g, h]\n")


@given(st.text(max_size=60), st.integers(0, 200))
def test_no_text_raises_anything_but_an_input_error(noise: str, at: int) -> None:
    text = render(load_topology("ring:3"))
    for broken in (HEAD + noise, text[:at] + noise + text[at:], text[:at]):
        try:
            parse(broken, "f")
        except InputError:
            continue


@pytest.mark.parametrize(
    "wrong",
    [
        {"collsynth-topology": 2, "ranks": 2},
        {"collsynth-topology": 1},
        {"collsynth-topology": 1, "ranks": 2, "links": [{"src": "gpu:0"}]},
        {"collsynth-topology": 1, "ranks": 2, "links": [{"src": "gpu:0", "dst": "gpu:1", "bandwidth": 0}]},
        {"collsynth-topology": 1, "ranks": [{"name": "a", "kind": "cpu"}]},
    ],
)
def test_the_schema_refuses_what_the_reader_refuses(wrong: dict[str, Any]) -> None:
    assert not VALIDATOR.is_valid(wrong)
    with pytest.raises(InputError):
        parse(json.dumps(wrong))


@pytest.mark.parametrize(
    ("text", "ours"),
    [
        ("# a comment\ncollsynth-topology: 1\n", True),
        ('{"name": "{", "ranks": [1, 2], "collsynth-topology": 1}', True),
        ('{"schedule": {"collsynth-topology": 1}}', False),
        ("schedule:\n  collsynth-topology: 1\n", False),
        ("", False),
    ],
)
def test_only_the_top_level_key_marks_the_format(text: str, ours: bool) -> None:
    assert topology_native.looks_like(text) is ours
