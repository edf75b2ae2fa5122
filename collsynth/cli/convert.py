"""`collsynth convert`: from one format to another, saying what is lost."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .. import registry
from ..errors import InputError, RefusedError
from ..program import TARGETS, Program, Target
from ..schedule import Schedule
from ..topology import Topology
from .common import RANKS, SIZE, force_option, json_option, load, print_json, topology_option

if TYPE_CHECKING:
    from ..formats.chakra_trace import Trace

#: format -> suffixes that mean it (the first one is written in messages)
FORMATS: dict[str, tuple[str, ...]] = {
    "msccl-xml": (".xml",), "mscclpp": (".json",), "chakra": (".et",), "astra-sim": (), "sched": (".sched",),
    "prog": (".prog",), "nccl-graph": (), "nccl-tuner": (".csv",), "dot": (".dot", ".gv"), "graphml": (".graphml",),
    "listing": (".txt",),
}  # fmt: skip
_DEFAULT_TARGET = {"mscclpp": "mscclpp", "chakra": "astra-sim", "astra-sim": "astra-sim"}
#: Formats that hold instructions, so that a schedule is lowered first.
_OF_PROGRAMS = frozenset({"msccl-xml", "mscclpp", "chakra", "astra-sim", "prog"})
_PICTURES = frozenset({"dot", "graphml", "listing"})


@dataclass(slots=True)
class Source:
    """What was read, and what is lost and assumed so far.

    Attributes:
        value: machine, schedule, program, or traces.
        format: the format it was in.
        size: payload bytes that it says it is for, None when it does not say.
    """

    value: Topology | Schedule | Program | Trace
    format: str
    size: int | None = None
    losses: list[str] = field(default_factory=list)
    assumptions: list[str] = field(default_factory=list)


@click.command()
@click.argument("source", metavar="IN")
@click.argument("out", required=False)
@click.option("-d", "--directory", metavar="DIR", help="Directory for the files of --to astra-sim.")
@click.option("--to", "to", type=click.Choice(list(FORMATS)), help="Format, whatever OUT's suffix.")
@click.option("--target", help="Runtime whose rules a program must keep: msccl-executor, msccl, rccl, mscclpp, any.")
@click.option("-c", "--collective", metavar="COLL", help="What traces do, where they do not tell.")
@click.option("-s", "--size", type=SIZE, help="Payload bytes (nccl-tests' size); Chakra traces hold byte counts.")
@click.option(
    "--group", "groups", type=RANKS, multiple=True, metavar="LIST",
    help="With --to astra-sim: NPUs of a communicator, e.g. 0,2,4,6; may be given several times.",
)  # fmt: skip
@topology_option
@force_option
@json_option
def convert(
    source: str, out: str | None, directory: str | None, to: str | None, target: str | None, collective: str | None,
    size: int | None, groups: tuple[tuple[int, ...], ...], topology: str | None, gpu_model: str | None,
    multicast: bool, force: bool, as_json: bool,
) -> None:  # fmt: skip
    """Write what IN holds in another format: OUT's suffix or --to names it.  What is lost goes to stderr.

    IN: MSCCL XML, an MSCCL++ plan, .sched, .prog, Chakra traces (their prefix or one of their files), a machine.
    OUT: .xml MSCCL XML, .json MSCCL++ plan, .et Chakra (a prefix: one file a rank), .prog, .sched, .csv NCCL
    tuner, .dot, .graphml, .txt listing; NCCL graph XML by --to nccl-graph; - is stdout.  A schedule is lowered
    where a program is wanted.  What a format cannot express is refused (exit code 1).

    Example: collsynth convert allreduce.xml -d sim --to astra-sim -s 64M -t ring:8
    """
    chosen = _choose(out, directory, to, as_json)
    if groups and chosen != "astra-sim":
        raise InputError("only ASTRA-sim's files have communicators", where="--group", expected="--to astra-sim")
    machine = None if topology is None else load(topology, gpu_model, multicast)
    given = _read(source)
    value = _prepared(given, chosen, _target(target, chosen), collective, size)
    writer = _Writer(given, chosen, _target(target, chosen), machine, size, groups)
    outputs = writer.write(value, out, directory, force)
    document = {
        "input": source, "from": given.format, "to": chosen, "output": outputs, "losses": given.losses,
        "assumptions": given.assumptions,
    }  # fmt: skip
    if as_json:
        print_json(document)
        return
    for loss in given.losses:
        click.echo(f"lost: {loss}", err=True)
    for assumption in given.assumptions:
        click.echo(f"assumed: {assumption}", err=True)
    if out != "-":
        shown = outputs[0] if len(outputs) == 1 else f"{len(outputs)} files, {outputs[0]} ... {outputs[-1]}"
        click.echo(f"{source} ({given.format}) -> {shown} ({chosen}), {_lost(given.losses)}")


def _lost(losses: list[str]) -> str:
    return f"{len(losses)} losses" if len(losses) > 1 else "1 loss" if losses else "nothing lost"


def _choose(out: str | None, directory: str | None, to: str | None, as_json: bool) -> str:
    """The format to write.

    Raises:
        InputError: none is named, or what is named does not go together.
    """
    if (out is None) == (directory is None):
        raise InputError(
            "OUT and -d exclude each other" if out else "there is no place to write to",
            expected="OUT, or -d DIR for the files of --to astra-sim",
        )
    if directory is not None:
        if to not in (None, "astra-sim"):
            raise InputError(f"{to} is one file", where="-d", expected="OUT instead", hint=f"--to {to} OUT")
        return "astra-sim"
    if to == "astra-sim":
        raise InputError("ASTRA-sim needs several files", where="--to astra-sim", expected="-d DIR")
    assert out is not None
    if not out:
        raise InputError("the name is empty", where="OUT", expected="a file name, or - for standard output")
    if out == "-" and as_json:
        raise InputError("--json and - both want standard output", expected="one of them")
    if to is None:
        suffix = Path(out).suffix.lower()
        to = next((name for name, suffixes in FORMATS.items() if suffix in suffixes), None)
        if to is None:
            known = ", ".join(suffix for suffixes in FORMATS.values() for suffix in suffixes)
            raise InputError(
                "cannot tell the format from the name", where=out, expected=f"a name ending in {known}",
                hint="--to " + "|".join(FORMATS),
            )  # fmt: skip
    if out == "-" and to in ("chakra", "sched", "prog"):
        raise InputError(f"format {to} cannot be written to standard output", where="-", hint="a file name")
    return to


def _target(name: str | None, to: str) -> Target:
    name = name or _DEFAULT_TARGET.get(to, "any")
    if name not in TARGETS:
        raise InputError(f"unknown target {name!r}", where="--target", expected="one of " + ", ".join(TARGETS))
    return TARGETS[name]


def _read(name: str) -> Source:
    """What a file, a prefix of traces, or a built-in machine's name holds."""
    from ..formats import chakra_trace, msccl_xml, mscclpp, sched
    from ..formats.files import read_bytes

    if name != "-" and (not Path(name).exists() or name.endswith(".et")) and chakra_trace.prefix_of(name) is not None:
        return Source(chakra_trace.read(name), "chakra")
    if name != "-" and not Path(name).exists():
        if name.split(":")[0] not in registry.entries("topologies"):
            raise InputError(
                "no such file, no prefix of Chakra traces and no built-in machine", where=name,
                expected="what `collsynth convert --help` lists",
            )  # fmt: skip
        return Source(load(name), "topology")
    data, label = read_bytes(name), "<stdin>" if name == "-" else name
    if sched.looks_like(data):
        value = sched.parse(data, label)
        return Source(value, "sched" if isinstance(value, Schedule) else "prog")
    if msccl_xml.looks_like(data):
        from ..formats import losses

        source = msccl_xml.parse(data, label)
        return Source(source.program, "msccl-xml", losses=losses.of_xml(source))
    if mscclpp.looks_like(data):
        program = mscclpp.parse(data, label).program
        return Source(program, "mscclpp", losses=list(program.notes))
    from ..formats import decode, parse_topology

    return Source(parse_topology(decode(data, label), label), "topology")


def _prepared(
    given: Source, to: str, target: Target, collective: str | None, size: int | None
) -> Topology | Schedule | Program | Trace:
    """The value in the shape that the format needs: traces become programs, schedules are lowered."""
    from ..formats.chakra_trace import Trace

    value = given.value
    if isinstance(value, Topology):
        if to not in _PICTURES:
            raise RefusedError(f"{value.name} is a machine: no schedule and no program that could be written as {to}")
        return value
    if to in _PICTURES:
        given.losses.append(f"the way back: {to} is for people and other tools, collsynth does not read it")
        return value
    if isinstance(value, Trace):
        value = _of_trace(given, value, collective)
    elif collective is not None:
        raise InputError("only traces need to be told what they do", where="-c", expected="Chakra traces")
    if to == "sched" and isinstance(value, Program):
        raise RefusedError(
            "a program does not say over which links its messages go, nor which chunk they are part of: "
            "it cannot be written as a schedule"
        )
    if isinstance(value, Schedule) and to in _OF_PROGRAMS:
        value = _lowered(given, value, target, size)
    return value


def _of_trace(given: Source, trace: Trace, collective: str | None) -> Schedule | Program:
    from ..formats import chakra_infer, chakra_trace

    kept = chakra_trace.recovered(trace)
    if kept is not None:
        given.size = kept.size
        given.losses += kept.losses
        return kept.program
    inferred = chakra_infer.infer(trace, collective)
    given.size = inferred.size
    given.losses += inferred.losses
    return inferred.schedule


def _lowered(given: Source, schedule: Schedule, target: Target, size: int | None) -> Program:
    from ..lowering import lower

    modes = (True, True)
    if target.one_mode:
        in_place = schedule.collective.name == "allreduce"  # as training scripts call it
        modes = (in_place, not in_place)
        given.assumptions.append(
            f"a file serves one mode of {target.name}: {'in' if in_place else 'out of'} place was chosen"
        )
    given.losses.append("the machine, the routes and the start levels: a program says who sends what to whom, in order")
    return lower(schedule, target=target, in_place=modes[0], out_of_place=modes[1], size=size or given.size)


@dataclass(slots=True)
class _Writer:
    """One method a format; each returns the files that it wrote."""

    given: Source
    to: str
    target: Target
    machine: Topology | None
    size: int | None
    groups: tuple[tuple[int, ...], ...]

    def write(self, value: Any, out: str | None, directory: str | None, force: bool) -> list[str]:
        """Write the value; the paths in order."""
        from ..formats.files import write_text_atomically

        if directory is not None:
            return self.astra_sim(value, directory, force)
        assert out is not None
        if self.to == "chakra":
            return self.chakra(value, out, force)
        if self.to in ("sched", "prog"):
            from ..formats import sched

            sched.write(value, out, force=force)
            return [out]
        text = self.text(value)
        if out == "-":
            click.echo(text, nl=False)
        else:
            write_text_atomically(out, text, force=force)
        return [out]

    def text(self, value: Any) -> str:
        """The value in a format that is one text."""
        if self.to == "msccl-xml":
            return self.xml(value)
        if self.to == "mscclpp":
            return self.plan(value)
        if self.to == "listing":
            from ..formats.listing import listing

            return listing(value)
        if self.to in ("dot", "graphml"):
            from ..formats import graph_export

            graph = graph_export.graph_of(value)
            return graph_export.dot(graph) if self.to == "dot" else graph_export.graphml(graph)
        from ..formats import nccl_graph, nccl_tuner

        rendered = (nccl_graph if self.to == "nccl-graph" else nccl_tuner).render(value, self.machine)
        self.given.losses += rendered.losses
        self.given.assumptions += rendered.assumptions
        return rendered.text

    def xml(self, program: Program) -> str:
        from ..formats import msccl_xml
        from ..formats.losses import differences

        program = replace(program, notes=())  # what a reader had to say is among the losses already
        text = msccl_xml.render(program, self.target)
        self.given.losses += differences(program, msccl_xml.parse(text).program)
        return text

    def plan(self, program: Program) -> str:
        from ..formats import mscclpp

        if not program.one_sided:
            raise RefusedError(
                "the program sends through FIFOs, which MSCCL++ plans have not; convert the schedule (.sched) that it "
                "was made from"
            )
        text = mscclpp.render(program, target=self.target)
        self.given.losses += mscclpp.losses(program)
        return text

    def payload(self) -> int:
        size = self.size or self.given.size
        if size is None:
            raise InputError("a Chakra trace carries byte counts", where="-s", expected="the payload's size, e.g. 64M")
        return size

    def chakra(self, program: Program, out: str, force: bool) -> list[str]:
        from ..formats import chakra

        return [str(path) for path in chakra.write(program, out.removesuffix(".et"), size=self.payload(), force=force)]

    def astra_sim(self, program: Program, directory: str, force: bool) -> list[str]:
        from ..formats import astra

        machine = self.machine
        if machine is None and isinstance(self.given.value, Schedule) and not self.groups:
            machine = self.given.value.topology
        if machine is None:
            self.given.losses.append("network.yml is not written: no machine was given (-t)")
        contents = astra.files(program, machine, size=self.payload(), groups=self.groups)
        return [str(path) for path in astra.write(contents, directory, force=force)]
