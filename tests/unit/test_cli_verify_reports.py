"""`collsynth verify` for continuous integration: JUnit, SARIF, traces, determinism, verdicts in one word."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from random_schedules import random_schedule
from test_cli_verify import GOLDEN, run, run_json
from test_verifier_quick import direct_allreduce

from collsynth import formats
from collsynth.formats import chakra
from collsynth.lowering import lower
from collsynth.verifier import CODES, CURES


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A right file, a wrong one and one that is none."""
    inside = tmp_path / "some files"
    inside.mkdir()
    for name in ("right", "race"):
        shutil.copy(GOLDEN / f"{name}.xml", inside)
    (inside / "zero\x01.xml").write_text("<algo \x02")
    return inside


def test_junit(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "verdicts.xml"
    assert run("--junit", out, folder) == 2
    suite = ElementTree.parse(out).getroot().find("testsuite")
    assert suite is not None
    assert [suite.get(key) for key in ("tests", "failures", "errors")] == ["3", "1", "1"]
    race, right, none = suite.findall("testcase")
    failure = race.find("failure")
    assert failure is not None and failure.get("type") == "RACE" and "E-RACE" in (failure.get("message") or "")
    assert right.get("name") == str(folder / "right.xml") and not list(right)
    assert none.find("error") is not None
    assert run("--junit", out, folder) == 2 and "exists" in capsys.readouterr().err
    assert run("-f", "--junit", out, folder / "right.xml") == 0


def test_sarif(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--sarif", "-", folder) == 2
    document = json.loads(capsys.readouterr().out)
    assert document["version"] == "2.1.0"
    (result,) = document["runs"]
    rules = result["tool"]["driver"]["rules"]
    for rule in rules:
        assert rule["shortDescription"]["text"] == CODES[rule["id"]] and CURES[rule["id"]] in rule["help"]["text"]
    for found in result["results"]:
        assert rules[found["ruleIndex"]]["id"] == found["ruleId"] and found["level"] in ("error", "warning")
        (location,) = found["locations"]
        assert location["physicalLocation"]["artifactLocation"]["uri"].startswith("file:///")
    races = [r for r in result["results"] if r["ruleId"] == "E-RACE"]
    assert {r["locations"][0]["physicalLocation"]["region"]["startLine"] > 1 for r in races} == {True}
    assert all("%20" in r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for r in races)
    assert "rank 1" in races[0]["locations"][0]["logicalLocations"][0]["fullyQualifiedName"]
    assert run("--sarif", "-", "--json", folder) == 2


def test_order_does_not_depend_on_jobs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(12):
        shutil.copy(GOLDEN / f"{'right' if number % 3 else 'race'}.xml", folder / f"{number:02}.xml")
    documents = [run_json(capsys, "--jobs", jobs, folder) for jobs in ("1", "2", "5")]
    assert documents[0] == documents[1] == documents[2]


def test_one_word_verdicts(capsys: pytest.CaptureFixture[str]) -> None:
    words = {}
    for path in sorted(GOLDEN.glob("*.xml")):
        _, (entry,) = run_json(capsys, path)
        words[path.stem] = (entry["verdict"], entry["race"], entry["accepted_by"])
    parsers = ["msccl", "msccl-executor", "rccl"]
    assert words == {
        "broken_chunks": ("BROKEN", False, []), "broken_pairing": ("BROKEN", False, parsers),
        "broken_shared": ("BROKEN", False, parsers), "broken_unpublished": ("DEADLOCK", False, parsers),
        "deadlock_fifo": ("DEADLOCK", False, parsers), "deadlock_waits": ("DEADLOCK", False, parsers),
        "race": ("RACE", True, parsers), "right": ("OK", False, parsers),
    }  # fmt: skip


def test_deterministic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "direct.prog"
    formats.write(direct_allreduce(4, sorted_sums=False), path)
    code, (entry,) = run_json(capsys, path)
    assert code == 0 and entry["reduction_depth"] == 3
    assert [(f["code"], f["severity"]) for f in entry["findings"]] == [("W-REPLICA-DRIFT", "warning")]
    code, (entry,) = run_json(capsys, "--deterministic", path)
    assert code == 1 and [f["severity"] for f in entry["findings"]] == ["error"]
    assert run("--deterministic", GOLDEN / "right.xml") == 0


def traces(tmp_path: Path, **changes: Any) -> Path:
    chakra.write(lower(random_schedule("allreduce", 3, 1, 1)), tmp_path / "t", size=1 << 16, **changes)
    return tmp_path / "t.0.et"


def test_traces_of_ours_are_judged_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("google.protobuf")
    first = traces(tmp_path)
    for argument in (first, tmp_path / "t.2.et", tmp_path):
        code, (entry,) = run_json(capsys, argument)
        assert code == 0 and entry["ok"] and entry["nranks"] == 3
        assert (entry["format"], entry["collective"], entry["findings"]) == ("chakra", "allreduce", [])
    assert run("-c", "allgather", first) == 1


def test_traces_without_a_program_are_judged_as_transport(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("google.protobuf")
    from collsynth.formats.chakra_wire import decode, encode

    first = traces(tmp_path)
    for rank in range(3):
        path = tmp_path / f"t.{rank}.et"
        version, _, nodes = decode(path.read_bytes())
        path.write_bytes(encode(nodes, version, {}))
    code, (entry,) = run_json(capsys, first)
    assert code == 0 and [f["code"] for f in entry["findings"]] == ["W-TRANSPORT-ONLY"]
    code, (entry,) = run_json(capsys, "-c", "allreduce", first)
    assert code == 1 and "E-NOT-JUDGED" in {f["code"] for f in entry["findings"]}
    (tmp_path / "t.1.et").unlink()
    assert run(first) == 2 and "t.1.et" in capsys.readouterr().err
