"""What the MPI tests start on every rank: run one program at several counts and check the data.

    worker.py PROGRAM [--counts 1,5] [--dtype float32] [--op sum] [--backend mpi] [--hosts K]
              [--timeout S] [--trouble none|die|raise|late|other-program|other-count] [--no-collectives]

Rank 0 prints one JSON line: per run and mode the number of wrong elements, and what each rank sent.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from typing import Any

import numpy as np
import programs
from collsynth.backends.control import Control

from collsynth.errors import CollsynthError
from collsynth.program import Program

REDUCTIONS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}

#: The collective methods of mpi4py's communicators, capital and small letters.
_COLLECTIVE_WORDS = (
    "barrier", "bcast", "gather", "gatherv", "scatter", "scatterv", "allgather", "allgatherv", "alltoall",
    "alltoallv", "alltoallw", "reduce", "allreduce", "reduce_scatter", "reduce_scatter_block", "scan", "exscan",
    "dup", "dup_with_info", "idup", "split", "split_type", "create", "create_group", "clone",
)  # fmt: skip


def forbid_collectives() -> Any:
    """COMM_WORLD whose every collective method raises; also put in the place of MPI.COMM_WORLD."""
    from mpi4py import MPI

    def refuse(name: str) -> Any:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            raise AssertionError(f"collective call {name}")

        return method

    names = [
        name for name in dir(MPI.Intracomm)
        if not name.startswith("_")
        and (name.lower() in _COLLECTIVE_WORDS or name.lower().removeprefix("i") in _COLLECTIVE_WORDS
             or (name.lower().endswith("_init") and name.lower().removesuffix("_init") in _COLLECTIVE_WORDS)
             or "neighbor" in name.lower())
    ]  # fmt: skip
    assert {"Barrier", "Allreduce", "allgather", "Ibcast", "Split_type"} <= set(names)
    guarded = type("Guarded", (MPI.Intracomm,), {name: refuse(name) for name in names})(MPI.COMM_WORLD)
    MPI.COMM_WORLD = guarded
    return guarded


def make(name: str, nranks: int) -> Program:
    """The program of that name: `ring`, `ring:CHANNELS`, `allgather`, `scratch`, `deadlocked`."""
    kind, _, argument = name.partition(":")
    if kind == "ring":
        return programs.ring_allreduce(nranks, channels=int(argument or 1))
    return {
        "allgather": lambda: programs.direct_allgather(nranks),
        "scratch": programs.scratch_allreduce,
        "deadlocked": programs.deadlocked,
    }[kind]()


def data(rank: int, count: int, dtype: str) -> np.ndarray:
    """Small whole numbers, other ones on every rank: sums and products are exact."""
    return ((np.arange(count) * 7 + rank * 3) % 5 + (rank % 2)).astype(dtype)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--counts", default="1")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--op", default="sum")
    parser.add_argument("--backend", default="mpi")
    parser.add_argument("--hosts", type=int)
    parser.add_argument("--timeout", type=float, default=30)
    parser.add_argument("--trouble", default="none")
    parser.add_argument("--no-collectives", action="store_true")
    args = parser.parse_args()

    guarded = forbid_collectives() if args.no_collectives else None
    control = Control(guarded, timeout=args.timeout)
    n, rank = control.size, control.rank
    last = rank == n - 1
    program = make("ring:3" if args.trouble == "other-program" and last else args.program, n)
    backend = importlib.import_module(f"collsynth.backends.{args.backend}_backend")
    if args.backend == "mpi":
        xp, host = np, np.asarray
    else:
        xp = importlib.import_module("cupy")
        host = xp.asnumpy

    results = []
    try:
        with backend.load(program, control, assume_hosts=args.hosts) as run:
            hosts = run.hosts
            if args.trouble == "die" and last:
                os.kill(os.getpid(), 9)
            if args.trouble == "raise" and last:
                raise RuntimeError("a bug on the last rank")
            if args.trouble == "late" and last:
                time.sleep(3600)
            for count in (int(text) for text in args.counts.split(",")):
                if args.trouble == "other-count" and last:
                    count += 1
                gathers = program.collective == "allgather"
                terms = [data(peer, count, args.dtype) for peer in range(n)]
                expected = np.concatenate(terms) if gathers else REDUCTIONS[args.op].reduce(np.stack(terms))
                for in_place in (False, True):
                    recv = xp.full(len(expected), 99, dtype=args.dtype)
                    if in_place:
                        send = recv[rank * count : (rank + 1) * count] if gathers else recv
                        send[...] = xp.asarray(terms[rank])
                    else:
                        send = xp.asarray(terms[rank])
                    if in_place and not program.in_place:
                        continue
                    run(send, recv, args.op)
                    wrong = int((host(recv) != expected).sum())
                    if not in_place:
                        wrong += int((host(send) != terms[rank]).sum())
                    gathered = control.exchange((wrong, run.bytes_sent, run.messages_sent))
                    results.append(
                        {
                            "count": count, "in_place": in_place, "wrong": sum(row[0] for row in gathered),
                            "bytes": [row[1] for row in gathered], "messages": [row[2] for row in gathered],
                        }
                    )  # fmt: skip
    except CollsynthError as error:
        control.fail(str(error))
        print(f"[{rank}] {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        # Everybody prints before the launcher sees the first exit and ends the others.
        time.sleep(0.3)
        os._exit(7)
    if rank == 0:
        print(json.dumps({"hosts": hosts, "runs": results}), flush=True)
    control.barrier()


if __name__ == "__main__":
    main()
