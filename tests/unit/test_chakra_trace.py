"""Traces of any origin: faults are named, programs come back whole, and what is not known is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_schedules import random_schedule
from small_programs import small_programs

from collsynth.errors import InputError, RefusedError, VerificationError
from collsynth.formats import chakra, chakra_infer, chakra_trace, msccl_xml
from collsynth.formats.chakra_trace import Trace, faults, recovered
from collsynth.formats.chakra_wire import Node, NodeType, decode, encode
from collsynth.lowering import lower
from collsynth.program import Program
from collsynth.verifier import verify

NAMES = ("allgather", "reducescatter", "allreduce", "alltoall", "broadcast", "reduce")


def trace_of(program: Program, size: int = 1 << 20) -> Trace:
    """What `chakra.write` writes, through its bytes."""
    parts = [
        decode(encode(nodes, "0.0.4", attributes), f"x.{rank}.et")
        for rank, (nodes, attributes) in enumerate(
            zip(chakra.traces(program, size=size), chakra.metadata(program, size), strict=True)
        )
    ]
    return Trace("x", ("0.0.4",) * len(parts), tuple(p[1] for p in parts), tuple(tuple(p[2]) for p in parts))


def bare(trace: Trace) -> Trace:
    """The same nodes without anything that only collsynth writes."""
    ours = ("tb_id", "local_time_step", "instruction", "msg_chunk_cnt", "msg_chunk_idx", "total_chunk_cnt")
    ranks = tuple(
        tuple(replace(n, attributes={k: v for k, v in n.attributes.items() if k not in ours}) for n in nodes)
        for nodes in trace.ranks
    )
    return replace(trace, metadata=({},) * trace.nranks, ranks=ranks)


def edited(trace: Trace, rank: int, index: int, **changes: object) -> Trace:
    """One node changed: fields by name, attributes as `attributes={...}` merged in."""
    nodes = list(trace.ranks[rank])
    attributes = nodes[index].attributes | changes.pop("attributes", {})  # type: ignore[operator]
    nodes[index] = replace(nodes[index], attributes=attributes, **changes)  # type: ignore[arg-type]
    return replace(trace, ranks=(*trace.ranks[:rank], tuple(nodes), *trace.ranks[rank + 1 :]))


# --- programs come back --------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(NAMES), nranks=st.integers(1, 5), chunks=st.integers(1, 3), seed=st.integers(0, 10**6),
    fuse=st.booleans(), notes=st.lists(st.text(max_size=5), max_size=2),
)  # fmt: skip
def test_programs_come_back_whole(
    name: str, nranks: int, chunks: int, seed: int, fuse: bool, notes: list[str]
) -> None:  # fmt: skip
    program = replace(lower(random_schedule(name, nranks, chunks, seed), fuse=fuse), notes=tuple(notes))
    found = recovered(trace_of(program, 12345))
    assert found is not None and found.losses == () and found.size == 12345
    assert found.program.content_hash() == program.content_hash()
    assert (found.program.name, found.program.notes) == (program.name, program.notes)


@pytest.mark.parametrize("program", small_programs(), ids=lambda p: f"{p.name}{p.nranks}{p.protocol}")
def test_xml_to_traces_to_xml(program: Program) -> None:
    """The same text: nothing is lost on the way, nops included."""
    text = msccl_xml.render(program)
    read = msccl_xml.parse(text).program
    found = recovered(trace_of(read))
    assert found is not None
    assert found.program.content_hash() == read.content_hash()
    assert msccl_xml.render(found.program) == text


def test_changed_traces_are_not_taken_for_their_instructions() -> None:
    trace = trace_of(small_programs()[0])
    for changed in (
        edited(trace, 0, 0, attributes={"comm_size": 7}),
        edited(trace, 1, 2, depends=()),
        edited(trace, 1, 1, attributes={"comm_tag": 99}),
        replace(trace, ranks=(trace.ranks[0], (*trace.ranks[1], Node(77, "more", NodeType.COMP)))),
    ):
        with pytest.raises(InputError, match=r"x\.[01]\.et"):
            recovered(changed)
    with pytest.raises(InputError, match=r"x\.1\.et: threadblock 0, step|threadblock 0 has no step"):
        recovered(replace(trace, ranks=(trace.ranks[0], trace.ranks[1][:1])))
    with pytest.raises(InputError, match="instruction 's i:0' is damaged"):
        recovered(edited(trace, 0, 0, attributes={"instruction": "s i:0"}))
    with pytest.raises(InputError, match="metadata are those of rank 1 of 2"):
        recovered(replace(trace, metadata=(trace.metadata[1], trace.metadata[1])))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damaged_metadata_never_crash(data: st.DataObject) -> None:
    """Any value in any place of the description is refused, or changes nothing that the nodes do not show."""
    trace = trace_of(small_programs()[3])
    own = json.loads(trace.metadata[0][chakra.PROGRAM_KEY])
    key = data.draw(st.sampled_from(sorted(own)))
    junk = st.one_of(st.none(), st.integers(-5, 1 << 70), st.text(max_size=3), st.lists(st.integers(-3, 3), max_size=3))
    own[key] = data.draw(junk)
    text = json.dumps(own)
    try:
        recovered(replace(trace, metadata=({chakra.PROGRAM_KEY: text}, trace.metadata[1])))
    except InputError as error:
        assert error.where


def test_embedded_xml(tmp_path: Path) -> None:
    """As the published converter writes: the XML in the metadata, its steps in the names."""
    program = small_programs()[1]
    text = msccl_xml.render(program)
    ours = trace_of(msccl_xml.parse(text).program, 3000)
    plain = replace(bare(ours), metadata=({"input_file": text},) * 3)
    found = recovered(plain)
    assert found is not None and found.program.content_hash() == msccl_xml.parse(text).program.content_hash()
    assert found.size == 3000 and "MSCCL XML in the trace" in found.losses[0]
    cut = replace(plain, ranks=(plain.ranks[0], plain.ranks[1][:-1], plain.ranks[2]))
    with pytest.raises(RefusedError, match=r"1 of the 24 messages .* missing in it \(first: rank 1, threadblock 0\)"):
        recovered(cut)


# --- plain traces --------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(("allgather", "allreduce", "reducescatter", "broadcast", "reduce")),
    nranks=st.integers(3, 5), seed=st.integers(0, 10**6),
)  # fmt: skip
def test_what_plain_traces_do_is_inferred_and_proven(name: str, nranks: int, seed: int) -> None:
    """From bytes and dependencies alone: a right schedule of the same collective and traffic, or a refusal."""
    schedule = random_schedule(name, nranks, 1, seed)
    trace = bare(trace_of(lower(schedule, in_place=False), 60 * nranks))
    try:
        found = chakra_infer.infer(trace, name)
    except RefusedError as error:
        assert "cannot be known" in str(error)
        return
    assert verify(found.schedule).ok and found.schedule.collective.name == name
    assert sorted(zip(found.schedule.src.tolist(), found.schedule.dst.tolist(), strict=True)) == sorted(
        zip(schedule.src.tolist(), schedule.dst.tolist(), strict=True)
    )


def test_ring_is_inferred() -> None:
    found = chakra_infer.infer(bare(trace_of(small_programs()[1], 3000)))
    assert (found.schedule.collective.name, found.size, found.schedule.nrows) == ("allreduce", 3000, 12)
    assert any("inferred" in loss for loss in found.losses)


def test_direct_exchanges_look_alike() -> None:
    """An AllToAll and a direct AllGather send the same bytes to the same ranks at the same time."""
    trace = bare(trace_of(lower(random_schedule("alltoall", 2, 1, 0))))
    with pytest.raises(RefusedError, match="allgather or alltoall"):
        chakra_infer.infer(trace)
    assert chakra_infer.infer(trace, "all_gather").schedule.collective.name == "allgather"
    assert chakra_infer.infer(trace, "alltoall").schedule.collective.name == "alltoall"
    with pytest.raises(RefusedError, match="it does no broadcast"):
        chakra_infer.infer(trace, "broadcast")


def test_calls_of_collectives_are_no_algorithm() -> None:
    node = Node(0, "AR", NodeType.COMM_COLL, attributes={"comm_type": 0, "comm_size": 8})
    with pytest.raises(RefusedError, match="how they are done"):
        chakra_infer.infer(Trace("w", ("",) * 2, ({},) * 2, ((node,),) * 2))


# --- faults --------------------------------------------------------------------------------------


def message(number: int, type_: NodeType, peer: int, depends: tuple[int, ...] = (), **more: object) -> Node:
    name = "comm_dst" if type_ is NodeType.COMM_SEND else "comm_src"
    attributes = {name: peer, "comm_size": 8, "comm_tag": number} | more
    return Node(number, "m", type_, depends, attributes={k: v for k, v in attributes.items() if v is not None})


SEND, RECV = NodeType.COMM_SEND, NodeType.COMM_RECV


@pytest.mark.parametrize(
    ("zero", "one", "code", "words"),
    [
        ([], [Node(0, "c", NodeType.COMP)], "E-EMPTY", "no nodes"),
        ([message(0, SEND, 1), message(0, SEND, 1)], [message(0, RECV, 0)], "E-ID", "another node has this id"),
        ([message(0, SEND, 1, (5,))], [message(0, RECV, 0)], "E-DEPENDENCY", "depends on node 5"),
        ([Node(0, "m", NodeType.MEM_LOAD)], [Node(0, "c", NodeType.COMP)], "E-NODE", "MEM_LOAD"),
        ([message(0, SEND, 1, comm_tag=None)], [message(0, RECV, 0)], "E-ATTRIBUTE", "no comm_tag"),
        ([message(0, SEND, 1, comm_size=8.0)], [message(0, RECV, 0)], "E-ATTRIBUTE", "8.0, no integer"),
        ([message(0, SEND, 2)], [message(0, RECV, 0)], "E-PEER", "comm_dst is 2 of 2 ranks"),
        ([message(0, SEND, 0)], [message(0, RECV, 0)], "E-PEER", "to itself"),
        ([message(0, SEND, 1, comm_src=1)], [message(0, RECV, 0)], "E-PEER", "not the rank of the file"),
        ([message(0, SEND, 1, comm_size=0)], [message(0, RECV, 0)], "E-SIZE", "comm_size is 0"),
        ([message(0, SEND, 1, comm_tag=-1)], [message(0, RECV, 0)], "E-TAG", "comm_tag is -1"),
        ([message(0, SEND, 1)], [message(0, RECV, 0, comm_size=9)], "E-PAIRING", "sends 1 messages of tag 0, size 8"),
        (
            [message(0, SEND, 1, (1,)), message(1, RECV, 1)], [message(1, SEND, 0, (0,)), message(0, RECV, 0)],
            "E-CYCLE", "wait for each other",
        ),
    ],
)  # fmt: skip
def test_faults(zero: list[Node], one: list[Node], code: str, words: str) -> None:
    found = faults([zero, one])
    assert any(fault.code == code and words in fault.message and fault.is_error for fault in found), found
    trace = Trace("x", ("", ""), ({}, {}), (tuple(zero), tuple(one)))
    with pytest.raises(VerificationError, match=code):
        chakra_trace.require_runnable(trace)


def test_shared_tags_are_a_warning() -> None:
    zero = [message(0, SEND, 1), message(1, SEND, 1, comm_tag=0)]
    one = [message(0, RECV, 0), message(1, RECV, 0, comm_tag=0)]
    assert [(fault.code, fault.is_error) for fault in faults([zero, one])] == [("W-SHARED-TAG", False)]


def test_any_integer_kind_is_an_integer() -> None:
    """ASTRA-sim converts between them; attributes are read by their kind, not by the one that we write."""
    from collsynth.formats.chakra_wire import _framed, _messages

    types = _messages()
    for kind in ("int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed64"):
        node = types["Node"](id=3, name="n", type=5)
        setattr(node.attr.add(name="comm_size"), f"{kind}_val", 77)
        _, _, nodes = decode(_framed(types["GlobalMetadata"](version="x")) + _framed(node))
        assert nodes[0].integer("comm_size") == 77
    assert Node(0, "", SEND, attributes={"comm_size": True}).integer("comm_size") is None


# --- files ---------------------------------------------------------------------------------------


def test_every_cut_is_found() -> None:
    """A file that ends anywhere but behind a message is refused, with the byte; behind one, it lacks nodes."""
    program = small_programs()[0]
    nodes, attributes = chakra.traces(program, size=64)[0], chakra.metadata(program, 64)[0]
    data = encode(nodes, "0.0.4", attributes)
    ends = {node.offset for node in decode(data)[2]} | {len(data)}
    for length in range(len(data)):
        if length in ends:
            assert len(decode(data[:length])[2]) < len(nodes)
        else:
            with pytest.raises(InputError, match=r"^f: byte \d+: |^f: is empty"):
                decode(data[:length], "f")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"\x1f\x8b\x08\x00", "is compressed; expected a plain Chakra trace; try gunzip"),
        (b"\xff\xff\xff\xff\xff\xff\xff", "byte 0: this is no length"),
        (b"\x00\x00", "byte 1: a message of no bytes"),
        (b"\x05\x0a\x01x", "byte 0: a message of 5 bytes begins here, but 3 bytes are left"),
        (b"\x02\x08\x01", "byte 0: this is no GlobalMetadata"),  # a node comes first
        (b"\x00\x02\x18\x00", "byte 1: node 0 has type 0"),
        (b"\x00\x02\x18\x63", "byte 1: node 0 has type 99"),
        (b"\x00\x02\x78\x01", "byte 1: this is no Node: it has fields that the schema does not know"),
        (b"\x00\x03\x12\x01\xff", "byte 1: this is no Node"),  # a name that is no UTF-8
        (b"\x00\x07\x18\x04\x52\x03\x0a\x01a", "byte 1: attribute 'a' has no value"),
        (b"\x00\x10\x18\x04\x52\x05\x0a\x01a\x38\x01\x52\x05\x0a\x01a\x38\x01", "byte 1: attribute 'a' comes twice"),
    ],
)  # fmt: skip
def test_framing(data: bytes, words: str) -> None:
    with pytest.raises(InputError) as caught:
        decode(data, "f")
    assert words in str(caught.value)


def test_missing_ranks(tmp_path: Path) -> None:
    program = small_programs()[1]
    chakra.write(program, tmp_path / "x", size=300)
    assert chakra_trace.prefix_of(tmp_path / "x.2.et") == str(tmp_path / "x")
    assert chakra_trace.prefix_of(tmp_path / "x.et") == str(tmp_path / "x")
    assert chakra_trace.prefix_of(tmp_path / "y") is None
    (tmp_path / "x.1.et").unlink()
    with pytest.raises(InputError, match=r"x\.1\.et: a rank's trace is missing; expected it, since there is 2"):
        chakra_trace.read(tmp_path / "x")
    with pytest.raises(InputError, match="no Chakra traces"):
        chakra_trace.read(tmp_path / "y")


# --- corpus --------------------------------------------------------------------------------------


@pytest.mark.corpus
def test_broken_traces_of_the_corpus(corpus: Path) -> None:
    """Each of the 15 sets that misbehaved in ASTRA-sim is refused."""
    folders = sorted(path for path in (corpus / "astra-sim" / "bad").iterdir() if path.is_dir())
    assert len(folders) >= 15
    for folder in folders:
        try:
            found = [fault for fault in faults(chakra_trace.read(folder / "x").ranks) if fault.is_error]
        except InputError:
            continue
        assert found, folder.name


@pytest.mark.corpus
def test_custom_collectives_of_the_corpus(corpus: Path) -> None:
    """Plain traces: the collective that their names say is inferred, proven, and lowered to a right program."""
    names = {"a2a": "alltoall", "ag": "allgather", "ar": "allreduce"}
    for folder in sorted((corpus / "astra-sim" / "custom").iterdir()):
        trace = chakra_trace.read(next(folder.glob("*.0.et")))
        name = next(names[part] for part in folder.name.split("_") if part in names)
        found = chakra_infer.infer(trace, name)
        assert found.size == int(folder.name.split("_")[-1].removesuffix("MB")) << 20
        if "1MB" in folder.name:
            assert verify(lower(found.schedule)).ok
    sample = chakra_trace.read(next((corpus / "astra-sim/upstream").glob("custom_ring*/*.0.et")))
    kept = recovered(sample)
    assert kept is not None and kept.size == 1 << 20 and verify(kept.program).ok


@pytest.mark.corpus
def test_converted_traces_of_the_corpus(corpus: Path) -> None:
    """The published converter's output: whole ones give their program, those with dropped steps are refused."""
    for folder in sorted((corpus / "chakra/collectiveapi_converted").iterdir()):
        trace = chakra_trace.read(folder / "x")
        broken = any(fault.is_error for fault in faults(trace.ranks))
        try:
            found = recovered(trace)
        except RefusedError as error:
            assert broken and "drops such steps" in str(error)
        else:
            assert not broken and found is not None and found.program.nranks == trace.nranks
