"""MSCCL XML: reading with runtime semantics, what targets object to, writing, selecting."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_schedules import complete, random_schedule

from collsynth import collective as collectives
from collsynth.errors import InputError, RefusedError
from collsynth.formats import msccl_xml
from collsynth.lowering import lower
from collsynth.program import TARGETS, Buffer, Instruction, Op, Operand, Program, Threadblock
from collsynth.schedule import Schedule, Transfer
from collsynth.verifier import verify

GOLDEN = Path(__file__).parents[1] / "golden"
EXECUTOR, MSCCL, RCCL = (TARGETS[name] for name in ("msccl-executor", "msccl", "rccl"))

HEAD = (
    '<algo name="x" ngpus="2" nchunksperloop="2" nchannels="1" proto="Simple" coll="allgather" inplace="1"'
    ' outofplace="0" minBytes="0" maxBytes="1024">\n'
)


def step(
    number: int, kind: str, src: str = "i0", dst: str = "o0", cnt: int = 1, dep: str = "-1,-1", flag: int = 0
) -> str:
    tb, at = dep.split(",")
    return (
        f'<step s="{number}" type="{kind}" srcbuf="{src[0]}" srcoff="{src[1:]}" dstbuf="{dst[0]}" dstoff="{dst[1:]}"'
        f' cnt="1" depid="{tb}" deps="{at}" hasdep="{flag}"/>'
    )


def document(*steps: str, head: str = HEAD) -> str:
    """Rank 0 has one threadblock with these steps (one a line, from line 4), rank 1 sends and receives."""
    own = "\n".join(steps)
    other = f"{step(0, 's', 'o1', 'o1')}\n{step(1, 'r', 'o0', 'o0')}"
    return (
        f'{head}<gpu id="0" i_chunks="1" o_chunks="2" s_chunks="1">\n<tb id="0" send="1" recv="1" chan="0">\n{own}\n'
        f'</tb>\n</gpu>\n<gpu id="1" i_chunks="1" o_chunks="2" s_chunks="0">\n<tb id="0" send="0" recv="0" chan="0">\n'
        f"{other}\n</tb>\n</gpu>\n</algo>\n"
    )


GOOD = document(step(0, "s", "o0"), step(1, "r", dst="o1"))


def codes(text: str, target: str | None = None) -> list[str]:
    notes = msccl_xml.parse(text).syntax
    return sorted({n.code for n in notes if target is None or target in n.targets or not n.targets})


# --- reading ---


def test_read_a_small_program() -> None:
    source = msccl_xml.parse(GOOD, "a.xml")
    program = source.program
    assert source.syntax == ()
    assert (program.collective, program.nranks, program.nunits, program.in_place, program.out_of_place) == (
        "allgather", 2, 2, True, False,
    )  # fmt: skip
    assert (program.min_bytes, program.max_bytes) == (None, 1024)
    assert program.input_units.tolist() == [1, 1] and program.output_units.tolist() == [2, 2]
    first, second = program.threadblock(0).instructions
    assert first == Instruction(Op.SEND, 1, src=Operand(Buffer.OUTPUT, 0, 1))
    assert second == Instruction(Op.RECV, 1, dst=Operand(Buffer.OUTPUT, 1, 1))
    assert source.where(0, 0, 1) == "a.xml:5" and source.where(1) == "a.xml:8" and source.where(1, 0) == "a.xml:9"
    assert source.where() == "a.xml:1" and source.where(0, 7) == "a.xml:2" and source.where(0, 0, 99) == "a.xml:3"
    assert verify(program, source=source).ok


def test_operands_are_local_whatever_the_generator_meant() -> None:
    """The operand that a type does not use is ignored; the used one names the own memory."""
    program = msccl_xml.parse(document(step(0, "rrc", "s0", "o1"), step(1, "rcs", "s9", "o1"))).program
    rrc, rcs = program.threadblock(0).instructions
    assert (rrc.src, rrc.dst) == (Operand(Buffer.SCRATCH, 0, 1), Operand(Buffer.OUTPUT, 1, 1))
    assert rcs.src is None


def test_nops_keep_their_place_and_vanish_without_a_wait() -> None:
    chain = document(
        step(0, "s", flag=1), step(1, "nop", dep="0,0"), step(2, "r", dst="o1", dep="0,0"), step(3, "r", dst="o1")
    )
    assert msccl_xml.parse(chain).program.op.tolist()[:4] == [Op.SEND, Op.NOP, Op.RECV, Op.RECV]
    assert codes(chain) == []
    lonely = document(step(0, "s"), step(1, "nop"), step(2, "r", dst="o1"))
    assert msccl_xml.parse(lonely).program.op.tolist()[:2] == [Op.SEND, Op.RECV]
    assert codes(lonely) == ["X-NOP"]
    assert codes(document(step(0, "nop", dep="0,0"), step(1, "r", dst="o1"))) == ["X-NOP-CHAIN"]


def test_flags_are_kept() -> None:
    source = msccl_xml.parse(document(step(0, "s", flag=1), step(1, "r", dst="o1")))
    assert source.flags.tolist()[:2] == [True, False]


@pytest.mark.parametrize(
    ("change", "code", "targets"),
    [
        (lambda t: '<?xml version="1.0"?>\n' + t, "X-PROLOG", 3),
        (lambda t: t.replace("\n<tb", "\n\t<tb", 1), "X-TAB", 3),
        (lambda t: t.replace('id="0"', "id='0'", 1), "X-QUOTE", 3),
        (lambda t: t.replace(' cnt="1"', '\n cnt="1"', 1), "X-TAG-BREAK", 3),
        (lambda t: t.replace(' cnt="1"', '  cnt="1"', 1), "X-TAG-SPACE", 3),
        (lambda t: t.replace("</tb>", "text</tb>", 1), "X-TEXT", 3),
        (lambda t: t.replace('name="x"', 'name="&lt;"'), "X-ENTITY", 3),
        (lambda t: t.replace('name="x"', f'name="{"y" * 300}"'), "X-LENGTH", 3),
        (lambda t: t.replace('s="1" type="r"', 's="4" type="r"', 1), "X-STEP-NUMBER", 0),
        (lambda t: t.replace(' outofplace="0"', ""), "X-MISSING", 2),
        (lambda t: t.replace(' hasdep="0"', "", 1), "X-MISSING", 3),
        (lambda t: t.replace('maxBytes="1024"', 'maxBytes="0"'), "X-WINDOW", 1),
        (lambda t: t.replace('inplace="1"', 'inplace="0"'), "X-MODES", 3),
        (lambda t: t.replace('cnt="1"', 'cnt="01"', 1), "X-NUMBER", 3),
        (lambda t: t.replace('coll="allgather"', 'coll="custom"'), "X-COLL", 1),
        (lambda t: t.replace('<tb id="0"', '<tb id="3"', 1), "X-TB-ID", 3),
        (lambda t: t.replace('i_chunks="1"', 'i_chunks="2"', 1), "X-CHUNKS", 1),
        (lambda t: t.replace('nchunksperloop="2"', 'nchunksperloop="3"'), "X-CHUNKS", 0),
        (lambda t: t.replace("</gpu>", '<copy i_off="0"/></gpu>', 1), "X-ELEMENT", 3),
        (lambda t: t.replace('ngpus="2"', 'ngpus="3"'), "X-GPUS", 0),
        (lambda t: t.replace("<tb ", "<tb " + " ".join(f'a{i}="1"' for i in range(13)) + " ", 1), "X-ATTRIBUTES", 3),
    ],
)  # fmt: skip
def test_what_targets_object_to(change, code: str, targets: int) -> None:  # type: ignore[no-untyped-def]
    notes = [n for n in msccl_xml.parse(change(GOOD)).syntax if n.code == code]
    assert notes, f"{code} was not noted"
    assert len(notes[0].targets) == targets
    assert notes[0].line >= 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f.xml:1: not well-formed"),
        ("hello", "f.xml:1: not well-formed"),
        (GOOD[:300], r"f.xml:\d+: not well-formed"),
        ("\0\1\2", "not well-formed"),
        ('<!DOCTYPE a [<!ENTITY e "x">]>' + GOOD, "f.xml:1: a DOCTYPE is not allowed"),
        ("<plan/>", "f.xml:1: the root element is <plan>"),
        (GOOD.replace('type="s"', 'type="send"', 1), "f.xml:4: step type 'send'"),
        (GOOD.replace('type="s"', 'type="ra"', 1), "no runtime executes it"),
        (GOOD.replace('cnt="1"', 'cnt="2.25"', 1), "f.xml:4: cnt='2.25' is not an integer"),
        (GOOD.replace('cnt="1"', 'cnt="99999999999"', 1), "out of range"),
        (GOOD.replace('cnt="1"', 'cnt="-1"', 1), "cnt=-1"),
        (GOOD.replace('srcbuf="o"', 'srcbuf="q"', 1), "f.xml:4: srcbuf='q'"),
        (GOOD.replace('proto="Simple"', 'proto="simple"'), "f.xml:1: proto='simple'"),
        (GOOD.replace('ngpus="2"', 'ngpus="0"'), "ngpus=0"),
        (GOOD.replace('ngpus="2"', 'ngpus="99999999"'), "out of range"),
        (GOOD.replace('gpu id="1"', 'gpu id="0"'), "f.xml:8: gpu id 0 appears twice"),
        (GOOD.replace('gpu id="1"', 'gpu id="5"'), "f.xml:8: gpu id 5 of 2 ranks"),
        (GOOD.replace('<tb id="0" send="1"', '<tb id="0" send="-7"'), "send peer -7"),
        (GOOD.replace("</tb>", '</tb><tb id="0" send="-1" recv="-1" chan="0"></tb>', 1), "two threadblocks 0"),
        ("<algo><step/></algo>", "<step> inside <algo>"),
    ],
)  # fmt: skip
def test_bad_files_name_the_line(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        msccl_xml.parse(text, "f.xml")


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damaged_text_never_crashes(data: st.DataObject) -> None:
    """Any edit of a good file is read or refused, never a traceback."""
    text = GOOD
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        length = data.draw(st.integers(0, 12))
        text = text[:at] + data.draw(st.text(alphabet='<>/="ab019 -x\n\t&;', max_size=6)) + text[at + length :]
    try:
        msccl_xml.parse(text)
    except InputError as error:
        assert error.where


def test_looks_like() -> None:
    assert msccl_xml.looks_like(GOOD.encode()) and msccl_xml.looks_like(b'<?xml version="1.0"?>\n<algo name="a">')
    assert not msccl_xml.looks_like(b"<system/>") and not msccl_xml.looks_like(b"{}")


@pytest.mark.corpus
def test_every_file_of_the_corpus(corpus: Path) -> None:
    """All are read but the two that are no XML or no integers; objections agree with the manifest's parsers."""
    folder = corpus / "msccl-xml"
    for row in csv.DictReader((folder / "MANIFEST.csv").open()):
        path = folder / row["file"]
        if row["verdict"] in ("NOT-XML", "ERROR"):
            with pytest.raises(InputError, match=r"\.xml:\d+: "):
                msccl_xml.read(path)
            continue
        source = msccl_xml.read_source(path)
        accepted = {name.replace("executor", "msccl-executor") for name in row["accepted_by"].split("+") if name}
        refused = {
            target for note in source.syntax if note.severity == "error" and note.code != "X-WINDOW"
            for target in note.targets or ("msccl", "msccl-executor", "rccl")
        }  # fmt: skip
        assert not accepted & refused, (row["file"], [n for n in source.syntax if n.severity == "error"])
        if source.program.collective == row["collective"] and row["verdict"] == "OK" and not source.syntax:
            again = msccl_xml.parse(msccl_xml.render(source.program)).program
            assert again.op.tolist() == source.program.op.tolist(), row["file"]


# --- writing ---


def direct_allgather(nranks: int) -> Schedule:
    topology = complete(nranks)
    link = {(int(s), int(d)): i for i, (s, d) in enumerate(zip(topology.link_src, topology.link_dst, strict=True))}
    rows = [Transfer(a, a, b, False, 0, (link[a, b],)) for a in range(nranks) for b in range(nranks) if a != b]
    return Schedule.build(topology, collectives.allgather(nranks), rows, method="direct")


def chain_reduce(nranks: int) -> Schedule:
    topology = complete(nranks)
    link = {(int(s), int(d)): i for i, (s, d) in enumerate(zip(topology.link_src, topology.link_dst, strict=True))}
    rows = [Transfer(0, r, r - 1, True, nranks - r, (link[r, r - 1],)) for r in range(1, nranks)]
    return Schedule.build(topology, collectives.reduce(nranks), rows, method="chain")


@pytest.mark.parametrize(
    ("name", "schedule", "target"),
    [
        ("allgather-3-direct.xml", direct_allgather(3), "msccl-executor"),
        ("reduce-4-chain.xml", chain_reduce(4), "msccl"),
        ("reduce-3-chain-rccl.xml", chain_reduce(3), "rccl"),
    ],
)
def test_golden_files(name: str, schedule: Schedule, target: str) -> None:
    """To renew after a wanted change: write `text` to the file, read the difference."""
    text = msccl_xml.render(lower(schedule, target=TARGETS[target], size=1 << 20), TARGETS[target])
    assert text == (GOLDEN / name).read_text()


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(["allgather", "reducescatter", "allreduce", "alltoall", "broadcast", "reduce"]),
    nranks=st.integers(2, 5), chunks=st.integers(1, 3), seed=st.integers(0, 10**6),
    target=st.sampled_from(["msccl-executor", "msccl", "rccl"]),
)  # fmt: skip
def test_round_trip(name: str, nranks: int, chunks: int, seed: int, target: str) -> None:
    """What is written is read back alike, without objections, and written again alike."""
    program = lower(random_schedule(name, nranks, chunks, seed), target=TARGETS[target], size=1 << 20)
    text = msccl_xml.render(program, TARGETS[target])
    source = msccl_xml.parse(text)
    assert source.program.content_hash() == program.content_hash()
    assert not [n for n in source.syntax if target in n.targets or not n.targets]
    assert msccl_xml.render(source.program, TARGETS[target]) == text
    assert verify(source.program, target=TARGETS[target], source=source).ok


def test_portable_superset() -> None:
    text = msccl_xml.render(lower(direct_allgather(3)), EXECUTOR)
    lines = text.splitlines()
    assert not text.startswith("<?") and "\t" not in text and "\r" not in text and text.endswith("</algo>\n")
    assert all(line.count("<") == 1 for line in lines)
    assert max(line.count('="') for line in lines) <= 16
    for attribute in (
        "name",
        "ngpus",
        "nchunksperloop",
        "nchannels",
        "proto",
        "coll",
        "inplace",
        "outofplace",
        "minBytes",
    ):
        assert f' {attribute}="' in lines[0]
    assert f'maxBytes="{msccl_xml.DEFAULT_MAX_BYTES}"' in lines[0]


def test_reduce_scatter_is_spelled_as_the_target_wants() -> None:
    program = lower(random_schedule("reducescatter", 3, 1, 0), target=RCCL)
    assert 'coll="reducescatter"' in msccl_xml.render(program, EXECUTOR)
    assert 'coll="reducescatter"' in msccl_xml.render(program, RCCL)
    assert 'coll="reduce_scatter"' in msccl_xml.render(program, MSCCL)


def test_several_waits_become_nops() -> None:
    """The waits of the own copy, nops first, the last one on the copy; hasdep where somebody waits."""
    program = lower(direct_allgather(4))
    source = msccl_xml.parse(msccl_xml.render(program, EXECUTOR))
    nops = (source.program.op == int(Op.NOP)).sum()
    assert nops == 4 * 2
    assert source.flags.sum() == 4 * 3
    assert verify(source.program, target=EXECUTOR, source=source).ok


def test_names_are_made_harmless() -> None:
    program = replace(lower(chain_reduce(3)), name='a "b" <c> & ' + "d" * 100)
    text = msccl_xml.render(program, EXECUTOR)
    name = msccl_xml.parse(text).program.name
    assert len(name) <= 63 and not set(name) & set('"<>& ') and not msccl_xml.parse(text).syntax


def local_program(rows: list[Instruction], **changes: object) -> Program:
    options = {
        "name": "local", "collective": "allreduce", "nranks": 1, "nunits": 1, "nchannels": 1, "input_units": [1],
        "output_units": [1], "scratch_units": [1],
    } | changes  # fmt: skip
    return Program.build([Threadblock(0, 0, None, None, 0, tuple(rows))], **options)  # type: ignore[arg-type]


COPY = Instruction(Op.COPY, 1, Operand(Buffer.INPUT, 0, 1), Operand(Buffer.OUTPUT, 0, 1))


@pytest.mark.parametrize(
    ("program", "target", "message"),
    [
        (local_program([COPY] * 65), "msccl-executor", "steps of rank 0, threadblock 0 is 65, the limit is 64"),
        (local_program([COPY] * 257), "msccl", "is 257, the limit is 256"),
        (local_program([COPY], nchannels=33), "msccl", "channels is 33, the limit is 32"),
        (local_program([replace(COPY, count=72)]), "msccl", "units of one step is 72, the limit is 71"),
        (local_program([COPY], nranks=4095, input_units=[1] * 4095, output_units=[1] * 4095,
                       scratch_units=[0] * 4095), "rccl", "XML nodes that rank 0 reads is 4098, the limit is 4095"),
        (local_program([replace(COPY, src=Operand(Buffer.SCRATCH, 40000, 1))]), "msccl", "operand index is 40000"),
        (local_program([COPY], collective=""), "any", "collective '' has no name there"),
        (local_program([COPY], collective="broadcast", root=1, nranks=2, input_units=[1, 1], output_units=[1, 1],
                       scratch_units=[0, 0]), "any", "can only mean root 0"),
        (local_program([COPY], collective="allgather", nranks=2, nunits=3, input_units=[1, 2], output_units=[3, 3],
                       scratch_units=[0, 0]), "any", "shards must be equal"),
        (local_program([Instruction(Op.BARRIER, 0)]), "any", "BARRIER is not two-sided"),
        (local_program([replace(COPY, depends=((3, 0),))]), "any", "waits for threadblock 3, step 0, which does not"),
        (local_program([COPY]), "astra-sim", "write .et"),
        (lower(chain_reduce(3)), "rccl", "fused steps"),
    ],
)  # fmt: skip
def test_refusals_have_the_figure(program: Program, target: str, message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        msccl_xml.render(program, TARGETS[target])


def test_files_are_not_overwritten(tmp_path: Path) -> None:
    program, path = lower(chain_reduce(3)), tmp_path / "a.xml"
    msccl_xml.write(program, path, target=EXECUTOR)
    before = path.read_bytes()
    with pytest.raises(InputError, match="the file exists"):
        msccl_xml.write(program, path, target=EXECUTOR)
    msccl_xml.write(program, path, target=EXECUTOR, force=True)
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["a.xml"]
    with pytest.raises(InputError, match="does not exist"):
        msccl_xml.write(program, tmp_path / "no" / "a.xml", target=EXECUTOR)
    assert msccl_xml.read(path).content_hash() == msccl_xml.parse(before.decode()).program.content_hash()


# --- selecting ---


def test_selection_windows_and_divisibility() -> None:
    program = replace(lower(direct_allgather(4), size=1 << 10), min_bytes=256)  # N = 4, 256..2048

    def chosen(target: str, size: int, element: int = 4, in_place: bool = True) -> str | None:
        return msccl_xml.selection(program, TARGETS[target], size, element, in_place)

    assert chosen("msccl-executor", 1024) is None and chosen("rccl", 2048) is None
    assert "exclusive" in (chosen("msccl", 2048) or "")
    assert chosen("msccl", 2032) is None
    assert "below minBytes 256" in (chosen("rccl", 240) or "")
    assert "above maxBytes 2048" in (chosen("msccl-executor", 2064) or "")
    assert "65 elements of 4 bytes are not a multiple of the program's 4 chunks" in (chosen("rccl", 260) or "")
    assert "no whole number" in (chosen("rccl", 257) or "")
    assert chosen("msccl-executor", 1024, in_place=False) is None
    assert "one mode only" in (chosen("msccl", 1024, in_place=False) or "")
    assert "neither" in (msccl_xml.selection(replace(program, in_place=False, out_of_place=False), RCCL, 1024) or "")
    assert msccl_xml.selection(program, TARGETS["any"], 1028) is None


def test_predicate_text() -> None:
    text = msccl_xml.predicate(lower(chain_reduce(3), size=1 << 10), EXECUTOR).text()
    assert text == "reduce, 3 ranks, in place or out of place, 0 <= bytes <= 2048, op in sum/prod/min/max"
    assert msccl_xml.predicate(replace(lower(chain_reduce(3)), collective=""), MSCCL).text().startswith("never: ")


def test_window_of_a_file_without_maximum() -> None:
    program = replace(lower(chain_reduce(3)), max_bytes=None)
    assert msccl_xml.predicate(program, EXECUTOR).max_bytes is None
    assert msccl_xml.predicate(program, MSCCL).max_bytes == 128 << 20
    assert np.all(msccl_xml.parse(msccl_xml.render(program)).program.max_bytes == msccl_xml.DEFAULT_MAX_BYTES)
