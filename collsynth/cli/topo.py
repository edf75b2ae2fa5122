"""`collsynth topo`: what a machine description says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import numpy as np

from ..topology import Capability, LinkState, Topology, VertexKind
from ..units import gigabytes_per_second, microseconds
from .common import json_option, print_json

#: Rows of links that the text form prints.
MAX_ROWS = 200


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def topo() -> None:
    """Machine descriptions.

    T is a built-in name with parameters (dgx-a100:nodes=2), a file in the native format, the output of
    `nvidia-smi topo -m`, or - for standard input.
    """


@topo.command("list")
@json_option
def list_(as_json: bool) -> None:
    """The built-in machines and those of plug-ins, with their parameters."""
    from .. import registry
    from ..parameters import usage

    rows = []
    for entry in registry.entries("topologies").values():
        function = registry.load("topologies", entry.name)
        assert callable(function)
        text = (function.__doc__ or "").strip().split("\n")[0]
        usage_text = usage(entry.name, function)
        rows.append(
            {
                "name": entry.name,
                "usage": usage_text,
                "description": text.partition("`: ")[2] or text,
                "provider": entry.provider,
            }
        )
    if as_json:
        print_json(rows)
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        click.echo(f"{row['name']:<{width}}  {row['description']}")
        click.echo(f"{'':<{width}}  {row['usage']}")


@topo.command()
@click.argument("topology", metavar="T")
@click.option("--gpu-model", metavar="MODEL", help="Card of an nvidia-smi matrix, e.g. H100-SXM: gives speeds.")
@click.option(
    "--multicast",
    is_flag=True,
    help="NVLink switches may multicast and reduce (NVLS): bounds count it, schedules do not use it.",
)
@json_option
def show(topology: str, gpu_model: str | None, multicast: bool, as_json: bool) -> None:
    """Links, switches, NICs and rails of T, and everything that was assumed while reading it."""
    from ..formats import load_topology

    machine = load_topology(topology, gpu_model=gpu_model, multicast=multicast)
    if as_json:
        print_json(document(machine))
    else:
        click.echo(text(machine))


# --- contents ----------------------------------------------------------------------------------


def document(machine: Topology) -> dict[str, Any]:
    """The JSON of `topo show`: bandwidths in GB/s (null: unknown), times in microseconds."""
    names = [vertex.name for vertex in machine.vertices]
    return {
        "name": machine.name,
        "nranks": machine.nranks,
        "nnodes": machine.nnodes,
        "nodes": _nodes(machine),
        "links": [
            {
                "src": names[link.src],
                "dst": names[link.dst],
                "kind": link.kind,
                "bandwidth_GBps": None if link.bandwidth is None else gigabytes_per_second(link.bandwidth),
                "latency_us": microseconds(link.latency),
                "overhead_us": microseconds(link.overhead),
                "count": link.count,
                "state": link.state.value,
                "provenance": link.provenance,
            }
            for link in machine.links()
        ],
        "switches": [
            {"name": v.name, "kind": v.kind.value, "node": v.node, "rail": v.rail, "capability": v.capability.value}
            for v in machine.vertices[machine.nranks :]
            if v.kind is not VertexKind.NIC
        ],
        "nics": [
            {"name": v.name, "node": v.node, "rail": v.rail} for v in machine.vertices if v.kind is VertexKind.NIC
        ],
        "rails": _rails(machine),
        "capacities": [
            {
                "name": v.name,
                **{
                    f"{side}_GBps": None if limit is None else gigabytes_per_second(limit)
                    for side, limit in (("in", v.in_capacity), ("out", v.out_capacity), ("total", v.total_capacity))
                },
            }
            for v in machine.vertices
            if (v.in_capacity, v.out_capacity, v.total_capacity) != (None, None, None)
        ],
        "symmetry_generators": len(machine.symmetry),
        "assumptions": list(machine.assumptions),
        "warnings": [*machine.warnings, *_unreachable(machine)],
    }


def _nodes(machine: Topology) -> list[dict[str, Any]]:
    ranks: dict[int | None, list[int]] = {}
    for rank, vertex in enumerate(machine.vertices[: machine.nranks]):
        ranks.setdefault(vertex.node, []).append(rank)
    return [{"node": 0 if node is None else node, "ranks": members} for node, members in ranks.items()]


def _rails(machine: Topology) -> list[dict[str, Any]]:
    """Each rail with its NICs, its switches, and the GPUs that use it (by a link to the NIC, or as read)."""
    vertices = machine.vertices
    rails: dict[int, dict[str, list[str]]] = {}
    for vertex in vertices:
        if vertex.rail is None:
            continue
        row = rails.setdefault(vertex.rail, {"nics": [], "switches": [], "gpus": []})
        kind = "gpus" if vertex.rank is not None else "nics" if vertex.kind is VertexKind.NIC else "switches"
        row[kind].append(vertex.name)
    for src, dst in zip(machine.link_src.tolist(), machine.link_dst.tolist(), strict=True):
        for gpu, nic in ((src, dst), (dst, src)):
            rail = vertices[nic].rail
            if gpu < machine.nranks and vertices[nic].kind is VertexKind.NIC and rail is not None:
                members = rails[rail]["gpus"]
                if vertices[gpu].name not in members:
                    members.append(vertices[gpu].name)
    return [{"rail": rail, **rails[rail]} for rail in sorted(rails)]


def _unreachable(machine: Topology) -> list[str]:
    """A warning when some rank cannot reach, or be reached by, rank 0."""
    for src, dst, verb in (
        (machine.link_src, machine.link_dst, "be reached by"),
        (machine.link_dst, machine.link_src, "reach"),
    ):
        seen = np.zeros(len(machine.vertices), dtype=bool)
        seen[0] = True
        while True:
            fresh = seen[src] & ~seen[dst]
            if not fresh.any():
                break
            seen[dst[fresh]] = True
        lost = [machine.vertices[r].name for r in np.flatnonzero(~seen[: machine.nranks])]
        if lost:
            listed = ", ".join(lost[:8]) + (f" and {len(lost) - 8} more" if len(lost) > 8 else "")
            return [f"not connected: {listed} cannot {verb} {machine.vertices[0].name}"]
    return []


# --- text --------------------------------------------------------------------------------------


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """An ASCII table; columns that hold numbers are set right."""
    columns = list(zip(header, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [all(cell[:1].isdigit() or cell in ("?", "") for cell in column[1:]) for column in columns]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(cells, widths, right, strict=True)
        ).rstrip()

    return "\n".join([line(header), line(["-" * width for width in widths]), *map(line, rows)])


def _number(value: float) -> str:
    return f"{value:.6g}"


def text(machine: Topology) -> str:
    """The text of `topo show`."""
    shown = document(machine)
    noun = "rank" if machine.nranks == 1 else "ranks"
    parts = [f"{machine.name}: {machine.nranks} {noun} in {machine.nnodes} node{'s' * (machine.nnodes != 1)}", ""]
    parts += _link_lines(machine)
    devices = shown["switches"]
    if devices:
        parts += ["", f"Switches ({len(devices)})", table(
            ("name", "kind", "node", "can"),
            [(d["name"], d["kind"], _index(d["node"]), d["capability"].replace(Capability.NONE.value, "forward"))
             for d in devices[:MAX_ROWS]],
        )]  # fmt: skip
    if shown["nics"]:
        parts += ["", f"NICs ({len(shown['nics'])})", table(
            ("name", "node", "rail"),
            [(n["name"], _index(n["node"]), _index(n["rail"])) for n in shown["nics"][:MAX_ROWS]],
        )]  # fmt: skip
    if shown["rails"]:
        parts += ["", f"Rails ({len(shown['rails'])})", table(
            ("rail", "GPUs", "NICs", "switches"),
            [(str(r["rail"]), *(_some(r[key]) for key in ("gpus", "nics", "switches"))) for r in shown["rails"]],
        )]  # fmt: skip
    if shown["capacities"]:
        parts += ["", "Vertices with their own limits", table(
            ("name", "in GB/s", "out GB/s", "total GB/s"),
            [(c["name"], *("" if c[k] is None else _number(c[k]) for k in ("in_GBps", "out_GBps", "total_GBps")))
             for c in shown["capacities"]],
        )]  # fmt: skip
    for title, key in (("Assumptions", "assumptions"), ("Warnings", "warnings")):
        if shown[key]:
            parts += ["", title, *(f"- {note}" for note in shown[key])]
    return "\n".join(parts)


def _link_lines(machine: Topology) -> list[str]:
    """The table of links, the two directions of a pair in one row where they are equal."""
    rows: list[list[str]] = []
    open_rows: dict[tuple[object, ...], list[int]] = {}
    names = [vertex.name for vertex in machine.vertices]
    for link in machine.links():
        figures = (link.bandwidth, link.latency, link.overhead, link.count, link.kind, link.state)
        waiting = open_rows.get((link.dst, link.src, figures))
        if waiting:
            rows[waiting.pop()][1] = "<->"
            continue
        open_rows.setdefault((link.src, link.dst, figures), []).append(len(rows))
        rows.append(
            [
                names[link.src],
                "->",
                names[link.dst],
                link.kind,
                str(link.count),
                "?" if link.bandwidth is None else _number(gigabytes_per_second(link.bandwidth)),
                _number(microseconds(link.latency)),
                "" if link.state is LinkState.OK else link.state.value,
            ]
        )
    if not rows:
        return ["Links (none)"]
    lines = [
        f"Links ({machine.nlinks} directed, GB/s and us in one direction)",
        table(("from", "", "to", "kind", "links", "GB/s", "us", "state"), rows[:MAX_ROWS]),
    ]
    if len(rows) > MAX_ROWS:
        lines.append(f"... and {len(rows) - MAX_ROWS} more rows (--json has all)")
    return lines


def _index(value: int | None) -> str:
    return "" if value is None else str(value)


def _some(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
