"""`collsynth topo show` and `topo list`: the JSON contract, the text, exit codes."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from collsynth.cli import main

KEYS = {"name", "nranks", "nnodes", "nodes", "links", "switches", "nics", "rails", "assumptions", "warnings"}
PAIR = "\tGPU0\tGPU1\tNIC0\nGPU0\t X \tNV4\tPIX\nGPU1\tNV4\t X \tSYS\n"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the command line; returns exit code, stdout, stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stopped:
            main(list(arguments))
        printed = capsys.readouterr()
        return int(stopped.value.code or 0), printed.out, printed.err

    return call


def test_show_json_has_the_keys_of_the_contract(run: Any) -> None:
    code, out, err = run("topo", "show", "dgx-a100:nodes=2", "--json")
    shown = json.loads(out)
    assert (code, err) == (0, "") and set(shown) >= KEYS
    assert (shown["name"], shown["nranks"], shown["nnodes"]) == ("dgx-a100:nodes=2", 16, 2)
    assert shown["nodes"][1] == {"node": 1, "ranks": list(range(8, 16))}
    link = next(k for k in shown["links"] if (k["src"], k["dst"]) == ("node0/gpu:0", "node0/nvswitch:0"))
    assert {k: link[k] for k in ("kind", "bandwidth_GBps", "latency_us", "count")} == {
        "kind": "nvlink", "bandwidth_GBps": 300.0, "latency_us": 0.35, "count": 12,
    }  # fmt: skip
    assert len(shown["nics"]) == 16 and len(shown["switches"]) == 10 and len(shown["rails"]) == 8
    assert shown["rails"][3] == {
        "rail": 3,
        "nics": ["node0/nic:3", "node1/nic:3"],
        "switches": ["rail:3"],
        "gpus": ["node0/gpu:3", "node1/gpu:3"],
    }


def test_unknown_speeds_are_null_and_question_marks(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "pair.txt"
    path.write_text(PAIR)
    _, out, _ = run("topo", "show", str(path), "--json")
    assert {link["bandwidth_GBps"] for link in json.loads(out)["links"]} == {None}
    _, out, _ = run("topo", "show", str(path))
    assert "gpu:0  <->  gpu:1  nvlink      4     ?  0.7" in out and "Assumptions" in out
    _, out, _ = run("topo", "show", str(path), "--gpu-model", "a100", "--json")
    shown = json.loads(out)
    assert {link["bandwidth_GBps"] for link in shown["links"]} == {100.0}
    assert shown["rails"] == [{"rail": 0, "nics": ["nic:0"], "switches": [], "gpus": ["gpu:0", "gpu:1"]}]


def test_standard_input(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(PAIR.encode())))
    code, out, _ = run("topo", "show", "-", "--gpu-model", "A100")
    assert code == 0 and out.startswith("stdin: 2 ranks in 1 node")


def test_text_shows_states_limits_and_one_way_links(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "box.yaml"
    path.write_text(
        "collsynth-topology: 1\nranks: [a, {name: b, in_capacity: 5}, c]\nlinks:\n"
        "- {src: a, dst: b, bandwidth: 10, state: degraded}\n- {src: a, dst: b, bandwidth: 7, both: false}\n"
    )
    code, out, _ = run("topo", "show", str(path))
    assert code == 0
    assert "a     <->  b   link      1    10   0  degraded" in out
    assert "a     ->   b   link      1     7   0" in out
    assert "Vertices with their own limits" in out
    assert "not connected: c cannot be reached by a" in out


def test_a_long_table_is_cut_and_says_so(run: Any) -> None:
    _, out, _ = run("topo", "show", "torus:16x16")
    assert "... and 312 more rows (--json has all)" in out and len(out.split("\n")) < 220


def test_list_names_every_built_in_with_its_parameters(run: Any) -> None:
    code, out, _ = run("topo", "list")
    assert code == 0 and "dgx-h100[:nodes=NODES][:fabric=rails|one-switch][:nvls]" in out
    _, out, _ = run("topo", "list", "--json")
    names = [row["name"] for row in json.loads(out)]
    assert names[:2] == ["dgx-v100", "dgx-a100"] and {"ring", "torus", "mesh", "switch"} <= set(names)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("topo", "show", "nope"), "'nope' is not in topologies"),
        (("topo", "show", "missing.yaml"), "missing.yaml: no such file"),
        (("topo", "show", "."), "is a directory"),
        (("topo", "show", "dgx-v100", "--multicast"), "no NVLink switch that multicasts"),
        (("topo", "show", "dgx-v100", "--gpu-model", "V100"), "has its own speeds"),
        (("topo", "show"), "Missing argument"),
        (("topo", "nothing"), "No such command"),
    ],
)
def test_mistakes_are_one_message_and_exit_code_two(run: Any, arguments: tuple[str, ...], message: str) -> None:
    code, out, err = run(*arguments)
    assert code == 2 and out == "" and message in err and "Traceback" not in err
