"""The benchmark from command line to exit code; every rank runs it, rank 0 prints."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from collsynth.backends.control import Control
from collsynth.backends.cupy_backend import local_rank
from collsynth.backends.data import dtype_of
from collsynth.backends.executor import Arrays

from collsynth import __version__, registry
from collsynth.errors import CollsynthError, InputError, RefusedError, RunError
from collsynth.formats.files import write_text_atomically
from collsynth.program import Program
from collsynth.units import format_size

from . import table
from .measure import Case, Contender, ProgramContender, Stopwatch
from .native import MpiNative, NcclNative
from .options import AVERAGES, Options, parse
from .table import Row, Totals

#: Exit code when a time limit passed.
TIMEOUT_CODE = 3

#: Where launchers put the rank, for messages before MPI is started.
_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")

_POSTFIX = "these are times of a Python executor, not of NCCL's or MSCCL's kernels"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and exit."""
    given = sys.argv[1:] if arguments is None else arguments
    # Before MPI is started the launcher's variable is all that tells rank 0 from the others.
    first = next((os.environ[name] for name in _RANK_VARIABLES if os.environ.get(name, "").isdigit()), "0") == "0"
    if not first and {"-h", "--help"} & set(given):
        sys.exit(0)
    try:
        options = parse(given)
        module = registry.load("backends", options.backend)
        assert isinstance(module, ModuleType)
        reason = module.unavailable()
        if reason is not None:
            raise InputError(reason, where=f"--backend {options.backend}")
        control = Control(timeout=options.timeout)
    except CollsynthError as error:
        if first:
            print(f"collsynth.bench: {error}", file=sys.stderr, flush=True)
        # The launcher ends all ranks when one ends badly: nobody may end before the message is out.
        with contextlib.suppress(CollsynthError):
            Control(timeout=30).barrier()
        sys.exit(error.exit_code)
    sys.exit(_on_rank(options, module, control))


def _on_rank(options: Options, module: ModuleType, control: Control) -> int:
    """The exit code, the same on all ranks; a rank that cannot go on ends the job."""
    try:
        return _Bench(options, module, control).run()
    except RunError as error:
        # Not the same on all ranks: each says what it knows, and nobody waits for those that are stuck.
        print(f"collsynth.bench: {error}", file=sys.stderr, flush=True)
        control.fail(str(error))
        time.sleep(0.5)
        if control.size > 1:
            control.comm.Abort(TIMEOUT_CODE)
        return TIMEOUT_CODE
    except CollsynthError as error:
        # The same on all ranks (they agree before they raise): one message.
        if control.rank == 0:
            print(f"collsynth.bench: {error}", file=sys.stderr, flush=True)
        if control.size > 1:
            control.barrier()
        return error.exit_code
    except BaseException as error:
        control.fail(str(error) or type(error).__name__)
        raise


class _Watchdog:
    """Ends the process when nothing has moved for a time, wherever it is stuck (a native call, say)."""

    def __init__(self, seconds: float, rank: int) -> None:
        # Later than the executors' own time-outs, whose messages say more.
        self._seconds, self._rank = seconds + 10, rank
        self._beat_at = time.monotonic()
        self._what = "start"
        threading.Thread(target=self._watch, daemon=True).start()

    def beat(self, what: str | None = None) -> None:
        """Something moved."""
        self._beat_at = time.monotonic()
        if what is not None:
            self._what = what

    def _watch(self) -> None:
        while True:
            time.sleep(min(1.0, self._seconds / 4))
            if time.monotonic() - self._beat_at > self._seconds:
                text = f"rank {self._rank} has not moved for {self._seconds:g} s in {self._what}"
                print(f"collsynth.bench: {text}", file=sys.stderr, flush=True)
                os._exit(TIMEOUT_CODE)


class _Bench:
    """One benchmark on one rank."""

    def __init__(self, options: Options, module: ModuleType, control: Control) -> None:
        self.options, self.module, self.control = options, module, control
        self.watchdog = _Watchdog(options.timeout, control.rank)
        self.rows: list[Row] = []
        self.totals = Totals()

    def run(self) -> int:
        """Everything; the exit code.

        Raises:
            InputError, RefusedError: on all ranks alike.
            RunError: the run could not go on.
        """
        options, control = self.options, self.control
        self.dtypes = control.together(lambda: {name: dtype_of(name) for name in options.datatypes})
        self.minimum = control.together(_minimum_busbw)
        programs = control.together(self._read)
        self.seconds_of_bound = control.together(self._bound if control.rank == 0 else lambda: None)
        if options.roots is not None and options.roots[0] >= control.size:
            raise InputError(f"root {options.roots[0]} is out of range", where="-r", expected=f"0..{control.size - 1}")
        control.together(self._check_output if control.rank == 0 else lambda: None)
        with self._loaded(programs) as contenders:
            self._header(programs)
            self.watch = Stopwatch(control, options, self.arrays, self.watchdog.beat)
            cycle = 0
            while options.cycles == 0 or cycle < options.cycles:
                self._table(contenders)
                cycle += 1
        right, fast = table.verdict(self.totals, self.minimum)
        self._print(table.footer(self.totals, self.minimum))
        control.together(self._write if control.rank == 0 else lambda: None)
        control.barrier()
        # Rank 0 has the totals, so its word counts.
        return int(control.broadcast(int(not right or fast is False)))

    def _print(self, text: str) -> None:
        if self.control.rank == 0:
            print(text, flush=True)

    def _check_output(self) -> None:
        """Refuse to overwrite early, not after the run."""
        path = self.options.output_file
        if path is not None and not self.options.force and Path(path).exists():
            raise InputError("the file exists", where=path, hint="--force to overwrite it")

    def _read(self) -> list[Program]:
        """The programs of `--algo`, proven right.

        Raises:
            InputError: a file is no program, or not one of this collective and number of ranks.
            RefusedError: it is wrong.
        """
        from collsynth.formats import read
        from collsynth.schedule import Schedule

        programs = []
        for path in self.options.algorithms:
            value = read(path)
            if isinstance(value, Schedule):
                from collsynth.lowering import lower

                value = lower(value)
            if not isinstance(value, Program):
                raise InputError("this is a machine, not a program", where=path)
            if value.collective != self.options.collective:
                raise InputError(
                    f"the program does {value.collective or 'an unknown collective'}", where=path,
                    expected=self.options.collective,
                )  # fmt: skip
            if value.nranks != self.control.size:
                raise InputError(
                    f"the program has {value.nranks} ranks, and there are {self.control.size} processes", where=path,
                    hint=f"collsynth launch -n {value.nranks} python -m collsynth.bench ...",
                )  # fmt: skip
            if self.options.verify and self.control.rank == 0:
                from collsynth.verifier import verify

                report = verify(value)
                if not report.ok:
                    first = next((str(finding) for finding in report.errors), "")
                    raise RefusedError(f"{path}: not run, because it is wrong (--no-verify runs it): {first}")
            programs.append(value)
        return programs

    def _bound(self) -> Any:
        """Size in bytes -> seconds of the bound, or None without a machine.

        Raises:
            InputError: the machine is unknown, or has another number of ranks.
        """
        if self.options.topology is None:
            return None
        from collsynth.bounds import bound
        from collsynth.formats import load_topology

        machine = load_topology(self.options.topology, gpu_model=self.options.gpu_model)
        machine.require_speeds()
        if machine.nranks != self.control.size:
            raise InputError(
                f"{machine.name} has {machine.nranks} ranks, and there are {self.control.size} processes",
                where="--topology",
            )
        found: dict[int, Any] = {}

        def seconds(size: int, root: int) -> float:
            if root not in found:
                found[root] = bound(machine, self.options.collective, root=None if root < 0 else root)
            return float(found[root].picoseconds(size)) / 1e12

        return seconds

    @contextlib.contextmanager
    def _loaded(self, programs: list[Program]) -> Iterator[list[ProgramContender]]:
        """The programs, ready to run, and `self.arrays`; closed at the end."""
        options, control = self.options, self.control
        given: dict[str, Any] = {} if options.assume_hosts is None else {"assume_hosts": options.assume_hosts}
        contenders: list[ProgramContender] = []
        self.arrays, self.hosts, self.communicator = Arrays(np), control.exchange(platform.node()), None
        try:
            for program in programs:
                executable = self.module.load(program, control, **given)
                contenders.append(ProgramContender(program, executable))
                self.arrays, self.hosts = executable.arrays, executable.hosts
            if options.backend == "nccl":
                from collsynth.backends.cupy_backend import StagedArrays, device_module
                from collsynth.backends.nccl_backend import connect

                if not programs:
                    self.arrays = control.together(lambda: StagedArrays(device_module(control.rank)))
                self.communicator = connect(control)
            yield contenders
        except BaseException:
            if self.communicator is not None:
                self.communicator.abort()
            raise
        for contender in contenders:
            contender.close()
        if self.communicator is not None:
            self.communicator.close()

    def _native(self, root: int) -> Contender | None:
        """The library's own collective; None where the backend has none."""
        if self.communicator is not None:
            return NcclNative(self.communicator, self.options.collective, root, self.arrays.xp)
        if self.options.backend == "mpi":
            return MpiNative(self.control.comm, self.options.collective, root)
        return None

    def _header(self, programs: list[Program]) -> None:
        """Everything over the rows."""
        options, control = self.options, self.control
        device = local_rank()
        card = (os.getpid(), platform.node(), 0 if device is None else device, *self._device())
        devices = [table.device_line(rank, *mine) for rank, mine in enumerate(control.exchange(card))]
        cores = len(os.sched_getaffinity(0))
        here = sum(host == self.hosts[control.rank] for host in self.hosts)
        real = control.exchange(platform.node())
        most = max(real.count(name) for name in set(real))
        remarks = [
            f"collsynth {__version__}, backend {options.backend}, {self._library()}",
            f"time: {AVERAGES[options.average]} over ranks; {_POSTFIX}",
        ]
        if most > cores:
            remarks.append(f"oversubscribed: {most} ranks on {cores} cores; compare only figures of one run")
        if hasattr(os, "getloadavg"):
            remarks.append(f"load average {os.getloadavg()[0]:.1f} on {cores} cores")
        if options.assume_hosts is not None:
            remarks.append(f"assumed hosts: {options.assume_hosts}, {here} ranks on that of rank 0")
        for path, program in zip(options.algorithms, programs, strict=True):
            modes = [
                name for name, has in (("out-of-place", program.out_of_place), ("in-place", program.in_place)) if has
            ]
            low = format_size(program.min_bytes or 0)
            high = "any size" if program.max_bytes is None else format_size(program.max_bytes)
            remarks.append(
                f"program {program.name} ({Path(path).name}): {program.nunits} units, {program.nchannels} channels, "
                f"{' and '.join(modes)}, {low} to {high}" + ("" if options.verify else ", NOT VERIFIED")
            )
        if options.compare is not None:
            remarks.append("compared with native: interleaved rounds, medians; speedup = native time / this row's")
        self._print(table.header(options, devices, [*remarks, *options.notes]))

    def _device(self) -> tuple[str, str]:
        """Bus id and name of what this rank runs on."""
        if self.options.backend == "mpi":
            return "cpu", _cpu_name()
        runtime = self.arrays.xp.cuda.runtime
        if not hasattr(runtime, "getDeviceProperties"):
            return "device", f"CuPy {self.arrays.xp.__version__}"
        properties = runtime.getDeviceProperties(runtime.getDevice())
        return f"{properties['pciBusID']:02x}:{properties['pciDeviceID']:02x}.0", properties["name"].decode()

    def _library(self) -> str:
        if self.communicator is not None:
            from collsynth.backends._pynccl import version_text

            return f"NCCL {version_text(self.communicator.library.version)}"
        text: str = self.control.mpi.Get_library_version()
        return text.replace("\0", " ").split("\n")[0].split(",")[0].strip()

    def _table(self, contenders: list[ProgramContender]) -> None:
        """All sizes for all types, operations and roots."""
        options = self.options
        self._print(table.columns(options))
        sample = Case.of(options.collective, self.control.size, 0, np.dtype(np.int8), "int8", "sum", 0)
        ops = options.ops if sample.combining else ("sum",)
        roots = (options.roots or tuple(range(self.control.size))) if sample.rooted else (-1,)
        for datatype in options.datatypes:
            for op in ops:
                for root in roots:
                    for size in options.sizes():
                        case = Case.of(
                            options.collective, self.control.size, size, self.dtypes[datatype], datatype, op,
                            max(root, 0),
                        )  # fmt: skip
                        self._case(case, contenders)

    def _case(self, case: Case, contenders: list[ProgramContender]) -> None:
        """One size: a row for every program, and one for the library where it is asked for."""
        self.watchdog.beat(f"{case.collective} of {case.size} bytes")
        native = self._native(case.root)
        reasons = [contender.unselected(case) for contender in contenders]
        chosen: list[Contender] = [c for c, reason in zip(contenders, reasons, strict=True) if reason is None]
        wants_native = self.options.compare is not None or not contenders or len(chosen) < len(contenders)
        racing = [*chosen, *([native] if wants_native and native is not None else [])]
        outs, ins = (self.watch.sides(case, racing, in_place) for in_place in (False, True))
        sides = {id(c): (out, into) for c, out, into in zip(racing, outs, ins, strict=True)}
        base = sides.get(id(native), (None, None))
        for contender, reason in zip(contenders, reasons, strict=True):
            if reason is None:
                self._row(case, contender.label, "", sides[id(contender)], base)
            elif native is not None:
                self._row(case, native.label, f"{contender.program.name}: {reason}", base, base)
            else:
                self._row(case, "none", f"{contender.program.name}: {reason}", (None, None), base)
        if native is not None and (self.options.compare is not None or not contenders):
            self._row(case, native.label, "", base, base, baseline=bool(contenders))

    def _row(
        self,
        case: Case,
        label: str,
        reason: str,
        sides: tuple[table.Side | None, table.Side | None],
        base: tuple[table.Side | None, table.Side | None],
        *,
        baseline: bool = False,
    ) -> None:
        """Print and keep one row."""
        if self.control.rank != 0:
            return
        times = [side.seconds for side in sides if side is not None and side.seconds > 0]
        percent = None
        if self.seconds_of_bound is not None and times:
            percent = 100 * self.seconds_of_bound(case.size, case.root if case.rooted else -1) / min(times)
        ratios = [
            None if mine is None or other is None or not mine.seconds or sides is base else other.seconds / mine.seconds
            for mine, other in zip(sides, base, strict=True)
        ]
        row = Row(
            size=case.size, count=case.count, datatype=case.datatype, op=case.op if case.combining else "none",
            root=case.root if case.rooted else -1, algorithm=label, out_of_place=sides[0], in_place=sides[1],
            percent_of_bound=percent, speedup=(ratios[0], ratios[1]), reason=reason,
            timestamp=datetime.now().strftime("%Y-%m-%d %H:%M:%S"),
        )  # fmt: skip
        self.rows.append(row)
        self.totals.add(row, baseline=baseline)
        print(table.row_text(row, self.options), flush=True)

    def _write(self) -> None:
        """The JSON file of `-J`."""
        if self.options.output_file is None:
            return
        facts = {"nranks": self.control.size, "topology": self.options.topology, "library": self._library()}
        document = table.document(self.options, self.rows, self.totals, self.minimum, facts)
        text = json.dumps(document, indent=2) + "\n"
        write_text_atomically(self.options.output_file, text, force=self.options.force)


def _minimum_busbw() -> float | None:
    text = os.environ.get("NCCL_TESTS_MIN_BW", "")
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{text!r} is not a number", where="NCCL_TESTS_MIN_BW", expected="GB/s") from None


def _cpu_name() -> str:
    """The processor's name as the kernel has it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()
