"""`collsynth doctor`: what is installed and usable here, and how to get what is not."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

import click

from .. import __version__
from .common import json_option, print_json

#: Seconds that a probe in a process of its own may take.
_PROBE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Attributes:
        name: what was looked for.
        status: `ok`, `missing` (not installed) or `broken` (installed, does not work here).
        version: its version, or "".
        detail: where it is, or what is wrong with it.
        needed_for: what one cannot do without it.
        hint: how to get or mend it, "" when it works.
    """

    name: str
    status: str
    version: str
    detail: str
    needed_for: str
    hint: str


@dataclass(frozen=True, slots=True)
class _Package:
    """A Python package to look for: distribution names, module, extra of collsynth, and its use."""

    name: str
    distributions: tuple[str, ...]
    module: str
    extra: str
    use: str


_PACKAGES = (
    _Package("numpy", ("numpy",), "numpy", "", "everything"),
    _Package("scipy", ("scipy",), "scipy", "synth", "bounds and synthesis (linear programs)"),
    _Package("highspy", ("highspy",), "highspy", "synth", "synthesis (linear programs)"),
    _Package("ortools", ("ortools",), "ortools", "synth", "synthesis (scheduling)"),
    _Package("numba", ("numba",), "numba", "synth", "synthesis of large machines (speed)"),
    _Package("z3", ("z3-solver",), "z3", "synth", "exact synthesis"),
    _Package("protobuf", ("protobuf",), "google.protobuf", "chakra", "Chakra execution traces"),
)

# Each of these runs in a process of its own, since a broken MPI or CUDA library can end the process.
_MPI_PROBE = """
import json, mpi4py
from mpi4py import MPI
library = MPI.Get_library_version().replace("\\0", " ").split("\\n")[0].split(",")[0].strip()
print(json.dumps({"mpi4py": mpi4py.__version__, "library": library, "standard": "%d.%d" % MPI.Get_version()}))
"""
_CUPY_PROBE = """
import json, cupy
answer = {"version": cupy.__version__, "devices": []}
try:
    for i in range(cupy.cuda.runtime.getDeviceCount()):
        answer["devices"].append(cupy.cuda.runtime.getDeviceProperties(i)["name"].decode())
    if answer["devices"] and int(cupy.arange(10).sum()) != 45:
        answer["error"] = "a kernel gave a wrong sum"
except Exception as error:
    answer["error"] = str(error).split("\\n")[0]
print(json.dumps(answer))
"""
_NCCL_PROBE = """
import json
from collsynth.backends._pynccl import Nccl, version_text
library = Nccl()
library.unique_id()
print(json.dumps({"version": version_text(library.version), "path": library.path}))
"""


def _probe(code: str) -> tuple[dict[str, object] | None, str]:
    """Run `code` in a fresh interpreter: the JSON object it printed last, or None and what went wrong."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False,
            # A probe must not think that it is a rank of the job that doctor may run under.
            env={k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMIX_", "PMI_", "PRTE_"))},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None, f"no answer within {_PROBE_SECONDS:g} s"
    except OSError as error:
        return None, str(error)
    for line in reversed(done.stdout.splitlines()):
        try:
            answer = json.loads(line)
        except ValueError:
            continue
        if isinstance(answer, dict):
            return answer, ""
    if done.returncode < 0:
        return None, f"the import ended the process (signal {-done.returncode})"
    return None, (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:300]


def _installed(module: str) -> bool:
    """Whether `module` can be found, without importing it (its parent package is imported)."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError, AttributeError):
        return False


def _version(distributions: tuple[str, ...]) -> str:
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def _pip(extra: str) -> str:
    return f"pip install 'collsynth[{extra}]'" if extra else "pip install --force-reinstall collsynth"


def _package(package: _Package) -> Finding:
    version = _version(package.distributions)
    if not version or not _installed(package.module.split(".")[0]):
        hint = _pip(package.extra)
        return Finding(package.name, "missing", version, "", package.use, hint)
    answer, error = _probe(f"import {package.module}; print('{{}}')")
    if answer is None:
        return Finding(package.name, "broken", version, error, package.use, _pip(package.extra))
    return Finding(package.name, "ok", version, "", package.use, "")


def _mpi() -> list[Finding]:
    use = "running on several processes"
    if not _installed("mpi4py"):
        return [Finding("mpi4py", "missing", "", "", use, _pip("mpi"))]
    answer, error = _probe(_MPI_PROBE)
    version = _version(("mpi4py",))
    if answer is None:
        hint = f"{_pip('mpi')} (brings Open MPI; do not install another MPI wheel beside it)"
        return [Finding("mpi4py", "broken", version, error, use, hint)]
    library = str(answer["library"])
    return [
        Finding("mpi4py", "ok", str(answer["mpi4py"]), "", use, ""),
        Finding("MPI library", "ok", f"MPI {answer['standard']}", library, use, ""),
    ]


def _launcher() -> Finding:
    use = "collsynth launch"
    beside = shutil.which("mpirun", path=str(os.path.dirname(sys.executable)))
    found = beside or shutil.which("mpirun") or shutil.which("mpiexec")
    if found is None:
        return Finding("mpirun", "missing", "", "", use, _pip("mpi"))
    try:
        done = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("mpirun", "broken", "", f"{found}: {error}", use, _pip("mpi"))
    if done.returncode:
        text = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:300]
        return Finding("mpirun", "broken", "", f"{found}: {text}", use, _pip("mpi"))
    return Finding("mpirun", "ok", (done.stdout.splitlines() or [""])[0].strip(), found, use, "")


def _nvidia_driver() -> Finding:
    use = "GPUs"
    tool = shutil.which("nvidia-smi")
    if tool is None:
        hint = "install NVIDIA's driver (nothing here needs a GPU but the cupy and nccl backends)"
        return Finding("GPU", "missing", "", "no nvidia-smi", use, hint)
    try:
        done = subprocess.run(
            [tool, "--query-gpu=name,driver_version", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("GPU", "broken", "", str(error), use, "nvidia-smi must answer")
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    if done.returncode or not lines:
        return Finding("GPU", "broken", "", (lines or ["no device"])[0], use, "nvidia-smi must list a device")
    names = [line.rsplit(",", 1)[0] for line in lines]
    driver = lines[0].rsplit(",", 1)[-1].strip()
    return Finding("GPU", "ok", f"driver {driver}", f"{len(names)} x {names[0]}", use, "")


def _cupy() -> Finding:
    use = "--backend cupy and nccl"
    if not _installed("cupy"):
        hint = f"{_pip('cuda12')} or {_pip('cuda13')}, by the driver's CUDA version"
        return Finding("cupy", "missing", "", "", use, hint)
    answer, error = _probe(_CUPY_PROBE)
    if answer is None:
        return Finding("cupy", "broken", _version(("cupy-cuda12x", "cupy-cuda13x", "cupy")), error, use, _pip("cuda12"))
    devices = answer["devices"]
    assert isinstance(devices, list)
    if answer.get("error") or not devices:
        text = str(answer.get("error") or "no device")
        return Finding("cupy", "broken", str(answer["version"]), text, use, "a driver and a device that CuPy can use")
    return Finding("cupy", "ok", str(answer["version"]), f"{len(devices)} x {devices[0]}", use, "")


def _nccl() -> Finding:
    use = "--backend nccl"
    hint = "pip install nvidia-nccl-cu12 (or -cu13), or set COLLSYNTH_NCCL_LIBRARY to a libnccl.so"
    answer, error = _probe(_NCCL_PROBE)
    if answer is None:
        absent = "no NCCL library" in error
        text = "no libnccl.so.2 found" if absent else error
        return Finding("NCCL", "missing" if absent else "broken", "", text, use, hint)
    return Finding("NCCL", "ok", str(answer["version"]), str(answer["path"]), use, "")


def findings() -> list[Finding]:
    """Everything that is looked for, in the order of the report."""
    here = Finding("python", "ok", platform.python_version(), sys.executable, "everything", "")
    own = Finding("collsynth", "ok", __version__, "", "everything", "")
    # The probes wait for processes of their own, so threads make them run side by side.
    with ThreadPoolExecutor(max_workers=4) as pool:
        packages = [pool.submit(_package, package) for package in _PACKAGES]
        mpi, others = pool.submit(_mpi), [pool.submit(p) for p in (_launcher, _nvidia_driver, _cupy, _nccl)]
        return [own, here, *(f.result() for f in packages), *mpi.result(), *(f.result() for f in others)]


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """What is installed and usable here, and how to get what is not.

    Always exits with 0: what is missing may not be needed.
    """
    report = findings()
    if as_json:
        print_json(
            {
                "python": sys.executable,
                "platform": platform.platform(),
                "cores": os.cpu_count(),
                "findings": [asdict(f) for f in report],
            }
        )
        return
    click.echo(f"{platform.platform()}, {os.cpu_count()} cores")
    width = max(len(f.name) for f in report)
    for f in report:
        text = "  ".join(part for part in (f.version, f.detail) if part) or "not installed"
        click.echo(f"{f.status:8s}{f.name:{width}s}  {text}")
        if f.status != "ok":
            click.echo(f"{'':8s}{'':{width}s}  needed for {f.needed_for}; get it by: {f.hint}")
