"""`collsynth verify`: exit codes, JSON, directories, bad input."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collsynth import formats
from collsynth.cli import main
from collsynth.collective import broadcast
from collsynth.schedule import Schedule, Transfer
from collsynth.topology import Link, Topology, Vertex

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "verify"
KEYS = {"file", "format", "ok", "collective", "nranks", "in_place", "findings"}
FINDING_KEYS = {"code", "severity", "rank", "threadblock", "step", "message"}


def run(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as caught:
        main(["verify", *map(str, arguments)])
    code = caught.value.code
    assert isinstance(code, int)
    return code


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, list[dict[str, Any]]]:
    code = run("--json", *arguments)
    document = json.loads(capsys.readouterr().out)
    assert isinstance(document, list)
    return code, document


@pytest.mark.parametrize(
    ("name", "code", "place"),
    [
        ("deadlock_fifo", "E-DEADLOCK", (0, 0, 3)), ("deadlock_waits", "E-DEADLOCK", (0, 0, 0)),
        ("broken_shared", "E-CONN-SHARED", (0, 1, 0)), ("broken_pairing", "E-PAIRING", (1, 0, 3)),
        ("broken_unpublished", "E-DEP", (1, 1, 0)), ("broken_chunks", "E-SIZE", (None, None, None)),
        ("race", "E-RACE", (1, 1, 0)),
    ],
)  # fmt: skip
def test_minimal_bad_files(capsys: pytest.CaptureFixture[str], name: str, code: str, place: tuple[Any, ...]) -> None:
    """Each is refused with a message at the fault."""
    path = GOLDEN / f"{name}.xml"
    exit_code, (entry,) = run_json(capsys, path)
    assert exit_code == 1
    assert entry.keys() >= KEYS and entry["ok"] is False and entry["file"] == str(path)
    assert all(f.keys() >= FINDING_KEYS for f in entry["findings"])
    hits = [f for f in entry["findings"] if f["code"] == code]
    assert place in [(f["rank"], f["threadblock"], f["step"]) for f in hits]
    assert all(f["where"].startswith(f"{path}:") for f in hits)


def test_right_file(capsys: pytest.CaptureFixture[str]) -> None:
    code, (entry,) = run_json(capsys, GOLDEN / "right.xml")
    assert code == 0 and entry["ok"] and entry["findings"] == []
    assert (entry["format"], entry["collective"], entry["nranks"], entry["in_place"]) == (
        "msccl-xml", "allgather", 2, False,
    )  # fmt: skip
    assert run(GOLDEN / "right.xml") == 0
    assert capsys.readouterr().out.endswith("right.xml: ok (allgather, 2 ranks, out of place)\n")


def test_targets_add_their_rules(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = (GOLDEN / "right.xml").read_text()
    declared = tmp_path / "declared.xml"
    declared.write_text('<?xml version="1.0"?>\n' + text)
    assert run(declared) == 0
    code, (entry,) = run_json(_fresh(capsys), "--target", "msccl", declared)
    assert code == 1 and any("declaration" in f["message"] for f in entry["findings"])
    assert run("--target", "msccl-executor", GOLDEN / "right.xml") == 0


def _fresh(capsys: pytest.CaptureFixture[str]) -> pytest.CaptureFixture[str]:
    capsys.readouterr()
    return capsys


def test_custom_programs_need_a_collective(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "custom.xml"
    path.write_text((GOLDEN / "right.xml").read_text().replace('coll="allgather"', 'coll="custom"'))
    code, (entry,) = run_json(capsys, path)
    assert code == 1 and [f["code"] for f in entry["findings"]] == ["E-NOT-JUDGED"]
    assert run("-c", "All_Gather", path) == 0
    assert run("-c", "allreduce", path) == 1
    assert run("-c", "nonsense", path) == 2


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_directories_and_the_worst_code(capsys: pytest.CaptureFixture[str], tmp_path: Path, jobs: str) -> None:
    for name in ("right", "race"):
        shutil.copy(GOLDEN / f"{name}.xml", tmp_path)
    code, entries = run_json(capsys, "--jobs", jobs, tmp_path)
    assert code == 1 and [e["ok"] for e in entries] == [False, True]
    (tmp_path / "truncated.xml").write_text((GOLDEN / "right.xml").read_text()[:300])
    code, entries = run_json(capsys, "--jobs", jobs, tmp_path)
    assert code == 2 and [e["ok"] for e in entries] == [False, True, False]
    assert "truncated.xml:" in entries[2]["findings"][0]["message"]


@pytest.mark.parametrize(
    "content",
    [b"", b"hello\n", b"\x00\x01\xff\xfe", b"<algo>", b'<algo ngpus="2" nchunksperloop="0"/>', b"<!DOCTYPE a><algo/>",
     b"{", b"[1, 2"],
)  # fmt: skip
def test_unreadable_files(capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad"
    path.write_bytes(content)
    assert run(path) == 2
    out, err = capsys.readouterr()
    assert out == "" and str(path) in err and "Traceback" not in err


def test_bad_usage(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run() == 2
    assert run(tmp_path / "missing.xml") == 2
    assert run(tmp_path) == 2
    assert run("--target", "nothing", GOLDEN / "right.xml") == 2
    assert run("--jobs", "0", GOLDEN / "right.xml") == 2
    assert "Traceback" not in capsys.readouterr().err


def test_schedules(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    topology = Topology.build("pair", [Vertex("a", rank=0), Vertex("b", rank=1)], [Link(0, 1, 10**9)])
    for rows, expected in (([Transfer(0, 0, 1, False, 0, (0,))], 0), ([], 1)):
        path = tmp_path / f"{expected}.sched"
        formats.write(Schedule.build(topology, broadcast(2), rows), path)
        code, (entry,) = run_json(capsys, path)
        assert code == expected and entry["format"] == "sched" and entry["in_place"] is None
    assert run("-c", "allreduce", tmp_path / "0.sched") == 1
    formats.write(formats.msccl_xml.read(GOLDEN / "right.xml"), tmp_path / "right.prog")
    code, (entry,) = run_json(_fresh(capsys), tmp_path / "right.prog")
    assert code == 0 and entry["format"] == "prog" and entry["in_place"] is False


@pytest.mark.corpus
def test_a_racy_file_is_right_or_wrong_by_luck(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The manifest calls these files wrong by one interleaving.  The race is the fault: in the prover's order the
    result is right, in most random orders it is not."""
    from collsynth.backends import data, numpy_backend
    from collsynth.backends.layout import Layout

    name = "azure_msccl-tools_gen__7cf8d153__allgather_recursive_doubling__8_2.xml"
    path = corpus / "msccl-xml" / name
    code, (entry,) = run_json(capsys, path)
    assert code == 1 and {f["code"] for f in entry["findings"]} == {"E-RACE"}
    program = formats.msccl_xml.read(path)
    count, kind = 4, np.dtype("float32")
    expected = data.expected_output("allgather", 0, 8, count, kind, "sum")
    outcomes = set()
    for seed in range(5):
        buffers = [np.zeros(8 * count, kind) for _ in range(8)]
        views = [Layout.of(program, count).in_place_views(r, b) for r, b in enumerate(buffers)]
        for rank, (send, _) in enumerate(views):
            send[...] = data.make_input(rank, count, kind, "sum", 8)
        numpy_backend.load(program, seed=seed)([s for s, _ in views], [r for _, r in views])
        outcomes.add(all(data.count_wrong(b, expected) == 0 for b in buffers))
    assert False in outcomes
