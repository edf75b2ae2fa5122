"""collsynth: collective schedules for the machine you have, proven and runnable.

`topology -> schedule -> program -> verify / simulate / write / run`.  The names below load their
module on first use, so that `import collsynth` stays light (no solver, no numba, no MPI).
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

# In a checkout the open folders (topologies, algorithms, backends, bench) lie beside this package; an
# installation maps them into it.  So `python -m collsynth...` works from a checkout's root too.
_ROOT = Path(__file__).resolve().parent.parent
if (_ROOT / "pyproject.toml").is_file() and (_ROOT / "topologies" / "__init__.py").is_file():
    __path__.append(str(_ROOT))

__version__ = "0.1.0"

_LAZY = {
    "Topology": "collsynth.topology",
    "Collective": "collsynth.collective",
    "allgather": "collsynth.collective",
    "reduce_scatter": "collsynth.collective",
    "allreduce": "collsynth.collective",
    "alltoall": "collsynth.collective",
    "broadcast": "collsynth.collective",
    "reduce": "collsynth.collective",
    "gather": "collsynth.collective",
    "scatter": "collsynth.collective",
    "custom": "collsynth.collective",
    "Schedule": "collsynth.schedule",
    "Program": "collsynth.program",
    "TARGETS": "collsynth.program",
    "load_topology": "collsynth.formats",
    "read": "collsynth.formats",
    "write": "collsynth.formats",
    "bound": "collsynth.bounds",
    "synthesize": "collsynth.synth",
    "SynthSpec": "collsynth.synth.spec",
    "SynthResult": "collsynth.synth.spec",
    "lower": "collsynth.lowering",
    "record": "collsynth.frontend",
    "verify": "collsynth.verifier",
    "simulate": "collsynth.simulator",
}

__all__ = ["__version__", *_LAZY]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'collsynth' has no attribute {name!r}")
    value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


if TYPE_CHECKING:
    from .bounds import bound
    from .collective import (
        Collective,
        allgather,
        allreduce,
        alltoall,
        broadcast,
        custom,
        gather,
        reduce,
        reduce_scatter,
        scatter,
    )
    from .formats import load_topology, read, write
    from .frontend import record
    from .lowering import lower
    from .program import TARGETS, Program
    from .schedule import Schedule
    from .simulator import simulate
    from .synth import synthesize
    from .synth.spec import SynthResult, SynthSpec
    from .topology import Topology
    from .verifier import verify
