"""Tuner CSV: which of NCCL's own algorithms, protocols and channel counts stock NCCL is to use at which size.

Read by NCCL's example tuner plugin (`NCCL_TUNER_PLUGIN`, `NCCL_TUNER_CONFIG_FILE`) and by RCCL's built-in one.
A line: collective, smallest and largest payload bytes (inclusive), algorithm, protocol, channels, nodes, ranks,
pipe ops, registered buffers; -1 is any.  The first line that matches wins.  The plugin takes an unknown word for
a default (a header line for an AllReduce), so that only comments (`#`) accompany the lines.
"""

from __future__ import annotations

from ..errors import RefusedError
from ..program import Program, Protocol
from ..schedule import Schedule
from ..topology import Topology
from .nccl_graph import Rendered
from .paths import find

#: NCCL's algorithms for each collective that a tuner is asked about, of those that are found in programs.
_ALGORITHMS = {
    "allreduce": ("ring", "tree"), "allgather": ("ring",), "reducescatter": ("ring",), "broadcast": ("ring",),
    "reduce": ("ring",),
}  # fmt: skip
#: NCCL's numbers are 64-bit; 2^62 stands for no limit.
_NO_LIMIT = 1 << 62
_PROTOCOLS = {Protocol.SIMPLE: "simple", Protocol.LL: "ll", Protocol.LL128: "ll128"}


def render(value: Schedule | Program, topology: Topology | None = None) -> Rendered:
    """The lines that make stock NCCL do the nearest thing to a schedule or program.

    Args:
        value: a ring, or a chain (NCCL's tree).
        topology: the machine, for the number of nodes; a schedule's own by default, None: any number.

    Raises:
        RefusedError: NCCL has no algorithm that does this, or asks no tuner about the collective.
    """
    machine = value.topology if isinstance(value, Schedule) and topology is None else topology
    name = value.collective.name if isinstance(value, Schedule) else value.collective
    if name not in _ALGORITHMS:
        raise RefusedError(f"NCCL asks its tuner about {', '.join(_ALGORITHMS)}, not about {name or 'this collective'}")
    found = find(value)
    algorithm = "ring" if found.kind == "ring" or name in ("broadcast", "reduce") else "tree"
    if algorithm not in _ALGORITHMS[name]:
        raise RefusedError(f"NCCL does {name} by {' or '.join(_ALGORITHMS[name])}, not by {algorithm}")
    nranks = len(found.orders[0])
    losses = ("the schedule itself: NCCL runs its own algorithm, over its own order of ranks; a tuner only chooses",)
    assumed = ["pipe ops and registered buffers: any (-1)"]
    if isinstance(value, Program):
        protocol, channels = _PROTOCOLS[value.protocol], len(found.orders)
        low, high = value.min_bytes or 0, value.max_bytes or _NO_LIMIT
    else:
        protocol, channels, low, high = "simple", len(found.orders), 0, _NO_LIMIT
        assumed.append("protocol simple and all sizes: a schedule does not say")
    nodes = -1 if machine is None else machine.nnodes
    if machine is None:
        assumed.append("any number of nodes: no machine was given")
    fields = (name, low, high, algorithm, protocol, max(channels, 1), nodes, nranks, -1, -1)
    text = (
        "# collective,min_bytes,max_bytes,algorithm,protocol,channels,nodes,ranks,pipe_ops,registered\n"
        + ",".join(map(str, fields))
        + "\n"
    )
    return Rendered(text, losses, tuple(assumed))
