"""Verdict, race and accepting parsers of every real file are those of the corpus' manifests."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from collsynth.cli import main
from collsynth.errors import InputError
from collsynth.formats import msccl_xml
from collsynth.verifier import accepted_by, verify

pytestmark = pytest.mark.corpus


def manifest(folder: Path) -> list[dict[str, str]]:
    with open(folder / "MANIFEST.csv", newline="") as stream:
        return list(csv.DictReader(stream))


def test_msccl_xml_of_all_generations(corpus: Path) -> None:
    folder = corpus / "msccl-xml"
    seen = set()
    for row in manifest(folder):
        seen.add(row["verdict"])
        if row["verdict"] in ("ERROR", "NOT-XML"):
            with pytest.raises(InputError, match=r":[0-9]+: "):
                msccl_xml.read_source(folder / row["file"])
            continue
        source = msccl_xml.read_source(folder / row["file"])
        report = verify(source.program, source=source)
        codes = {f.code for f in report.errors}
        assert report.race == (row["race"] == "1"), row["file"]
        if report.race:  # the manifest's verdict is that of one interleaving: only the race is the fault
            assert codes - {"E-NOT-JUDGED"} == {"E-RACE"}, row["file"]
            assert report.verdict == ("RUNS" if row["verdict"] == "RUNS" else "RACE")
        else:
            assert report.verdict == row["verdict"], (row["file"], codes)
        assert report.ok == (report.verdict == "OK")
        names = [name.removeprefix("msccl-") for name in accepted_by(source.program, source)]
        assert "+".join(names) == row["accepted_by"], row["file"]
    assert seen == {"OK", "RUNS", "WRONG", "DEADLOCK", "BROKEN", "ERROR", "NOT-XML"}


def entries(capsys: pytest.CaptureFixture[str], folder: Path) -> dict[str, dict[str, Any]]:
    """Prefix below the folder -> entry of `verify --json FOLDER`."""
    with pytest.raises(SystemExit):
        main(["verify", "--json", "--jobs", "2", str(folder)])
    found = json.loads(capsys.readouterr().out)
    assert [e["file"] for e in found] == sorted(e["file"] for e in found)
    return {str(Path(e["file"]).relative_to(folder)).removesuffix(".0.et"): e for e in found}


def test_chakra_traces(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("google.protobuf")
    found = entries(capsys, corpus / "chakra")
    rows = manifest(corpus / "chakra")
    assert {row["stuck"] == "0" for row in rows} == {True, False}
    for row in rows:
        entry = found[row["prefix"]]
        right = row["stuck"] == row["unreceived"] == "0"
        assert entry["ok"] == right and entry["nranks"] == int(row["ranks"]), row["prefix"]
        codes = {f["code"] for f in entry["findings"]}
        assert right or codes == {"E-PAIRING"}
        if right and "collectiveapi" in row["source"]:
            assert entry["collective"] in ("allgather", "allreduce"), "judged by the XML that the trace carries"


def test_broken_and_right_traces_of_astra_sim(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("google.protobuf")
    expected = {
        "cycle_rank0": "E-CYCLE", "dangling_dep": "E-DEPENDENCY", "duplicate_ids": "E-ID", "empty_rank0": "E-EMPTY",
        "float_size": "E-ATTRIBUTE", "metadata_node_inside": "E-NODE", "no_comm_tag": "E-ATTRIBUTE",
        "no_global_metadata": "E-READ", "rank_out_of_range": "E-PEER", "self_send": "E-PEER",
        "size_mismatch_rank1": "E-PAIRING", "tag_mismatch_rank1": "E-PAIRING", "unmatched_recv": "E-PAIRING",
        "unmatched_send": "E-PAIRING", "zero_size_rank0": "E-SIZE",
    }  # fmt: skip
    found = entries(capsys, corpus / "astra-sim" / "bad")
    assert {name.split("/")[0]: {f["code"] for f in e["findings"]} for name, e in found.items()} == {
        name: {code} for name, code in expected.items()
    }
    for entry in found.values():
        assert all(".et" in (f["where"] or f["message"]) for f in entry["findings"])
    right = entries(capsys, corpus / "astra-sim" / "custom")
    assert len(right) == 12
    for entry in right.values():
        assert entry["ok"] and {f["code"] for f in entry["findings"]} == {"W-TRANSPORT-ONLY"}
