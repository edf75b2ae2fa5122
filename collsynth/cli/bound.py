"""`collsynth bound`: how fast a collective can be at best on a machine, and why."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import click

from .common import RANKS, SIZE, json_option, load, print_json, topology_option

if TYPE_CHECKING:
    from ..bounds.types import Bound
    from ..topology import Topology


@click.command()
@click.argument("collective")
@topology_option
@click.option("-s", "--size", type=SIZE, help="Payload (nccl-tests' size) to give a time for, e.g. 64M.")
@click.option("--ranks", type=RANKS, metavar="LIST", help="Only these ranks take part, e.g. 0,1,5 or 0-3.")
@click.option("--relay", is_flag=True, help="With --ranks: let the other GPUs forward.")
@click.option("--root", type=int, metavar="R", help="Root rank of a rooted collective (default 0).")
@json_option
def bound(
    collective: str,
    topology: str | None,
    gpu_model: str | None,
    multicast: bool,
    size: int | None,
    ranks: tuple[int, ...] | None,
    relay: bool,
    root: int | None,
    as_json: bool,
) -> None:
    """Provable lower bound on the time of COLLECTIVE on a machine.

    COLLECTIVE is allreduce, allgather, reducescatter, alltoall, broadcast, reduce, gather or scatter.
    Prints the bandwidth bound (exact), the latency bound, the bottleneck in words and, with --json,
    a certificate that can be checked by itself.
    """
    from ..collective import canonical_name
    from ..errors import InputError

    name = canonical_name(collective)
    machine = load(topology, gpu_model, multicast)
    if relay and ranks is None:
        raise InputError("--relay says what GPUs outside --ranks do", where="--relay", hint="--ranks LIST --relay")
    if ranks is not None:
        machine = machine.subset(ranks, relay=relay)
    from ..bounds import bound as compute

    result = compute(machine, name, root=root)
    if as_json:
        print_json(document(machine, result, size))
    else:
        click.echo(text(machine, result, size))


def _gigabytes(seconds_per_byte: Fraction, factor: Fraction = Fraction(1)) -> float | None:
    """GB/s of a time per byte, times `factor`; None when nothing takes time."""
    return float(factor / seconds_per_byte / 10**9) if seconds_per_byte else None


def _bus(result: Bound) -> float | None:
    """busbw in GB/s: exact until the last step, so that 450 prints as 450."""
    from ..collective import busbw_factor

    factor = Fraction(busbw_factor(result.collective, result.nranks)).limit_denominator(result.nranks)
    return _gigabytes(result.seconds_per_byte, factor)


def document(machine: Topology, result: Bound, size: int | None) -> dict[str, Any]:
    """The JSON document of one bound (keys: the command-line contract)."""
    from ..units import fraction_text, microseconds

    row: dict[str, Any] = {
        "collective": result.collective,
        "topology": machine.name,
        "nranks": result.nranks,
        "algbw_GBps": _gigabytes(result.seconds_per_byte),
        "busbw_GBps": _bus(result),
    }
    if result.root is not None:
        row["root"] = result.root
    if size is not None:
        row["size_bytes"] = size
        row["time_us"] = microseconds(result.picoseconds(size))
        row["limited_by"] = _limit(result, size)
    row["latency_us"] = microseconds(result.latency)
    row["exact"] = fraction_text(result.seconds_per_byte)
    row["bottleneck"] = {
        "ranks": list(result.bottleneck.ranks),
        "links": [machine.link_name(link) for link in result.bottleneck.links],
        "text": result.bottleneck.text,
    }
    row["certificate"] = {
        "kind": result.certificate.kind,
        "scope": result.certificate.scope,
        **result.certificate.data,
    }
    if result.rs_ag_seconds_per_byte is not None:
        row["rs_ag_algbw_GBps"] = _gigabytes(result.rs_ag_seconds_per_byte)
        row["rs_ag_exact"] = fraction_text(result.rs_ag_seconds_per_byte)
    if result.tree_seconds_per_byte is not None:
        row["tree_algbw_GBps"] = _gigabytes(result.tree_seconds_per_byte)
        row["tree_exact"] = fraction_text(result.tree_seconds_per_byte)
    row["multicast"] = result.multicast
    row["notes"] = list(result.notes)
    row["assumptions"] = list(machine.assumptions)
    return row


def _limit(result: Bound, size: int) -> str:
    return "latency" if result.latency > result.seconds_per_byte * size * 10**12 else "bandwidth"


def text(machine: Topology, result: Bound, size: int | None) -> str:
    """The bound for people."""
    from ..units import format_size, fraction_text, microseconds

    rooted = "" if result.root is None else f" from root {result.root}"
    if result.collective in ("reduce", "gather"):
        rooted = rooted.replace("from", "to")
    lines = [f"{result.collective}{rooted} on {machine.name}, {result.nranks} rank{'s' if result.nranks > 1 else ''}"]
    algbw = _gigabytes(result.seconds_per_byte)
    if algbw is None:
        lines.append("  nothing has to move between ranks: the bound is 0")
        return "\n".join(lines)
    lines.append(f"  bandwidth   algbw <= {algbw:.6g} GB/s, busbw <= {_bus(result):.6g} GB/s")
    lines.append(f"              exactly {fraction_text(result.seconds_per_byte)} seconds per byte of payload")
    lines.append(f"  latency     >= {microseconds(result.latency):.6g} us")
    if size is not None:
        time = microseconds(result.picoseconds(size))
        lines.append(f"  at {format_size(size):<8} >= {time:.6g} us, set by {_limit(result, size)}")
    lines.append(f"  bottleneck  {result.bottleneck.text}")
    lines.append(f"  proof       {result.certificate.kind}, holds for {result.certificate.scope}")
    if result.rs_ag_seconds_per_byte:
        share = float(result.rs_ag_seconds_per_byte / result.seconds_per_byte)
        lines.append(
            f"  RS + AG     algbw {_gigabytes(result.rs_ag_seconds_per_byte):.6g} GB/s at best"
            + (f", {share:.4g}x the time of the bound" if share > 1 else ": reaches the bound")
        )
    if result.tree_seconds_per_byte:
        lines.append(f"  trees       algbw {_gigabytes(result.tree_seconds_per_byte):.6g} GB/s at best")
    if result.multicast != "none":
        lines.append(f"  switches    {result.multicast}")
    lines += [f"  note        {note}" for note in result.notes]
    return "\n".join(lines)
