"""Damaged files of every kind: a message or an honest verdict, never a traceback and never a hang."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
from bad_input import Run, runner

NATIVE = """collsynth-topology: 1
name: m
ranks: 4
links:
  - {src: gpu:0, dst: gpu:1, bandwidth: 25}
  - {src: gpu:1, dst: gpu:2, bandwidth: 25}
  - {src: gpu:2, dst: gpu:3, bandwidth: 25}
  - {src: gpu:3, dst: gpu:0, bandwidth: 25}
"""
LAST = "{src: gpu:3, dst: gpu:0, bandwidth: 25}"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    return runner(capsys, monkeypatch)


def changed(old: str, new: str) -> str:
    assert old in NATIVE
    return NATIVE.replace(old, new)


def link(text: str) -> str:
    return changed(LAST, text)


WRONG_MACHINES = [
    *((link(f"{{src: gpu:3, dst: gpu:0, bandwidth: {v}}}"), ":8: bandwidth") for v in (
        "0", "-1", "-0.0", ".nan", ".inf", "nan", "1e400", "1e-300", "[1]", "{a: 1}", "true", "''", "25 GB", "0x10",
        "'²5'", "'٢٥'", "9" * 80, "1e99999999", "gb/s",
    )),
    *((link(f"{{src: gpu:3, dst: gpu:0, bandwidth: 1, latency: {v}}}"), ":8: latency") for v in ("-1", ".nan", "1e30")),
    *((link(f"{{src: gpu:3, dst: gpu:0, bandwidth: 1, count: {v}}}"), ":8: count") for v in ("0", "-3", "1.5", "x")),
    (link("{src: gpu:0, dst: gpu:0, bandwidth: 1}"), ":8: a link joins a vertex with itself"),
    (link("{src: gpu:0, dst: gpu:9, bandwidth: 1}"), ":8: no vertex is called 'gpu:9'"),
    (link("{src: [], dst: gpu:1, bandwidth: 1}"), ":8: src is an empty list"),
    (link("{src: [[gpu:0]], dst: gpu:1, bandwidth: 1}"), ":8: src is not a name"),
    (link("{src: gpu:0, bandwidth: 1}"), ":8: a link has no dst"),
    (link("{src: gpu:0, dst: gpu:1, bandwith: 1}"), ":8: unknown key 'bandwith'"),
    (link("{src: gpu:0, dst: gpu:1, bandwidth: &x 1}"), ":8: anchors"),
    (link("{src: gpu:0, dst: gpu:1, bandwidth: !!python/object:os.system 1}"), ":8: the tag"),
    (link("x"), ":8: a link is not a mapping"),
    *((changed("ranks: 4", f"ranks: {v}"), ":3:") for v in (
        "0", "-1", "x", "[]", "{}", "1.5", "1000000", "[gpu:0, gpu:0]", "[~]", "[{name: ''}]", "[{name: a, kind: z}]",
    )),
    (NATIVE + "name: again\n", ":9: the key 'name' is repeated"),
    (NATIVE + "---\n" + NATIVE, "one document"),
    (NATIVE + "bogus: 1\n", "unknown key 'bogus'"),
    (NATIVE + "symmetry: " + "[" * 5000 + "]" * 5000, "nesting"),
    (changed("collsynth-topology: 1", "collsynth-topology: 2"), "the version is 2"),
    (changed("collsynth-topology: 1", "collsynth-topology: [1]"), "the version is 'no number'"),
    (changed("name: m", "name: " + "m" * 2_000_000), ":2: name is not a text"),
    ("x" * 2_000_000, "no machine description"),
    ("", "it is empty"),
    (" \n\n", "it is empty"),
    *((NATIVE[:n], "") for n in (10, 25, 60, 100, 150, 200)),
]  # fmt: skip


@pytest.mark.parametrize(("text", "word"), WRONG_MACHINES, ids=range(len(WRONG_MACHINES)))
def test_a_wrong_machine_names_its_line(text: str, word: str, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(text)
    outcome = run("topo", "show", str(path)).refused(word, "m.yaml")
    assert len(outcome.err) < 3000
    if word == ":3:":  # wrong ranks are not followed by a complaint about every link
        assert "no vertex is called" not in outcome.err


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (NATIVE.encode() + b"\0", "is binary"),
        (bytes(range(256)) * 8, "is binary"),
        (NATIVE.replace("name: m", "name: \xe9").encode("latin-1"), "m.yaml:2: byte"),
        (NATIVE.replace("name: m", 'name: "\x07"').encode(), "control"),
    ],
)
def test_bytes_that_are_no_text(data: bytes, word: str, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_bytes(data)
    run("bound", "allreduce", "-t", str(path)).refused(word)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_other_encodings_of_a_right_machine_are_read(encoding: str, newline: str, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_bytes(NATIVE.replace("\n", newline).encode(encoding))
    assert json.loads(run("topo", "show", str(path), "--json").out)["nranks"] == 4


@pytest.mark.parametrize(
    "text",
    [
        NATIVE.replace("ranks: 4", "ranks: 5"),
        NATIVE.replace(LAST, "{src: gpu:0, dst: gpu:1, bandwidth: 1}").replace(
            "gpu:1, dst: gpu:2", "gpu:3, dst: gpu:2"
        ),
        NATIVE.replace("25}", "25, both: false}").replace("src: gpu:3, dst: gpu:0", "src: gpu:0, dst: gpu:3"),
        NATIVE.split("links:")[0],
    ],
)
def test_ranks_that_do_not_reach_each_other(text: str, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(text)
    run("bound", "allreduce", "-t", str(path)).refused("nothing leads from", "expected a path")
    run("synth", "allgather", "-t", str(path)).refused("expected a path")
    assert "not connected" in run("topo", "show", str(path)).out


def test_unknown_speeds_say_how_to_give_them(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(link("{src: gpu:3, dst: gpu:0}"))
    for verb in ("bound", "synth"):
        run(verb, "allreduce", "-t", str(path)).refused("gpu:3->gpu:0", "--gpu-model", "a bandwidth for each link")


# --- damaged programs ------------------------------------------------------------------------------

_NUMBERS = ("0", "-1", "-2", "1", "3", "99999", "2147483647", "2147483648", "9" * 30, "1e3", "0x10", "010", "09", "",
            "abc", "nan", "1.5", " 1", "²", "1048576")  # fmt: skip
_PIECES = (
    b"<!--",
    b"<step/>",
    b"<tb>",
    b"</gpu>",
    b"&lt;",
    b"<![CDATA[",
    b"]]>",
    b"<?x?>",
    b'"',
    b"<algo>",
    b"\0",
    b"\xff",
)


def _pick(pattern: bytes, text: bytes, rng: random.Random) -> re.Match[bytes]:
    return rng.choice(list(re.finditer(pattern, text)))


def damaged_xml(text: bytes, rng: random.Random) -> bytes:
    """The text with one to three faults."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        kind = rng.randrange(9)
        lines = text.split(b"\n")
        if kind <= 2:
            m = _pick(rb'"(-?\d+)"', text, rng)
            near = str(int(m[1]) + rng.choice((-1, 1, 2, 10)))
            text = (
                text[: m.start(1)] + (near if rng.random() < 0.5 else rng.choice(_NUMBERS)).encode() + text[m.end(1) :]
            )
        elif kind == 3:
            del lines[rng.randrange(len(lines))]
            text = b"\n".join(lines)
        elif kind == 4:
            lines.insert(rng.randrange(len(lines)), rng.choice(lines))
            text = b"\n".join(lines)
        elif kind == 5:
            m = _pick(rb' \w+="[^"]*"', text, rng)
            text = text[: m.start()] + text[m.end() :]
        elif kind == 6:
            m = _pick(rb'type="(\w+)"', text, rng)
            op = rng.choice((b"s", b"r", b"cpy", b"re", b"nop", b"rcs", b"rrc", b"rrs", b"rrcs", b"ra", b"zz"))
            text = text[: m.start(1)] + op + text[m.end(1) :]
        elif kind == 7:
            at = rng.randrange(len(text))
            text = text[:at] + rng.choice(_PIECES) + text[at:]
        else:
            return text[: rng.randrange(len(text))]
        if text.count(b'type="') < 2 or text.count(b'"') < 20:
            break
    return text


def damaged_native(data: bytes, rng: random.Random) -> bytes:
    """A `.sched` or `.prog` with flipped bits, strange numbers in its columns or header, or cut off."""
    start = 20 + int.from_bytes(data[12:20], "little")
    raw = bytearray(data)
    kind = rng.randrange(6)
    if kind == 0:
        for _ in range(rng.randint(1, 6)):
            raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    elif kind <= 2 and len(data) >= start + 8:
        at = start + 8 * rng.randrange((len(data) - start) // 8)
        value = rng.choice((0, -1, 1, 5, 100, 1 << 31, 1 << 62, -(1 << 63), (1 << 63) - 1))
        raw[at : at + 8] = value.to_bytes(8, "little", signed=True)
    elif kind <= 4:
        header = json.loads(data[20:start])
        value = rng.choice((None, 0, -1, 5, 1 << 40, 1 << 70, 1.5, "", "zz", [], {}, True, [1]))
        place = rng.choice([header, *(v for v in header.values() if isinstance(v, dict))])
        place[rng.choice(list(place))] = value
        text = json.dumps(header).encode()
        return data[:12] + len(text).to_bytes(8, "little") + text + data[start:]
    else:
        return data[: rng.randrange(len(data))]
    return bytes(raw)


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Right files: two XML programs, a .prog and two .sched."""
    from collsynth.algorithms.direct import direct
    from collsynth.algorithms.ring import ring

    from collsynth.collective import make
    from collsynth.formats import load_topology, msccl_xml, sched
    from collsynth.lowering import lower
    from collsynth.program import TARGETS

    full = load_topology("fully-connected:4")
    first = direct(full, make("allreduce", 4))
    second = ring(load_topology("ring:4"), make("allgather", 4))
    target = TARGETS["any"]
    return {
        "a.xml": msccl_xml.render(lower(first), target).encode(),
        "b.xml": msccl_xml.render(lower(second), target).encode(),
        "a.prog": sched.dumps(lower(first)), "a.sched": sched.dumps(first), "b.sched": sched.dumps(second),
    }  # fmt: skip


_VERBS = (
    ("verify",), ("verify", "--json", "--target", "msccl-executor"), ("inspect",), ("inspect", "--json"),
    ("simulate", "-t", "fully-connected:4", "-s", "1M"), ("run", "--iters", "1", "-s", "1K"),
    ("run", "--iters", "1", "-s", "1K", "--no-verify", "--json"),
)  # fmt: skip


@pytest.mark.parametrize("name", ["a.xml", "b.xml", "a.prog", "a.sched", "b.sched"])
def test_damaged_programs(name: str, originals: dict[str, bytes], run: Run, tmp_path: Path) -> None:
    rng = random.Random(name)
    path = tmp_path / name
    for verb in _VERBS:  # undamaged, each works
        path.write_bytes(originals[name])
        on_machine = verb[0] == "simulate" and name.endswith("sched")
        arguments = ("simulate", str(path), "-s", "1M") if on_machine else (verb[0], str(path), *verb[1:])
        outcome = run(*arguments).clean()
        assert outcome.code == 0 or verb[0] in ("verify", "simulate"), outcome.err
    for _ in range(30):
        damage = damaged_xml if name.endswith(".xml") else damaged_native
        path.write_bytes(damage(originals[name], rng))
        for verb in rng.sample(_VERBS, 2):
            outcome = run(verb[0], str(path), *verb[1:]).clean()
            assert outcome.out or outcome.err
            if outcome.out and "--json" in verb:
                json.loads(outcome.out)
            if outcome.code == 2 and "--json" not in verb:
                assert (outcome.out == "" and name in outcome.err) or "program" in outcome.err, outcome.err


@pytest.mark.parametrize("column", ["src_buffer", "dst_buffer", "src_space", "op", "count", "scratch_units"])
def test_a_program_with_an_unknown_code_is_refused(column: str, originals: dict[str, bytes]) -> None:
    from dataclasses import replace

    from collsynth.errors import InputError
    from collsynth.formats import sched
    from collsynth.program import Program

    program = sched.parse(originals["a.prog"])
    assert isinstance(program, Program)
    for value in (-5, 99 if column not in ("count", "scratch_units") else 1 << 60):
        values = getattr(program, column).copy()
        values[-1] = value
        with pytest.raises(InputError):
            replace(program, **{column: values})


def test_a_peer_that_does_not_exist_is_refused_by_the_simulator(originals: dict[str, bytes]) -> None:
    from dataclasses import replace

    from collsynth.errors import InputError
    from collsynth.formats import load_topology, sched
    from collsynth.program import Program
    from collsynth.simulator import simulate

    program = sched.parse(originals["a.prog"])
    assert isinstance(program, Program)
    peers = program.tb_send.copy()
    peers[-1] = 77
    with pytest.raises(InputError, match="rank 77 of 4"):
        simulate(replace(program, tb_send=peers), load_topology("fully-connected:4"), size=1024)
