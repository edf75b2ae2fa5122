"""`collsynth inspect`: the facts and the selection predicate, as text and JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from random_schedules import complete, random_schedule

from collsynth.cli import main
from collsynth.formats import msccl_xml, sched, topology_native
from collsynth.lowering import lower
from collsynth.program import TARGETS


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["inspect", *arguments])
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


@pytest.fixture
def xml(tmp_path: Path) -> str:
    program = lower(random_schedule("allreduce", 4, 2, 1), target=TARGETS["msccl-executor"], size=1 << 20)
    msccl_xml.write(program, tmp_path / "a.xml", target=TARGETS["msccl-executor"])
    return str(tmp_path / "a.xml")


def test_json(xml: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, xml, "--json")
    document: dict[str, Any] = json.loads(out)
    program = msccl_xml.read(xml)
    assert code == 0
    assert (document["collective"], document["nranks"], document["chunks"]) == ("allreduce", 4, 8)
    assert (document["channels"], document["protocol"]) == (program.nchannels, "Simple")
    assert document["instructions"] == program.nrows == sum(document["operations"].values())
    assert document["content_hash"] == program.content_hash()
    rule = document["selection"]["msccl-executor"]
    assert rule["selectable"] and rule["max_bytes"] == 2 << 20 and rule["max_inclusive"]
    assert rule["elements_multiple"] == 8 and rule["bytes_multiple"] == {"1": 8, "2": 16, "4": 32, "8": 64}
    assert not document["selection"]["msccl"]["max_inclusive"] and not document["selection"]["msccl"]["out_of_place"]
    assert "never runs" in document["selection"]["rccl"]["never"]


def test_text(xml: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, xml)
    assert code == 0
    assert "allreduce for 4 ranks" in out and "8 chunks" in out
    assert "msccl-executor  allreduce, 4 ranks, in place or out of place, 0 <= bytes <= 2097152" in out
    assert "payload bytes a multiple of 8 (1-byte type)" in out


def test_objections_make_a_runtime_never_select(xml: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = Path(xml).read_text().replace(' outofplace="1"', "", 1)
    (tmp_path / "b.xml").write_text(text)
    _, out, _ = run(capsys, str(tmp_path / "b.xml"), "--json")
    document = json.loads(out)
    assert document["selection"]["msccl"]["selectable"]
    assert document["selection"]["msccl-executor"]["never"] == "line 1: <algo> has no outofplace"
    assert document["objections"][0]["code"] == "X-MISSING"
    assert run(capsys, str(tmp_path / "b.xml"))[1].count("X-MISSING") == 1


def test_schedules_and_programs_of_our_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schedule = random_schedule("allgather", 3, 2, 0)
    sched.write(schedule, tmp_path / "a.sched")
    sched.write(lower(schedule), tmp_path / "a.prog")
    _, out, _ = run(capsys, str(tmp_path / "a.sched"), "--json")
    assert json.loads(out)["transfers"] == schedule.nrows
    assert "allgather for 3 ranks on complete-3" in run(capsys, str(tmp_path / "a.sched"))[1]
    _, out, _ = run(capsys, str(tmp_path / "a.prog"), "--json")
    assert json.loads(out)["format"] == "prog"


@pytest.mark.parametrize("content", [b"", b"hello", b"\0\1\2\3", b"<algo", b"collsynth 1\nxx", b"<other/>"])
def test_bad_files(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad"
    path.write_bytes(content)
    code, out, err = run(capsys, str(path))
    assert code == 2 and out == "" and str(path) in err and "Traceback" not in err


def test_machines_and_missing_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    topology_native.write(complete(2), tmp_path / "m.yaml")
    assert run(capsys, str(tmp_path / "m.yaml"))[0] == 2
    assert run(capsys, str(tmp_path / "none.xml"))[0] == 2
