"""`collsynth launch`: start a command on N processes with what the MPI launcher needs."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from ..errors import InputError

#: What Open MPI needs here and why.  Other launchers ignore these names.
_SETTINGS: tuple[tuple[str, str], ...] = (
    # Containers and CI run as root, which Open MPI refuses unless both are set.
    ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    # More processes than cores: the first name is read by version 5, the second by version 4.
    ("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"),
    ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
    # Waiting ranks give the core away; without it an oversubscribed machine is a thousand times slower.
    ("OMPI_MCA_mpi_yield_when_idle", "1"),
    # Each shared window of this component prints an error line that means nothing.
    ("OMPI_MCA_osc", "^ucx"),
)


#: More is a slip of the keyboard; the launcher's own counters end before.
_MOST_PROCESSES = 1 << 20


def find_mpiexec() -> str:
    """Path of the MPI launcher: the one beside the running Python (a wheel's), else the one on PATH.

    Raises:
        InputError: there is none.
    """
    beside = Path(sys.executable).parent / "mpiexec"
    if beside.is_file() and os.access(beside, os.X_OK):
        return str(beside)
    found = shutil.which("mpiexec") or shutil.which("mpirun")
    if found is None:
        raise InputError(
            "no mpiexec beside this Python nor on PATH", hint="pip install 'collsynth[mpi]', which brings Open MPI"
        )
    return found


def launch_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with the settings added that the user has not made."""
    return {**dict(_SETTINGS), **environment}


def resolve_command(command: Sequence[str]) -> tuple[list[str], str | None]:
    """The command with `python` and `collsynth` meaning those of the running interpreter, and a note if that matters.

    Raises:
        InputError: there is no such command.
    """
    name = command[0]
    if name in ("python", "python3"):
        found = shutil.which(name)
        # A virtual environment's python is a link to the system's: the folder tells them apart.
        if found is not None and Path(found).parent == Path(sys.executable).parent:
            return list(command), None
        return [sys.executable, *command[1:]], f"{name} means {sys.executable} here"
    if name == "collsynth":
        return [sys.executable, "-m", "collsynth", *command[1:]], None
    if shutil.which(name) is None:
        raise InputError(
            f"command {name!r} is not found",
            where="collsynth launch",
            expected="a command on PATH, or python, collsynth",
        )
    return list(command), None


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-n", "nprocs", type=int, required=True, metavar="N", help="Number of processes.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="CMD...")
def launch(nprocs: int, command: tuple[str, ...]) -> None:
    """Start CMD on N processes under mpiexec; its exit code is passed on.

    Sets what Open MPI needs to run as root, with more processes than cores, and to give idle cores
    away; settings that you have made yourself win.  In CMD, python and collsynth mean those of the
    environment that this command runs in.

    \b
    collsynth launch -n 8 collsynth run ar.xml --backend mpi
    collsynth launch -n 8 python -m collsynth.bench allreduce --algo ar.xml
    """
    if not 1 <= nprocs <= _MOST_PROCESSES:
        raise InputError(f"{nprocs} processes", where="-n", expected=f"1 to {_MOST_PROCESSES}")
    if not command:
        raise InputError("no command to start", where="collsynth launch", expected="collsynth launch -n N CMD...")
    mpiexec = find_mpiexec()
    resolved, note = resolve_command(command)
    if note:
        click.echo(f"collsynth launch: {note}", err=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(mpiexec, [mpiexec, "-n", str(nprocs), *resolved], launch_environment(os.environ))
