"""Names with parameters: `dgx-a100:nodes=2:fabric=rails`, `torus:8x8:bw=25GB/s`.

A named thing is an ordinary function.  Its signature says which parameters the name may carry; the
annotation of each says how text is read: `Count`, `Shape`, `Bandwidth`, `Time`, `bool` (a flag) or
`Literal[...]` (a choice).  Text without `=` fills the parameters without a default, in order, or
sets a flag.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from .errors import InputError
from .units import parse_bandwidth, parse_time

#: Most vertices and links that a machine made from a name may have: above this the columns and the
#: vertex records no longer fit a laptop, so that a slip of the keyboard would fill the memory.
MAX_VERTICES = 200_000
MAX_LINKS = 2_000_000


def parse_count(text: str, *, where: str | None = None) -> int:
    """A whole number of 1 or more (at most nine digits)."""
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
        raise InputError(f"{text[:40]!r} is not a count", where=where, expected="a whole number from 1 to 999999999")
    return int(text)


def parse_shape(text: str, *, where: str | None = None) -> tuple[int, ...]:
    """Sides such as `8x8x4`."""
    sides = text.lower().split("x")
    if len(sides) > 16:
        raise InputError(f"{len(sides)} sides are too many", where=where, expected="at most 16")
    return tuple(parse_count(side, where=where) for side in sides)


Count = Annotated[int, parse_count]
Shape = Annotated[tuple[int, ...], parse_shape]
Bandwidth = Annotated[int, parse_bandwidth]
Time = Annotated[int, parse_time]


def check_extent(vertices: int, links: int, where: str) -> None:
    """Refuse a machine that is too large to hold.

    Raises:
        InputError: more than `MAX_VERTICES` vertices or `MAX_LINKS` links.
    """
    if vertices > MAX_VERTICES or links > MAX_LINKS:
        raise InputError(
            f"{vertices} vertices and {links} links are too many",
            where=where,
            expected=f"at most {MAX_VERTICES} vertices and {MAX_LINKS} links",
        )


def _read(text: str, hint: Any, where: str) -> Any:
    if get_origin(hint) is Annotated:
        return get_args(hint)[1](text, where=where)
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        if text not in choices:
            raise InputError(f"{text[:40]!r} is unknown", where=where, expected=f"one of {', '.join(choices)}")
        return text
    if hint is bool:
        if text not in ("true", "false"):
            raise InputError(f"{text[:40]!r} is not a flag", where=where, expected="no value, true or false")
        return text == "true"
    return text


def usage(name: str, function: Callable[..., Any]) -> str:
    """How a name is written, from the function's signature: `torus:SHAPE[:bw=50GB/s]...`."""
    hints = get_type_hints(function, include_extras=True)
    text = name
    for parameter in inspect.signature(function).parameters.values():
        if parameter.default is inspect.Parameter.empty:
            text += f":{parameter.name.upper()}"
        elif hints.get(parameter.name) is bool:
            text += f"[:{parameter.name}]"
        elif get_origin(hints.get(parameter.name)) is Literal:
            text += f"[:{parameter.name}={'|'.join(get_args(hints[parameter.name]))}]"
        else:
            text += f"[:{parameter.name}={parameter.name.upper()}]"
    return text


def arguments(text: str, function: Callable[..., Any]) -> dict[str, Any]:
    """The keyword arguments that the name `text` gives to `function`.

    Raises:
        InputError: a parameter is unknown, repeated, missing, or has a wrong value.
    """
    base, *parts = text.split(":")
    hints = get_type_hints(function, include_extras=True)
    parameters = inspect.signature(function).parameters
    needed = [p.name for p in parameters.values() if p.default is inspect.Parameter.empty]
    shown = usage(base, function)
    given: dict[str, Any] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        key = key.strip().replace("-", "_")
        if not equals:
            open_names = [name for name in needed if name not in given]
            if hints.get(key) is bool:
                value = "true"
            elif open_names:
                key, value = open_names[0], part
        where = f"{text[:80]}, {key[:40]}"
        if key not in parameters:
            close = difflib.get_close_matches(key, parameters, n=1)
            raise InputError(
                f"unknown parameter {part[:40]!r}", where=text[:80], expected=shown, hint=close[0] if close else None
            )
        if not equals and not value:
            raise InputError("the value is missing", where=where, expected=shown)
        if key in given:
            raise InputError("the parameter is given twice", where=where, expected=shown)
        given[key] = _read(value.strip(), hints.get(key), where)
    missing = [name for name in needed if name not in given]
    if missing:
        raise InputError(f"{' and '.join(missing)} must be given", where=text[:80], expected=shown)
    return given
