"""`collsynth doctor` reports what is there, says how to get the rest, and survives broken packages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from collsynth.cli import doctor as module
from collsynth.cli.doctor import Finding, doctor


def test_json_lists_everything_and_exits_with_0() -> None:
    result = CliRunner().invoke(doctor, ["--json"])
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    found = {f["name"]: f for f in report["findings"]}
    assert found["numpy"]["status"] == "ok" and found["numpy"]["version"]
    for name in ("python", "scipy", "highspy", "ortools", "numba", "z3", "protobuf", "mpi4py", "mpirun", "GPU",
                 "cupy", "NCCL"):  # fmt: skip
        assert found[name]["status"] in ("ok", "missing", "broken")
        assert found[name]["status"] == "ok" or found[name]["hint"]


def test_text_names_the_command_that_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = Finding("cupy", "missing", "", "", "--backend cupy", "pip install 'collsynth[cuda12]'")
    monkeypatch.setattr(module, "findings", lambda: [absent])
    result = CliRunner().invoke(doctor, [])
    assert result.exit_code == 0
    assert "missing cupy" in result.output and "pip install 'collsynth[cuda12]'" in result.output


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise ImportError('libmpi.so.40: cannot open')", "libmpi.so.40"),
        ("import os; os.abort()", "ended the process (signal 6)"),
        ("import sys; sys.exit(7)", "exit code 7"),
    ],
)
def test_a_broken_package_is_reported_not_fatal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, words: str
) -> None:
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text(body + "\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    # Found here too, without being imported.
    monkeypatch.setattr(module, "_installed", lambda name: True)
    (finding,) = module._mpi()
    assert finding.status == "broken" and words in finding.detail and "collsynth[mpi]" in finding.hint


def test_a_package_that_hangs_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PROBE_SECONDS", 0.2)
    answer, error = module._probe("import time; time.sleep(30)")
    assert answer is None and "no answer within 0.2 s" in error


def test_probe_takes_the_last_json_line() -> None:
    answer, error = module._probe("print('noise'); print('{\"a\": 1}'); print('more')")
    assert answer == {"a": 1} and not error


def test_missing_library_is_missing_not_broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLLSYNTH_NCCL_LIBRARY", str(tmp_path / "no.so"))
    assert module._nccl().status == "missing"
