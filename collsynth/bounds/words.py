"""Bottlenecks in words."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from ..topology import Topology
from ..units import fraction_text, gigabytes_per_second
from .graph import BoolArray, Graph
from .partitions import Partition
from .types import Bottleneck


def speed(bytes_per_second: int) -> str:
    """`25 GB/s`."""
    return f"{gigabytes_per_second(bytes_per_second):.6g} GB/s"


def names(topology: Topology, ranks: Sequence[int]) -> str:
    """The ranks' names, shortened when there are many."""
    listed = [topology.vertices[r].name for r in ranks]
    if len(listed) <= 6:
        return ", ".join(listed)
    return f"{len(listed)} ranks ({listed[0]}, {listed[1]} ... {listed[-1]})"


def through(graph: Graph, links: Sequence[int]) -> str:
    """The links' names and speeds, or their number and sum when there are many."""
    flat = graph.topology
    shown = []
    for link in links:
        row = flat.link(link)
        label = f"the {row.provenance}" if row.kind == "internal" else flat.link_name(link)
        shown.append(f"{label} ({speed(row.bandwidth or 0)})")
    if len(shown) <= 3:
        return " and ".join(shown)
    total = sum(int(flat.link_bandwidth[link]) for link in links)
    return f"{len(shown)} links of {speed(total)} in all ({shown[0].split(' (')[0]}, ...)"


def shards(share: Fraction, total: int | None, noun: str) -> str:
    """`4 shards` when shards are equal (`total` of them), else a share of the payload."""
    if total is None:
        return "the whole payload" if share == 1 else f"{fraction_text(share)} of the payload"
    count = share * total
    return f"{count} {noun}{'' if count == 1 else 's'}"


def cut_bottleneck(graph: Graph, side: BoolArray, nlinks: int, what: str, *, enters: bool) -> Bottleneck:
    """Words for a cut: the smaller side of it must receive or send `what`.

    Args:
        graph: the machine, not turned around.
        side: the cut's vertex set.
        nlinks: number of links of the user's machine (links beyond are vertex capacities).
        what: what has to cross.
        enters: whether the data enters `side` (else it leaves it).
    """
    links = [int(link) for link in graph.exit_links(~side if enters else side)]
    inside = graph.ranks_in(side)
    outside = [r for r in range(graph.nranks) if not side[r]]
    receivers, senders = (inside, outside) if enters else (outside, inside)
    if len(receivers) <= len(senders):
        ranks, verb = receivers, "receive"
    else:
        ranks, verb = senders, "send"
    together = " together" if len(ranks) > 1 else ""
    text = f"{names(graph.topology, ranks)}{together} must {verb} {what} through {through(graph, links)}"
    return Bottleneck(tuple(ranks), tuple(link for link in links if link < nlinks), text)


def partition_bottleneck(graph: Graph, partition: Partition, nlinks: int) -> Bottleneck:
    """Words for a partition: the parts must exchange 2 (p - 1) payloads."""
    parts = partition.parts
    links = sorted({int(link) for part in parts for link in graph.exit_links(part)})
    sizes = [graph.ranks_in(part) for part in parts]
    if all(len(ranks) == 1 for ranks in sizes):
        label = f"the {len(parts)} ranks"
    else:
        shown = [f"{{{names(graph.topology, ranks)}}}" for ranks in sizes[:8]]
        label = f"{len(parts)} groups of ranks, " + ", ".join(shown) + (", ..." if len(sizes) > 8 else "") + ","
    total = sum(partition.egress) * graph.unit
    text = (
        f"{label} must send each other {2 * (len(parts) - 1)} payloads through outgoing links of {speed(total)} in all"
    )
    return Bottleneck(tuple(range(graph.nranks)), tuple(link for link in links if link < nlinks), text)
