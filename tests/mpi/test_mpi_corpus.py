"""Real MSCCL XML files on real processes."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mpi4py", reason="mpi4py is not installed")

pytestmark = [pytest.mark.mpi, pytest.mark.corpus]

HERE = Path(__file__).resolve().parent

#: Processes that one job of these tests may have.
LARGEST = 8


def right_files(corpus: Path) -> dict[int, list[Path]]:
    """The files of generation G2 (they say whether they run out of place) that are right, by ranks."""
    folder = corpus / "msccl-xml"
    found: dict[int, list[Path]] = {}
    with (folder / "MANIFEST.csv").open(newline="") as stream:
        for row in csv.DictReader(stream):
            if row["verdict"] == "OK" and row["outofplace"] and int(row["ngpus"]) <= LARGEST:
                found.setdefault(int(row["ngpus"]), []).append(folder / row["file"])
    return found


def test_right_files_give_right_data(corpus: Path, tmp_path: Path) -> None:
    files = right_files(corpus)
    assert sum(map(len, files.values())) >= 10
    for nranks, paths in files.items():
        listing = tmp_path / f"files{nranks}"
        listing.write_text("\n".join(map(str, paths)))
        done = subprocess.run(
            [sys.executable, "-m", "collsynth", "launch", "-n", str(nranks), "python",
             str(HERE / "corpus_worker.py"), str(listing)],
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        results = json.loads(done.stdout)
        assert set(results) == set(map(str, paths))
        for path, rows in results.items():
            assert rows and all(row[-1] == 0 for row in rows), (path, rows)
