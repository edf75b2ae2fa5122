"""Everything that ASTRA-sim needs to run a program as a custom collective, in one directory.

    README.txt  command line and what to expect
    system.json  the custom key and `preferred-dataset-splits: 1`
    network.yml  the machine, if it can be expressed (`astra_network`)
    memory.json  no memory expansion
    workload.<npu>.et  one COMM_COLL node a NPU: the call
    <collective>.<position>.et  the algorithm (`chakra`)
    groups.json  only with groups: which NPUs make up which communicator

Paths in these files are relative to the directory, which must be the simulator's working directory.  In groups
the algorithm's ranks are positions within the group, so that one set of traces serves all of them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import InputError, RefusedError
from ..program import Program
from ..topology import Topology
from . import astra_network, chakra
from .chakra_trace import faults
from .chakra_wire import Node, NodeType, encode
from .files import check_writable, write_bytes_atomically

#: Numbers of CollectiveCommType in the schema.
_COMM_TYPES = {"allreduce": 0, "allgather": 2, "alltoall": 6, "reducescatter": 7}
_BINARY = "AstraSim_Analytical_Congestion_Aware"


def files(
    program: Program, topology: Topology | None, *, size: int, memory_bandwidth: int | None = None,
    groups: Sequence[Sequence[int]] = (),
) -> dict[str, bytes]:  # fmt: skip
    """Name -> content of every file.

    Args:
        program: of a collective that ASTRA-sim takes a custom algorithm for.
        topology: the machine, or None: then network.yml is left for the user to supply.
        size: payload bytes as nccl-tests counts them.
        memory_bandwidth: see `chakra.traces`.
        groups: NPUs of each communicator, as many as the program has ranks; empty: all NPUs are one.

    Raises:
        InputError: ASTRA-sim takes no custom algorithm for this collective, or the groups do not fit.
        RefusedError: the program has no trace, or the machine no network file.
    """
    nnpus = _check_groups(program, topology, groups)
    prefix = program.collective
    result = {"system.json": chakra.system_file(program.collective, prefix).encode()}
    if topology is not None:
        result["network.yml"] = astra_network.render(topology).encode()
    result["memory.json"] = b'{"memory-type": "NO_MEMORY_EXPANSION"}\n'
    if groups:
        names = {str(number): list(group) for number, group in enumerate(groups)}
        result["groups.json"] = (json.dumps(names) + "\n").encode()
    group_of = {npu: str(number) for number, group in enumerate(groups) for npu in group}
    for npu in range(nnpus):
        node = _call(program, size, group_of.get(npu)) if not groups or npu in group_of else _idle()
        result[f"workload.{npu}.et"] = encode([node], chakra.VERSION, {})
    ranks = chakra.traces(program, size=size, memory_bandwidth=memory_bandwidth)
    wrong = [fault for fault in faults(ranks) if fault.is_error]
    if wrong:
        raise RefusedError(f"rank {wrong[0].rank}, node {wrong[0].node}: {wrong[0].message} [{wrong[0].code}]")
    for position, (nodes, attributes) in enumerate(zip(ranks, chakra.metadata(program, size), strict=True)):
        result[f"{prefix}.{position}.et"] = encode(nodes, chakra.VERSION, attributes)
    result["README.txt"] = _readme(program, topology, size, nnpus, bool(groups)).encode()
    return result


def _check_groups(program: Program, topology: Topology | None, groups: Sequence[Sequence[int]]) -> int:
    """Number of NPUs of the whole simulation."""
    nnpus = program.nranks if topology is None else topology.nranks
    where = "--group"
    if not groups:
        if nnpus != program.nranks:
            raise InputError(
                f"the program has {program.nranks} ranks, the machine {nnpus}", where="-t",
                expected="equal numbers, or --group for a communicator of some of them",
            )  # fmt: skip
        return nnpus
    members = [npu for group in groups for npu in group]
    if topology is None:
        nnpus = max(members) + 1
    for group in groups:
        if len(group) != program.nranks:
            raise InputError(f"a group has {len(group)} members", where=where, expected=f"{program.nranks}")
    if len(set(members)) != len(members) or min(members) < 0 or max(members) >= nnpus:
        raise InputError("a member comes twice or is out of range", where=where, expected=f"ranks 0..{nnpus - 1}")
    return nnpus


def _call(program: Program, size: int, group: str | None) -> Node:
    """The workload of one NPU: one collective.  ASTRA-sim takes its size from the traces, not from here."""
    shard = program.nranks if program.collective == "allgather" else 1
    attributes: dict[str, Any] = {
        "is_cpu_op": False, "comm_type": _COMM_TYPES[program.collective], "comm_size": max(size // shard, 1),
    }  # fmt: skip
    if group is not None:
        attributes["pg_name"] = group
    return Node(0, program.collective, NodeType.COMM_COLL, attributes=attributes)


def _idle() -> Node:
    return Node(0, "idle", NodeType.COMP, attributes={"is_cpu_op": False, "num_ops": 0, "tensor_size": 0})


def _readme(program: Program, topology: Topology | None, size: int, nnpus: int, grouped: bool) -> str:
    lines = [
        f"{program.collective} of {size} bytes on {program.nranks} ranks for ASTRA-sim, as custom collective.",
        "",
        "Run in this directory:",
        "",
        f"  {_BINARY} --workload-configuration=workload --system-configuration=system.json"
        " --network-configuration=network.yml --remote-memory-configuration=memory.json"
        f" --comm-group-configuration={'groups.json' if grouped else 'empty'}",
        "",
        f"It is right when {nnpus} lines say finished; exit status 0 alone says nothing, since hangs end with it too.",
    ]
    if topology is None:
        lines += ["network.yml is not here: no machine was given."]
    elif len(astra_network.dimensions(topology)) > 1:
        lines += [
            "The released congestion-aware backend takes one dimension only; this network has several and needs",
            "upstream's multi-dimensional branch.  The congestion-unaware one charges no sharing of links at all.",
        ]
    return "\n".join(lines) + "\n"


def write(contents: dict[str, bytes], directory: str | Path, *, force: bool = False) -> list[Path]:
    """Write `files` into a directory, which is made when its parent exists; returns the paths.

    Raises:
        InputError: it cannot be made, or a file exists and `force` is not given; then nothing is written.
    """
    folder = Path(directory)
    if not folder.is_dir():
        try:
            folder.mkdir()
        except OSError as error:
            raise InputError(
                f"cannot be made: {error.strerror or error}", where=str(folder), expected="a directory"
            ) from error
    paths = [check_writable(folder / name, force=force) for name in contents]
    for path, data in zip(paths, contents.values(), strict=True):
        write_bytes_atomically(path, data, force=force)
    return paths
