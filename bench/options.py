"""The benchmark's command line: nccl-tests' letters and defaults, our own options as long ones."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from collsynth.collective import canonical_name
from collsynth.errors import InputError
from collsynth.units import parse_size

#: nccl-tests' name of a datatype -> numpy's.
DATATYPES = {
    "int8": "int8", "uint8": "uint8", "int32": "int32", "uint32": "uint32", "int64": "int64", "uint64": "uint64",
    "half": "float16", "float": "float32", "double": "float64", "bfloat16": "bfloat16",
    "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2",
}  # fmt: skip
_DATATYPE_ALIASES = {"float16": "half", "float32": "float", "float64": "double", "int": "int32", "char": "int8"}

#: Reductions that run here; nccl-tests also knows these others.
OPERATIONS = ("sum", "prod", "max", "min")
_OTHER_OPERATIONS = ("avg", "mulsum")

#: Backends that run one process a rank.
BACKENDS = ("mpi", "cupy", "nccl")

AVERAGES = {0: "rank 0", 1: "mean", 2: "min", 3: "max"}

#: Letters of nccl-tests that mean nothing here, with the reason.
_IGNORED = {
    "-G": ("--cudagraph", "CUDA graphs are not used"),
    "-z": ("--blocking", "calls return when they are done"),
    "-p": ("--parallel_init", "ranks are processes"),
    "-R": ("--local_register", "buffers are not registered"),
    "-M": ("--memory_report", "memory is not reported"),
    "-u": ("--unalign", "buffers are aligned"),
    "-I": (None, "not known here"),
    "-K": (None, "not known here"),
    "-D": ("--device_implementation", "there is no device implementation"),
    "-V": ("--device_cta_count", "there is no device implementation"),
    "-x": ("--cta_policy", "there are no kernels of our own"),
}
_FLAG_DEFAULT = ("0", None)


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure.  Sizes in bytes, times in seconds.

    Attributes:
        collective: canonical name.
        min_bytes, max_bytes, step_bytes, step_factor: sizes; a factor above 1 wins over the step.
        iters, warmup, aggregate, cycles: timed launches, warm-up launches, launches in one timed unit,
            repetitions of the whole table (0: for ever).
        check: launches whose result is checked (0: none).
        ops, datatypes, roots: what each size is run with (nccl-tests' names; roots None for `all`).
        average: 0 rank 0, 1 mean, 2 min, 3 max over ranks.
        cpu_time, timestamps: how the time column is called, whether rows carry the clock.
        output_file: JSON file or None.
        timeout: seconds without progress after which the run ends with exit code 3.
        algorithms: files of programs.
        backend, compare, assume_hosts, topology, gpu_model: ours.
        verify: whether programs are proven right before they run.
        force: whether the JSON file may be overwritten.
        notes: one line for each option that has no effect here.
    """

    collective: str
    min_bytes: int
    max_bytes: int
    step_bytes: int
    step_factor: int
    iters: int
    warmup: int
    aggregate: int
    cycles: int
    check: int
    ops: tuple[str, ...]
    datatypes: tuple[str, ...]
    roots: tuple[int, ...] | None
    average: int
    cpu_time: bool
    timestamps: bool
    output_file: str | None
    timeout: float
    algorithms: tuple[str, ...]
    backend: str
    compare: str | None
    assume_hosts: int | None
    topology: str | None
    gpu_model: str | None
    verify: bool
    force: bool
    notes: tuple[str, ...]

    def sizes(self) -> list[int]:
        """The sizes of one table, as nccl-tests steps through them."""
        sizes, size = [], self.min_bytes
        while size <= self.max_bytes:
            sizes.append(size)
            larger = size * self.step_factor if self.step_factor > 1 and size else size + self.step_bytes
            if larger == size:
                break
            size = larger
        return sizes


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(message, hint="--help")


def parser() -> argparse.ArgumentParser:
    """The parser; its defaults are nccl-tests'."""
    p = _Parser(
        prog="python -m collsynth.bench",
        allow_abbrev=False,
        description="Time a collective the way nccl-tests does: one process a rank, under mpirun or collsynth launch.",
        epilog="Exit code: 0 right; 1 wrong data, or average below 0.9 x NCCL_TESTS_MIN_BW; "
        "2 usage or a program that does not fit; 3 time-out.",
    )
    p.add_argument(
        "collective", help="allreduce, allgather, reducescatter, alltoall, broadcast, reduce, gather, scatter"
    )
    g = p.add_argument_group("as in nccl-tests")
    g.add_argument("-b", "--minbytes", default="32M", metavar="SIZE", help="smallest size (default 32M)")
    g.add_argument("-e", "--maxbytes", default=None, metavar="SIZE", help="largest size (default 32M, or -b if larger)")
    g.add_argument("-i", "--stepbytes", default="1M", metavar="SIZE", help="step between sizes (default 1M)")
    g.add_argument("-f", "--stepfactor", default="1", metavar="N", help="factor between sizes, instead of a step")
    g.add_argument("-n", "--iters", default="20", metavar="N", help="timed launches (default 20)")
    g.add_argument("-w", "--warmup_iters", default="1", metavar="N", help="warm-up launches (default 1)")
    g.add_argument("-m", "--agg_iters", default="1", metavar="N", help="launches in one timed unit (default 1)")
    g.add_argument("-N", "--run_cycles", default="1", metavar="N", help="repeat the table; 0: for ever (default 1)")
    g.add_argument("-c", "--check", default="1", metavar="N", help="checked launches, 0 for none (default 1)")
    g.add_argument("-o", "--op", default="sum", help="sum, prod, max, min or all (default sum)")
    g.add_argument("-d", "--datatype", default="float", help="float, double, half, int32 ... or all (default float)")
    g.add_argument("-r", "--root", default="0", help="root rank or all (default 0)")
    g.add_argument("-a", "--average", default="1", metavar="0..3", help="time over ranks: rank 0, mean, min, max (1)")
    g.add_argument("-C", "--report_cputime", nargs="?", const="1", default="0", help="call the column cputime")
    g.add_argument("-S", "--report_timestamps", nargs="?", const="1", default="0", help="add the clock to each row")
    g.add_argument("-J", "--output_file", metavar="FILE", help="also write JSON")
    g.add_argument("-T", "--timeout", default="0", metavar="S", help="seconds without progress (default 300)")
    g.add_argument("-g", "--ngpus", default="1", help="accepted: one rank a process")
    g.add_argument("-t", "--nthreads", default="1", help="accepted: one rank a process")
    for letter, (name, reason) in _IGNORED.items():
        names = [letter] if name is None else [letter, name]
        g.add_argument(
            *names, dest=f"ignored{letter[1:]}", nargs="?", const="1", default=None, help=f"no effect: {reason}"
        )
    g = p.add_argument_group("ours")
    g.add_argument("--algo", action="append", default=[], metavar="FILE", help="program to run; may be repeated")
    g.add_argument("--backend", default="mpi", help="mpi (default), cupy or nccl")
    g.add_argument("--compare", metavar="native", help="also time the library's own collective, interleaved")
    g.add_argument("--assume-hosts", metavar="K", help="treat the ranks as if they were on K hosts")
    g.add_argument("--topology", metavar="T", help="machine, for the percent-of-bound column")
    g.add_argument("--no-verify", action="store_true", help="run programs that are not proven right")
    g.add_argument("--force", action="store_true", help="overwrite the file of -J")
    g.add_argument("--gpu-model", metavar="MODEL", help="GPU class of a matrix without speeds")
    return p


def _whole(text: str, option: str, least: int, most: int | None = None) -> int:
    try:
        value = int(text)
    except ValueError:
        raise InputError(f"{text!r} is not a whole number", where=option) from None
    if value < least or (most is not None and value > most):
        span = f"{least} or more" if most is None else f"{least}..{most}"
        raise InputError(f"{value} is out of range", where=option, expected=span)
    return value


def _choices(text: str, option: str, known: Sequence[str], every: Sequence[str]) -> tuple[str, ...]:
    if text == "all":
        return tuple(every)
    if text not in known:
        raise InputError(f"{text!r} is not known", where=option, expected="one of " + ", ".join(known) + ", all")
    return (text,)


def parse(arguments: Sequence[str]) -> Options:
    """Options from a command line.

    Raises:
        InputError: an option is unknown or its value is wrong.
        SystemExit: `--help` was asked for and printed.
    """
    a = parser().parse_args(list(arguments))
    minimum = parse_size(a.minbytes, where="-b")
    maximum = max(parse_size("32M"), minimum) if a.maxbytes is None else parse_size(a.maxbytes, where="-e")
    if minimum > maximum:
        raise InputError(f"-b {a.minbytes} is larger than -e {a.maxbytes}")
    step = parse_size(a.stepbytes, where="-i")
    factor = _whole(a.stepfactor, "-f", 1)
    if step == 0 and maximum > minimum and (factor == 1 or minimum == 0):
        raise InputError("sizes never reach -e", where="-i", expected="a step of 1 byte or more")
    if a.op in _OTHER_OPERATIONS:
        raise InputError(f"{a.op} is not run here", where="-o", expected="one of " + ", ".join(OPERATIONS))
    timeout = float(_whole(a.timeout, "-T", 0)) or 300.0
    notes = [
        f"{letter} has no effect: {reason}"
        for letter, (_, reason) in _IGNORED.items()
        if getattr(a, f"ignored{letter[1:]}") not in _FLAG_DEFAULT
    ]
    for letter, value in (("-g", a.ngpus), ("-t", a.nthreads)):
        if _whole(value, letter, 1) > 1:
            notes.append(f"{letter} {value} has no effect: one rank a process; start more processes instead")
    if a.backend not in BACKENDS:
        raise InputError(
            f"{a.backend!r} is not known here", where="--backend", expected="one of " + ", ".join(BACKENDS),
            hint="collsynth run --backend numpy for all ranks in one process" if a.backend == "numpy" else None,
        )  # fmt: skip
    if a.backend == "cupy" and (a.compare or not a.algo):
        raise InputError(
            "the cupy backend has no collective of its own", where="--backend cupy",
            expected="--algo FILE and no --compare", hint="--backend nccl",
        )  # fmt: skip
    if a.compare not in (None, "native"):
        raise InputError(f"{a.compare!r} is not known", where="--compare", expected="native")
    datatype = _DATATYPE_ALIASES.get(a.datatype, a.datatype)
    # float8 and bfloat16 have no arithmetic in numpy: they are left out of `all`, and refused when named
    # where the array module lacks them.
    every_type = [name for name in DATATYPES if not name.startswith(("f8", "bf"))]
    hosts = None if a.assume_hosts is None else _whole(a.assume_hosts, "--assume-hosts", 1)
    return Options(
        collective=canonical_name(a.collective), min_bytes=minimum, max_bytes=maximum, step_bytes=step,
        step_factor=factor, iters=_whole(a.iters, "-n", 1), warmup=_whole(a.warmup_iters, "-w", 0),
        aggregate=_whole(a.agg_iters, "-m", 1), cycles=_whole(a.run_cycles, "-N", 0), check=_whole(a.check, "-c", 0),
        ops=_choices(a.op, "-o", OPERATIONS, OPERATIONS),
        datatypes=_choices(datatype, "-d", tuple(DATATYPES), every_type),
        roots=None if a.root == "all" else (_whole(a.root, "-r", 0),), average=_whole(a.average, "-a", 0, 3),
        cpu_time=a.report_cputime != "0", timestamps=a.report_timestamps != "0", output_file=a.output_file,
        timeout=timeout, algorithms=tuple(a.algo), backend=a.backend, compare=a.compare, assume_hosts=hosts,
        topology=a.topology, gpu_model=a.gpu_model, verify=not a.no_verify, force=a.force, notes=tuple(notes),
    )  # fmt: skip
