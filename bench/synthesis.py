"""Synthesis against its targets: `python -m collsynth.bench.synthesis [--json] [--exact] [MACHINE ...]`.

One row a machine and collective: the bound, how near the schedule comes to it (rate and makespan),
its shape, the time it took, and the best figure known of another tool, where there is one.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from collsynth.collective import make
from collsynth.errors import CollsynthError
from collsynth.formats import load_topology
from collsynth.topology import Topology
from collsynth.units import fraction_text, gigabytes_per_second

#: Machines of the table; `name@ranks` takes a subset.
MACHINES = (
    "dgx-v100", "dgx-a100", "dgx-a100:nodes=2", "dgx-h100:nodes=2", "mi250", "dgx-v100@0,1,2,3,7", "mesh:4x4",
)  # fmt: skip
COLLECTIVES = ("allgather", "reducescatter", "allreduce", "alltoall")

#: What other tools reach, measured on a 2-core EPYC-class machine or, where marked, from their papers.
PEERS = {
    ("dgx-v100", "allgather"): "SCCL 28 s at 6 chunks, 3 steps; ForestColl 0.09 s, rate only, height 5",
    ("dgx-v100", "alltoall"): "SCCL 89 % of the bound",
    ("dgx-a100:nodes=2", "allgather"): "ForestColl 5.4 s, k=13, height 9",
    ("mi250", "allgather"): "ForestColl 0.66 s, height 14; TACOS 58-91 %",
    ("dgx-v100@0,1,2,3,7", "allreduce"): "others reach ReduceScatter + AllGather only",
    ("mesh:4x4", "allreduce"): "others reach ReduceScatter + AllGather only",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One row; ratios are None, and `status` says why, when there is no schedule.

    Attributes:
        bound_algbw_GBps: payload over the bandwidth bound, 10^9 bytes per second.
        bandwidth_ratio, makespan_ratio: exact fractions as text, 1 is optimal.
        pieces: chunks per rank's shard.
        height, steps, threadblocks: longest dependency chain, start levels, threadblocks of the fullest
            rank (None when the program does not fit any runtime; `status` has the reason).
        seconds: synthesis including verification, without one-time compilation.
        wall_s: the same from outside.
    """

    machine: str
    collective: str
    status: str
    method: str
    bound_algbw_GBps: float | None
    bandwidth_ratio: str | None
    makespan_ratio: str | None
    pieces: str | None
    height: int | None
    steps: int | None
    threadblocks: int | None
    seconds: float
    wall_s: float
    peers: str


def machine(name: str) -> Topology:
    """The topology of a table name."""
    base, _, ranks = name.partition("@")
    topology = load_topology(base)
    return topology.subset([int(r) for r in ranks.split(",")]) if ranks else topology


def measure(name: str, collective: str, *, exact: bool = False) -> Entry:
    """Synthesize one row; an error becomes its status."""
    from collsynth.lowering import lower
    from collsynth.simulator import height, steps
    from collsynth.synth import synthesize
    from collsynth.synth.spec import SynthSpec

    peers = PEERS.get((name, collective), "")
    started = time.perf_counter()
    try:
        topology = machine(name)
        result = synthesize(topology, make(collective, topology.nranks), SynthSpec(exact=exact))
    except CollsynthError as error:
        wall = time.perf_counter() - started
        return Entry(name, collective, f"error: {error}", "", *(None,) * 7, 0.0, wall, peers)
    wall = time.perf_counter() - started
    schedule, status, blocks = result.schedule, result.status.value, None
    if schedule is not None:
        try:
            program = lower(schedule)
            blocks = max((int((program.tb_rank == r).sum()) for r in range(program.nranks)), default=0)
        except CollsynthError as error:
            status += f"; no program: {error}"
    else:
        status += f": {result.message}"
    algbw = result.bound.algbw
    return Entry(
        machine=name, collective=collective, status=status, method=result.method,
        bound_algbw_GBps=None if algbw is None else gigabytes_per_second(algbw),
        bandwidth_ratio=None if result.bandwidth_ratio is None else fraction_text(result.bandwidth_ratio),
        makespan_ratio=None if result.makespan_ratio is None else fraction_text(result.makespan_ratio),
        pieces=None if result.chunks_per_rank is None else fraction_text(result.chunks_per_rank),
        height=None if schedule is None else height(schedule), steps=None if schedule is None else steps(schedule),
        threadblocks=blocks, seconds=result.seconds - result.jit_seconds, wall_s=wall, peers=peers,
    )  # fmt: skip


_COLUMNS = (
    ("machine", 20), ("collective", 13), ("bound", 8), ("rate", 8), ("makespan", 8), ("K", 6), ("height", 6),
    ("steps", 6), ("tbs", 5), ("s", 7),
)  # fmt: skip


def _decimal(text: str | None) -> str:
    """A ratio as printed: exact 1 as `1`, others with four decimals."""
    if text is None:
        return "-"
    numerator, _, denominator = text.partition("/")
    return numerator if not denominator else f"{int(numerator) / int(denominator):.4f}"


def line(entry: Entry) -> str:
    """One row of the text table."""
    values = (
        entry.machine, entry.collective, "-" if entry.bound_algbw_GBps is None else f"{entry.bound_algbw_GBps:.2f}",
        _decimal(entry.bandwidth_ratio), _decimal(entry.makespan_ratio), entry.pieces or "-",
        "-" if entry.height is None else str(entry.height), "-" if entry.steps is None else str(entry.steps),
        "-" if entry.threadblocks is None else str(entry.threadblocks), f"{entry.seconds:.2f}",
    )  # fmt: skip
    cells = [
        value.ljust(width) if i < 2 else value.rjust(width)
        for i, (value, (_, width)) in enumerate(zip(values, _COLUMNS, strict=True))
    ]
    return " ".join(cells) + f"  {entry.method} {entry.status}" + (f"  [{entry.peers}]" if entry.peers else "")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table; exit code 0 when every row has a schedule, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m collsynth.bench.synthesis", description=__doc__)
    parser.add_argument("machines", nargs="*", metavar="MACHINE", help="as -t takes them; NAME@0,1,5 for some ranks")
    parser.add_argument("--collective", action="append", choices=COLLECTIVES, help="only these; may be repeated")
    parser.add_argument("--exact", action="store_true", help="as many pieces as the exact rate needs")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    given = parser.parse_args(arguments)
    heads = [n.ljust(w) if i < 2 else n.rjust(w) for i, (n, w) in enumerate(_COLUMNS)]
    if not given.json:
        print(" ".join(heads) + "  method, status  [other tools]   (bound: algbw in GB/s; ratios: 1 is optimal)")
    entries = []
    for name in given.machines or MACHINES:
        for collective in given.collective or COLLECTIVES:
            entries.append(measure(name, collective, exact=given.exact))
            if not given.json:
                print(line(entries[-1]), flush=True)
    if given.json:
        print(json.dumps([asdict(entry) for entry in entries], indent=2))
    sys.exit(0 if all(entry.bandwidth_ratio is not None for entry in entries) else 1)


if __name__ == "__main__":
    main()
