"""The main job as a user types it: synth, then a fresh process looks at what was written."""

import json
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

MACHINES = [("dgx-v100", "0,1,2,3,7"), ("mesh:3x3", None), ("dgx-a100:nodes=2", None), ("switch:6", None)]
COLLECTIVES = ["allgather", "reducescatter", "allreduce", "alltoall", "broadcast"]


def collsynth(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own and check its exit code."""
    done = subprocess.run([sys.executable, "-P", "-m", "collsynth", *words], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def synth(path: Path, collective: str, machine: str, ranks: str | None, *more: str) -> dict[str, Any]:
    """Synthesize into `path`; the JSON document."""
    subset = [] if ranks is None else ["--ranks", ranks]
    done = collsynth("synth", collective, "-t", machine, *subset, "-o", str(path), "--json", *more)
    document = json.loads(done.stdout)
    assert isinstance(document, dict)
    return document


#: What a stranger computes from the file alone: no synthesizer, no simulator, rows and links only.
RECOMPUTE = """
import json, sys
from collections import defaultdict
from fractions import Fraction
import collsynth as cs
from collsynth.bounds import bound
s = cs.read(sys.argv[1])
load, depth, best = defaultdict(int), {}, 0
for level in sorted(set(s.level.tolist())):
    arrived = []
    for t in (s.row(i) for i in range(s.nrows) if s.level[i] == level):
        for link in t.route:
            load[link] += int(s.collective.weight[t.chunk])
        hops = depth.get((t.chunk, t.src), 0) + 1
        arrived.append(((t.chunk, t.dst), hops))
        best = max(best, hops)
    for key, hops in arrived:
        depth[key] = max(depth.get(key, 0), hops)
busiest = max(Fraction(w, int(s.topology.link_bandwidth[k])) for k, w in load.items()) / s.collective.payload_units
ratio = busiest / bound(s.topology, s.collective).seconds_per_byte
print(json.dumps([str(ratio), len(set(s.level.tolist())), best, s.nrows]))
"""


@pytest.mark.parametrize(("machine", "ranks"), MACHINES)
@pytest.mark.parametrize("collective", ["allgather", "allreduce"])
def test_the_figures_follow_from_the_written_schedule(
    machine: str, ranks: str | None, collective: str, tmp_path: Path
) -> None:
    path = tmp_path / "out.sched"
    document = synth(path, collective, machine, ranks)
    done = subprocess.run(
        [sys.executable, "-P", "-c", RECOMPUTE, str(path)], capture_output=True, text=True, check=True
    )
    ratio, steps, height, transfers = json.loads(done.stdout)
    assert Fraction(ratio) == Fraction(document["bandwidth_ratio_exact"])
    assert [steps, height, transfers] == [document["steps"], document["height"], document["transfers"]]
    assert document["makespan_ratio"] <= 1.15


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_collective_is_written_selectable_and_right(collective: str, tmp_path: Path) -> None:
    path = tmp_path / "out.xml"
    document = synth(path, collective, "dgx-v100", "0,1,2,3,7", "-s", "64M")
    assert document["verified"] is True and document["output"] == str(path)
    verdict = json.loads(collsynth("verify", str(path), "--target", "msccl-executor", "--json").stdout)[0]
    assert verdict["ok"] and verdict["collective"] == collective and verdict["findings"] == []
    run = collsynth("run", str(path), "--backend", "numpy", "--count", "1009", "--dtype", "int32", "--op", "max")
    assert " 0\n" in run.stdout
    simulated = json.loads(
        collsynth("simulate", str(path), "-t", "dgx-v100", "-s", "1M", "--json", code=2).stdout or "[]"
    )
    assert simulated == []  # five ranks do not fit the eight of the machine


def test_exact_rates_are_reached(tmp_path: Path) -> None:
    for collective, expected in (("allgather", 1.0), ("allreduce", 1.0)):
        document = synth(tmp_path / f"{collective}.sched", collective, "mesh:3x3", None, "--exact")
        assert document["bandwidth_ratio_exact"] == "1" and document["status"] == "optimal"
        assert document["bandwidth_ratio"] == expected
    assert document["ratio_to_rs_ag"] < 1


def test_nothing_is_overwritten_and_stdout_stays_clean(tmp_path: Path) -> None:
    path = tmp_path / "out.xml"
    path.write_text("mine")
    done = collsynth("synth", "allgather", "-t", "ring:4", "-o", str(path), code=2)
    assert "exists" in done.stderr and path.read_text() == "mine"
    collsynth("synth", "allgather", "-t", "ring:4", "-o", str(path), "-f")
    assert path.read_text().startswith("<algo ")
    assert collsynth("synth", "allgather", "-t", "ring:4", "-o", "-").stdout == path.read_text()
    done = collsynth("synth", "allgather", "-t", "ring:4", "-o", "-", "--json", code=2)
    assert done.stdout == "" and "--json" in done.stderr


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.sched", "b.sched"):
        synth(tmp_path / name, "allgather", "mesh:2x3", None, "--seed", "7")
    assert (tmp_path / "a.sched").read_bytes() == (tmp_path / "b.sched").read_bytes()


def test_a_file_that_would_not_be_selected_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "out.xml"
    done = collsynth("synth", "allgather", "-t", "ring:4", "-s", "64", "--chunks", "8", "-o", str(path), code=1)
    assert "multiple of" in done.stderr and not path.exists()


def test_one_rank_has_nothing_to_do() -> None:
    for collective in COLLECTIVES:
        done = collsynth("synth", collective, "-t", "dgx-a100", "--ranks", "1", "-s", "1M")
        assert "nothing has to move" in done.stdout
