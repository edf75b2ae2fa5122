"""`collsynth simulate`: predicted time of programs and schedules."""

from __future__ import annotations

import json
from typing import Any

import click

from ..errors import InputError
from ..program import Program
from ..schedule import Schedule
from ..units import format_size, microseconds, parse_size
from .common import force_option, json_option, load, print_json, topology_option


def parse_sizes(text: str) -> list[int]:
    """`64M`, `1K,64K,1M`, or `1K:64M` (every power of two between).

    Raises:
        InputError: not a size list, or an empty or endless range.
    """
    sizes: list[int] = []
    for part in text.split(","):
        first, colon, last = part.partition(":")
        begin = parse_size(first, where="-s")
        end = parse_size(last, where="-s") if colon else begin
        if begin < 1 or end < begin:
            raise InputError(f"{part!r} is not a range of sizes", where="-s", expected="for example 1K:64M")
        while begin <= end:
            sizes.append(begin)
            begin *= 2
    return sizes


def trace_document(result: Any, file: str) -> dict[str, Any]:
    """The critical path as Chrome trace events (opens in Perfetto): one track a sending rank."""
    events = [
        {"name": hop.text, "ph": "X", "pid": 0, "tid": hop.src, "ts": microseconds(hop.start),
         "dur": microseconds(hop.delivered - hop.start), "args": {"waited_us": microseconds(hop.start - hop.ready)}}
        for hop in result.critical_path
    ]  # fmt: skip
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"file": file, "tracks": "sending ranks"}}


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@topology_option
@click.option(
    "-s",
    "--sizes",
    required=True,
    metavar="SIZES",
    help="Payloads: one (64M), a list (1K,64K) or a range that doubles (1K:64M).",
)
@click.option("--trace", metavar="OUT.json", help="Critical path at the last size, for Perfetto.")
@force_option
@json_option
def simulate(
    files: tuple[str, ...], topology: str | None, gpu_model: str | None, multicast: bool, sizes: str,
    trace: str | None, force: bool, as_json: bool,
) -> None:  # fmt: skip
    """Predicted time of each FILE (.xml, .prog, .sched) on a machine, beside the bound.

    A .sched file knows its machine, so -t may be left out for it.
    """
    from ..bounds import bound
    from ..formats import read
    from ..formats.files import check_writable, write_text_atomically
    from ..simulator import simulate as run

    wanted = parse_sizes(sizes)
    if trace == "-" and as_json:
        raise InputError("--json and --trace - both want standard output", hint="--trace FILE")
    if trace is not None and trace != "-":
        check_writable(trace, force=force)
    machine = None if topology is None else load(topology, gpu_model, multicast)
    documents = []
    last = None
    for file in files:
        what = read(file)
        if not isinstance(what, Program | Schedule):
            raise InputError("is neither a program nor a schedule", where=file, expected=".xml, .prog or .sched")
        place = machine or (what.topology if isinstance(what, Schedule) else None)
        if place is None:
            raise InputError("a program has no topology of its own", where=file, hint="-t TOPOLOGY")
        name, root = (
            (what.collective.name, what.collective.root) if isinstance(what, Schedule) else (what.collective, what.root)
        )
        limit = bound(place, name, root=root) if name else None
        rows = []
        for size in wanted:
            last = run(what, machine, size=size)
            rows.append(
                {
                    "size_bytes": size,
                    "time_us": microseconds(last.time),
                    "algbw_GBps": last.algbw / 1e9,
                    "busbw_GBps": last.busbw / 1e9,
                    "bound_time_us": None if limit is None else microseconds(limit.picoseconds(size)),
                    "bound_ratio": float(last.time / limit.picoseconds(size))
                    if limit and limit.picoseconds(size)
                    else None,
                    "max_link_utilisation": last.max_link_utilisation,
                }
            )
        assert last is not None
        documents.append(
            {"file": file, "topology": place.name, "collective": name, "sizes": rows,
             "critical_path": [hop.text for hop in last.critical_path], "assumptions": list(last.assumptions)}
        )  # fmt: skip
    if trace is not None and last is not None:
        events = json.dumps(trace_document(last, files[-1]))
        if trace == "-":
            click.echo(events)
            return
        write_text_atomically(trace, events, force=force)
    if as_json:
        print_json(documents)
        return
    for document in documents:
        _print(document)


def _print(document: dict[str, Any]) -> None:
    click.echo(f"{document['file']} on {document['topology']}")
    click.echo(
        f"  {'size':>8} {'time us':>12} {'algbw GB/s':>11} {'busbw GB/s':>11} {'time/bound':>11} {'busiest link':>13}"
    )
    for row in document["sizes"]:
        ratio = "-" if row["bound_ratio"] is None else f"{row['bound_ratio']:.3f}"
        click.echo(
            f"  {format_size(row['size_bytes']):>8} {row['time_us']:>12.2f} {row['algbw_GBps']:>11.2f} "
            f"{row['busbw_GBps']:>11.2f} {ratio:>11} {100 * row['max_link_utilisation']:>12.1f}%"
        )
    path = document["critical_path"]
    click.echo(f"  critical path at the last size, {len(path)} messages:")
    shown = path if len(path) <= 8 else [*path[:4], f"... {len(path) - 8} more ...", *path[-4:]]
    for text in shown:
        click.echo(f"    {text}")
    for note in document["assumptions"]:
        click.echo(f"  assumed: {note}")
