"""Files in and out: what a text is, is decided from its content."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import cast

from .. import registry
from ..errors import InputError
from ..parameters import arguments
from ..topology import Topology


def built_in_topology(name: str, *, multicast: bool = False) -> Topology:
    """The machine that a registered name with parameters describes, e.g. `torus:8x8:bw=25GB/s`.

    Args:
        name: as `topo list` shows.
        multicast: turn the `nvls` parameter on.

    Raises:
        InputError: unknown name or parameter, wrong value, too large, or no switch that multicasts.
    """
    base = name.split(":", 1)[0]
    function = cast(Callable[..., Topology], registry.load("topologies", base))
    given = arguments(name, function)
    if multicast:
        if "nvls" not in signature(function).parameters:
            raise InputError(f"{base} has no NVLink switch that multicasts", where="--multicast", hint="dgx-h100")
        given["nvls"] = True
    return function(**given)


def load_topology(name: str, *, gpu_model: str | None = None, multicast: bool = False) -> Topology:
    return built_in_topology(name, multicast=multicast)
