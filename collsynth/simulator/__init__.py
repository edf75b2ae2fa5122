"""Predicted time of schedules and programs: a simple, exact simulation.

`schedule_sim` runs a Schedule over its own routes, `program_sim` a Program over the routes that its
peers have on a topology; both count in exact integers (`clock`).
"""

from __future__ import annotations

from ..errors import InputError
from ..program import Program
from ..schedule import Schedule
from ..topology import Topology
from .program_sim import simulate_program
from .result import Hop, SimResult
from .schedule_sim import height, makespan, rate, rounds, simulate_schedule, steps

__all__ = ["Hop", "SimResult", "height", "makespan", "rate", "rounds", "simulate", "steps"]


def simulate(
    what: Schedule | Program, topology: Topology | None = None, *, size: int, latency: bool = True
) -> SimResult:
    """Predicted time of `size` payload bytes.

    Args:
        what: a schedule (which has its topology) or a program.
        topology: the machine; needed for a program, refused for a schedule unless it is the same one.
        size: payload bytes as nccl-tests counts them.
        latency: False sets latency and overhead to 0.

    Raises:
        InputError: no topology for a program, or another one than the schedule's.
        RefusedError: the program deadlocks.
    """
    if isinstance(what, Schedule):
        if topology is not None and topology.content_hash() != what.topology.content_hash():
            raise InputError(
                f"the schedule was made for {what.topology.name}, not for {topology.name}",
                hint="the topology it was made for, or its program (.xml, .prog)",
            )
        return simulate_schedule(what, size, latency=latency)
    if topology is None:
        raise InputError("a program has no topology of its own", hint="-t TOPOLOGY")
    return simulate_program(what, topology, size, latency=latency)
