"""`collsynth inspect`: what a program or schedule is, and when each runtime selects it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import click

from ..errors import InputError
from ..program import TARGETS, Op, Program
from ..schedule import Schedule
from .common import json_option, print_json

_RUNTIMES = ("msccl-executor", "msccl", "rccl")
_ELEMENT_SIZES = (1, 2, 4, 8)


@click.command()
@click.argument("file")
@json_option
def inspect(file: str, as_json: bool) -> None:
    """What FILE (MSCCL XML, MSCCL++ plan, .prog or .sched; - is stdin) is, and exactly when a runtime selects it.

    The selection rules are those of the runtimes' own sources; whether the program is right is for
    `collsynth verify` to say.
    """
    document = _document(file)
    if as_json:
        print_json(document)
    elif document["kind"] == "schedule":
        _print_schedule(document)
    else:
        _print_program(document)


def _document(file: str) -> dict[str, Any]:
    from ..formats import msccl_xml, mscclpp, parse_topology, sched
    from ..formats.files import read_bytes

    data = read_bytes(file)
    label = "<stdin>" if file == "-" else file
    if msccl_xml.looks_like(data):
        source = msccl_xml.parse(data, label)
        return {"file": file, "format": "msccl-xml", **_program(source.program, _objections(source.syntax))}
    if mscclpp.looks_like(data):
        plan = mscclpp.parse(data, label)
        document = _program(plan.program, _objections(plan.syntax), plan.options)
        document["notes"] += [f"not held: {loss}" for loss in plan.losses]
        return {"file": file, "format": "mscclpp", **document}
    if sched.looks_like(data):
        value = sched.parse(data, label)
        if isinstance(value, Schedule):
            return {"file": file, "format": "sched", **_schedule(value)}
        return {"file": file, "format": "prog", **_program(value, [])}
    try:
        parse_topology(data.decode("utf-8", errors="replace"), label)
    except InputError:
        raise InputError(
            "is no program and no schedule", where=label, expected="MSCCL XML, an MSCCL++ plan, .prog or .sched"
        ) from None
    raise InputError("is a machine", where=label, expected="a program or schedule", hint="collsynth topo show")


def _objections(notes: Sequence[Any]) -> list[dict[str, Any]]:
    return [
        {
            "code": note.code, "severity": note.severity, "line": note.line, "message": note.message,
            "targets": list(note.targets) or ["any"],
        }
        for note in notes
    ]  # fmt: skip


def _program(program: Program, objections: list[dict[str, Any]], options: Any = None) -> dict[str, Any]:
    """The document of a program; `objections` are what runtimes' parsers refuse in its text."""
    from ..formats import mscclpp
    from ..formats.msccl_xml import OPERATIONS, predicate
    from ..limits import longest_threadblock

    blocks = [int(n) for n in _per_rank(program)]
    operations = Counter(Op(op).name.lower() for op in program.op.tolist())
    messages = sum(n for name, n in operations.items() if name == "send" or name.endswith("_send"))
    selected = {}
    runtimes = ("mscclpp",) if program.one_sided else _RUNTIMES
    for name in runtimes:
        rule = mscclpp.predicate(program) if name == "mscclpp" else predicate(program, TARGETS[name])
        refused = [f"line {o['line']}: {o['message']}" for o in objections
                   if o["severity"] == "error" and (name in o["targets"] or "any" in o["targets"])]  # fmt: skip
        limits = _limit_broken(program, name)
        never = rule.never or (refused[0] if refused else limits)
        multiple = rule.elements_multiple
        selected[name] = {
            "selectable": never is None,
            "never": never,
            "predicate": f"never: {never}" if never else rule.text(),
            "collective": rule.collective,
            "nranks": rule.nranks,
            "in_place": rule.in_place,
            "out_of_place": rule.out_of_place,
            "min_bytes": rule.min_bytes,
            "max_bytes": rule.max_bytes,
            "max_inclusive": rule.max_inclusive,
            "elements_multiple": multiple,
            "bytes_multiple": {
                str(size): mscclpp.bytes_multiple(program, options) if name == "mscclpp" else multiple * size
                for size in _ELEMENT_SIZES
            },
            "ops": list(mscclpp.REDUCTIONS if name == "mscclpp" else OPERATIONS),
        }
    longest, rank, block = longest_threadblock(program)
    return {
        "kind": "program",
        "name": program.name,
        "collective": program.collective or "custom",
        "nranks": program.nranks,
        "root": program.root,
        "chunks": program.nunits,
        "input_units": _one_or_list(program.input_units.tolist()),
        "output_units": _one_or_list(program.output_units.tolist()),
        "scratch_units": _one_or_list(program.scratch_units.tolist()),
        "scratch_of_payload": round(int(program.scratch_units.max(initial=0)) / program.nunits, 6),
        "protocol": program.protocol.value,
        "in_place": program.in_place,
        "out_of_place": program.out_of_place,
        "channels": program.nchannels,
        "threadblocks": max(blocks, default=0),
        "threadblocks_per_rank": _one_or_list(blocks),
        "instructions": program.nrows,
        "messages": messages,
        "steps": longest,
        "longest_threadblock": {"rank": rank, "threadblock": block, "steps": longest},
        "operations": dict(sorted(operations.items())),
        "dependencies": len(program.dep_tb),
        "content_hash": program.content_hash(),
        "selection": selected,
        "objections": objections,
        "notes": list(program.notes),
    }


def _limit_broken(program: Program, name: str) -> str | None:
    """The first limit of a runtime that the program breaks."""
    from ..errors import RefusedError
    from ..limits import check_limits, fused_receives

    target = TARGETS[name]
    if name == "mscclpp":
        return None  # its limits are on operations, which the plan's own objections name
    if not target.fused_receive and (fused := fused_receives(program)):
        return f"{fused} fused steps (rcs, rrc, rrs, rrcs), which {name} never runs"
    try:
        check_limits(program, target)
    except RefusedError as error:
        return str(error).removeprefix(f"target {name} refuses: ")
    return None


def _schedule(schedule: Schedule) -> dict[str, Any]:
    from ..simulator import height, rounds, steps

    collective = schedule.collective
    return {
        "kind": "schedule",
        "method": schedule.method,
        "topology": schedule.topology.name,
        "collective": collective.name,
        "nranks": collective.nranks,
        "root": collective.root,
        "chunks": collective.nchunks,
        "payload_units": collective.payload_units,
        "transfers": schedule.expand().nrows,
        "base_rows": schedule.nrows,
        "generators": len(schedule.generators),
        "steps": steps(schedule),
        "rounds": rounds(schedule),
        "height": height(schedule),
        "content_hash": schedule.content_hash(),
    }


def _per_rank(program: Program) -> list[int]:
    counts = [0] * program.nranks
    for rank in program.tb_rank.tolist():
        counts[rank] += 1
    return counts


def _one_or_list(values: list[int]) -> int | list[int]:
    """The common value of all ranks, or all values when they differ."""
    return values[0] if len(set(values)) == 1 else values


def _span(value: int | list[int]) -> str:
    return str(value) if isinstance(value, int) else f"{min(value)}..{max(value)}"


def _print_program(d: dict[str, Any]) -> None:
    modes = [label for label, on in (("in place", d["in_place"]), ("out of place", d["out_of_place"])) if on]
    root = "" if d["root"] is None else f", root {d['root']}"
    click.echo(f"{d['file']}: {d['collective']} for {d['nranks']} ranks{root} ({d['format']}, {d['name']!r})")
    click.echo(f"  payload        {d['chunks']} chunks; input {_span(d['input_units'])}, output "
               f"{_span(d['output_units'])}, scratch {_span(d['scratch_units'])} "
               f"({100 * d['scratch_of_payload']:g}% of the payload)")  # fmt: skip
    click.echo(f"  modes          {', '.join(modes) or 'none'}; protocol {d['protocol']}")
    click.echo(f"  channels       {d['channels']}")
    longest = d["longest_threadblock"]
    click.echo(f"  threadblocks   {_span(d['threadblocks_per_rank'])} a rank, the longest {d['steps']} steps "
               f"(rank {longest['rank']}, threadblock {longest['threadblock']})")  # fmt: skip
    listed = ", ".join(f"{count} {name}" for name, count in d["operations"].items())
    click.echo(f"  instructions   {d['instructions']}: {listed}")
    click.echo(f"  waits          {d['dependencies']} between threadblocks")
    click.echo("  selected by")
    for name, rule in d["selection"].items():
        click.echo(f"    {name:<15} {rule['predicate']}")
        if rule["selectable"] and rule["elements_multiple"] > 1:
            sizes = ", ".join(f"{b} ({size}-byte type)" for size, b in rule["bytes_multiple"].items())
            click.echo(f"    {'':<15} payload bytes a multiple of {sizes}")
    for note in d["objections"][:10]:
        click.echo(f"  line {note['line']}: {note['severity']} {note['code']} for {', '.join(note['targets'])}: "
                   f"{note['message']}")  # fmt: skip
    if len(d["objections"]) > 10:
        click.echo(f"  and {len(d['objections']) - 10} more objections (--json lists them)")
    for note in d["notes"]:
        click.echo(f"  note: {note}")


def _print_schedule(d: dict[str, Any]) -> None:
    root = "" if d["root"] is None else f", root {d['root']}"
    click.echo(
        f"{d['file']}: {d['collective']} for {d['nranks']} ranks{root} on {d['topology']} (sched, {d['method']})"
    )
    click.echo(f"  payload        {d['chunks']} chunks, {d['payload_units']} units")
    orbit = f" from {d['base_rows']} by {d['generators']} symmetries" if d["generators"] else ""
    click.echo(f"  transfers      {d['transfers']}{orbit}")
    click.echo(f"  steps          {d['steps']}, {d['rounds']} rounds, height {d['height']}")
    click.echo("  lower it to a program to see when a runtime selects it: collsynth synth ... -o FILE.xml")
