"""`collsynth synth`: one verified schedule, in a runtime's format."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..collective import busbw_factor, call_payload, canonical_name, make
from ..errors import InfeasibleError, InputError, RefusedError, TimeLimitError
from ..program import TARGETS, Program, Protocol, Target
from ..units import format_size, fraction_text, microseconds
from .common import RANKS, SIZE, force_option, json_option, load, print_json, topology_option

if TYPE_CHECKING:
    from ..synth.spec import SynthResult
    from ..topology import Topology

#: format -> the target that its programs are written for unless --target says otherwise
_DEFAULT_TARGET = {"xml": "msccl-executor", "json": "mscclpp", "et": "astra-sim", "prog": "any", "sched": "any"}


#: Where a size is needed and none is asked for: Chakra traces hold bytes, a program runs on some.
_USUAL_SIZE = 64 << 20


@dataclass(frozen=True, slots=True)
class Output:
    """Where and how to write: `path` is None for nothing, "-" for standard output."""

    path: str | None
    format: str
    target: Target
    force: bool


def _choose_output(path: str | None, format_: str | None, target: str | None, force: bool, as_json: bool) -> Output:
    """Settle format and target, and refuse early what cannot be written."""
    if path == "-" and as_json:
        raise InputError("--json and -o - both want standard output", expected="one of them", hint="-o FILE")
    if path == "":
        raise InputError("the name is empty", where="-o", expected="a file name, or - for standard output")
    suffix = Path(path).suffix.lstrip(".").lower() if path and path != "-" else "xml"
    chosen = (format_ or suffix).lower()
    if chosen not in _DEFAULT_TARGET:
        raise InputError(
            f"cannot tell the format of {path!r}",
            where="-o",
            expected="a name ending in .xml, .et, .json, .sched or .prog",
            hint="--format xml",
        )
    if path == "-" and chosen != "xml":
        raise InputError(f"format {chosen} cannot be written to standard output", where="-o -", hint="-o FILE")
    name = target or _DEFAULT_TARGET[chosen]
    if name not in TARGETS:
        raise InputError(f"unknown target {name!r}", where="--target", expected="one of " + ", ".join(TARGETS))
    if path and path != "-":
        from ..formats.files import check_writable

        check_writable(path, force=force)
    return Output(path, chosen, TARGETS[name], force)


def _print_methods(as_json: bool) -> None:
    from ..synth import methods

    table = methods()
    if as_json:
        print_json(table)
        return
    width = max(map(len, table))
    for name, text in table.items():
        click.echo(f"{name:<{width}}  {text}")


def _write(output: Output, result: SynthResult, program: Program | None, size: int | None) -> str | None:
    """Write the result; returns the path, or None when nothing was asked for."""
    if output.path is None:
        return None
    value = result.schedule if output.format == "sched" else program
    assert value is not None
    if output.format in ("sched", "prog"):
        from ..formats import sched

        sched.write(value, output.path, force=output.force)
        return output.path
    assert program is not None
    if output.format == "et":
        from ..formats import chakra

        chakra.write(program, output.path.removesuffix(".et"), size=size or _USUAL_SIZE, force=output.force)
        return output.path
    if output.format == "json":
        from ..formats import mscclpp

        mscclpp.write(program, output.path, target=output.target, force=output.force)
        return output.path
    from ..formats import msccl_xml

    if output.path == "-":
        click.echo(msccl_xml.render(program, output.target), nl=False)
    else:
        msccl_xml.write(program, output.path, target=output.target, force=output.force)
    return output.path


def _refuse_unselectable(program: Program, output: Output, size: int | None, modes: tuple[bool, ...]) -> None:
    """The target would not choose this file at the asked size: then it is not written."""
    if output.path is None or output.format not in ("xml", "json") or size is None or output.target.name == "any":
        return
    from ..formats import msccl_xml, mscclpp

    for in_place in modes:
        payload = call_payload(program.collective, program.nranks, size)
        reason = msccl_xml.selection(program, output.target, payload, 4, in_place)
        grain = mscclpp.bytes_multiple(program) if output.format == "json" else 1
        if reason is None and payload % grain:
            reason = f"{payload} bytes are no multiple of {grain}, whole chunks of its buffer alignment"
        if reason:
            raise RefusedError(
                f"{output.target.name} would not select this program at {format_size(size)} "
                f"{'in place' if in_place else 'out of place'}: {reason}; nothing was written"
            )


def _report(
    result: SynthResult, program: Program | None, machine: Topology, size: int | None, output: str | None
) -> dict[str, Any]:
    """The JSON document of the contract."""
    from ..simulator import height, rounds, simulate, steps

    schedule, bound = result.schedule, result.bound
    assert schedule is not None
    collective = schedule.collective
    time_ps = simulate(schedule, size=size).time if size else None
    algbw = None if not time_ps or size is None else size * 1000 / float(time_ps)
    document: dict[str, Any] = {
        "collective": collective.name,
        "topology": machine.name,
        "nranks": collective.nranks,
        "root": collective.root,
        "size_bytes": size,
        "method": result.method,
        "status": result.status.value,
        "optimal_in": result.optimal_in,
        "chunks_per_rank": float(result.chunks_per_rank) if result.chunks_per_rank is not None else None,
        "units": collective.payload_units,
        "steps": steps(schedule),
        "rounds": rounds(schedule),
        "height": height(schedule),
        "transfers": schedule.expand().nrows,
        "bandwidth_ratio": None if result.bandwidth_ratio is None else float(result.bandwidth_ratio),
        "bandwidth_ratio_exact": None if result.bandwidth_ratio is None else fraction_text(result.bandwidth_ratio),
        "makespan_ratio": None if result.makespan_ratio is None else float(result.makespan_ratio),
        "time_us": None if time_ps is None else microseconds(time_ps),
        "bound_time_us": None if size is None else microseconds(bound.picoseconds(size)),
        "algbw_GBps": algbw,
        "busbw_GBps": None if algbw is None else algbw * busbw_factor(collective.name, collective.nranks),
        "threadblocks": None,
        "channels": None,
        "scratch_bytes": None,
        "synthesis_s": round(result.seconds - result.jit_seconds, 3),
        "jit_s": round(result.jit_seconds, 3),
        "verified": True,
        "output": output,
        "seed": result.seed,
        "assumptions": [*machine.assumptions, *([result.message] if result.message else [])],
    }
    rs_ag = bound.rs_ag_seconds_per_byte
    if collective.name == "allreduce" and rs_ag and result.bandwidth_ratio is not None and result.makespan_ratio:
        document["ratio_to_rs_ag"] = float(result.bandwidth_ratio * bound.seconds_per_byte / rs_ag)
        document["makespan_ratio_to_rs_ag"] = float(result.makespan_ratio * bound.seconds_per_byte / rs_ag)
    document["program_time_us"] = document["program_makespan_ratio"] = None
    if program is not None:
        if size and not program.one_sided:
            # What the written file takes: its threadblocks meet on shared links in order of arrival.
            document["program_time_us"] = microseconds(simulate(program, machine, size=size).time)
        if not program.one_sided:  # the simulator knows connections, not memory
            probe = size or _USUAL_SIZE
            at_once = simulate(program, machine, size=probe, latency=False).time
            limit = bound.seconds_per_byte * probe * 10**12
            document["program_makespan_ratio"] = float(at_once / limit) if limit else None
        per_rank = [int((program.tb_rank == rank).sum()) for rank in range(program.nranks)]
        document["threadblocks"] = max(per_rank, default=0)
        document["channels"] = program.nchannels
        scratch = int(program.scratch_units.max(initial=0))
        document["scratch_bytes"] = None if size is None else -(-scratch * size // program.nunits)
    return document


def _print_report(document: dict[str, Any]) -> None:
    d = document
    size = "" if d["size_bytes"] is None else f", {format_size(d['size_bytes'])}"
    click.echo(f"{d['collective']} on {d['topology']}, {d['nranks']} ranks{size}")
    status = d["status"] + (f" in {d['optimal_in']}" if d["optimal_in"] else "")
    click.echo(f"  method            {d['method']} ({status}), {d['synthesis_s']} s")
    per_rank = "" if d["chunks_per_rank"] is None else f"{d['chunks_per_rank']:g} per rank, "
    click.echo(f"  pieces            {per_rank}{d['units']} in all")
    click.echo(f"  transfers         {d['transfers']} in {d['steps']} steps, height {d['height']}")
    if d["bandwidth_ratio"] is not None:
        click.echo(
            f"  bandwidth ratio   {d['bandwidth_ratio']:.4f}  (exact {d['bandwidth_ratio_exact']}; 1 is optimal)"
        )
    if d["makespan_ratio"] is not None:
        click.echo(f"  makespan ratio    {d['makespan_ratio']:.4f}  (with these pieces, latency 0)")
    if "ratio_to_rs_ag" in d:
        click.echo(f"  against RS + AG   {d['ratio_to_rs_ag']:.4f} of the time of the best ReduceScatter + AllGather")
    if d["time_us"] is not None:
        speed = "nothing has to move"
        if d["algbw_GBps"] is not None:
            speed = f"algbw {d['algbw_GBps']:.1f} GB/s, busbw {d['busbw_GBps']:.1f} GB/s"
        click.echo(f"  predicted         {d['time_us']:.2f} us (bound {d['bound_time_us']:.2f} us), {speed}")
    if d["program_makespan_ratio"] is not None:
        took = "" if d["program_time_us"] is None else f", {d['program_time_us']:.2f} us"
        click.echo(f"  as a program      {d['program_makespan_ratio']:.4f} of the bound at latency 0{took}")
    if d["threadblocks"] is not None:
        scratch = "" if d["scratch_bytes"] is None else f", scratch {d['scratch_bytes']} B"
        click.echo(f"  program           {d['threadblocks']} threadblocks a rank, {d['channels']} channels{scratch}")
    click.echo("  verified          yes")
    click.echo(f"  written           {d['output'] or 'nothing (no -o)'}")


@click.command()
@click.argument("collective", required=False)
@topology_option
@click.option(
    "-s", "--size", type=SIZE, help="Payload (nccl-tests' size) to optimize for, e.g. 64M (K, M, G: powers of 1024)."
)
@click.option("-m", "--method", default="auto", show_default=True, help="Engine or algorithm; see --methods.")
@click.option("--methods", "list_methods", is_flag=True, help="List the methods and what each accepts.")
@click.option(
    "--target", help="Runtime: msccl-executor (.xml's default), msccl, rccl, mscclpp (.json), astra-sim, any."
)
@click.option(
    "--chunks", type=int, metavar="K", help="Cut one rank's shard into K pieces (default: best of 1, 2, 4, 8)."
)
@click.option("--exact", is_flag=True, help="As many pieces as the exact optimal rate needs.")
@click.option("--ranks", type=RANKS, metavar="LIST", help="Only these ranks take part, e.g. 0,1,2,3,7.")
@click.option("--relay", is_flag=True, help="With --ranks: the other GPUs may carry traffic.")
@click.option(
    "--root", type=int, metavar="R", help="Root of broadcast, reduce, gather or scatter (default 0; XML: 0 only)."
)
@click.option("--in-place/--out-of-place", "in_place", default=None, help="Only this mode (default: both).")
@click.option(
    "--instances",
    type=click.IntRange(1, 64),
    default=1,
    help="Cut the payload N times finer and run N copies on channels of their own.",
)
@click.option(
    "--protocol",
    type=click.Choice([p.value for p in Protocol]),
    default="Simple",
    show_default=True,
    help="NCCL protocol that the runtime is to use.",
)
@click.option("--max-threadblocks", type=click.IntRange(1), help="Most threadblocks a rank.")
@click.option("--max-channels", type=click.IntRange(1), help="Most channels.")
@click.option("--time-limit", type=float, metavar="S", help="Stop searching after S seconds; the best so far is kept.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the searches.")
@click.option(
    "-o",
    "--output",
    metavar="OUT",
    help=".xml MSCCL, .json MSCCL++, .et Chakra (a prefix), .sched, .prog; - is stdout.",
)
@click.option("--format", "format_", type=click.Choice(list(_DEFAULT_TARGET)), help="Format, whatever OUT's suffix.")
@force_option
@json_option
@click.pass_context
def synth(ctx: click.Context, **options: Any) -> None:
    """Make one verified schedule for COLLECTIVE on a machine and write it in a runtime's format.

    COLLECTIVE is allreduce, allgather, reducescatter, alltoall, broadcast, reduce, gather or scatter.
    Nothing is written unless it is verified, and with -s only what the target would select at that size.

    Example: collsynth synth allreduce -t dgx-a100:nodes=2 -s 64M -o allreduce.xml
    """
    if options.pop("list_methods"):
        _print_methods(options["as_json"])
        return
    for needed, flag in (("collective", "COLLECTIVE"), ("topology", "-t/--topology")):
        if not options[needed]:
            raise click.UsageError(f"Missing {flag}.", ctx)
    run_synth(**options)


def run_synth(
    *, collective: str, topology: str, gpu_model: str | None, multicast: bool, size: int | None, method: str,
    target: str | None, chunks: int | None, exact: bool, ranks: tuple[int, ...] | None, relay: bool,
    root: int | None, in_place: bool | None, instances: int, protocol: str, max_threadblocks: int | None,
    max_channels: int | None, time_limit: float | None, seed: int, output: str | None, format_: str | None,
    force: bool, as_json: bool,
) -> None:  # fmt: skip
    """The steps of the verb, in order: read, synthesize, lower, write, report."""
    from ..lowering import lower
    from ..synth import synthesize
    from ..synth.spec import Status, SynthSpec

    place = _choose_output(output, format_, target, force, as_json)
    name = canonical_name(collective)
    if chunks is not None and not 1 <= chunks <= 4096:
        raise InputError(f"{chunks} chunks", where="--chunks", expected="1 to 4096")
    if chunks is not None and exact:
        raise InputError("--chunks and --exact exclude each other", hint="one of them")
    if time_limit is not None and not 0 < time_limit < math.inf:
        raise InputError(f"a time limit of {time_limit:g} s", where="--time-limit", expected="more than 0 seconds")
    if relay and ranks is None:
        raise InputError("--relay needs --ranks", expected="the ranks that take part")
    machine = load(topology, gpu_model, multicast)
    machine.require_speeds()
    if ranks is not None:
        machine = machine.subset(ranks, relay=relay)
    wanted = make(name, machine.nranks, root=root)
    spec = SynthSpec(
        size=size, chunks=chunks, exact=exact, root=wanted.root, target=place.target, time_limit=time_limit, seed=seed
    )
    started = time.perf_counter()
    result = synthesize(machine, wanted, spec, method=method)
    if result.status is Status.INFEASIBLE:
        raise InfeasibleError(result.message or "nothing satisfies the constraints")
    if result.schedule is None:
        limit_passed = time_limit is not None and time.perf_counter() - started >= time_limit
        raise (TimeLimitError if limit_passed else RefusedError)(result.message or "no schedule was found")
    notes = []
    if in_place is None and place.target.one_mode:
        in_place = name == "allreduce"  # as training scripts call it
        notes.append(
            f"a file serves one mode of {place.target.name}: {'in' if in_place else 'out of'} place was chosen; "
            "--in-place or --out-of-place chooses"
        )
        click.echo(f"assumed: {notes[0]}", err=True)
    modes = (True, False) if in_place is None else (in_place,)
    program = None
    if place.format != "sched":
        program = lower(
            result.schedule, target=place.target, in_place=True in modes, out_of_place=False in modes,
            instances=instances, protocol=Protocol(protocol), size=size,
            name=f"{name}_{machine.nranks}_{result.method}", max_threadblocks=max_threadblocks,
            max_channels=max_channels,
        )  # fmt: skip
        _refuse_unselectable(program, place, size, modes)
    written = _write(place, result, program, size)
    document = _report(result, program, machine, size, written)
    if chunks is not None and result.chunks_per_rank != chunks:
        notes.append(
            f"{place.target.name} selects no {chunks} pieces a rank at {format_size(size or 0)}: "
            f"{result.schedule.collective.payload_units} units in all were used"
        )
        click.echo(f"assumed: {notes[-1]}", err=True)
    document["assumptions"] += notes
    if as_json:
        print_json(document)
    elif output != "-":
        _print_report(document)
