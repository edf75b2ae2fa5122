"""Run many MSCCL XML files in one job, one process a rank: `corpus_worker.py LIST`.

LIST is a file of paths, one a line.  Rank 0 prints one JSON object: path -> list of
[count, in place, dtype, op, wrong elements].
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from collsynth.backends import mpi_backend
from collsynth.backends.checked_run import run_on_ranks
from collsynth.backends.control import Control
from collsynth.backends.layout import Layout

from collsynth.formats import read
from collsynth.program import Program


def main() -> None:
    control = Control(timeout=60)
    results: dict[str, list[Any]] = {}
    for path in Path(sys.argv[1]).read_text().split():
        program = read(path)
        assert isinstance(program, Program)
        units = Layout.of(program, 1).shard_units
        rows = results[path] = []
        with mpi_backend.load(program, control) as executable:
            for in_place in (False, True):
                if not (program.in_place if in_place else program.out_of_place):
                    continue
                for count, dtype, op in ((1, "float32", "sum"), (units + 1, "int32", "max"), (4099, "float32", "sum")):
                    result = run_on_ranks(
                        program, executable, count, in_place, dtype=np.dtype(dtype), op=op, iters=1, seed=1
                    )
                    rows.append([count, in_place, dtype, op, result.wrong])
    if control.rank == 0:
        print(json.dumps(results))
    control.barrier()


if __name__ == "__main__":
    main()
