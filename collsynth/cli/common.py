"""Options and printing that the verbs share."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from ..errors import InputError
from ..topology import Topology
from ..units import parse_size

F = TypeVar("F", bound=Callable[..., Any])


class SizeType(click.ParamType[int]):
    """A size option: `64M`, `1KiB` ..."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return parse_size(value, where=param.opts[0] if param else None)


class RankListType(click.ParamType[tuple[int, ...]]):
    """A rank list option: `0,1,5` or `0-3,7`."""

    name = "ranks"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        where = param.opts[0] if param else None
        ranks: list[int] = []
        for part in str(value).split(","):
            match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part.strip())
            if match is None:
                raise InputError(
                    f"{part.strip()[:40]!r} is not a rank or range", where=where, expected="for example 0,1,5 or 0-3,7"
                )
            begin, end = int(match[1]), int(match[2] or match[1])
            if end < begin or end - begin > 1_000_000:
                raise InputError(
                    f"range {part.strip()!r} is empty or too long", where=where, expected="for example 0-3"
                )
            ranks.extend(range(begin, end + 1))
        return tuple(ranks)


SIZE = SizeType()
RANKS = RankListType()


def topology_option(function: F) -> F:
    """`-t/--topology`, `--gpu-model`, `--multicast`, as every verb that needs a machine takes them."""
    for option in (
        click.option(
            "--multicast",
            is_flag=True,
            help="NVLink switches may multicast and reduce (NVLS): bounds count it, schedules do not use it.",
        ),
        click.option("--gpu-model", metavar="MODEL", help="Card of an nvidia-smi matrix, e.g. H100-SXM: gives speeds."),
        click.option(
            "-t", "--topology", "topology", metavar="T", help="Machine: built-in name (see topo list), file, or -."
        ),
    ):
        function = option(function)
    return function


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
force_option = click.option("-f", "--force", is_flag=True, help="Overwrite existing output.")


def load(topology: str | None, gpu_model: str | None = None, multicast: bool = False) -> Topology:
    """The machine named by `-t`; what was assumed while reading goes to stderr.

    Raises:
        InputError: no machine is named, or it cannot be read.
    """
    if topology is None:
        raise InputError(
            "no machine is given",
            where="-t",
            expected="-t TOPOLOGY",
            hint="`collsynth topo list` for the built-in names",
        )
    from ..formats import load_topology

    machine = load_topology(topology, gpu_model=gpu_model, multicast=multicast)
    for note in machine.assumptions:
        click.echo(f"assumed: {note}", err=True)
    for warning in machine.warnings:
        click.echo(f"warning: {warning}", err=True)
    return machine


def print_json(document: Any) -> None:
    """One JSON document on stdout."""
    click.echo(json.dumps(document, indent=2))
