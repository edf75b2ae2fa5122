"""`collsynth run`: a program on real buffers, with the result checked."""

from __future__ import annotations

import math
import os
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from .. import registry
from ..collective import busbw_factor, canonical_name
from ..errors import CollsynthError, InputError, RefusedError, RunError
from ..program import Program
from .common import SIZE, json_option, print_json

if TYPE_CHECKING:
    from ..backends.control import Control

#: Backends that hold all ranks in one process.
_IN_PROCESS = frozenset({"numpy"})

#: Size when neither a size nor a count is given.
_DEFAULT_SIZE = 1 << 20


@click.command()
@click.argument("file", metavar="FILE")
@click.option("--backend", default="numpy", show_default=True, metavar="NAME", help="numpy, mpi, cupy or nccl.")
@click.option("-s", "--size", "sizes", type=SIZE, multiple=True, metavar="SIZE",
              help="Payload (nccl-tests' size), e.g. 64K; may be repeated.  [default: 1M]")  # fmt: skip
@click.option("--count", "counts", type=int, multiple=True, metavar="N",
              help="Elements as nccl-tests counts them, beside or instead of -s; may be repeated.")  # fmt: skip
@click.option("--dtype", default="float32", show_default=True, metavar="TYPE", help="Type of the elements.")
@click.option("--op", default="sum", show_default=True, help="sum, prod, max, min or avg.")
@click.option("--in-place/--out-of-place", "in_place", default=None,
              help="Only this mode.  [default: all that the program declares]")  # fmt: skip
@click.option("--iters", type=click.IntRange(1), default=5, show_default=True, help="Timed iterations.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the data.")
@click.option("-c", "--collective", metavar="COLL", help="What the program does, where it does not say.")
@click.option("--assume-hosts", type=click.IntRange(1), metavar="K", help="Split the ranks into K pretend hosts.")
@click.option("--timeout", type=click.FloatRange(0, min_open=True), default=60.0, show_default=True, metavar="S",
              help="Give up after so many seconds without progress.")  # fmt: skip
@click.option("--no-verify", is_flag=True, help="Run a program that is not proven right.")
@json_option
def run(
    file: str, backend: str, sizes: tuple[int, ...], counts: tuple[int, ...], dtype: str, op: str,
    in_place: bool | None, iters: int, seed: int, collective: str | None, assume_hosts: int | None,
    timeout: float, no_verify: bool, as_json: bool,
) -> None:  # fmt: skip
    """Run a program (MSCCL XML, or a schedule, which is lowered first) on real buffers and check the result.

    The numpy backend holds all ranks in this process.  The others run one process a rank:

    \b
    collsynth launch -n 8 collsynth run ar.xml --backend mpi

    Exit code 1: wrong data, an unproven program, or the run could not go on; 2: bad input, or another
    number of processes than the program has ranks.
    """
    if math.isnan(timeout):  # which no range refuses
        raise InputError("is no number", where="--timeout", expected="more than 0 seconds")
    module = registry.load("backends", backend)
    assert isinstance(module, ModuleType)
    reason = module.unavailable()
    if reason is not None:
        raise InputError(reason, where=f"--backend {backend}")
    job = _Job(file, backend, module, sizes, counts, in_place, iters, seed, collective, no_verify, as_json)
    if backend in _IN_PROCESS:
        processes = os.environ.get("OMPI_COMM_WORLD_SIZE", "1")
        if processes != "1":
            raise InputError(
                f"this backend holds all ranks in one process, and {processes} were started",
                where=f"--backend {backend}", hint="without launch, or --backend mpi",
            )  # fmt: skip
        if assume_hosts is not None:
            raise InputError("all ranks are in one process", where="--assume-hosts", hint="--backend mpi")
        code = job.in_process(dtype, op)
    else:
        code = job.on_ranks(dtype, op, assume_hosts, timeout)
    click.get_current_context().exit(code)


class _Job:
    """What was asked for, and how to do it."""

    def __init__(
        self, file: str, backend: str, module: ModuleType, sizes: tuple[int, ...], counts: tuple[int, ...],
        in_place: bool | None, iters: int, seed: int, collective: str | None, no_verify: bool, as_json: bool,
    ) -> None:  # fmt: skip
        self.file, self.backend, self.module = file, backend, module
        self.sizes, self.counts = sizes, counts
        self.in_place, self.iters, self.seed = in_place, iters, seed
        self.collective = collective
        self.no_verify, self.as_json = no_verify, as_json

    def check(self, dtype: str, op: str) -> None:
        """Check and keep what does not depend on the program."""
        from ..backends.data import check_op, dtype_of

        self.dtype, self.op = dtype_of(dtype), check_op(op)
        if any(count < 0 for count in self.counts):
            raise InputError(f"{min(self.counts)} elements", where="--count", expected="0 or more")
        if self.collective is not None:
            self.collective = canonical_name(self.collective)

    def in_process(self, dtype: str, op: str) -> int:
        """All ranks here; the exit code."""
        from ..backends.checked_run import run_in_process

        self.check(dtype, op)
        program = self.read()
        fault = self.fault(program)
        if fault is not None:
            raise RefusedError(fault)
        executable = self.module.load(program)
        results = [
            run_in_process(program, executable, count, mode, **self.data())
            for count in self.elements(program)
            for mode in self.modes(program)
        ]
        self.print(program, results, None)
        return int(any(result.wrong for result in results))

    def on_ranks(self, dtype: str, op: str, assume_hosts: int | None, timeout: float) -> int:
        """This process is one rank; the exit code, the same on all ranks."""
        from ..backends.control import Control

        control = Control(timeout=timeout)
        try:
            control.together(lambda: self.check(dtype, op))
            return self.as_rank(control, assume_hosts)
        except RunError as error:
            # Not the same on all ranks: each says what it knows, and nobody waits for those that are stuck.
            click.echo(f"collsynth: {error}", err=True)
            control.fail(str(error))
            time.sleep(0.5)
            if control.size > 1:
                control.comm.Abort(error.exit_code)
            return error.exit_code
        except CollsynthError as error:
            # The same on all ranks (they agree before they raise): one message.
            if control.rank == 0:
                click.echo(f"collsynth: {error}", err=True)
            if control.size > 1:
                control.barrier()
            return error.exit_code
        except BaseException as error:
            control.fail(str(error) or type(error).__name__)
            raise

    def as_rank(self, control: Control, assume_hosts: int | None) -> int:
        """Read, agree, run; errors other than `RunError` are raised on all ranks alike."""
        from ..backends.checked_run import run_on_ranks
        from ..backends.transport import agree

        program = control.together(self.read)
        agree(control, control.exchange(program.content_hash()), "programs (by content hash)")
        if control.size != program.nranks:
            raise InputError(
                f"{control.size} process{'es' if control.size != 1 else ''} for a program of {program.nranks} ranks",
                where=self.file,
                hint=f"collsynth launch -n {program.nranks} collsynth run {self.file} --backend {self.backend}",
            )
        # One proof serves all: the programs are equal.
        fault = control.broadcast(self.fault(program) if control.rank == 0 else None)
        if fault is not None:
            raise RefusedError(fault)
        counts, modes = control.together(lambda: (self.elements(program), self.modes(program)))
        options: dict[str, Any] = {} if assume_hosts is None else {"assume_hosts": assume_hosts}
        with self.module.load(program, control, **options) as executable:
            results = [
                run_on_ranks(program, executable, count, mode, **self.data()) for count in counts for mode in modes
            ]
            if control.rank == 0:
                self.print(program, results, getattr(executable, "hosts", None))
        control.barrier()
        return int(any(result.wrong for result in results))

    def data(self) -> dict[str, Any]:
        """The keyword arguments of a checked run."""
        return {"dtype": self.dtype, "op": self.op, "iters": self.iters, "seed": self.seed}

    def read(self) -> Program:
        """The program in the file."""
        from ..formats import read
        from ..schedule import Schedule

        value = read(self.file)
        if isinstance(value, Schedule):
            from ..lowering import lower

            value = lower(value)
        if not isinstance(value, Program):
            raise InputError("this is a machine, not a program", where=self.file, hint="collsynth topo show")
        if self.collective is not None and self.collective != value.collective:
            value = replace(value, collective=self.collective)
        if not value.collective:
            raise InputError("the program does not say which collective it does", where=self.file, hint="-c COLL")
        return value

    def fault(self, program: Program) -> str | None:
        """Why the program is not run: it is not proven right."""
        from ..verifier import verify

        report = None if self.no_verify else verify(program)
        if report is None or report.ok:
            return None
        findings = [str(finding) for finding in report.errors]
        shown = "\n  ".join(findings[:3]) + (f"\n  and {len(findings) - 3} more" if len(findings) > 3 else "")
        return f"{self.file}: not run, because it is wrong (--no-verify runs it all the same):\n  {shown}"

    def elements(self, program: Program) -> list[int]:
        """The counts to run."""
        from ..backends.checked_run import require_memory, shards

        sizes = self.sizes or (() if self.counts else (_DEFAULT_SIZE,))
        counts = [*self.counts, *(size // self.dtype.itemsize // shards(program) for size in sizes)]
        for count in counts:
            require_memory(program, count, self.dtype.itemsize, together=self.backend in _IN_PROCESS)
        return counts

    def modes(self, program: Program) -> list[bool]:
        """The modes to run: out of place first, as nccl-tests has it."""
        declared = [mode for mode, has in ((False, program.out_of_place), (True, program.in_place)) if has]
        if self.in_place is None:
            return declared
        if self.in_place not in declared:
            name, option = ("in place", "--in-place") if self.in_place else ("out of place", "--out-of-place")
            raise InputError(f"the program is not meant to be run {name}", where=option)
        return [self.in_place]

    def print(self, program: Program, results: list[Any], hosts: list[int] | None) -> None:
        """The results on stdout."""
        rows = [self.row(program, result) for result in results]
        if self.as_json:
            print_json(
                {
                    "file": self.file, "backend": self.backend, "collective": program.collective,
                    "nranks": program.nranks, "dtype": self.dtype.name, "op": self.op,
                    "verified": not self.no_verify, "program": program.content_hash(), "hosts": hosts,
                    "ok": not any(result.wrong for result in results), "results": rows,
                }
            )  # fmt: skip
            return
        where = "" if hosts is None or len(set(hosts)) == 1 else f", {len(set(hosts))} hosts"
        proven = "not verified" if self.no_verify else "verified"
        click.echo(
            f"{Path(self.file).name}: {program.collective}, {program.nranks} ranks, {proven}; "
            f"{self.backend} backend{where}, {self.dtype.name}, {self.op}"
        )
        click.echo(f"{'size':>12} {'count':>12} {'mode':>12} {'time':>11} {'algbw':>9} {'busbw':>9} {'sent':>13} wrong")
        click.echo(f"{'(B)':>12} {'(elements)':>12} {'':>12} {'(us)':>11} {'(GB/s)':>9} {'(GB/s)':>9} {'(B, all)':>13}")
        for row in rows:
            sent = "-" if row["bytes_sent_total"] is None else row["bytes_sent_total"]
            click.echo(
                f"{row['size_bytes']:>12} {row['count']:>12} {row['mode']:>12} {row['time_us']:>11.1f} "
                f"{row['algbw_GBps']:>9.3f} {row['busbw_GBps']:>9.3f} {sent:>13} {row['wrong']:>5}"
            )

    def row(self, program: Program, result: Any) -> dict[str, Any]:
        """One result as JSON has it."""
        algbw = result.size_bytes / result.seconds / 1e9
        sent = result.bytes_sent
        return {
            "size_bytes": result.size_bytes, "count": result.count,
            "mode": "in-place" if result.in_place else "out-of-place", "wrong": result.wrong,
            "time_us": result.seconds * 1e6, "algbw_GBps": algbw,
            "busbw_GBps": algbw * float(busbw_factor(program.collective, program.nranks)),
            "bytes_sent_total": None if sent is None else sum(sum(peers.values()) for peers in sent),
            "bytes_sent": None if sent is None else [{str(p): b for p, b in peers.items()} for peers in sent],
            "messages_sent": None if result.messages_sent is None
            else [{str(p): m for p, m in peers.items()} for peers in result.messages_sent],
        }  # fmt: skip
